"""Each row of the paper minimises what the paper prints, with plain L2 towards 0 and nothing else.

The objectives are written once more here, in NumPy, pair by pair, and minimised by SciPy: the same
scores, and nothing lower. Worst cases bend where a coefficient changes sign. SciPy takes √(k² + ε²)
for |k| and lets ε go to 0; the solver rounds the bend off within `WIDTH` of it, which is set to
1e-4 for the comparison of scores. What rounding adds to the objective at the width in use is
bounded pair by pair, and that much is allowed there, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from puidrec.data.synthetic import simulate
from puidrec.exposure.bounds import bounds
from puidrec.losses import pair_loss
from puidrec.methods.all_pairs import FLOOR
from puidrec.methods.stages import Run, stages_of, train_stages
from puidrec.scores.towers import EXPOSURE, IMPUTATION, RATING

SOLVED = [
    "mf",
    "ips",
    "dr",
    "rd-ips",
    "rd-dr",
    "puid-ips",
    "puid-dr",
    "brd-ips",
    "brd-dr",
    "bpuid-ips",
    "bpuid-dr",
]
L2, DIM, GAMMA = 0.13, 4, 2.0
"""L2 leaves fewer columns than there are: then no local optimum is above the lowest one."""
Loss = Callable[[np.ndarray, float], tuple[float, np.ndarray]]
"""(scores of all pairs, ε) → the printed loss with √(k² + ε²) for |k|, and its slope in every
score."""


@pytest.fixture(scope="module")
def data():
    """30 users and 20 items."""
    return simulate("mixed", 30, 20, density=0.35, rng=1).data


@pytest.fixture
def prepared(data, prepare):
    """(row) → the log through its settings: IDs alone, one Γ for rd-*, a rule of exposure for
    puid-*."""

    def make(method: str, **given):
        gamma = (
            {}
            if method in ("mf", "ips", "dr")
            else {"gamma": GAMMA if "rd" in method else "exposure-gap"}
        )
        options = {"backbone": "mf", "dim": DIM, "l2": L2, "epochs": 3000, **gamma, **given}
        return prepare(method, data=data, **options)

    return make


@dataclass
class Printed:
    """The paper's objectives on a log."""

    prepared: object

    def __post_init__(self) -> None:
        rows, spec = self.prepared.rows, self.prepared.settings.spec
        self.at, self.r = (rows.user, rows.item), self.prepared.log.target(rows).astype(float)
        self.shape = self.prepared.data.n_users, self.prepared.data.n_items
        self.pairs = self.shape[0] * self.shape[1]
        self.a = self.b = np.ones(len(rows))
        if spec.estimator != "naive":
            box = bounds(
                self.prepared.log.nominal.propensity_of(rows), self.prepared.gamma.at(*self.at)
            )
            self.a, self.b = box.a, box.b

    def worst(self, k: np.ndarray, epsilon: float) -> tuple[float, np.ndarray]:
        """Σ over pairs of max(a k, b k), and its slope in k."""
        middle, half = 0.5 * (self.a + self.b), 0.5 * (self.b - self.a)
        size = np.sqrt(k**2 + epsilon**2)
        return float((middle * k + half * size).sum()), middle + half * k / np.where(
            size > 0, size, 1.0
        )

    def prediction(
        self, theta: np.ndarray | None, base: tuple[np.ndarray, np.ndarray | None] | None
    ) -> Loss:
        """`eq:naive`, `eq:ips`, `eq:dr`, `eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`,
        `eq:bpuid-dr`."""

        def terms(s: np.ndarray, g: np.ndarray | None) -> tuple[np.ndarray, float]:
            e = (s[self.at] - self.r) ** 2
            return (
                (e, 0.0) if g is None else (e - (s - g)[self.at] ** 2, float(((s - g) ** 2).sum()))
            )

        k0, everywhere0 = terms(*base) if base is not None else (0.0, 0.0)
        count = self.r.size if self.prepared.settings.spec.estimator == "naive" else self.pairs

        def loss(s: np.ndarray, epsilon: float) -> tuple[float, np.ndarray]:
            k, everywhere = terms(s, theta)
            value, weight = self.worst(k - k0, epsilon)
            slope = np.zeros(self.shape)
            slope[self.at] = weight * 2 * (s[self.at] - self.r)
            if theta is not None:
                slope[self.at] -= weight * 2 * (s - theta)[self.at]
                slope += 2 * (s - theta)
            return (value + everywhere - everywhere0) / count, slope / count

        return loss

    def imputation(self, base: np.ndarray | None) -> Loss:
        """`eq:puid-dr-imp` and `eq:bpuid-dr-imp` of pseudo-labels: a weighted mean over O."""
        k0 = 0.0 if base is None else (base[self.at] - self.r) ** 2

        def loss(g: np.ndarray, epsilon: float) -> tuple[float, np.ndarray]:
            value, weight = self.worst((g[self.at] - self.r) ** 2 - k0, epsilon)
            slope = np.zeros(self.shape)
            slope[self.at] = weight * 2 * (g[self.at] - self.r)
            return value / self.b.sum(), slope / self.b.sum()

        return loss

    def with_l2(self, loss: Loss, x: np.ndarray, epsilon: float) -> tuple[float, np.ndarray]:
        """loss + l2 (mean over users of ‖own parameters‖² + the same over items), of packed
        parameters."""
        users, items, mean = self.unpack(x)
        value, slope = loss(scores(users, items, mean), epsilon)
        parts = []
        for own, other, by in ((users, items, slope), (items, users, slope.T)):
            value += L2 * (own**2).sum() / len(own)
            vectors, biases = by @ other[:, :-1], by.sum(1, keepdims=True)
            parts.append((np.hstack([vectors, biases]) + 2 * L2 * own / len(own)).ravel())
        return value, np.concatenate([*parts, [slope.sum()]])

    def unpack(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        cut = self.shape[0] * (DIM + 1)
        return (
            x[:cut].reshape(self.shape[0], -1),
            x[cut:-1].reshape(self.shape[1], -1),
            float(x[-1]),
        )

    def minimised(self, loss: Loss, start: np.ndarray) -> tuple[float, np.ndarray]:
        """The printed objective (ε = 0) where SciPy ends, and the scores there."""
        x = start
        for epsilon in (1e-2, 1e-3, 1e-4, 1e-5):
            options = {"maxiter": 4000, "ftol": 1e-15, "gtol": 1e-10}
            x = minimize(
                lambda x, e=epsilon: self.with_l2(loss, x, e),
                x,
                jac=True,
                method="L-BFGS-B",
                options=options,
            ).x
        return self.with_l2(loss, x, 0.0)[0], scores(*self.unpack(x))


def scores(users: np.ndarray, items: np.ndarray, mean: float) -> np.ndarray:
    return users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1] + mean


def packed(parameters, part: str) -> np.ndarray:
    """A model's parameters as SciPy has them."""
    names = [f"{part}.user_towers.0.weight", f"{part}.item_towers.0.weight", f"{part}.mean"]
    return np.concatenate([parameters[name].double().numpy().ravel() for name in names])


def solved(prepared):
    """Each stage to its optimum; a benchmarked method as it was solved, even where it would return
    its benchmark."""
    run = Run(prepared)
    for stage in stages_of(prepared):
        run.done[stage.name] = run.solve(stage.build(run.done), stage)
        assert not run.done[stage.name].unfinished
    return run.done


def losses_of(prepared, done, dense) -> dict[str, Loss]:
    """The printed loss of each model of the last stage, given what came before."""
    printed, base = Printed(prepared), done.get("benchmark")
    spec, main = prepared.settings.spec, done["main"]
    theta = dense(main.theta) if spec.imputes else None
    before = (
        None
        if base is None
        else (dense(base.phi), None if base.theta is None else dense(base.theta))
    )
    found = {"phi": printed.prediction(theta, before)}
    if spec.imputes:
        found["theta"] = printed.imputation(None if before is None else before[1])
    return found


@pytest.mark.parametrize("method", SOLVED)
def test_scipy_finds_the_same_scores_and_nothing_lower(
    method, prepared, dense_scores, monkeypatch
) -> None:
    monkeypatch.setattr(pair_loss, "WIDTH", 1e-4)
    given = prepared(method)
    done, printed = solved(given), Printed(given)
    main, rng = done["main"], np.random.default_rng(0)
    for part, loss in losses_of(given, done, dense_scores).items():
        mine = dense_scores(main.phi if part == "phi" else main.theta)
        x = packed(main.parameters, part)
        assert np.abs(printed.unpack(x)[0][:, :-1]).max() > 0.1, (
            "L2 has left no vectors: nothing to find"
        )
        np.testing.assert_allclose(scores(*printed.unpack(x)), mine, atol=1e-6)
        value = printed.with_l2(loss, x, 0.0)[0]
        starts = [
            x,
            *(x + rng.normal(0, 0.1, x.size) for _ in range(2)),
            rng.normal(0, 0.3, x.size),
        ]
        ends = [printed.minimised(loss, start) for start in starts]
        lowest = min(ends, key=lambda end: end[0])
        rounding = loss_bound(given, done, part, dense_scores)
        assert value <= lowest[0] + rounding + 1e-6
        assert rounding < 1e-4
        assert np.abs(ends[0][1] - mine).max() < 1e-3
        near = [end for end in ends if end[0] <= value + 1e-7]  # other starts end there, too
        assert near
        assert max(np.abs(end[1] - mine).max() for end in near) < 1e-3


@pytest.mark.parametrize("method", SOLVED[3:])
def test_at_the_width_in_use_the_printed_objective_is_missed_by_rounding_alone(
    method, prepared, dense_scores
) -> None:
    given = prepared(method)
    done, printed = solved(given), Printed(given)
    for part, loss in losses_of(given, done, dense_scores).items():
        x = packed(done["main"].parameters, part)
        rounding = loss_bound(given, done, part, dense_scores)
        assert printed.with_l2(loss, x, 0.0)[0] <= printed.minimised(loss, x)[0] + rounding + 1e-9
        assert rounding < 2e-3


def loss_bound(prepared, done, part: str, dense) -> float:
    """Σ (b − a)/4 · width, over the pairs, as `RobustLoss` documents it: what rounding can add at
    most."""
    printed, main, base = Printed(prepared), done["main"], done.get("benchmark")
    count = printed.pairs if part == "phi" else printed.b.sum()
    width = np.zeros(printed.r.size)
    if part == "phi" and main.theta is not None:
        width = pair_loss.WIDTH * 2 * np.abs(dense(main.theta)[printed.at] - printed.r)
    elif base is not None:
        own = base.phi if part == "phi" else base.theta
        width = pair_loss.WIDTH * 2 * np.abs(dense(own)[printed.at] - printed.r)
    return float(((printed.b - printed.a) / 4 * width).sum() / count)


@pytest.mark.parametrize("method", ["brd-ips", "brd-dr", "bpuid-ips", "bpuid-dr"])
def test_a_benchmark_that_minimises_the_nominal_loss_is_a_strict_local_minimum(
    method, prepared, dense_scores, monkeypatch
) -> None:
    """No small step away from it lowers the benchmarked objective, so that the row returns its
    benchmark: the nominal part has no first-order change there, and what Γ adds is above it pair by
    pair."""
    monkeypatch.setattr(pair_loss, "WIDTH", 1e-4)
    given = prepared(method)
    done, printed, rng = solved(given), Printed(given), np.random.default_rng(0)
    base = done["benchmark"]
    phi, theta = dense_scores(base.phi), None if base.theta is None else dense_scores(base.theta)
    loss, x = printed.prediction(theta, (phi, theta)), packed(base.parameters, "phi")
    assert loss(phi, 0.0)[0] == pytest.approx(0.0, abs=1e-12)
    here = printed.with_l2(loss, x, 0.0)[0]
    for size in (1e-4, 1e-3, 1e-2):
        for _ in range(30):
            step = rng.normal(size=x.size)
            assert printed.with_l2(loss, x + size * step / np.linalg.norm(step), 0.0)[0] > here
    np.testing.assert_allclose(dense_scores(done["main"].phi), phi, atol=1e-3)
    against_mf = solved(prepared(method, benchmark="mf"))
    assert (
        np.abs(
            dense_scores(against_mf["main"].phi) - dense_scores(against_mf["benchmark"].phi)
        ).max()
        > 0.01
    )


@pytest.mark.parametrize("method", ["brd-ips", "bpuid-dr"])
def test_a_benchmarked_row_never_returns_what_is_worse_than_its_benchmark(
    method, prepared, dense_scores
) -> None:
    given = prepared(method)
    fitted, done = train_stages(given), solved(given)
    base = done["benchmark"]
    theta = None if base.theta is None else dense_scores(base.theta)
    own = None if fitted.theta is None else dense_scores(fitted.theta)
    loss = Printed(given).prediction(own, (dense_scores(base.phi), theta))
    assert loss(dense_scores(fitted.phi), 0.0)[0] <= 1e-6


@pytest.mark.parametrize(
    ("one", "other"), [("rd-ips", "ips"), ("puid-ips", "ips"), ("rd-dr", "dr"), ("puid-dr", "dr")]
)
def test_gamma_one_is_the_plain_row(one, other, prepared, dense_scores) -> None:
    first = solved(prepared(one, gamma=1.0))["main"]
    second = solved(prepared(other))["main"]
    np.testing.assert_allclose(dense_scores(first.phi), dense_scores(second.phi), atol=1e-5)


def test_with_equal_l2_the_optimum_of_dr_is_that_of_ips_up_to_the_scale_of_the_loss(
    prepared, dense_scores
) -> None:
    """φ = g solves DR: its slope there is that of θ's own problem, whose weights sum to 1 in place
    of |D|."""
    given = prepared("dr")
    done = solved(given)["main"]
    printed = Printed(given)
    share = float(printed.b.sum()) / printed.pairs
    scaled = solved(prepared("ips", l2=L2 * share))["main"]
    np.testing.assert_allclose(dense_scores(done.theta), dense_scores(scaled.phi), atol=1e-4)


@pytest.mark.parametrize("method", ["multi-ips", "multi-dr"])
def test_the_joint_loss_of_multi_is_the_printed_one_at_any_parameters(
    method, prepared, dense_scores
) -> None:
    """Adam trains it, heads share what they are made of: it is the objective that is compared, not
    its minimiser."""
    given = prepared(method, epochs=5)
    (stage,) = stages_of(given)
    problem, printed = stage.build({}), Printed(given)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in problem.heads.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    c, s = (dense_scores(problem.heads.factors(head)) for head in (EXPOSURE, RATING))
    seen = np.zeros(printed.shape)
    seen[printed.at] = 1.0
    rate = seen.mean()
    low = max(given.settings.min_propensity, FLOOR * rate)
    weight = 1 / np.clip(c[printed.at], low, 1.0)
    expected = ((c - seen) ** 2).mean() / (2 * rate * (1 - rate))
    if method == "multi-ips":
        expected += (weight * (s[printed.at] - printed.r) ** 2).sum() / printed.pairs
    else:
        g = dense_scores(problem.heads.factors(IMPUTATION))
        e, imputed = (s[printed.at] - printed.r) ** 2, (s - g) ** 2
        expected += (imputed.sum() + (weight * (e - imputed[printed.at])).sum()) / printed.pairs
        expected += (weight * (g[printed.at] - printed.r) ** 2).sum() / printed.pairs
    assert float(problem.loss().detach()) == pytest.approx(expected, rel=1e-6)

"""Losses of logged pairs by numeric derivatives, by limits and over all pairs by brute force;
parabolas above them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from puidrec.losses import pair_loss
from puidrec.losses.pair_loss import (
    HEADS,
    LOSSES,
    WIDTH,
    CrossEntropyError,
    Objective,
    PairLoss,
    PrintedImputation,
    RobustLoss,
    Row,
    UnseenLoss,
    imputation_target,
    pair_sum,
    pointwise_error,
)
from puidrec.scores.log import Log, exact_sum
from puidrec.scores.low_rank import LowRank

SQUARED = pointwise_error("squared")


def robust(**given: Any) -> RobustLoss:
    return RobustLoss(**given)


CASES: dict[str, PairLoss] = {
    **{f"ips {name}": robust(error=pointwise_error(name, "signed")) for name in LOSSES},
    **{
        f"dr {name}": robust(error=pointwise_error(name, "signed"), head="label") for name in LOSSES
    },
    "worst ips": robust(interval=True),
    "worst dr": robust(head="label", interval=True),
    "worst dr, cross-entropy": robust(
        error=pointwise_error("cross-entropy", "unit"), head="label", interval=True
    ),
    "worst dr, ê itself": robust(head="direct", interval=True),
    "benchmarked ips": robust(interval=True, benchmarked=True),
    "benchmarked ips, absolute": robust(
        error=pointwise_error("absolute"), interval=True, benchmarked=True
    ),
    "benchmarked dr": robust(head="label", interval=True, benchmarked=True),
    "unseen": UnseenLoss(0.7, 0.2),
    "unseen, concave": UnseenLoss(0.1, 0.9),
    "printed imputation": PrintedImputation(SQUARED),
}
"""Every class of loss, and every branch of the worst case. The head `residual` holds a part of
itself constant: below."""
BOUNDED = [name for name in CASES if name != "printed imputation"]


def rows(seed: int, n: int = 200) -> tuple[Tensor, Row]:
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> Tensor:
        return torch.from_numpy(rng.uniform(low, high, n))

    a = draw(1, 3)
    row = Row(
        r=draw(-1, 1),
        a=a,
        b=a + draw(0, 4),
        g=draw(-1, 1),
        k0=draw(0.01, 0.5),
        m=draw(0, 1),
        s=draw(-1, 1),
    )
    return draw(-2, 2), row


def away_from_bends(loss: PairLoss, s: Tensor, row: Row) -> Tensor:
    """Where a step of 1e-4 does not cross a bend: of the worst weight, or of an absolute error."""
    clear = ((s - row.r).abs() - WIDTH).abs() > 1e-3
    if not isinstance(loss, RobustLoss):
        return clear
    k = loss.coefficient(s, row)
    clear &= ((s - row.g).abs() - WIDTH).abs() > 1e-3
    return clear & ((k.value.abs() - k.width).abs() > 0.01) & (k.value.abs() > k.width + 0.01)


@pytest.mark.parametrize("name", CASES)
def test_slopes_are_numeric_derivatives_and_so_are_adams(name: str) -> None:
    loss, h = CASES[name], 1e-5
    s, row = rows(0)
    clear = away_from_bends(loss, s, row)
    assert float(clear.double().mean()) > 0.8
    numeric = (loss.value(s + h, row) - loss.value(s - h, row)) / (2 * h)
    torch.testing.assert_close(loss.slope(s, row)[clear], numeric[clear], rtol=1e-6, atol=1e-6)
    own = s.clone().requires_grad_()
    total = pair_sum(loss, own, row)
    total.backward()
    assert float(total.detach()) == pytest.approx(float(loss.value(s, row).sum()))
    torch.testing.assert_close(own.grad, loss.slope(s, row))


@pytest.mark.parametrize("name", ["worst dr", "benchmarked ips", "benchmarked dr"])
def test_inside_a_rounded_bend_slopes_are_derivatives_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_loss, "WIDTH", 0.3)
    loss, h = CASES[name], 1e-6
    s, row = rows(1)
    k = loss.coefficient(s, row)
    inside = k.value.abs() < 0.95 * k.width
    assert int(inside.sum()) > 20
    numeric = (loss.value(s + h, row) - loss.value(s - h, row)) / (2 * h)
    torch.testing.assert_close(loss.slope(s, row)[inside], numeric[inside], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in BOUNDED if CASES[name].quadratic])
def test_where_a_loss_calls_itself_quadratic_its_curvature_is_exact(name: str) -> None:
    loss, h = CASES[name], 1e-4
    s, row = rows(2)
    numeric = (loss.slope(s + h, row) - loss.slope(s - h, row)) / (2 * h)
    torch.testing.assert_close(loss.curvature(s, row), numeric, rtol=1e-6, atol=1e-6)
    far = loss.value(s, row) + loss.slope(s, row) * 3 + 0.5 * loss.curvature(s, row) * 9
    torch.testing.assert_close(loss.value(s + 3, row), far)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), step=st.floats(-6, 6))
def test_a_parabola_with_this_curvature_lies_above_the_loss(
    name: str, seed: int, step: float
) -> None:
    """So that a step of the solver lowers the loss. Within the width of a bend k² of a square is no
    parabola: there it may be missed by what rounding added."""
    loss = CASES[name]
    s, row = rows(seed)
    above = loss.value(s, row) + loss.slope(s, row) * step + 0.5 * loss.curvature(s, row) * step**2
    slack = above - loss.value(s + step, row)
    rounding = torch.zeros_like(s)
    if isinstance(loss, RobustLoss):
        rounding = 0.5 * (row.b - row.a) * loss.coefficient(s, row).width
    assert float((slack + 0.5 * rounding).min()) > -1e-9 * (1 + step**4)


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["worst ips", "worst dr", "benchmarked ips", "benchmarked dr"]),
)
def test_the_worst_weight_is_the_worst_of_all_weights(seed: int, name: str) -> None:
    """`eq:w_p`: no weight in [a, b] gives more, and the loss is above its worst case by half its
    width at most."""
    loss = CASES[name]
    s, row = rows(seed, 60)
    k = loss.coefficient(s, row)
    grid = torch.linspace(0, 1, 21, dtype=torch.float64)[:, None]
    worst = ((row.a + grid * (row.b - row.a)) * k.value).max(0).values
    gap = loss.value(s, row) - worst
    assert float(gap.min()) > -1e-12
    assert float((gap - 0.25 * (row.b - row.a) * k.width).max()) < 1e-12


def test_gamma_one_is_ips_and_dr_by_hand() -> None:
    """a = b = 1/p: `eq:ips` and `eq:dr`."""
    p, s, r, g = (
        torch.tensor(x).double() for x in ([0.5, 0.25], [1.0, 3.0], [0.0, 1.0], [2.0, 2.0])
    )
    row = Row(r=r, a=1 / p, b=1 / p, g=g)
    for interval in (False, True):
        assert RobustLoss(interval=interval).value(s, row).tolist() == pytest.approx([2.0, 16.0])
        dr = RobustLoss(head="label", interval=interval)
        assert dr.value(s, row).tolist() == pytest.approx([2.0 * (1 - 1), 4.0 * (4 - 1)])


def test_a_wider_box_never_lowers_the_loss() -> None:
    s, row = rows(3)
    values = []
    for gamma in (1.0, 1.5, 3.0):
        row.a, row.b = 1 + 3 / gamma * torch.ones_like(s), 1 + 3 * gamma * torch.ones_like(s)
        values.append(float(RobustLoss(head="label", interval=True).value(s, row).sum()))
    assert values[0] < values[1] < values[2]


def test_a_benchmark_changes_the_worst_weights() -> None:
    """A pair that improved on the benchmark gets its smallest weight, one that got worse its
    largest."""
    row = Row(
        r=torch.zeros(2), a=torch.ones(2), b=torch.tensor([3.0, 5.0]), k0=torch.tensor([4.0, 1.0])
    )
    s = torch.tensor([1.0, 2.0**0.5])
    value = RobustLoss(interval=True, benchmarked=True).value(s, row)
    assert value.tolist() == pytest.approx([-3.0 * 1.0, 1.0 * 5.0], rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("head", [None, *HEADS])
def test_the_benchmarked_loss_is_zero_at_the_benchmark(loss: str, head: str | None) -> None:
    s, row = rows(4)
    plain = RobustLoss(pointwise_error(loss, "signed"), head)
    row.k0 = plain.coefficient(s, row).value
    found = replace(plain, interval=True, benchmarked=True)
    k = found.coefficient(s, row)
    assert float(k.value.abs().max()) < 1e-12
    assert float((found.value(s, row) - 0.25 * (row.b - row.a) * k.width).abs().max()) < 1e-12


@pytest.mark.parametrize("error", [pointwise_error(name, "signed") for name in LOSSES])
def test_each_head_has_an_output_at_which_the_imputed_error_is_the_error(error) -> None:
    prediction, target = torch.tensor([0.2, 1.5]), torch.tensor([1.0, -1.0])
    for name in HEADS:
        g = imputation_target(name, error, prediction, target)
        if name.startswith("label") and isinstance(error, CrossEntropyError):
            g = 20.0 * g  # a log-odds that stands for the target
        k = RobustLoss(error, name).coefficient(prediction, Row(r=target, g=g))
        torch.testing.assert_close(k.value, torch.zeros(2), rtol=0, atol=1e-6)


@given(seed=st.integers(0, 10**6))
def test_the_coefficient_of_dr_is_the_difference_of_two_errors(seed: int) -> None:
    """In closed form for squares: (g − r)(2s − r − g), without cancellation."""
    s, row = rows(seed)
    for head in ("label", "residual"):
        g = row.g if head == "label" else s + row.g
        expected = SQUARED.value(s, row.r) - SQUARED.value(s, g)
        torch.testing.assert_close(RobustLoss(head=head).coefficient(s, row).value, expected)


def test_the_printed_imputation_cannot_tell_a_label_from_its_mirror_image() -> None:
    """ê = e at g = r and at g = 2s − r; the default head learns the first only."""
    s, r = torch.tensor([0.2, 1.5]), torch.tensor([1.0, -1.0])
    row, mirror = Row(r=r, a=torch.ones(2), b=torch.ones(2), s=s), 2 * s - r
    printed, fitted = PrintedImputation(SQUARED), RobustLoss()
    for g in (r, mirror):
        torch.testing.assert_close(printed.value(g, row), torch.zeros(2), rtol=0, atol=1e-10)
    assert (fitted.value(mirror, row) > 1).all()
    torch.testing.assert_close(fitted.value(r, row), torch.zeros(2))


def test_a_residual_moves_with_the_prediction_as_a_pseudo_label() -> None:
    """∂ê/∂s = −2g, not 0, though ê's value is g² whatever s is: ∂k/∂s = 2 (s − r) + 2g."""
    row = Row(r=torch.tensor([1.0]), g=torch.tensor([0.5]))
    k = RobustLoss(head="residual").coefficient(torch.tensor([0.3]), row)
    assert float(k.value) == pytest.approx(0.49 - 0.25)
    assert float(k.slope) == pytest.approx(-1.4 + 1.0)


def test_the_direct_head_gives_dr_the_gradient_of_ips() -> None:
    """With known weights ê = g does not move with φ, so DR only shifts the loss."""
    s, row = rows(5)
    row.a = row.b
    torch.testing.assert_close(RobustLoss(head="direct").slope(s, row), RobustLoss().slope(s, row))


@dataclass
class Everywhere:
    """An objective and, independently, its value of any matrix of scores, pair by pair."""

    objective: Objective
    mask: Tensor

    def dense(self, scores: Tensor) -> Tensor:
        numbers = {name: column.values for name, column in self.objective.columns.items()}
        found = self.objective.scale * pair_sum(
            self.objective.loss, scores[self.mask], Row(**numbers)
        )
        if self.objective.v:
            m = (
                self.objective.m.tile()
                if self.objective.m is not None
                else torch.zeros_like(scores)
            )
            found = found + self.objective.v * (scores - m).square().sum()
        return found + self.objective.constant


def pair(scores: LowRank) -> tuple[Tensor, Tensor]:
    """Users' and items' factors."""
    return scores.lefts[0].detach(), scores.rights[0].detach()


def slope_along(objective: Objective, here: LowRank, step: LowRank) -> float:
    """Of J in t, from its slopes in the factors."""
    at = pair(here)
    slopes = objective.factor_slopes(objective.log.scores_of(here), at)[0]
    return -2.0 * sum(float((x * y).sum()) for x, y in zip(slopes, pair(step), strict=True))


NAMES = ["naive", "ips", "dr", "signed", "worst dr", "benchmarked ips"]


@pytest.fixture
def everywhere(make_log, make_scores):
    """The rows of the module's table on a random log."""

    def make(name: str, dtype: torch.dtype = torch.float64) -> Everywhere:
        log, columns, mask = make_log(
            0, dtype=dtype, gamma=2.0 if name.startswith(("worst", "bench")) else 1.0
        )
        pairs, m = log.n_pairs, make_scores(9, 3, dtype).detach()
        columns["g"] = columns["m"] = log.scores_of(m)
        columns["k0"] = log.map(lambda r: 0.3 + 0.1 * r, columns["r"])
        scale = 1.0 / pairs
        lam = 1.5 / (pairs - len(log))
        found = {
            "naive": Objective(
                log,
                RobustLoss(),
                {**columns, "b": log.map(torch.ones_like, columns["r"])},
                1 / len(log),
            ),
            "ips": Objective(log, RobustLoss(), columns, scale),
            "dr": Objective(log, RobustLoss(head="label"), columns, scale, scale, m, constant=-0.2),
            "signed": Objective(log, UnseenLoss(1 / len(log), lam), columns, 1.0, lam, m),
            "worst dr": Objective(
                log, RobustLoss(head="label", interval=True), columns, scale, scale, m
            ),
            "benchmarked ips": Objective(
                log, RobustLoss(interval=True, benchmarked=True), columns, scale
            ),
        }[name]
        return Everywhere(found, mask)

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_slopes_equal_brute_force_over_all_pairs(
    name, dtype, everywhere, make_scores
) -> None:
    """`eq:naive`, `eq:ips`, `eq:dr`, `eq:puid-dr`, `eq:bpuid-ips` written out over D."""
    problem, factors = everywhere(name, dtype), make_scores(1, 4, dtype)
    objective, tolerance = problem.objective, 1e-5 if dtype == torch.float32 else 1e-10
    dense = problem.dense(factors.tile())
    s = objective.log.scores_of(factors.detach())
    at = pair(factors)
    assert objective.value(s, at) == pytest.approx(float(dense.detach()), rel=tolerance)
    slopes = torch.autograd.grad(dense, [factors.lefts[0], factors.rights[0]])
    for mine, theirs in zip(objective.factor_slopes(s, at)[0], slopes, strict=True):
        assert float((mine + 0.5 * theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.parametrize("name", NAMES)
def test_the_value_along_a_line_is_its_polynomial(name, everywhere, make_scores) -> None:
    """Exactly where a loss is quadratic; where it bends, `along` is the loss itself and the
    polynomial is above it."""
    problem = everywhere(name)
    objective = problem.objective
    here, step = make_scores(1, 4).detach(), make_scores(2, 4).detach()
    s = objective.log.scores_of(here)
    at, slope = pair(here), slope_along(objective, here, step)
    line = objective.line(s, at, objective.factor_slopes(s, at)[1], pair(step), slope, 0.0)
    before, h = float(problem.dense(here.tile())), 1e-5
    for t in (-0.7, 0.05, 0.3, 2.0):
        moved = LowRank.of(here.lefts[0] + t * step.lefts[0], here.rights[0] + t * step.rights[0])
        expected = float(problem.dense(moved.tile())) - before
        told = np.polynomial.polynomial.polyval(t, line.above)
        assert objective.along(line, t, exact=True) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        numeric = [objective.along(line, t + step, exact=True) for step in (-h, h)]
        assert objective.along(line, t) == pytest.approx(
            (numeric[1] - numeric[0]) / (2 * h), rel=1e-3
        )
        if objective.loss.quadratic:
            assert told == pytest.approx(expected, rel=1e-9)
        else:
            assert told >= expected - 1e-9


@pytest.mark.parametrize(
    "sizes", [(1.0, 1.0), (1e-6, 1e-6), (1e-8, 1e-2), (1e-30, 1e-3), (0.0, 1e-4), (0.0, 0.0)]
)
def test_scores_along_a_line_keep_their_digits_however_short_the_step(
    sizes, everywhere, make_scores
) -> None:
    problem = everywhere("naive", torch.float32)
    here, step = (
        make_scores(1, 4, torch.float32).detach(),
        make_scores(2, 4, torch.float32).detach(),
    )
    step = LowRank.of(sizes[0] * step.lefts[0], sizes[1] * step.rights[0])
    s0 = problem.objective.log.scores_of(here)
    at = pair(here)
    line = problem.objective.line(
        s0, at, problem.objective.factor_slopes(s0, at)[1], pair(step), 0.0, 0.0
    )
    s1 = (line.far.values - s0.values) / line.reach - line.reach * line.s2.values

    def dense(left: Tensor, right: Tensor) -> Tensor:
        return (left.double() @ right.double().T)[problem.mask]

    (left,), (right,), (dl,), (dr,) = here.lefts, here.rights, step.lefts, step.rights
    first, second = dense(dl, right) + dense(left, dr), dense(dl, dr)
    assert float((s1 - first).abs().max()) <= 1e-5 * float(first.abs().max())
    assert float((line.s2.values - second).abs().max()) <= 1e-5 * float(second.abs().max())


def test_rounded_bends_are_above_the_worst_case_and_vanish_with_their_width(monkeypatch) -> None:
    s, row = rows(6)
    for name in ("worst dr", "benchmarked ips"):
        gaps = []
        for width in (0.1, 0.01, 0.001, 0.0):
            monkeypatch.setattr(pair_loss, "WIDTH", width)
            k = CASES[name].coefficient(s, row).value
            gaps.append(
                float((CASES[name].value(s, row) - torch.maximum(row.a * k, row.b * k)).sum())
            )
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[0] > 0.0
        assert gaps[-1] == pytest.approx(0.0, abs=1e-12)


def test_the_unseen_sum_survives_cancellation(make_log, make_scores) -> None:
    """All but 2 % of the pairs are logged: the sum over D less the logged part is a small
    difference of large ones."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        log, columns, mask = make_log(0, 0.98, dtype)
        scores = make_scores(0, dtype=dtype).detach()
        columns["m"] = log.map(torch.zeros_like, columns["r"])
        objective = Objective(log, UnseenLoss(0.0, 1.0), columns, 1.0, 1.0)
        exact = float((scores.tile().double() * ~mask).square().sum())
        assert objective.value(log.scores_of(scores), pair(scores)) == pytest.approx(
            exact, rel=tolerance
        )


def population(seed: int, n_users: int = 60, n_items: int = 40):
    """Known propensities and fixed ratings: one draw after another of what is observed."""
    rng = np.random.default_rng(seed)
    rating = rng.choice([-1.0, 1.0], (n_users, n_items))
    chance = 1 / (1 + np.exp(-(rng.normal(-1.0, 0.7, (n_users, 1)) + 0.8 * rating)))
    two = (
        LowRank.of(*(torch.tensor(rng.normal(size=(n, 3))) for n in rating.shape)) for _ in range(2)
    )
    return rng, rating, chance, *two


@pytest.mark.parametrize("wrong", ["nothing", "imputation", "propensity"])
def test_unbiased_over_500_draws(wrong: str) -> None:
    """IPS with true propensities, and DR with either part wrong, within 2 standard errors of the
    truth."""
    rng, rating, chance, phi, theta = population(
        {"nothing": 3, "imputation": 1, "propensity": 2}[wrong]
    )
    truth = float((phi.tile() - torch.tensor(rating)).square().mean())
    if wrong == "propensity":  # then the pseudo-labels are the ratings: a full-rank factorisation
        theta = LowRank.of(
            torch.eye(len(rating), dtype=torch.float64), torch.tensor(rating.T.copy())
        )
    used = np.full_like(chance, 0.5) if wrong == "propensity" else chance
    draws: dict[str, list[float]] = {"ips": [], "dr": []}
    for _ in range(500):
        mask = rng.random(rating.shape) < chance
        row_start = np.concatenate([[0], np.cumsum(mask.sum(1))])
        log = Log(row_start, np.nonzero(mask)[1], rating.shape[1], dtype=torch.float64)
        columns = {"r": log.filled(lambda rows, m=mask: rating[m][rows])}
        columns["a"] = columns["b"] = log.filled(lambda rows, m=mask: (1 / used[m])[rows])
        columns["g"] = log.scores_of(theta)
        s, unit = log.scores_of(phi), 1 / log.n_pairs
        draws["ips"].append(Objective(log, RobustLoss(), columns, unit).value(s, pair(phi)))
        draws["dr"].append(
            Objective(log, RobustLoss(head="label"), columns, unit, unit, theta).value(s, pair(phi))
        )
    for name, must_hold in (("ips", wrong != "propensity"), ("dr", True)):
        gap = abs(np.mean(draws[name]) - truth)
        assert (gap <= 2 * np.std(draws[name]) / np.sqrt(500) + 1e-9) == must_hold


def test_long_sums_are_made_in_double_precision() -> None:
    values = torch.full((200_001,), 0.1)
    assert float(exact_sum(values)) == pytest.approx(float(values.double().sum()), rel=1e-6)
    assert abs(float(values.sum()) - 20_000.1) >= abs(
        float(exact_sum(values)) - float(values.double().sum())
    )


class Pinball(PairLoss):
    """What `docs/extending.md` promises: value, slope and curvature are all a loss has to write."""

    def value(self, s: Tensor, row: Row) -> Tensor:
        return row.b * (s - row.r) ** 4

    def slope(self, s: Tensor, row: Row) -> Tensor:
        return 4 * row.b * (s - row.r) ** 3

    def curvature(self, s: Tensor, row: Row) -> Tensor:
        return 12 * row.b * (s - row.r) ** 2


def test_a_loss_of_ones_own_is_an_objective(make_log, make_scores) -> None:
    log, columns, mask = make_log(0)
    problem = Everywhere(Objective(log, Pinball(), columns, 1 / len(log)), mask)
    factors = make_scores(1).detach()
    s = log.scores_of(factors)
    assert problem.objective.value(s, pair(factors)) == pytest.approx(
        float(problem.dense(factors.tile()))
    )

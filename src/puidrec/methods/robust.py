"""The grid of the paper's methods: estimator × uncertainty × benchmark, one problem for all of its
eleven rows.

Each minimises the loss that `losses.pair_loss` states, with plain L2 towards 0 and nothing else. Γ
= 1 gives IPS and DR, unit weights the naive loss; only the benchmark and the imputation model add
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from puidrec.data.row_matrix import row_hashes
from puidrec.errors import InputError
from puidrec.losses.pair_loss import (
    Objective,
    PairLoss,
    PrintedImputation,
    RobustLoss,
    Row,
    imputation_target,
)
from puidrec.losses.pointwise import PairError
from puidrec.losses.whole_space import linear_sum, square_sum, tiled_sum
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import (
    Done,
    Fitted,
    LossProblem,
    Part,
    Problem,
    Stage,
    row_of,
    total_loss,
)
from puidrec.optimise.adam import Step
from puidrec.optimise.checkpoint import with_prefix
from puidrec.scores.log import Column, Log, exact_sum
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings


@dataclass(frozen=True)
class Benchmark:
    """The frozen φ⁰, θ⁰ of BRD and BPUID."""

    phi: LowRank
    theta: LowRank | None


@dataclass(frozen=True)
class Unrounded(PairLoss):
    """A robust loss with its bends as they are: where k = 0, as at a benchmark, it is 0."""

    loss: RobustLoss

    def value(self, s: Tensor, row: Row) -> Tensor:
        """max over w in [a, b] of w k(s)."""
        k = self.loss.coefficient(s, row).value
        return torch.where(k >= 0.0, row.b, row.a) * k


@torch.no_grad()
def normalised_worst_case_weights(k: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """argmax over w in [a, b] of Σ w·k / Σ w (Hájek): b where k is above the largest ratio, a
    elsewhere.

    Dinkelbach's iteration climbs there in a handful of passes: from a ratio to the weights that
    raise it most, and to theirs. With k ≥ 0 everywhere (IPS) the plain worst case is b itself, with
    one Γ IPS up to scale; this one does something there.
    """
    found, k = b, k.double()
    ratio = (b * k).sum() / b.sum(dtype=torch.float64)
    while True:
        weights = torch.where(k > ratio, b, a)
        higher = (weights * k).sum() / weights.sum(dtype=torch.float64)
        if not higher > ratio:
            return found
        found, ratio = weights, higher


@dataclass
class RobustProblem(Problem):
    """mean over D of base + o·w·k at the worst w (`eq:naive` … `eq:bpuid-dr-imp`)."""

    log: Log
    columns: Mapping[str, Column]
    """Ratings and the ends of weights of logged pairs."""
    error: PairError
    benchmark: Benchmark | None = None
    interval: bool = False
    """Whether weights are intervals."""
    imputation_columns: Mapping[str, Column] | None = None
    """The same with the weights of θ's step, where they are not those of φ's."""
    imputed: tuple[Column, LowRank] | None = None
    """g of logged pairs and of all pairs, where it is known already."""
    _reference: dict[str, Column] = field(default_factory=dict)

    @property
    def benchmarked(self) -> bool:
        """Never worse than the benchmark for any weights in the box: the robust loss against it is
        at most 0."""
        return self.benchmark is not None

    @property
    def head(self) -> str | None:
        """What the imputation model's output means; None without one."""
        return self.settings.head if self.settings.spec.imputes else None

    @property
    def parts(self) -> Sequence[Part]:
        """θ first (its pseudo-labels do not depend on φ), then φ; for squared losses, not
        normalised."""
        return self._models if is_solvable(self.settings, self.error) else ()

    @property
    def _models(self) -> Sequence[Part]:
        theta = self.theta
        first = () if theta is None else (Part("theta", theta, self.theta_objective),)
        return (*first, Part("phi", self.phi, self.phi_objective))

    @property
    def steps(self) -> Sequence[Step]:
        """φ, then θ where the method imputes, one step each."""
        *theta, phi = self._models

        def loss() -> Tensor:
            return self._total(self.phi_objective(), self.phi.factors())

        return [phi.step(self.settings, loss), *(part.step(self.settings) for part in theta)]

    @torch.no_grad()
    def excess(self) -> float:
        """As printed, with bends as they are: rounded off, a benchmark would lie above itself."""
        if self.benchmark is None:
            return 0.0
        objective, phi = self.phi_objective(), self.phi.factors().detach()
        assert isinstance(objective.loss, RobustLoss)  # noqa: S101 (that of φ)
        if not _normalises(self.settings):
            objective = replace(objective, loss=Unrounded(objective.loss))
        if not self.parts:
            return float(self._total(objective, phi))
        own = self.log.own(phi.lefts[0]), phi.rights[0]
        return objective.value(self.log.scores_of(phi), own)

    def phi_objective(self) -> Objective:
        """`eq:naive`, `eq:ips`, `eq:dr`, `eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`,
        `eq:bpuid-dr`."""
        loss = RobustLoss(self.error, self.head, self.interval, self.benchmarked)
        columns, constant, g = dict(self.columns), 0.0, None
        if self.head is not None:
            columns["g"], g = self._imputed()
        if self.benchmark is not None:
            columns["k0"] = self._benchmark_column("phi")
            constant = -self._benchmark_base
        if self.settings.spec.estimator == "naive":
            return Objective(self.log, loss, columns, 1.0 / len(self.log), constant=constant)
        scale = 1.0 / self.log.n_pairs
        quadratic = self.head in ("label", "label-squared") and self.error.quadratic
        if not quadratic or g is None:
            return Objective(self.log, loss, columns, scale, constant=constant)
        return Objective(self.log, loss, columns, scale, scale, g, constant)

    def theta_objective(self) -> Objective:
        """`eq:puid-dr-imp`, `eq:bpuid-dr-imp`: the imputation model on logged pairs, a weighted
        mean."""
        columns = dict(self.imputation_columns or self.columns)
        loss: PairLoss = RobustLoss(self._imputation_error, None, self.interval, self.benchmarked)
        if self.settings.head == "label-squared":
            loss = PrintedImputation(self.error)
            columns["s"] = self._scores(self.phi.factors())
        else:
            columns["r"] = self._imputation_target(self.phi.factors())
        if self.benchmark is not None:
            columns["k0"] = self._benchmark_column("theta")
        return Objective(
            self.log, loss, columns, 1.0 / float(self.log.sum(exact_sum, columns["b"]))
        )

    @property
    def _imputation_error(self) -> PairError:
        """Pseudo-labels are fitted by the method's error, residuals and errors by squares."""
        return self.error if self.settings.head.startswith("label") else PairError()

    def _imputation_target(self, phi: LowRank) -> Column:
        """What θ is fitted to: ratings, or what φ leaves of them."""
        head, error, r = self.settings.head, self.error, self.columns["r"]
        if head.startswith("label"):
            return r
        return self.log.map(lambda s, r: imputation_target(head, error, s, r), self._scores(phi), r)

    @torch.no_grad()
    def _scores(self, scores: LowRank) -> Column:
        return self.log.scores_of(scores.detach())

    def _imputed(self) -> tuple[Column, LowRank]:
        """g of logged pairs, and of all."""
        if self.imputed is not None:
            return self.imputed
        assert self.theta is not None  # noqa: S101 (asked for where there is θ)
        with torch.no_grad():
            g = self.theta.factors().detach()
        return self._scores(g), g

    def _total(self, objective: Objective, phi: LowRank) -> Tensor:
        """The loss of φ, with what an objective cannot hold: normalised weights, and mean_D ê where
        it is no square of φ's scores."""
        if _normalises(self.settings):
            objective = self._normalised(objective, phi)
        total = total_loss(objective, phi)
        if self.head is None or objective.v:
            return total
        return total + (1.0 / self.log.n_pairs) * self.imputed_sum(phi, self._imputed()[1])

    @torch.no_grad()
    def _normalised(self, objective: Objective, phi: LowRank) -> Objective:
        """The same at the weights of the worst weighted mean."""
        assert isinstance(objective.loss, RobustLoss)  # noqa: S101 (that of φ)
        known, columns = replace(objective.loss, interval=False), dict(objective.columns)
        row = row_of(columns)
        k = known.coefficient(self._scores(phi).values, row).value
        weights = normalised_worst_case_weights(k, row.a, row.b)
        columns["a"] = columns["b"] = Column(weights)
        scale = 1.0 / float(weights.sum(dtype=torch.float64))
        return replace(objective, loss=known, columns=columns, scale=scale)

    def imputed_sum(self, phi: LowRank, g: LowRank) -> Tensor:
        """Σ_D ê: by Gram matrices for squares, by tiles else."""
        head = self.settings.head
        if head == "direct":
            return linear_sum(g)
        if self.error.quadratic:
            return square_sum(
                phi.minus(g) if head != "residual" else phi.minus(phi.detach()).minus(g)
            )

        def values(rows: slice, columns: slice, prediction: Tensor, output: Tensor) -> Tensor:
            if head == "residual":
                return self.error.value(
                    prediction, self.error.to_target(prediction.detach()) + output
                )
            return self.error.value(prediction, self.error.to_target(output))

        return tiled_sum(values, phi, g)

    def _benchmark_column(self, step: str) -> Column:
        """k of the benchmark on logged pairs: a constant."""
        assert self.benchmark is not None  # noqa: S101 (asked for where there is one)
        if step not in self._reference:
            phi, theta = self.benchmark.phi, self.benchmark.theta
            s, loss = self._scores(phi), RobustLoss(self.error, self.head)
            columns: dict[str, Column] = {"r": self.columns["r"]}
            if theta is not None and step == "theta":
                s, loss = self._scores(theta), RobustLoss(self._imputation_error)
                columns["r"] = self._imputation_target(phi)
            elif theta is not None:
                columns["g"] = self._scores(theta)
            found = self.log.map(lambda s, row: loss.coefficient(s, row).value, s, row=columns)
            self._reference[step] = found
        return self._reference[step]

    @cached_property
    def _benchmark_base(self) -> float:
        """mean_D ê of the benchmark."""
        assert self.benchmark is not None  # noqa: S101 (asked for where there is one)
        if self.benchmark.theta is None:
            return 0.0
        imputed = self.imputed_sum(self.benchmark.phi, self.benchmark.theta)
        return (1.0 / self.log.n_pairs) * float(imputed)


def _normalises(settings: Settings) -> bool:
    return settings.normalise and settings.spec.estimator != "naive"


def is_solvable(settings: Settings, error: PairError) -> bool:
    """Whether least squares can lower the losses: not normalised; of pseudo-labels and squares
    where there is θ."""
    if _normalises(settings):
        return False
    return not settings.spec.imputes or (settings.head == "label" and error.quadratic)


def stages(prepared: Prepared) -> list[Stage]:
    """The method alone, or after the benchmark it is measured against: the estimator without
    uncertainty, or mf."""
    settings, spec = prepared.settings, prepared.settings.spec
    if not spec.benchmark:
        return weighted_stages(prepared, prepared, "main")
    base = prepared.first_stage("mf" if settings.benchmark == "mf" else spec.estimator)
    return [
        *weighted_stages(prepared, base, "benchmark"),
        Stage(
            "main",
            lambda done: _benchmarked(prepared, done["benchmark"]),
            refines=settings.warm_start,
            shrink_to=shrunk_to(settings),
        ),
    ]


def shrunk_to(settings: Settings) -> str | None:
    """The stage that L2 pulls weighted fits to with `shrink_to="mf"`: the ratings as they are.

    Weights multiply the noise of single rows; what there is to find stays the same. Pulled to the
    unweighted fit, they change what ratings say clearly, and leave the rest as it is.
    """
    return settings.shrink_to and ("unweighted" if settings.spec.estimator != "naive" else None)


def weighted_stages(prepared: Prepared, base: Prepared, name: str) -> list[Stage]:
    """The stages of a method up to one row of the grid, `base`: with `shrink_to`, after the
    unweighted fit; with `cross_fit`, after an imputation model per fold."""
    settings, found, names = base.settings, list[Stage](), list[str]()
    if shrunk_to(prepared.settings):
        naive = prepared.first_stage("mf")
        found.append(Stage("unweighted", lambda done: robust_problem(naive, "unweighted")))
    if settings.cross_fit and settings.spec.imputes:
        if settings.cross_fit < 2 or not is_solvable(settings, base.error):
            raise InputError(
                "cross_fit needs two folds, a squared loss and the head label",
                found=f"{settings.cross_fit} folds, loss {settings.loss}, head {settings.head}",
                hint="Leave cross_fit out, or loss and head at their defaults.",
            )
        names = [f"{name} without fold {k + 1}" for k in range(settings.cross_fit)]
        found += [Stage(one, partial(_without_fold, base, one, k)) for k, one in enumerate(names)]

    def build(done: Done) -> RobustProblem:
        problem = robust_problem(base, name)
        return _cross_fitted(base, problem, [done[one].phi for one in names]) if names else problem

    return [*found, Stage(name, build, shrink_to=shrunk_to(settings))]


def robust_problem(prepared: Prepared, stage: str) -> RobustProblem:
    """The problem of one stage, with fresh parameters."""
    settings, spec = prepared.settings, prepared.settings.spec
    start = None if settings.head.startswith("label") else 0.0  # a residual or an error starts at 0
    return RobustProblem(
        settings,
        prepared.backbone(f"{stage} phi"),
        prepared.log.operator,
        prepared.columns("unit" if spec.estimator == "naive" else "box"),
        prepared.error,
        theta=prepared.backbone(f"{stage} theta", start) if spec.imputes else None,
        interval=spec.estimator != "naive" and prepared.has_interval,
        imputation_columns=prepared.columns("imputation") if spec.imputation_weights else None,
    )


def _benchmarked(prepared: Prepared, base: Fitted) -> RobustProblem:
    problem = robust_problem(prepared, "main")
    theta = base.theta if base.theta is not None or problem.theta is None else base.phi
    problem.benchmark = Benchmark(base.phi, theta)
    if prepared.settings.warm_start:
        for step, module in (("phi", problem.phi), ("theta", problem.theta)):
            if module is not None:
                own = with_prefix(base.parameters, f"{step}.") or with_prefix(
                    base.parameters, "phi."
                )
                module.load_state_dict(own)
    return problem


# cross-fitting: the imputation is fitted on other rows than it corrects


def _fold_codes(prepared: Prepared) -> Column:
    hashes = row_hashes(prepared.log.ratings, prepared.settings.seed)
    return prepared.log.wrap((hashes % np.uint64(prepared.settings.cross_fit)).astype(np.float64))


def _without_fold(prepared: Prepared, name: str, fold: int, done: Done) -> LossProblem:
    """θ fitted on all rows but those of one fold, as if it were the prediction model."""
    problem, codes = robust_problem(prepared, name), _fold_codes(prepared)
    columns = dict(problem.imputation_columns or problem.columns)
    for end in ("a", "b"):
        columns[end] = problem.log.map(lambda w, code: w * (code != fold), columns[end], codes)
    problem.imputation_columns = columns
    return LossProblem(problem.settings, problem.phi, problem.theta_objective)


def _cross_fitted(
    prepared: Prepared, problem: RobustProblem, models: Sequence[LowRank]
) -> RobustProblem:
    """φ against imputations of rows that each was not fitted on; over D, against their mean."""
    codes, g = _fold_codes(prepared), problem.log.column()
    for k, model in enumerate(models):
        own = problem.log.scores_of(model)
        g = problem.log.map(lambda f, s, before, k=k: torch.where(f == k, s, before), codes, own, g)
    share = 1.0 / len(models)
    mean = LowRank(
        tuple(share * left for model in models for left in model.lefts),
        tuple(right for model in models for right in model.rights),
    )
    problem.imputed, problem.theta = (g, mean), None
    return problem

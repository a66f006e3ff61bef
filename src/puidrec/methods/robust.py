"""The grid of the paper's methods: estimator × uncertainty × benchmark, one problem for all of its
eleven rows.

Each minimises the loss that `losses.pair_loss` states, with plain L2 towards 0 and nothing else. Γ
= 1 gives IPS and DR, unit weights the naive loss; only the benchmark and the imputation model add
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from puidrec.data.row_matrix import row_hashes
from puidrec.errors import InputError
from puidrec.losses.pair_loss import (
    Objective,
    PairError,
    PairLoss,
    PrintedImputation,
    RobustLoss,
    imputation_target,
)
from puidrec.methods.prepare import Columns, Prepared
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
from puidrec.scores.log import Column, exact_sum
from puidrec.scores.low_rank import LowRank, linear_sum, square_sum, tiled_sum


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

    prepared: Prepared
    columns: Columns
    """Ratings and the ends of weights of logged pairs, and k⁰ of a frozen benchmark."""
    imputation_columns: Columns
    """The same for θ's step."""
    imputed: tuple[Column, LowRank] | None = None
    """g of logged pairs and of all pairs, where it is known already."""
    constant: float = 0.0
    """−mean_D ê of the benchmark."""

    def __post_init__(self) -> None:
        settings, spec, prepared = self.settings, self.settings.spec, self.prepared
        self.log = prepared.log.operator
        self.head = settings.head if spec.imputes else None
        self.normalised = settings.normalise and spec.estimator != "naive"
        self.loss = RobustLoss(prepared.error, self.head, prepared.has_interval, spec.benchmark)
        # pseudo-labels are fitted by the method's error, residuals and errors by squares
        error = prepared.error if settings.head.startswith("label") else PairError()
        self.imputation_loss = replace(self.loss, error=error, head=None)

    @property
    def solvable(self) -> bool:
        """Least squares lowers all but normalised losses; of pseudo-labels and squares where there
        is θ."""
        squares = self.head is None or (self.head == "label" and self.loss.error.quadratic)
        return squares and not self.normalised

    @property
    def parts(self) -> Sequence[Part]:
        """θ first (its pseudo-labels do not depend on φ), then φ."""
        theta = self.theta
        first = () if theta is None else (Part("theta", theta, self.theta_objective),)
        return (*first, Part("phi", self.phi, self.phi_objective))

    @property
    def steps(self) -> Sequence[Step]:
        """φ, then θ where the method imputes, one step each."""
        *theta, phi = self.parts

        def loss() -> Tensor:
            return self._total(self.phi_objective(), self.phi.factors())

        return [phi.step(self.settings, loss), *(part.step(self.settings) for part in theta)]

    @torch.no_grad()
    def excess(self) -> float:
        """As printed, with bends as they are: rounded off, a benchmark would lie above itself."""
        if not self.loss.benchmarked:
            return 0.0
        objective, phi = self.phi_objective(), self.phi.factors().detach()
        if not self.normalised:
            objective = replace(objective, loss=replace(self.loss, wider=0.0))
        if not self.solvable:
            return float(self._total(objective, phi))
        own = self.log.own(phi.lefts[0]), phi.rights[0]
        return objective.value(self.log.scores_of(phi), own)

    def phi_objective(self) -> Objective:
        """`eq:naive`, `eq:ips`, `eq:dr`, `eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`,
        `eq:bpuid-dr`."""
        naive = self.settings.spec.estimator == "naive"
        scale = 1.0 / (len(self.log) if naive else self.log.n_pairs)
        whole = Objective(self.log, self.loss, self.columns, scale, constant=self.constant)
        if self.head is None:
            return whole
        column, g = self._imputed()
        whole = replace(whole, columns={**self.columns, "g": column})
        quadratic = self.head.startswith("label") and self.loss.error.quadratic
        return replace(whole, v=scale, m=g) if quadratic else whole

    def theta_objective(self) -> Objective:
        """`eq:puid-dr-imp`, `eq:bpuid-dr-imp`: the imputation model on logged pairs, a weighted
        mean."""
        columns, loss = dict(self.imputation_columns), self.imputation_loss
        printed: PairLoss = loss
        if self.head == "label-squared":
            printed = PrintedImputation(loss.error)
            columns["s"] = self._scores(self.phi.factors())
        else:
            columns["r"] = self.imputation_target(self.phi.factors())
        scale = 1.0 / float(self.log.sum(exact_sum, columns["b"]))
        return Objective(self.log, printed, columns, scale)

    def imputation_target(self, phi: LowRank) -> Column:
        """What θ is fitted to: ratings, or what φ leaves of them."""
        head, error, r = self.settings.head, self.loss.error, self.columns["r"]
        if head.startswith("label"):
            return r
        return self.log.map(lambda s, r: imputation_target(head, error, s, r), self._scores(phi), r)

    def measure_against(self, phi: LowRank, theta: LowRank | None) -> None:
        """Subtract the losses of a frozen φ⁰, θ⁰: k⁰ of logged pairs and mean_D ê⁰, constants."""

        def constants(loss: RobustLoss, scores: LowRank, columns: Columns) -> Column:
            plain = replace(loss, benchmarked=False)
            s = self._scores(scores)
            return self.log.map(lambda s, row: plain.coefficient(s, row).value, s, row=columns)

        columns = self.columns
        if theta is not None:
            own = {**self.imputation_columns, "r": self.imputation_target(phi)}
            k0 = constants(self.imputation_loss, theta, own)
            self.imputation_columns = {**self.imputation_columns, "k0": k0}
            columns = {**columns, "g": self._scores(theta)}
            # as φ's own sum is weighed: a quotient would be rounded otherwise
            self.constant = -(1.0 / self.log.n_pairs) * float(
                imputed_sum(self.prepared, phi, theta)
            )
        self.columns = {**self.columns, "k0": constants(self.loss, phi, columns)}

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
        if self.normalised:
            known, columns = replace(self.loss, interval=False), dict(objective.columns)
            row = row_of(columns)
            k = known.coefficient(self._scores(phi).values, row).value
            weights = normalised_worst_case_weights(k, row.a, row.b)
            columns["a"] = columns["b"] = Column(weights)
            scale = 1.0 / float(weights.sum(dtype=torch.float64))
            objective = replace(objective, loss=known, columns=columns, scale=scale)
        total = total_loss(objective, phi)
        if self.head is None or objective.v:
            return total
        imputed = imputed_sum(self.prepared, phi, self._imputed()[1])
        return total + (1.0 / self.log.n_pairs) * imputed


def imputed_sum(prepared: Prepared, phi: LowRank, g: LowRank) -> Tensor:
    """Σ_D ê: by Gram matrices for squares, by tiles else."""
    head, error = prepared.settings.head, prepared.error
    if head == "direct":
        return linear_sum(g)
    if error.quadratic:
        return square_sum(phi.minus(g) if head != "residual" else phi.minus(phi.detach()).minus(g))

    def values(rows: slice, columns: slice, prediction: Tensor, output: Tensor) -> Tensor:
        if head == "residual":
            return error.value(prediction, error.to_target(prediction.detach()) + output)
        return error.value(prediction, error.to_target(output))

    return tiled_sum(values, phi, g)


def robust_problem(
    prepared: Prepared,
    stage: str,
    columns: Columns | None = None,
    imputation_columns: Columns | None = None,
) -> RobustProblem:
    """The problem of one stage, with fresh parameters; columns: other weights of logged pairs than
    the bounds that Γ allows, for φ and for θ alone."""
    settings, spec = prepared.settings, prepared.settings.spec
    start = None if settings.head.startswith("label") else 0.0  # a residual or an error starts at 0
    columns = columns or prepared.columns("unit" if spec.estimator == "naive" else "box")
    return RobustProblem(
        settings,
        prepared.backbone(f"{stage} phi"),
        prepared,
        columns,
        imputation_columns or columns,
        theta=prepared.backbone(f"{stage} theta", start) if spec.imputes else None,
    )


Make = Callable[[Prepared, str], RobustProblem]
"""Makes the problem of a stage."""


def stages(prepared: Prepared) -> list[Stage]:
    """The method alone, or after the benchmark it is measured against: the estimator without
    uncertainty, or mf."""
    settings, spec = prepared.settings, prepared.settings.spec
    if not spec.benchmark:
        return weighted_stages(prepared, prepared, "main")
    base = prepared.first_stage("mf" if settings.benchmark == "mf" else spec.estimator)

    def build(done: Done) -> RobustProblem:
        return _benchmarked(robust_problem(prepared, "main"), done["benchmark"])

    return [
        *weighted_stages(prepared, base, "benchmark"),
        Stage("main", build, refines=settings.warm_start, shrink_to=shrunk_to(prepared)),
    ]


def _benchmarked(problem: RobustProblem, base: Fitted) -> RobustProblem:
    """Measured against a benchmark, and started there; mf imputes what it predicts."""
    problem.measure_against(base.phi, None if problem.theta is None else base.theta or base.phi)
    if problem.settings.warm_start:
        phi = with_prefix(base.parameters, "phi.")
        problem.phi.load_state_dict(phi)
        if problem.theta is not None:
            problem.theta.load_state_dict(with_prefix(base.parameters, "theta.") or phi)
    return problem


def shrunk_to(prepared: Prepared) -> str | None:
    """The stage that L2 pulls weighted fits to with `shrink_to="mf"`: the ratings as they are.

    Weights multiply the noise of single rows; what there is to find stays the same. Pulled to the
    unweighted fit, they change what ratings say clearly, and leave the rest as it is.
    """
    settings = prepared.settings
    return "unweighted" if settings.shrink_to and settings.spec.estimator != "naive" else None


def weighted_stages(
    prepared: Prepared, base: Prepared, name: str, make: Make = robust_problem
) -> list[Stage]:
    """The stages of a method up to one row of the grid, `base`: with `shrink_to`, after the
    unweighted fit; with `cross_fit`, after an imputation model per fold, fitted on other rows than
    it corrects."""
    settings, found = base.settings, list[Stage]()
    if shrunk_to(prepared):
        naive = prepared.first_stage("mf")
        found.append(Stage("unweighted", lambda done: robust_problem(naive, "unweighted")))
    if not (settings.cross_fit and settings.spec.imputes):
        return [
            *found,
            Stage(name, lambda done: make(base, name), shrink_to=shrunk_to(prepared)),
        ]
    squares = settings.head == "label" and base.error.quadratic and not settings.normalise
    if settings.cross_fit < 2 or not squares:
        raise InputError(
            "cross_fit needs two folds, a squared loss and the head label",
            found=f"{settings.cross_fit} folds, loss {settings.loss}, head {settings.head}",
            hint="Leave cross_fit out, or loss and head at their defaults.",
        )
    names = [f"{name} without fold {k + 1}" for k in range(settings.cross_fit)]
    found += [Stage(one, partial(_without_fold, base, make, one, k)) for k, one in enumerate(names)]

    def crossed(done: Done) -> RobustProblem:
        return _cross_fitted(base, make(base, name), [done[one].phi for one in names])

    return [*found, Stage(name, crossed, shrink_to=shrunk_to(prepared))]


def _fold_codes(prepared: Prepared) -> Column:
    hashes = row_hashes(prepared.log.ratings, prepared.settings.seed)
    return prepared.log.wrap((hashes % np.uint64(prepared.settings.cross_fit)).astype(np.float64))


def _without_fold(prepared: Prepared, make: Make, name: str, fold: int, done: Done) -> LossProblem:
    """θ fitted on all rows but those of one fold, as if it were the prediction model."""
    problem, codes = make(prepared, name), _fold_codes(prepared)
    columns = dict(problem.imputation_columns)
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

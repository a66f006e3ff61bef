"""The grid of the paper's methods: estimator × uncertainty × benchmark, one problem for all of its
eleven rows.

Each minimises the loss that `losses.pair_loss` states, with plain L2 towards 0 and nothing else. Γ
= 1 gives IPS and DR, unit weights the naive loss; only the benchmark and the imputation model add
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from puidrec.data.signature import folds_of
from puidrec.losses.pair_loss import (
    HEADS,
    Objective,
    PairLoss,
    PrintedImputation,
    RobustLoss,
    Row,
    imputation_target,
    pair_sum,
)
from puidrec.losses.pointwise import PairError
from puidrec.losses.tiles import TILE, tiled_sum
from puidrec.losses.whole_space import linear_sum, square_sum
from puidrec.losses.worst_case import Box, normalised_worst_case_weights
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Part, Stage, backbone_penalty, with_prefix
from puidrec.optimise.adam import Step
from puidrec.scores.log import Column, Log, exact_sum
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import sampled_product
from puidrec.scores.towers import Backbone
from puidrec.settings import Settings


@dataclass(frozen=True)
class Benchmark:
    """The frozen φ⁰, θ⁰ of BRD and BPUID."""

    phi: LowRank
    theta: LowRank | None


@dataclass
class RobustProblem:
    """mean over D of base + o·w·k at the worst w (`eq:naive` … `eq:bpuid-dr-imp`)."""

    settings: Settings
    log: Log
    columns: Mapping[str, Column]
    """Ratings and the ends of weights of logged pairs."""
    error: PairError
    phi: Backbone
    theta: Backbone | None = None
    benchmark: Benchmark | None = None
    interval: bool = False
    """Whether weights are intervals."""
    imputation_columns: Mapping[str, Column] | None = None
    """The same with the weights of θ's step, where they are not those of φ's."""
    imputed: tuple[Column, LowRank] | None = None
    """g of logged pairs and of all pairs, where it is known already."""
    gamma_scale: float = 1.0
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
        if not is_solvable(self.settings, self.error):
            return ()
        phi = Part("phi", self.phi, self.phi_objective)
        return (
            (phi,) if self.theta is None else (Part("theta", self.theta, self.theta_objective), phi)
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ, then θ where the method imputes, one step each."""
        pattern = self.log.require_simple(self.settings.method)

        def phi_loss() -> Tensor:
            phi = self.phi.factors()
            objective = self.phi_objective()
            s = sampled_product(phi.lefts[0], phi.rights[0], pattern)
            return self._logged_loss(objective, s) + self._base(phi)

        steps = [Step("phi", self.phi, phi_loss, lambda: backbone_penalty(self.phi, self.settings))]
        if (theta := self.theta) is not None:

            def theta_loss() -> Tensor:
                own = theta.factors()
                objective = self.theta_objective()
                return self._logged_loss(
                    objective, sampled_product(own.lefts[0], own.rights[0], pattern)
                )

            steps.append(
                Step("theta", theta, theta_loss, lambda: backbone_penalty(theta, self.settings))
            )
        return tuple(steps)

    def factors(self) -> LowRank:
        """φ."""
        return self.phi.factors()

    def imputation(self) -> LowRank | None:
        """θ."""
        return None if self.theta is None else self.theta.factors()

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
        elif self.settings.head != "label":
            head, error = self.settings.head, self.error
            columns["r"] = self.log.map(
                lambda s, r: imputation_target(head, error, s, r),
                self._scores(self.phi.factors()),
                columns["r"],
            )
        if self.benchmark is not None:
            columns["k0"] = self._benchmark_column("theta")
        return Objective(self.log, loss, columns, 1.0 / self._total(columns["b"]))

    @property
    def _imputation_error(self) -> PairError:
        """Pseudo-labels are fitted by the method's error, residuals and errors by squares."""
        return self.error if self.settings.head.startswith("label") else PairError()

    def _total(self, column: Column) -> float:
        """Σ_O of a column."""
        return float(self.log.sum(exact_sum, column))

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

    def _logged_loss(self, objective: Objective, s: Tensor) -> Tensor:
        """scale · Σ_O f(s), and a benchmark's constant, as Adam lowers it."""
        row = Row(**{name: column.values for name, column in objective.columns.items()})
        loss = objective.loss
        if (
            self._normalises
            and isinstance(loss, RobustLoss)
            and objective.scale == 1.0 / self.log.n_pairs
        ):
            known = replace(loss, interval=False)
            k = known.coefficient(s.detach(), row).value
            weights = normalised_worst_case_weights(k, Box(row.a, row.b))
            row.a = row.b = weights
            return pair_sum(known, s, row) / weights.sum(dtype=torch.float64) + objective.constant
        return objective.scale * pair_sum(loss, s, row) + objective.constant

    def _base(self, phi: LowRank) -> Tensor:
        """mean_D ê, as a function of φ."""
        if self.head is None:
            return torch.zeros((), dtype=torch.float64, device=phi.lefts[0].device)
        g = self._imputed()[1]
        return self.imputed_sum(phi, g) / self.log.n_pairs

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

        return tiled_sum(values, phi, g, tile=TILE)

    @property
    def _normalises(self) -> bool:
        return _normalises(self.settings)

    def _benchmark_column(self, step: str) -> Column:
        """k of the benchmark on logged pairs: a constant."""
        assert self.benchmark is not None  # noqa: S101 (asked for where there is one)
        if step not in self._reference:
            phi, theta = self.benchmark.phi, self.benchmark.theta
            columns: dict[str, Column] = {"r": self.columns["r"]}
            head = None if theta is None else self.settings.head
            if step == "theta" and theta is not None:
                s, loss = self._scores(theta), RobustLoss(self._imputation_error)
                if self.settings.head in ("residual", "direct"):
                    error, name, r = self.error, self.settings.head, columns["r"]
                    own = self._scores(phi)
                    columns["r"] = self.log.map(
                        lambda s, r: imputation_target(name, error, s, r), own, r
                    )
            else:
                s, loss = self._scores(phi), RobustLoss(self.error, head)
                if theta is not None:
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
        return float(self.imputed_sum(self.benchmark.phi, self.benchmark.theta)) / self.log.n_pairs


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
    first, shrink_to = unweighted_first(prepared)
    if not spec.benchmark:
        return [*first, *weighted_stages(prepared, "main", shrink_to)]
    base = prepared.first_stage("mf" if settings.benchmark == "mf" else spec.estimator)
    return [
        *first,
        *weighted_stages(base, "benchmark", shrink_to),
        Stage(
            "main",
            lambda done: _benchmarked(prepared, done["benchmark"]),
            refines=settings.warm_start,
            shrink_to=shrink_to,
        ),
    ]


def unweighted_first(prepared: Prepared) -> tuple[list[Stage], str | None]:
    """With `shrink_to="mf"`, a fit of the ratings as they are, and its name; else nothing.

    Weights multiply the noise of single rows; what there is to find stays the same. So the L2 of
    weighted losses may
    pull to the unweighted fit: weights then change what ratings say clearly, and leave the rest as
    it is.
    """
    settings = prepared.settings
    if settings.shrink_to is None or settings.spec.estimator == "naive":
        return [], None
    naive = prepared.first_stage("mf")
    return [Stage("unweighted", lambda done: robust_problem(naive, "unweighted"))], "unweighted"


def weighted_stages(prepared: Prepared, name: str, shrink_to: str | None = None) -> list[Stage]:
    """The stage of a method of the grid; with `cross_fit`, after one imputation model per fold."""
    settings, folds = prepared.settings, prepared.settings.cross_fit
    if not folds or not settings.spec.imputes:
        return [
            Stage(
                name,
                lambda done: robust_problem(prepared, name),
                shrink_to=shrink_to,
                start=shrink_to,
            )
        ]
    if not is_solvable(settings, prepared.error):
        raise_cross_fit(settings)
    names = [f"{name} without fold {k + 1}" for k in range(folds)]

    def out_of(k: int) -> Stage:
        return Stage(names[k], lambda done: _imputation_without(prepared, names[k], k, folds))

    def main(done: Mapping[str, Fitted]) -> RobustProblem:
        return _cross_fitted(prepared, name, [done[one].phi for one in names])

    return [
        *(out_of(k) for k in range(folds)),
        Stage(name, main, shrink_to=shrink_to, start=shrink_to),
    ]


def raise_cross_fit(settings: Settings) -> None:
    """Refuse cross-fitting where θ is not solved by least squares."""
    from puidrec.errors import InputError

    raise InputError(
        "cross_fit needs a squared loss and the head label",
        found=f"loss {settings.loss}, head {settings.head}",
        hint="Leave cross_fit out, or loss and head at their defaults.",
    )


def robust_problem(prepared: Prepared, stage: str) -> RobustProblem:
    """The problem of one stage, with fresh parameters."""
    settings, spec = prepared.settings, prepared.settings.spec
    start = None if settings.head.startswith("label") else 0.0  # a residual or an error starts at 0
    return RobustProblem(
        settings,
        prepared.log.operator,
        prepared.columns("unit" if spec.estimator == "naive" else "box"),
        prepared.error,
        prepared.backbone(f"{stage} phi"),
        prepared.backbone(f"{stage} theta", start) if spec.imputes else None,
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


@dataclass
class ImputationOnly(RobustProblem):
    """θ alone, as if it were the prediction model: what cross-fitting fits once per fold."""

    @property
    def parts(self) -> Sequence[Part]:
        """The imputation model."""
        return (Part("phi", self.phi, self.theta_objective),)


def _fold_codes(prepared: Prepared, folds: int) -> np.ndarray:
    log = prepared.log
    return folds_of(
        log.row_start,
        log.items,
        log.ratings_array(),
        prepared.data.n_items,
        folds,
        prepared.settings.seed,
    )


def _imputation_without(prepared: Prepared, name: str, fold: int, folds: int) -> RobustProblem:
    """θ fitted on all rows but those of one fold."""
    problem = robust_problem(prepared, name)
    kept = prepared.log.wrap((_fold_codes(prepared, folds) != fold).astype(np.float64))
    columns = dict(problem.imputation_columns or problem.columns)
    for end in ("a", "b"):
        columns[end] = problem.log.map(torch.mul, columns[end], kept)
    return ImputationOnly(
        problem.settings,
        problem.log,
        columns,
        problem.error,
        problem.phi,
        interval=problem.interval,
    )


def _cross_fitted(prepared: Prepared, name: str, models: Sequence[LowRank]) -> RobustProblem:
    """φ against imputations of rows that each was not fitted on; over D, against their mean."""
    problem = robust_problem(prepared, name)
    fold = prepared.log.wrap(_fold_codes(prepared, len(models)).astype(np.float64))
    g = problem.log.column()
    for k, model in enumerate(models):
        own = problem.log.scores_of(model)
        g = problem.log.map(lambda f, s, before, k=k: torch.where(f == k, s, before), fold, own, g)
    share = 1.0 / len(models)
    mean = LowRank(
        tuple(share * left for model in models for left in model.lefts),
        tuple(right for model in models for right in model.rights),
    )
    problem.imputed, problem.theta = (g, mean), None
    return problem


__all__ = [
    "HEADS",
    "Benchmark",
    "RobustProblem",
    "robust_problem",
    "stages",
    "unweighted_first",
    "weighted_stages",
]

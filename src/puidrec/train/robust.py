"""The grid of the paper's methods: estimator × uncertainty × benchmark, one problem for all of its eleven rows.

Γ = 1 gives IPS and DR, unit weights give the naive loss; only the benchmark and the imputation model add parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from puidrec.backbones.base import Backbone, Span
from puidrec.backbones.low_rank import LowRank
from puidrec.objective import terms as estimators
from puidrec.objective.heads import Head, head_named
from puidrec.objective.majorise import BentLine, BentSquare
from puidrec.objective.pointwise import PointwiseError
from puidrec.objective.terms import Alternating, Observed, Terms, robust_mean, robust_part
from puidrec.objective.whole_space import square_sum
from puidrec.objective.worst_case import ratio_sums, worst_ratio
from puidrec.settings import Settings
from puidrec.train.blocks import UserPartition
from puidrec.train.least_squares import LeastSquares
from puidrec.train.log_losses import LogBlocks, WorstCase
from puidrec.train.prepare import Prepared
from puidrec.train.problem import BlockLoss, Fitted, Log, Stage, Step, backbone_penalty
from puidrec.train.quadratic import Objective


@dataclass(frozen=True)
class Benchmark:
    """The frozen φ⁰, θ⁰ of BRD and BPUID."""

    phi: LowRank
    theta: LowRank | None


@dataclass
class RobustProblem:
    """mean over D of base + o·coef·w at the worst w (`eq:naive` … `eq:bpuid-dr-imp`)."""

    settings: Settings
    observed: Log
    error: PointwiseError
    phi: Backbone
    theta: Backbone | None = None
    benchmark: Benchmark | None = None
    gamma_scale: float = 1.0
    imputation_log: Log | None = None
    """The same pairs with the weights of θ's step, where they are not those of φ's."""
    mean_weight: float = 1.0
    """Mean over O of the largest weights: the imputation model's loss is a weighted mean, so its weights average 1."""
    _reference: dict[tuple[str, int, int], Terms] = field(default_factory=dict)

    @property
    def n_users(self) -> int:
        """Users to divide into blocks."""
        return self.phi.n_users

    @property
    def head(self) -> Head:
        """What the imputation model's output means."""
        return head_named(self.settings.head)

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ, then θ where the method imputes."""
        phi = Step(
            "phi", self.phi, self.prediction_loss, lambda: backbone_penalty(self.phi, self.settings),
            lambda: self._moved("phi"), self._split if self._normalises else None,
        )  # fmt: skip
        theta = self.theta
        if theta is None:
            return (phi,)
        return phi, Step(
            "theta", theta, self.imputation_loss, lambda: backbone_penalty(theta, self.settings),
            lambda: self._moved("theta"),
        )  # fmt: skip

    def factors(self, rows: slice = slice(None)) -> LowRank:
        """φ of a range of users."""
        return self.phi.factors(rows)

    def imputation(self, rows: slice = slice(None)) -> LowRank | None:
        """θ of a range of users."""
        return None if self.theta is None else self.theta.factors(rows)

    def prediction_loss(self, start: int, stop: int, phi: LowRank | None = None) -> Tensor:
        """`eq:naive`, `eq:ips`, `eq:dr`, `eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`, `eq:bpuid-dr` on a block."""
        observed, terms = self.observed.rows(start, stop), self._prediction(start, stop, phi)
        if self.settings.spec.estimator == "naive":
            return self._mean_over_log(terms, observed, start, stop)
        normalise = self._normalises and len(observed.pattern) > 0
        return robust_mean(terms, observed.bounds, observed.n_pairs, normalise=normalise)

    def imputation_loss(self, start: int, stop: int, theta: LowRank | None = None) -> Tensor:
        """`eq:puid-dr-imp`, `eq:bpuid-dr-imp` on a block."""
        assert self.theta is not None  # noqa: S101 (the step exists only with θ)
        observed, rows = (self.imputation_log or self.observed).rows(start, stop), slice(start, stop)
        if theta is None and self._shares(start, stop):
            terms = self._alternating.imputation_terms(self.error, self.head)
        else:
            phi, theta = self.phi.factors(rows).detach(), self.theta.factors(rows) if theta is None else theta
            terms = estimators.imputation(observed, phi, theta, self.error, self.head)
        loss = self._mean_over_log(self._relative("theta", start, stop, terms), observed, start, stop)
        return loss / self.mean_weight

    @property
    def benchmarked(self) -> bool:
        """Never worse than the benchmark for any weights in the box: the robust loss against it is at most 0."""
        return self.benchmark is not None

    def least_squares(self, partition: UserPartition) -> list[LeastSquares] | None:
        """θ first (its pseudo-labels do not depend on φ), then φ; a squared loss, not normalised, of pseudo-labels."""
        if not _is_quadratic(self.settings, self.error):
            return None
        log = LogBlocks(self.observed, partition)
        phi = LeastSquares("phi", self.phi, lambda: self._phi_objective(log))
        if self.theta is None:
            return [phi]
        own, pairs = LogBlocks(self.imputation_log or self.observed, partition), len(self.observed) * self.mean_weight
        return [LeastSquares("theta", self.theta, lambda: self._errors(own, "theta", pairs)), phi]

    def _phi_objective(self, log: LogBlocks) -> Objective:
        if self.theta is not None:
            return self._doubly_robust(log)
        naive = self.settings.spec.estimator == "naive"
        return self._errors(log, "phi", len(self.observed) if naive else self.n_users * self.phi.n_items)

    def _errors(self, log: LogBlocks, step: Literal["phi", "theta"], pairs: float) -> Objective:
        """Σ_O w (s − r)²/pairs: errors are at least 0, so the worst weight is b; against a benchmark it depends."""
        if self.benchmark is None:
            unit = 1.0 / pairs if self.settings.spec.estimator == "naive" else None

            def weigh(observed: Observed, rows: slice) -> tuple[Tensor | float, Tensor]:
                weight = observed.bounds.b / pairs
                return unit or weight, weight * observed.target

            def squares(observed: Observed, rows: slice) -> Tensor:
                return torch.sum(observed.bounds.b * observed.target.square(), dtype=torch.float64)

            return log.quadratic(weigh, log.total(squares) / pairs)

        def bent(observed: Observed, rows: slice) -> BentSquare:
            reference = self._benchmark_terms(step, rows.start, rows.stop).coef
            return BentSquare(observed.target, reference, observed.bounds)

        return WorstCase(log, bent, 1.0 / pairs)

    def _doubly_robust(self, log: LogBlocks) -> Objective:
        """Σ_D (s − g)² + Σ_O w (e − ê), over |D|: e − ê = 2 (g − r)(s − (g + r)/2) is linear in s."""
        assert self.theta is not None  # noqa: S101 (asked for where there is θ)
        pairs = self.n_users * self.phi.n_items
        g = log.partition.factors(self.theta.factors)
        assert g is not None  # noqa: S101 (θ has factors)
        g = g.detach()
        if self.benchmark is None and (self.settings.spec.uncertainty == "none" or self.settings.gamma == 1.0):

            def weigh(observed: Observed, rows: slice) -> tuple[float, Tensor]:
                return 0.0, observed.bounds.b * (observed.target - observed.scores(g.rows(rows))) / pairs

            def gap(observed: Observed, rows: slice) -> Tensor:
                squares = observed.target.square() - observed.scores(g.rows(rows)).square()
                return torch.sum(observed.bounds.b * squares, dtype=torch.float64)

            constant = float(square_sum(g)) + log.total(gap)
            return log.quadratic(weigh, constant / pairs, 1.0 / pairs, g, same_matrix=True)

        known: dict[tuple[int, int], BentLine] = {}

        def bent(observed: Observed, rows: slice) -> BentLine:
            key = (rows.start, rows.stop)
            if key in known:
                return known[key]
            label = observed.scores(g.rows(rows))
            gap = None if self.benchmark is None else self._benchmark_terms("phi", *key).coef
            line = BentLine.of(2.0 * (label - observed.target), 0.5 * (label + observed.target), gap, observed.bounds)
            if isinstance(self.observed, Observed):  # a log read block by block may not fit in memory
                known[key] = line
            return line

        constant = float(square_sum(g))
        if self.benchmark is not None:
            constant -= log.total(lambda observed, rows: self._benchmark_terms("phi", rows.start, rows.stop).base)
        return WorstCase(log, bent, 1.0 / pairs, constant / pairs, 1.0 / pairs, g)

    @property
    def _normalises(self) -> bool:
        return _normalises(self.settings)

    @torch.no_grad()
    def _split(self, parts: Sequence[Span], users: int, total: Callable[[Tensor], Tensor]) -> BlockLoss:
        """The normalised loss of a block in parts: first the worst case of all of them, then each at its weights."""
        known: dict[Span, Tensor] = {}

        def coef(start: int, stop: int) -> Tensor:
            found = known.get((start, stop))
            found = self._prediction(start, stop).coef if found is None else found
            if isinstance(self.observed, Observed):  # a log read block by block may not fit in memory
                known[start, stop] = found
            return found

        def sums(threshold: float) -> tuple[float, float]:
            both = torch.zeros(2, dtype=torch.float64, device=self.phi.mean.device)
            for a, b in parts:
                both += ratio_sums(coef(a, b), self.observed.rows(a, b).bounds, threshold)
            numerator, weight = total(both).cpu().tolist()
            return numerator, weight

        ratio = worst_ratio(sums)
        whole = ratio._replace(weight=ratio.weight / users)

        def loss(start: int, stop: int, phi: LowRank | None = None) -> Tensor:
            observed, share = self.observed.rows(start, stop), whole._replace(weight=whole.weight * (stop - start))
            return robust_part(self._prediction(start, stop, phi), observed.bounds, observed.n_pairs, share)

        return loss

    @cached_property
    def _alternating(self) -> Alternating:
        """Scores of φ and θ on the log, each made once after its own step and used by both."""
        assert isinstance(self.observed, Observed)  # noqa: S101 (`_shares` says so)
        return Alternating(self.observed, self.phi.factors, (self.theta or self.phi).factors)

    def _moved(self, which: Literal["phi", "theta"]) -> None:
        if isinstance(self.observed, Observed):
            self._alternating.moved(which)

    def _shares(self, start: int, stop: int) -> bool:
        """Whether the steps can share scores: full batch, with an imputation model, and graphs being kept."""
        whole = isinstance(self.observed, Observed) and (start, stop) == (0, self.n_users)
        return self.theta is not None and whole and torch.is_grad_enabled()

    def _prediction(self, start: int, stop: int, phi: LowRank | None = None) -> Terms:
        """The terms of φ's step on a block, against the benchmark where there is one."""
        if phi is None and self._shares(start, stop):
            return self._relative("phi", start, stop, self._alternating.prediction_terms(self.error, self.head))
        phi = self.phi.factors(slice(start, stop)) if phi is None else phi
        theta = None if self.theta is None else self.theta.factors(slice(start, stop)).detach()
        return self._relative("phi", start, stop, self._prediction_terms(self.observed.rows(start, stop), phi, theta))

    def _prediction_terms(self, observed: Observed, phi: LowRank, theta: LowRank | None) -> Terms:
        if theta is None:
            return estimators.ips(observed, phi, self.error)
        return estimators.dr(observed, phi, theta, self.error, self.head)

    def _relative(self, step: str, start: int, stop: int, terms: Terms) -> Terms:
        """Take the benchmark's terms off, where there is one."""
        return terms if self.benchmark is None else terms.against(self._benchmark_terms(step, start, stop))

    def _benchmark_terms(self, step: str, start: int, stop: int) -> Terms:
        """The benchmark's own terms on a block: constants, computed once where the log is in memory."""
        assert self.benchmark is not None  # noqa: S101 (asked for where there is one)
        key = (step, start, stop)
        if key in self._reference:
            return self._reference[key]
        observed, rows = self.observed.rows(start, stop), slice(start, stop)
        phi = self.benchmark.phi.rows(rows)
        theta = None if self.benchmark.theta is None else self.benchmark.theta.rows(rows)
        if step == "phi" or theta is None:
            reference = self._prediction_terms(observed, phi, theta).detach()
        else:
            reference = estimators.imputation(observed, phi, theta, self.error, self.head).detach()
        if isinstance(self.observed, Observed):  # a log read block by block may not fit in memory
            self._reference[key] = reference
        return reference

    def _mean_over_log(self, terms: Terms, observed: Observed, start: int, stop: int) -> Tensor:
        """Over |O| in proportion to the block's users: block losses then average to the mean over O."""
        share = len(self.observed) * (stop - start) / self.n_users
        return robust_mean(terms, observed.bounds, 1) / share


def _normalises(settings: Settings) -> bool:
    return settings.normalise and settings.spec.estimator != "naive"


def _is_quadratic(settings: Settings, error: PointwiseError) -> bool:
    """Whether the losses are quadratic in scores: squared, not normalised, of pseudo-labels where there is θ."""
    return error.quadratic and not _normalises(settings) and (not settings.spec.imputes or settings.head == "label")


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """The method alone, or after the benchmark it is measured against: the estimator without uncertainty."""
    settings, spec = prepared.settings, prepared.settings.spec
    first, anchor = unweighted_first(prepared, partition)
    if not spec.benchmark:
        return [*first, Stage("main", lambda done: robust_problem(prepared, "main", partition), anchor=anchor)]
    base = prepared.first_stage(spec.estimator)
    return [
        *first,
        Stage("benchmark", lambda done: robust_problem(base, "benchmark", partition), anchor=anchor),
        Stage(
            "main",
            lambda done: _benchmarked(prepared, done["benchmark"], partition),
            settings.warm_start,
            anchor=anchor,
        ),
    ]


def unweighted_first(prepared: Prepared, partition: UserPartition) -> tuple[list[Stage], str | None]:
    """A fit of the ratings as they are, and its name as the anchor of weighted fits; nothing where there is no need.

    Weights multiply the noise of single rows, and with it the columns of noise; what there is to find stays the same.
    So weighted losses take the columns of the unweighted fit, and their L2 pulls to it: weights may change what
    ratings say clearly, and leave the rest as it is.
    """
    settings = prepared.settings
    weighted = settings.spec.estimator != "naive" and settings.l2_vectors == "auto"
    if not weighted or not settings.is_linear or not _is_quadratic(settings, prepared.error):
        return [], None
    naive = prepared.first_stage("mf")
    return [Stage("unweighted", lambda done: robust_problem(naive, "unweighted", partition))], "unweighted"


def robust_problem(prepared: Prepared, stage: str, partition: UserPartition) -> RobustProblem:
    """The problem of one stage, with fresh parameters."""
    spec = prepared.settings.spec
    observed = prepared.logged("unit" if spec.estimator == "naive" else "box")
    start = None if prepared.settings.head in ("label", "label-squared") else 0.0  # a residual or an error starts at 0
    theta = None
    if spec.imputes:  # its weights average 1, so its loss takes in the noise of the log once
        theta = prepared.backbone(f"{stage} theta", start, partition.shard, prepared.factors_for(1.0))
    phi = prepared.backbone(f"{stage} phi", shard=partition.shard)
    own = prepared.logged("imputation") if spec.imputation_weights else None
    mean_weight = prepared.mean_weight if spec.imputes else 1.0
    return RobustProblem(
        prepared.settings, observed, prepared.error, phi, theta, imputation_log=own, mean_weight=mean_weight
    )


def _benchmarked(prepared: Prepared, base: Fitted, partition: UserPartition) -> RobustProblem:
    problem = robust_problem(prepared, "main", partition)
    problem.benchmark = Benchmark(base.phi, base.theta)
    if prepared.settings.warm_start:
        for step in problem.steps:
            step.load(partition.take_own_parameters(step, base.parameters))
    return problem

"""The terms of each estimator for a block of users: sampled products on O, Gram matrices (or tiles) over D.

A trainer asks these for `Terms`, takes a benchmark off if there is one, and minimises `robust_mean`. A block is all
items against some users, so block losses add up to the loss over D exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from puidrec.backbones.sparse import LogPattern, sampled_product
from puidrec.errors import InputError
from puidrec.objective.heads import HEADS, Head
from puidrec.objective.low_rank import LowRank
from puidrec.objective.pointwise import PointwiseError
from puidrec.objective.terms import Terms, dr_terms, imputation_terms, ips_terms
from puidrec.objective.worst_case import Box


@dataclass(frozen=True)
class Observed:
    """The logged pairs of a block of users: where they are, what was rated, and the box of their weights."""

    pattern: LogPattern
    target: Tensor
    bounds: Box

    def __post_init__(self) -> None:
        lengths = (len(self.pattern), *(x.numel() for x in (self.target, *self.bounds)))
        if len(set(lengths)) != 1:
            raise InputError("one target and one pair of bounds per logged pair", found=lengths)

    def __len__(self) -> int:
        return len(self.pattern)

    @property
    def n_pairs(self) -> int:
        """Pairs of D in this block."""
        return self.pattern.n_users * self.pattern.n_items

    def rows(self, start: int, stop: int) -> Observed:
        """The logged pairs of users start..stop−1; views, no copies."""
        pairs = self.pattern.pairs(start, stop)
        return Observed(self.pattern.rows(start, stop), self.target[pairs], self.bounds.rows(pairs))

    def scores(self, factors: LowRank) -> Tensor:
        """The scores of the logged pairs."""
        values = sampled_product(factors.lefts[0], factors.rights[0], self.pattern)
        for left, right in zip(factors.lefts[1:], factors.rights[1:], strict=True):
            values = values + sampled_product(left, right, self.pattern)
        return values


def ips(observed: Observed, phi: LowRank, error: PointwiseError) -> Terms:
    """`eq:ips`, `eq:puid-ips` (and `eq:naive` with unit weights)."""
    return ips_terms(error(observed.scores(phi), observed.target))


def dr(
    observed: Observed,
    phi: LowRank,
    theta: LowRank,
    error: PointwiseError,
    head: Head = HEADS["label"],
    *,
    prediction: Tensor | None = None,
    output: Tensor | None = None,
) -> Terms:
    """`eq:dr`, `eq:puid-dr`, for the step of φ: θ is a constant.

    `prediction` and `output` are `observed.scores` of φ and θ where they are known already: each changes only in its
    own step, so alternating steps need two sampled products, not four (`Alternating`).
    """
    theta = theta.detach()
    prediction = observed.scores(phi) if prediction is None else prediction
    output = observed.scores(theta) if output is None else output.detach()
    gap = head.gap(prediction, output, observed.target, error)
    return dr_terms(gap, head.imputed_sum(phi, theta, error))


def imputation(
    observed: Observed,
    phi: LowRank,
    theta: LowRank,
    error: PointwiseError,
    head: Head = HEADS["label"],
    *,
    prediction: Tensor | None = None,
    output: Tensor | None = None,
) -> Terms:
    """`eq:puid-dr-imp`, for the step of θ: φ is a constant. `prediction` and `output` as for `dr`."""
    output = observed.scores(theta) if output is None else output
    if prediction is None:
        prediction = observed.scores(phi.detach()) if head.compares else output
    prediction = prediction.detach()
    return imputation_terms(head.mismatch(prediction, output, observed.target, error))


class Alternating:
    """Factors and logged scores of φ and θ, each made once after its own step and used by both steps.

    `Alternating(observed, phi.factors, theta.factors)`; after a step of φ call `moved("phi")`. Full batch only: with
    blocks of users every block sees other factors anyway.
    """

    def __init__(self, observed: Observed, phi: Callable[[], LowRank], theta: Callable[[], LowRank]) -> None:
        self.observed = observed
        self._make = {"phi": phi, "theta": theta}
        self._known: dict[str, tuple[LowRank, Tensor]] = {}

    def moved(self, which: Literal["phi", "theta"]) -> None:
        """Parameters changed (or a graph was used up): forget what was made of them."""
        self._known.pop(which, None)

    def prediction_terms(self, error: PointwiseError, head: Head = HEADS["label"]) -> Terms:
        """`dr` at the current φ and θ."""
        (phi, prediction), (theta, output) = self._of("phi"), self._of("theta")
        return dr(self.observed, phi, theta, error, head, prediction=prediction, output=output)

    def imputation_terms(self, error: PointwiseError, head: Head = HEADS["label"]) -> Terms:
        """`imputation` at the current φ and θ."""
        (phi, prediction), (theta, output) = self._of("phi"), self._of("theta")
        return imputation(self.observed, phi, theta, error, head, prediction=prediction, output=output)

    def _of(self, which: str) -> tuple[LowRank, Tensor]:
        if which not in self._known:
            factors = self._make[which]()
            self._known[which] = factors, self.observed.scores(factors)
        return self._known[which]

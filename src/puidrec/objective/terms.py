"""The estimators of the paper: every objective is the mean over D of base + o·coef·w, with w in a box.

| estimator | base | coef |
|---|---|---|
| naive, IPS (`eq:naive`, `eq:ips`, `eq:puid-ips`) | 0 | e |
| DR (`eq:dr`, `eq:puid-dr`) | ê | e − ê |
| imputation (`eq:puid-dr-imp`) | 0 | (ê − e)² |

Γ = 1 (a = b = 1/p) gives IPS and DR, a wider box RD and PUID, `Terms.against` a benchmark BRD and BPUID. Terms are made
for a block of users against all items, by sampled products on O and Gram matrices (or tiles) over D, so the losses of
blocks add up to the loss over D exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern, sampled_product
from puidrec.errors import InputError
from puidrec.objective.heads import HEADS, Head
from puidrec.objective.pointwise import PointwiseError
from puidrec.objective.worst_case import (
    Box,
    Ratio,
    normalised_worst_case_weights,
    weighted_mean,
    weighted_sum,
    weights_above,
    worst_case_weights,
)


@dataclass(frozen=True)
class Terms:
    """base summed over D (a scalar), and coef of each observed pair (a vector)."""

    base: Tensor
    coef: Tensor

    def against(self, reference: Terms) -> Terms:
        """Take a frozen benchmark's terms off (`eq:bpuid-ips`, `eq:bpuid-dr`, `eq:bpuid-dr-imp`).

        Subtracting *inside* the maximum changes which weights are worst: a pair that the model predicts better than
        the benchmark has a negative coefficient and gets its smallest weight. The loss is 0 at the benchmark itself, so
        a minimiser is never above 0: it is no worse than the benchmark for any weights in the box.
        """
        if self.coef.shape != reference.coef.shape:
            found, expected = tuple(reference.coef.shape), str(tuple(self.coef.shape))
            raise InputError("a benchmark must speak of the same pairs", found=found, expected=expected)
        return Terms(self.base - reference.base.detach(), self.coef - reference.coef.detach())

    def detach(self) -> Terms:
        """The same terms as constants: what a benchmark keeps."""
        return Terms(self.base.detach(), self.coef.detach())


def ips_terms(error: Tensor) -> Terms:
    """(0, e): `eq:ips`, `eq:puid-ips`; with unit weights `eq:naive`."""
    return Terms(torch.zeros((), dtype=torch.float64, device=error.device), error)


def dr_terms(gap: Tensor, imputed_sum: Tensor) -> Terms:
    """(ê, e − ê): `eq:dr`, `eq:puid-dr`, given e − ê on O and Σ_D ê."""
    return Terms(imputed_sum, gap)


def imputation_terms(mismatch: Tensor) -> Terms:
    """(0, (ê − e)²): `eq:puid-dr-imp`, given e − ê on O."""
    return ips_terms(mismatch.square())


def robust_mean(terms: Terms, bounds: Box, pairs: int, *, normalise: bool = False) -> Tensor:
    """max_w (base + Σ_O coef·w)/pairs, the weights held constant for the gradient; a float64 scalar.

    pairs: |D| for the losses of a prediction model, |O| for `naive` and for an imputation model. `normalise` divides
    the weighted sum by Σ_O w (an estimate of |D|) instead, which makes the worst case scale-free.
    """
    if normalise:
        weights = normalised_worst_case_weights(terms.coef.detach(), bounds)
        return terms.base / pairs + weighted_mean(terms.coef, weights)
    weights = worst_case_weights(terms.coef.detach(), bounds)
    return (terms.base + weighted_sum(terms.coef, weights)) / pairs


def robust_part(terms: Terms, bounds: Box, pairs: int, ratio: Ratio) -> Tensor:
    """What a part of a block adds to the block's normalised `robust_mean`, given the worst case of the whole block.

    The weights and their sum are those of the optimum and constant, so the gradients of the parts add up as well.
    """
    normalised = weighted_sum(terms.coef, weights_above(terms.coef.detach(), bounds, ratio.threshold))
    return terms.base / pairs + normalised / (ratio.weight or 1.0)


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

"""What the output g = ⟨m_u, n_i⟩ of the imputation model means: readings of ê.

| head | ê | learns (on O) | φ-gradient of ê |
|---|---|---|---|
| `label` (default) | e(r̂, g): g is a pseudo-label | g → r | moves with φ, as double robustness needs |
| `label-squared` | the same | ê → e, as `eq:puid-dr-imp` prints: g = r, or its mirror image 2r̂ − r | the same |
| `residual` | e(r̂, r̂° + g) with r̂° = r̂ held constant: g is r − r̂ (form of the public RD code) | g → r − r̂ | yes |
| `direct` | g is ê itself, as the paper prints it | g → e | none: DR's φ-gradient is that of IPS |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError
from puidrec.objective.pointwise import PointwiseError
from puidrec.objective.tiles import TILE, tiled_sum
from puidrec.objective.whole_space import linear_sum, square_sum


class Head(Protocol):
    """ê on the observed pairs, its sum over D, and what the imputation loss squares."""

    @property
    def name(self) -> str:
        """Name in tables and options."""

    @property
    def compares(self) -> bool:
        """Whether `mismatch` looks at the prediction; where it does not, the prediction need not be computed."""

    def imputed(self, prediction: Tensor, output: Tensor, error: PointwiseError) -> Tensor:
        """ê for the pairs at hand."""

    def imputed_sum(self, phi: LowRank, theta: LowRank, error: PointwiseError) -> Tensor:
        """Σ_D ê."""

    def gap(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e − ê, the coefficient of `eq:puid-dr`."""

    def mismatch(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """What `eq:puid-dr-imp` squares, with the prediction a constant: e − ê, or its signed root."""


@dataclass(frozen=True)
class LabelHead:
    """g is a pseudo-label."""

    name: str = "label"
    compares: bool = False

    def imputed(self, prediction: Tensor, output: Tensor, error: PointwiseError) -> Tensor:
        """e(r̂, g)."""
        return error(prediction, error.to_target(output))

    def imputed_sum(self, phi: LowRank, theta: LowRank, error: PointwiseError) -> Tensor:
        """Σ_D (r̂ − g)² by Gram matrices; other errors by tiles."""
        if error.quadratic:
            return square_sum(phi.minus(theta))
        return _tiled(self, phi, theta, error)

    def gap(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e(r̂, r) − e(r̂, g)."""
        return error.gap(prediction, target, error.to_target(output))

    def mismatch(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """g − r: of the two factors of e − ê = (g − r)(2r̂ − g − r), the one whose zero is the label."""
        return error.to_target(output) - target


@dataclass(frozen=True)
class SquaredLabelHead(LabelHead):
    """g is a pseudo-label, learned by `eq:puid-dr-imp` as printed."""

    name: str = "label-squared"
    compares: bool = True

    def mismatch(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e − ê. Zero at g = r and at its mirror image 2r̂ − r, which pushes r̂ away from r: expect it to be unsteady."""
        return self.gap(prediction, output, target, error)


@dataclass(frozen=True)
class ResidualHead:
    """g is the residual r − r̂."""

    name: str = "residual"
    compares: bool = True

    def imputed(self, prediction: Tensor, output: Tensor, error: PointwiseError) -> Tensor:
        """e(r̂, r̂° + g): its value is that of the predicted residual, its φ-gradient that of a pseudo-label."""
        return error(prediction, error.to_target(prediction.detach()) + output)

    def imputed_sum(self, phi: LowRank, theta: LowRank, error: PointwiseError) -> Tensor:
        """Σ_D (r̂ − r̂° − g)² by Gram matrices; other errors by tiles."""
        if error.quadratic:
            return square_sum(phi.minus(phi.detach()).minus(theta))
        return _tiled(self, phi, theta, error)

    def gap(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e(r̂, r) − e(r̂, r̂° + g)."""
        return error.gap(prediction, target, error.to_target(prediction.detach()) + output)

    def mismatch(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """g − (r − r̂): the signed residual, since its square would forget the sign."""
        return output - (target - error.to_target(prediction))


@dataclass(frozen=True)
class DirectHead:
    """g is the error itself."""

    name: str = "direct"
    compares: bool = True

    def imputed(self, prediction: Tensor, output: Tensor, error: PointwiseError) -> Tensor:
        """ê = g."""
        return output

    def imputed_sum(self, phi: LowRank, theta: LowRank, error: PointwiseError) -> Tensor:
        """Σ_D g = ⟨Σ m, Σ n⟩."""
        return linear_sum(theta)

    def gap(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e − g."""
        return error(prediction, target) - output

    def mismatch(self, prediction: Tensor, output: Tensor, target: Tensor, error: PointwiseError) -> Tensor:
        """e − g."""
        return self.gap(prediction, output, target, error)


def _tiled(head: Head, phi: LowRank, theta: LowRank, error: PointwiseError) -> Tensor:
    def values(rows: slice, columns: slice, prediction: Tensor, output: Tensor) -> Tensor:
        return head.imputed(prediction, output, error)

    return tiled_sum(values, phi, theta, tile=TILE)


HEADS: dict[str, Head] = {head.name: head for head in (LabelHead(), SquaredLabelHead(), ResidualHead(), DirectHead())}


def head_named(name: str) -> Head:
    """Look a head up by its name."""
    if name not in HEADS:
        raise InputError("unknown imputation head", found=name, expected=f"one of {', '.join(HEADS)}")
    return HEADS[name]

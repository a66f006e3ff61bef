"""What a trainer trains: steps that take turns, each a module and the loss it lowers on a block of users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from puidrec.backbones.base import Backbone
from puidrec.objective.low_rank import LowRank
from puidrec.settings import Settings


class Step(NamedTuple):
    """One of the alternating updates: `loss(start, stop)` over users start..stop−1, without the penalty."""

    name: str
    module: nn.Module
    loss: Callable[[int, int], Tensor]
    penalty: Callable[[], Tensor]
    moved: Callable[[], None] = lambda: None
    """Called after the module's parameters changed, so that nothing stale is used."""

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Take this step's parameters, `NAME.…`, out of all of them."""
        self.module.load_state_dict(with_prefix(parameters, f"{self.name}."))
        self.moved()


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one part, under their own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Problem(Protocol):
    """A method on a data set: its steps in order, and the scores it would predict with now."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Updates of one block, in order."""

    @property
    def n_users(self) -> int:
        """Users to divide into blocks."""

    def factors(self) -> LowRank:
        """The prediction model φ as it stands."""

    def imputation(self) -> LowRank | None:
        """The imputation model θ as it stands, where there is one."""

    def admissible(self) -> bool:
        """Whether the parameters as they stand may be chosen: a benchmarked loss must not be above 0."""


def backbone_penalty(backbone: Backbone, settings: Settings) -> Tensor:
    """L2 per entity on what belongs to entities, a lighter one on what features share.

    Weighed as means over entities, whatever the number of ratings: dense logs of weak signals (KuaiRec) want a firm
    hand no less than sparse ones (Coat), and a prior counted in ratings would let go of them.
    """
    penalty = backbone.penalty()
    return settings.l2 * penalty.ids + settings.l2_features * penalty.features

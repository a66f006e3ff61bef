"""What a trainer trains: steps that take turns, each a module and the loss it lowers on a block of users."""

from __future__ import annotations

from collections.abc import Callable
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


def backbone_penalty(backbone: Backbone, settings: Settings, n_seen: int) -> Tensor:
    """The prior's share of a mean loss: λ Σ ‖z‖² / |O|, so λ counts in ratings and fits sparse and dense logs alike.

    A user with many ratings is then held less tightly than one with few, as in any posterior mode. Weights of features
    are shared by many and have a λ of their own.
    """
    penalty = backbone.penalty()
    users, items = backbone.n_users / max(n_seen, 1), backbone.n_items / max(n_seen, 1)
    ids = users * penalty.user_ids + items * penalty.item_ids
    features = users * penalty.user_features + items * penalty.item_features
    return settings.l2 * ids + settings.l2_features * features

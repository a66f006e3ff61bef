"""What a trainer trains: steps that take turns, each a module and the loss it lowers on a block of users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from puidrec.backbones.base import Backbone
from puidrec.backbones.share import Span
from puidrec.objective.estimators import Observed
from puidrec.objective.low_rank import LowRank
from puidrec.settings import Settings


class Log(Protocol):
    """The logged pairs of any block of users: all in memory (`Observed`), or made when asked for."""

    def __len__(self) -> int:
        """Logged pairs in all."""

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""


class BlockLoss(Protocol):
    """A loss of users start..stop−1: a mean, so that a block's loss is the users' weighted mean of its pieces'."""

    def __call__(self, start: int, stop: int, factors: LowRank | None = None, /) -> Tensor:
        """`factors`: what the step's module makes of these users, where it is known already."""


class PiecesLoss(Protocol):
    """For a loss that is no mean of its pieces' losses until something is known of all of them."""

    def __call__(self, pieces: Sequence[Span], users: int, total: Callable[[Tensor], Tensor], /) -> BlockLoss:
        """Our pieces of a block of `users`, Σ over processes → a loss of pieces whose weighted mean is the block's."""


class Step(NamedTuple):
    """One of the alternating updates: a module, and the loss it lowers, without the penalty."""

    name: str
    module: nn.Module
    loss: BlockLoss
    penalty: Callable[[], Tensor]
    moved: Callable[[], None] = lambda: None
    """Called after the module's parameters changed, so that nothing stale is used."""
    in_pieces: PiecesLoss | None = None
    """How a block is cut, where `loss` is not a mean of its pieces."""

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

    def factors(self, rows: slice = slice(None)) -> LowRank:
        """The prediction model φ as it stands, for a range of users."""

    def imputation(self, rows: slice = slice(None)) -> LowRank | None:
        """The imputation model θ as it stands, where there is one."""

    @property
    def benchmarked(self) -> bool:
        """Whether parameters may be chosen only where the loss of the first step, over all users, is at most 0."""


def backbone_penalty(backbone: Backbone, settings: Settings) -> Tensor:
    """L2 per entity on what belongs to entities, a lighter one on what features share.

    Weighed as means over entities, whatever the number of ratings. How firmly vectors are held beside biases, which the
    noise of a log decides (`train.noise`), is in the penalty already (`Backbone.hold`).
    """
    penalty = backbone.penalty()
    return settings.l2 * penalty.ids + settings.l2_features * penalty.features

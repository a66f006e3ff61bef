"""What is trained: a method is a list of stages, a stage a problem, a problem steps that take turns.

A step is a module and the loss it lowers on a block of users. Everything a trainer has to know of a method is here, so
that the methods (`robust`, `unseen`, `multi`, `baselines`, plug-ins) do not know how they are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from puidrec.backbones.base import Backbone, Span
from puidrec.backbones.low_rank import LowRank
from puidrec.objective.terms import Observed
from puidrec.settings import Settings

ADMISSIBLE = 1e-6
"""A benchmarked loss up to this much above 0 counts as 0: at the benchmark itself it is 0 up to rounding."""


class Log(Protocol):
    """The logged pairs of any block of users: all in memory (`Observed`), or read when asked for."""

    def __len__(self) -> int:
        """Logged pairs in all."""

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""


class BlockLoss(Protocol):
    """A loss of users start..stop−1: a mean, so that a block's loss is the users' weighted mean of its parts'."""

    def __call__(self, start: int, stop: int, factors: LowRank | None = None, /) -> Tensor:
        """`factors`: what the step's module makes of these users, where it is known already."""


class SplitLoss(Protocol):
    """For a loss that is no mean of its parts' losses until something is known of all of them."""

    def __call__(self, parts: Sequence[Span], users: int, total: Callable[[Tensor], Tensor], /) -> BlockLoss:
        """This process's parts of a block of `users`, Σ over processes → a loss of parts that averages to the whole."""


class Step(NamedTuple):
    """One of the alternating updates: a module, and the loss it lowers, without the penalty."""

    name: str
    module: nn.Module
    loss: BlockLoss
    penalty: Callable[[], Tensor]
    moved: Callable[[], None] = lambda: None
    """Called after the module's parameters changed, so that no outdated scores are used."""
    split: SplitLoss | None = None
    """The loss of a block in parts, where `loss` is not the mean of its parts."""

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Take this step's parameters, `NAME.…`, out of all of them."""
        self.module.load_state_dict(with_prefix(parameters, f"{self.name}."))
        self.moved()


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

    @property
    def gamma_scale(self) -> float:
        """κ: the power to which Γ enters, 1 unless it was calibrated."""


@dataclass(frozen=True)
class Fitted:
    """What a stage leaves behind: scores as factors, parameters by name, and the history of its epochs."""

    phi: LowRank
    theta: LowRank | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None
    """Smoothed validation score of the best epoch; None where nothing was validated."""
    gamma_scale: float = 1.0
    """κ: the power to which Γ entered, 1 unless it was calibrated."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the method itself wants its report to say, in plain values."""
    solver: str = ""
    """What trained it: least-squares, adam, or nothing where there is a closed form."""
    unfinished: tuple[str, ...] = ()
    """Models that least squares left before their optimum, for want of sweeps."""
    edge_share: float | None = None
    """The L2 of ID vectors as a share of the edge of noise; None where it was not chosen."""
    l2_validated: bool = False
    """Whether validation rows had a say in it."""


Done = Mapping[str, Fitted]
"""The stages before this one, by name."""


@dataclass(frozen=True)
class Stage:
    """One problem of a method, built from the stages before it; a closed form gives its answer instead."""

    name: str
    build: Callable[[Done], Problem | Fitted]
    warm: bool = False
    """Whether the problem comes with parameters to start from, and should not leave them at once."""
    sweeps: int | None = None
    """Most sweeps of least squares, where a stage need not be at its optimum; None: as the settings say."""
    after: str | None = None
    """The stage at whose φ least squares starts: the optimum is the same, and nearer."""
    chooses_l2: bool = True
    """Whether the strength of L2 may be chosen here, where it is the first stage."""
    anchor: str | None = None
    """The stage whose φ L2 pulls the vectors to in place of 0, where least squares and `l2_vectors="auto"` are used:
    the unweighted fit, for weighted losses. Least squares starts there, unless the problem is warm."""


def backbone_penalty(backbone: Backbone, settings: Settings) -> Tensor:
    """L2 regularisation: `l2` on what belongs to single entities, `l2_features` on weights that features share.

    Both are means over entities, whatever the number of ratings. The penalty factors of vectors against biases, which
    `train.regularisation` estimates, are in the backbone's penalty already.
    """
    penalty = backbone.penalty()
    return settings.l2 * penalty.ids + settings.l2_features * penalty.features


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one part, under their own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

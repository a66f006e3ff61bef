"""What is trained: a method is a list of stages, a stage a problem, a problem models that are
solved or take steps.

Everything a trainer has to know of a method is here, so that methods do not know how they are
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Generator, Tensor

from puidrec.losses.pair_loss import Objective, PairLoss, pair_sum
from puidrec.optimise.adam import Step
from puidrec.scores.log import Column, Row, sampled_product
from puidrec.scores.low_rank import LowRank, square_sum
from puidrec.scores.towers import Backbone
from puidrec.settings import Settings

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared, Weights
    from puidrec.methods.table import Build


class Part(NamedTuple):
    """One model that least squares solves: its name among the parameters, its backbone, and its
    objective."""

    name: str
    backbone: Backbone
    objective: Callable[[], Objective]
    """Made when the models before it are solved."""

    def step(self, settings: Settings, loss: Callable[[], Tensor] | None = None) -> Step:
        """Adam's step down the objective, or down another loss."""
        own = loss or (lambda: total_loss(self.objective(), self.backbone.factors()))
        return adam_step(settings, self.name, self.backbone, own)


@dataclass
class Problem:
    """A method on a data set: a prediction model φ, maybe an imputation model θ, and what they are
    to lower.

    A subclass says how: by `parts` where least squares can solve it, by `steps` where only Adam
    can.
    """

    settings: Settings
    phi: Backbone
    theta: Backbone | None = field(default=None, kw_only=True)
    gamma_scale: float = field(default=1.0, kw_only=True)
    """κ: the power to which Γ enters, 1 unless it was calibrated."""

    @property
    def parts(self) -> Sequence[Part]:
        """The models and their objectives, in the order in which least squares solves them, the
        prediction model last."""
        return ()

    @property
    def solvable(self) -> bool:
        """Whether least squares can lower these objectives."""
        return bool(self.parts)

    @property
    def steps(self) -> Sequence[Step]:
        """Adam's updates, in order; the first is that of the prediction model."""
        return [part.step(self.settings) for part in reversed(self.parts)]

    def factors(self) -> LowRank:
        """φ as it stands."""
        return self.phi.factors()

    def imputation(self) -> LowRank | None:
        """θ as it stands."""
        return None if self.theta is None else self.theta.factors()

    def excess(self) -> float:
        """By how much the loss of φ is above that of a frozen benchmark; 0 where there is none."""
        return 0.0


@dataclass(frozen=True)
class Fitted:
    """What a stage leaves behind: scores as factors, parameters by name, and the history of its
    epochs."""

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


Done = Mapping[str, Fitted]
"""The stages before this one, by name."""


@dataclass(frozen=True)
class Stage:
    """One problem of a method, built from the stages before it; a closed form gives its answer
    instead."""

    name: str
    build: Callable[[Done], Problem | Fitted]
    start: str | None = None
    """The stage at whose φ this one starts: the optimum is the same, and nearer."""
    refines: bool = False
    """Whether the problem comes with parameters to start from, and should not leave them at once.
    """
    sweeps: int | None = None
    """Most sweeps of least squares, where a stage need not be at its optimum; None: as the settings
    say."""
    shrink_to: str | None = None
    """The stage whose φ L2 pulls the vectors to in place of 0."""


@dataclass
class LossProblem(Problem):
    """One model φ and one objective J(s): what most methods are. Least squares and Adam train the
    same one."""

    objective: Callable[[], Objective]

    @property
    def parts(self) -> Sequence[Part]:
        """φ alone."""
        return (Part("phi", self.phi, self.objective),)


def adam_step(
    settings: Settings,
    name: str,
    backbone: Backbone,
    loss: Callable[[], Tensor],
    before: Callable[[Generator], None] | None = None,
) -> Step:
    """Adam's step of a backbone down a loss and its L2; `before` draws what it draws."""
    return Step(name, backbone, loss, lambda: backbone_penalty(backbone, settings), before)


def row_of(columns: Mapping[str, Column]) -> Row:
    """The numbers of all logged pairs, as a loss reads them."""
    return Row(**{name: column.values for name, column in columns.items()})


def total_loss(objective: Objective, phi: LowRank) -> Tensor:
    """J(s) as Adam lowers it."""
    s = sampled_product(phi.lefts[0], phi.rights[0], objective.log.pattern)
    logged = objective.scale * pair_sum(objective.loss, s, row_of(objective.columns))
    total = logged + objective.constant
    if not objective.v:
        return total
    return total + objective.v * square_sum(phi if objective.m is None else phi.minus(objective.m))


def stages_of_loss(loss: Callable[[Settings], PairLoss], weights: Weights = "unit") -> Build:
    """The stages of a method that lowers a mean over logged pairs of one `PairLoss`: what a
    plug-in's row names.

    loss: from the settings, and the method's own parameters in them, to f. weights: those of logged
    pairs that f finds as `row.b`: `unit`, `inverse` (1/p, 1 on average), or `box` (with `row.a`,
    the ends that Γ allows around 1/p).
    """

    def stages(prepared: Prepared) -> list[Stage]:
        def build(done: Done) -> LossProblem:
            settings, log = prepared.settings, prepared.log.operator
            objective = Objective(
                log, loss(settings), prepared.columns(weights), 1.0 / max(len(log), 1)
            )
            return LossProblem(settings, prepared.backbone("main phi"), lambda: objective)

        return [Stage("main", build)]

    return stages


def backbone_penalty(backbone: Backbone, settings: Settings) -> Tensor:
    """Plain L2: `l2` on what belongs to single entities, `l2_features` on weights that features
    share.

    Both are means over entities, whatever the number of ratings.
    """
    penalty = backbone.penalty()
    return settings.l2_number * penalty.ids + settings.l2_features * penalty.features

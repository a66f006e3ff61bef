"""Training by least squares: problems whose loss is quadratic in the scores are solved to the optimum.

A problem lists what is to be solved, one model after the other (`LeastSquares`); here a backbone of IDs and linear
features becomes the solver's model and back, and sweeps become a history, checkpoints and a fitted stage. The answer
depends on the data and the settings, not on when training was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from puidrec.backbones.base import Backbone
from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.mf import IdTower, LinearTower
from puidrec.errors import InputError
from puidrec.rng import derive_seed
from puidrec.settings import Settings
from puidrec.train.adam import Progress, SaveState
from puidrec.train.blocks import UserPartition, change_user_rows, entity_axes
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.columns import in_use, strengths
from puidrec.train.problem import ADMISSIBLE, Fitted, Problem, with_prefix
from puidrec.train.quadratic import Objective, Reduce
from puidrec.train.regularisation import relaxed_share
from puidrec.train.solver import SETTLED, Features, Metric, Model, Point, Side, Sweep, solve
from puidrec.train.stopping import Validator

STEP, MOST_STEPS = 1.5, 4
"""Factor between the strengths of L2 that validation rows compare, and how many of them they try on a side."""
PATH_ROWS = 500
"""Validation rows from which they choose it."""
ROUGHLY = 2e-3
"""Tolerance of fits that are compared only."""
MARGIN = 1e-4
"""Share of the squared error that another L2 must gain: less is rounding."""
NEAR = 0.1
"""L2 towards the fit at the edge of noise, as a share of the edge, that a weaker L2 towards 0 comes with."""
WEIGHTED = 10.0
"""L2 towards the unweighted fit, against the edge of noise of a weighted loss."""


class LeastSquares(NamedTuple):
    """One model of a problem: its name among the parameters, its backbone, and the loss of its scores."""

    name: str
    backbone: Backbone
    objective: Callable[[], Objective]
    """Made when the models before it are solved."""


@runtime_checkable
class Solvable(Protocol):
    """A problem that may be solved by least squares."""

    def least_squares(self, partition: UserPartition) -> Sequence[LeastSquares] | None:
        """What is solved, in order; None where the loss is not quadratic."""


def parts_to_solve(problem: Problem, settings: Settings, partition: UserPartition) -> Sequence[LeastSquares] | None:
    """What a problem has to solve by least squares; None where Adam trains it."""
    if settings.solver == "adam":
        return None
    can = not settings.block_users and isinstance(problem, Solvable)
    parts = problem.least_squares(partition) if can and isinstance(problem, Solvable) else None
    if parts and all(is_linear(part.backbone) for part in parts):
        return parts
    if settings.solver == "least-squares":
        raise InputError(
            f"{settings.method} cannot be solved by least squares with these settings",
            found=f"backbone {settings.backbone}, loss {settings.loss}, head {settings.head}",
            expected="a loss that is quadratic in scores that are linear in the parameters",
            hint="Use solver=auto, which takes adam there.",
        )
    return None


def is_linear(backbone: Backbone) -> bool:
    """Whether vectors and biases are linear in the parameters: IDs, and at most one linear map of features a side."""
    for towers in (backbone.user_towers, backbone.item_towers):
        shared = [tower for tower in towers if not isinstance(tower, IdTower)]
        if len(shared) > 1 or not all(isinstance(tower, LinearTower) for tower in shared):
            return False
    return True


class Solver:
    """Solves the models of one problem, one after the other."""

    def __init__(
        self,
        problem: Problem,
        parts: Sequence[LeastSquares],
        settings: Settings,
        validator: Validator | None,
        *,
        stage: str,
        save: SaveState | None,
        partition: UserPartition,
        warm: bool = False,
        chooses_l2: bool = False,
        l2_path: bool = False,
        anchor: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.problem, self.settings, self.validator = problem, settings, validator
        self.stage, self.save, self.partition, self.warm = stage, save, partition, warm
        self.chooses_l2 = chooses_l2 and len(parts) == 1
        rows = 0 if validator is None or not l2_path else validator.user.size
        self.l2_path = self.chooses_l2 and rows >= PATH_ROWS
        partition.drop_other_users(problem)
        self.parts = parts
        self.edge_share: float | None = None
        """The L2 chosen, as a share of the edge of noise; None before."""
        self._anchor = None if anchor is None else self._as_point(anchor)
        """What L2 pulls vectors to: the unweighted fit, or, where L2 is chosen, the fit at the edge of noise."""
        self.history: list[dict[str, float]] = []
        self.unfinished: list[str] = []
        """Models that the most sweeps were not enough for."""
        self._sweeps = 0
        self._metric: dict[str, Metric] = {}
        """What preconditioned the last fit of a model: the next one differs from it in its L2 only."""
        self._started: set[str] = set()
        self._resumed: tuple[str, Sweep] | None = None
        self._benchmark: float | None = None

    def run(self, progress: Progress | None = None) -> Fitted:
        """Solve every model; returns the last one's scores."""
        names = [part.name for part in self.parts]
        if self.chooses_l2 and self.edge_share is None:
            self._choose_l2(self.parts[0], progress)
        elif self._anchor is not None and not self.chooses_l2:
            for part in self.parts:
                part.backbone.set_edge_share(WEIGHTED)
        first = names.index(self._resumed[0]) if self._resumed is not None else 0
        for part in self.parts[first:]:
            self._solve(part, progress)
        phi, theta = self._phi(), self.partition.factors(self.problem.imputation)
        score = self.validator.score(phi) if self.validator is not None else None
        parameters = change_user_rows(self._parameters(), self._axes(), self.partition.gather)
        scale, sweeps = self.problem.gamma_scale, self._sweeps_of(self.parts[-1])
        return Fitted(
            phi, theta, parameters, self.history, sweeps, score, scale, solver="least-squares",
            unfinished=tuple(self.unfinished), l2_validated=self.l2_path, edge_share=self.edge_share,
        )  # fmt: skip

    def _choose_l2(self, part: LeastSquares, progress: Progress | None) -> None:
        """Choose the columns of the vectors and the strength of L2.

        An L2 at the edge of noise keeps all columns of noise out, but takes as much off those that are true. So a fit
        with it chooses the columns, and how far they rise above the edge says what is to be taken off them
        (`train.regularisation.relaxed_share`). Validation rows may ask for more or less.

        With a weaker L2 towards 0, columns that were left out would do nearly as well as some that were not, and the
        optimum would be so flat that rounding moves it. A little L2 towards the fit at the edge (`NEAR`) prevents that.
        """
        part.backbone.set_edge_share(1.0)
        self._solve(part, progress, at_edge=True)
        self._anchor, self._resumed = self._in_columns(part), None
        self._relax(part, self._relaxed_share(part))
        self._solve(part, progress, roughly=True)
        if self.l2_path and bool(self._phi().lefts[0][:, :-2].any()):
            self._walk(part, progress)

    def _in_columns(self, part: LeastSquares) -> Point:
        """The parameters of a model, where features share its columns without those that say next to nothing."""
        model, point = self._model(part), self._point(part)
        if not model.by_rows:
            point = model.padded(in_use(model, point))
            self._put(part, point)
        return point

    def _relaxed_share(self, part: LeastSquares) -> float:
        """What the strengths of the columns ask for."""
        found = strengths(part.objective(), self._model(part), self._point(part))
        return relaxed_share(found.double().cpu().numpy(), NEAR)

    def _relax(self, part: LeastSquares, share: float) -> None:
        """Set the L2 towards 0 to a share of the edge of noise."""
        self.edge_share = share
        part.backbone.set_edge_share(share + NEAR)

    def _walk(self, part: LeastSquares, progress: Progress | None) -> None:
        """Make L2 weaker, step by step as long as the squared error of the validation rows falls, each fit started from
        the last; if it does not fall at once, stronger. End at the best."""
        assert self.validator is not None  # noqa: S101 (a path is walked by its rows)
        assert self.edge_share is not None  # noqa: S101 (a path starts somewhere)
        least, best, share = self.validator.squared_error(self._phi()), self._point(part), self.edge_share
        for factor in (1.0 / STEP, STEP):
            start = share
            for _ in range(MOST_STEPS):
                if factor > 1.0 and share >= 1.0:
                    break
                self._relax(part, min(share * factor, 1.0))
                self._solve(part, progress, roughly=True)
                error = self.validator.squared_error(self._phi())
                if error > least * (1.0 - MARGIN):
                    break
                least, best, share = error, self._point(part), self.edge_share
            self._relax(part, share)
            self._put(part, best)
            if share != start:
                break

    def _put(self, part: LeastSquares, point: Point) -> None:
        """Put parameters into the backbone."""
        load_point(part.backbone, point)
        for step in self.problem.steps:
            step.moved()

    def _phi(self) -> LowRank:
        """The prediction model as it stands, for the users of all processes."""
        phi = self.partition.factors(self.problem.factors)
        if phi is None:
            raise TypeError("a problem without a prediction model")
        return phi

    def _sweeps_of(self, part: LeastSquares) -> int:
        return sum(f"loss_{part.name}" in row for row in self.history)

    def admissible(self) -> bool:
        """Whether the model may be chosen: a benchmarked loss must not be above 0, nor rise with its L2 penalty.

        The solver rounds off the bends of the loss, and a benchmark lies at all of them at once.
        """
        if not self.problem.benchmarked:
            return True
        own = self._benchmark is None or self._worst_case(self.parts[-1]) <= self._benchmark
        return own and self.partition.total(self.problem.steps[0]) <= ADMISSIBLE

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this stage."""
        tensors = change_user_rows(checkpoint.tensors, self._axes(), self.partition.take_own)
        try:
            state = checkpoint.state["sweep"]
            parts = [with_prefix(tensors, f"{kind}.") for kind in ("point", "direction", "proposal", "metric")]
            device = self.settings.device
            point, direction, proposal, metric = ({k: t.to(device) for k, t in part.items()} for part in parts)
            self.history = list(checkpoint.state["history"])
            self.unfinished = [str(name) for name in checkpoint.state["unfinished"]]
            number, settled = int(state["number"]), int(state["settled"])
            size = float(state["size"])
            sweep = Sweep(number, float(state["objective"]), point, direction, proposal, settled, size, metric)
            self._resumed = state["part"], sweep
            parameters = with_prefix(tensors, "now.")
            for part in self.parts:
                part.backbone.load_state_dict(with_prefix(parameters, f"{part.name}."))
            for step in self.problem.steps:
                step.moved()
            if checkpoint.state["edge_share"] is not None:
                self._anchor = {key: value.to(device) for key, value in with_prefix(tensors, "anchor.").items()}
                self._relax(self.parts[0], float(checkpoint.state["edge_share"]))
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError("the checkpoint does not fit this model", found=str(error)[:60], hint=HINT) from error

    def _solve(
        self, part: LeastSquares, progress: Progress | None, *, roughly: bool = False, at_edge: bool = False
    ) -> None:
        """Solve one model and put it into its backbone.

        roughly: as near as a comparison needs. at_edge: with all columns that the edge of noise lets in. Neither is in
        the history.
        """
        model, point = self._model(part), self._point(part)
        if not self.warm and part.name not in self._started:
            generator = torch.Generator().manual_seed(derive_seed(self.settings.seed, "start", self.stage, part.name))
            point = model.start(len(point["users"]), part.backbone.n_items, float(point["mean"]), generator)
        self._started.add(part.name)
        if self.problem.benchmarked and self.warm and part is self.parts[-1]:
            self._benchmark = self._worst_case(part)
        start = self._resumed[1] if self._resumed is not None and self._resumed[0] == part.name else point

        def after(sweep: Sweep) -> None:
            self._sweeps += 1
            figures = {"epoch": len(self.history) + 1, f"loss_{part.name}": sweep.objective}
            if not roughly and not at_edge:
                self.history.append(figures)
            if progress is not None:
                progress(self.stage, self._sweeps, self.settings.epochs * len(self.parts), figures)
            if self.save is not None and not roughly:
                self.save(self._state(part.name, sweep))

        end = solve(
            part.objective(), model, start, max_sweeps=self.settings.epochs, after=after,
            tolerance=ROUGHLY if roughly else None,
            metric=self._metric.pop(part.name, None),
        )  # fmt: skip
        self._metric[part.name] = end.metric
        name = f"{part.name} of stage {self.stage}"
        if end.settled < SETTLED and not roughly and name not in self.unfinished:
            self.unfinished.append(name)
        self._put(part, end.point)

    def _worst_case(self, part: LeastSquares) -> float:
        """The loss of φ at its worst weights, as defined, and the penalty."""
        return self.partition.total(self.problem.steps[0]) + self._model(part).penalty(self._point(part))

    def _model(self, part: LeastSquares) -> Model:
        """A model as the solver has it, for the users of this process."""
        model = solver_model(part.backbone, self.settings, slice(*self.partition.own[0]), self.partition.world.sum)
        if self._anchor is None:
            return model
        return model.around(self._anchor, 1.0 if self.edge_share is None else NEAR / (self.edge_share + NEAR))

    def _point(self, part: LeastSquares) -> Point:
        """Its parameters as they stand."""
        low, high = self.partition.own[0]
        return point_of(part.backbone, high - low)

    def _as_point(self, parameters: Mapping[str, Tensor]) -> Point:
        """Parameters of φ as the solver has them."""
        phi = self.parts[-1]
        kept = {key: value.detach().clone() for key, value in phi.backbone.state_dict().items()}
        phi.backbone.load_state_dict(parameters)
        point = self._point(phi)
        phi.backbone.load_state_dict(kept)
        return point

    def _state(self, name: str, sweep: Sweep) -> Checkpoint:
        """All that the next sweep depends on; the first process gets the rows of all users."""
        tensors = {f"now.{key}": value for key, value in self._parameters().items()}
        for kind in ("point", "direction", "proposal", "metric"):
            tensors |= {f"{kind}.{key}": value for key, value in getattr(sweep, kind).items()}
        about = {
            "part": name, "number": sweep.number, "objective": sweep.objective, "settled": sweep.settled,
            "size": sweep.size,
        }  # fmt: skip
        if self.edge_share is not None and self._anchor is not None:
            tensors |= {f"anchor.{key}": value for key, value in self._anchor.items()}
        state = {
            "stage": self.stage, "sweep": about, "history": self.history, "edge_share": self.edge_share,
            "unfinished": self.unfinished,
        }  # fmt: skip
        return Checkpoint(change_user_rows(tensors, self._axes(), self.partition.gather_to_first), state)

    def _parameters(self) -> dict[str, Tensor]:
        return {
            f"{part.name}.{key}": value.detach().clone()
            for part in self.parts
            for key, value in part.backbone.state_dict().items()
        }

    def _axes(self) -> dict[str, int]:
        """Tensors with a row per user of this process."""
        if self.partition.shard is None:
            return {}
        own = {f"{kind}.users": 0 for kind in ("point", "direction", "proposal", "anchor")} | {
            "metric.users.inverse": 0
        }
        for part in self.parts:
            for key, axis in entity_axes(part.backbone).items():
                own |= dict.fromkeys([f"{part.name}.{key}", f"now.{part.name}.{key}"], axis)
        return own


def solver_model(backbone: Backbone, settings: Settings, users: slice, reduce: Reduce) -> Model:
    """A backbone of IDs and linear features with its L2, for the users of this process."""
    return Model(
        _side(backbone, backbone.user_towers, settings, users),
        _side(backbone, backbone.item_towers, settings, slice(None)),
        reduce,
        backbone.edge_share,
    )


def _side(backbone: Backbone, towers: nn.ModuleList, settings: Settings, rows: slice) -> Side:
    penalty, features = backbone.mean.detach().new_full((backbone.dim + 1,), torch.inf), None
    share, growing = None, 0.0
    for tower in towers:
        if isinstance(tower, IdTower):
            own = settings.l2 / max(tower.n_rows, 1) * tower.column_factor(penalty[None])
            columns = slice(None) if tower.vectors else slice(backbone.dim, None)
            penalty[columns] = own[columns]
            share, growing = tower.share, tower.growing
        elif isinstance(tower, LinearTower):
            design = tower.design.rows(rows)
            cost = settings.l2_features * tower.power[:, None] * tower.column_factor(tower.weight.detach())
            features = Features(design.pattern, design.values, cost)
    return Side(penalty, features, share, growing)


def point_of(backbone: Backbone, n_users: int) -> Point:
    """The parameters of a backbone as the solver has them, with rows for the `n_users` of this process."""
    point = {"mean": backbone.mean.detach().clone()}
    sides = (("user", backbone.user_towers, n_users), ("item", backbone.item_towers, backbone.n_items))
    for name, towers, n_rows in sides:
        point[f"{name}s"] = backbone.mean.detach().new_zeros(n_rows, backbone.dim + 1)
        for tower in towers:
            if isinstance(tower, IdTower):
                point[f"{name}s"][:, 0 if tower.vectors else backbone.dim :] = tower.weight.detach()
            elif isinstance(tower, LinearTower):
                point[f"{name}_features"] = tower.weight.detach().clone()
    return point


@torch.no_grad()
def load_point(backbone: Backbone, point: Point) -> None:
    """Put the solver's parameters into the backbone."""
    backbone.mean.copy_(point["mean"])
    for name, towers in (("user", backbone.user_towers), ("item", backbone.item_towers)):
        for tower in towers:
            if isinstance(tower, IdTower):
                tower.weight.copy_(point[f"{name}s"] if tower.vectors else point[f"{name}s"][:, backbone.dim :])
            elif isinstance(tower, LinearTower):
                tower.weight.copy_(point[f"{name}_features"])

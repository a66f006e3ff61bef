"""Runs the stages of a method one after the other: first what chooses dim and L2, then a benchmark
or a naive fit where the method needs one, then the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from puidrec.data.on_disk import StoredInteractions
from puidrec.data.signature import row_hashes
from puidrec.errors import InputError
from puidrec.losses.pair_loss import Objective, RobustLoss
from puidrec.methods.likes import LikesChoice, choose_for_likes
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import ADMISSIBLE, Done, Fitted, Part, Problem, Stage, with_prefix
from puidrec.optimise.adam import REFINING, Progress, SaveState, Trainer
from puidrec.optimise.checkpoint import HINT, Checkpoint
from puidrec.optimise.l2_path import Choice, Fold, choose
from puidrec.optimise.least_squares import LeastSquares, Outcome, State, grown
from puidrec.optimise.model import Model, Point, is_linear, linear_model, load_point, point_of
from puidrec.optimise.stopping import Validator
from puidrec.scores.log import Column, Log
from puidrec.scores.low_rank import LowRank
from puidrec.settings import DEFAULT_L2, Settings

FEW_ROWS, FOLDS, HELD_OUT = 50_000, 5, 10
"""Rows below which each of five folds is held out once; of larger logs, one row in ten is."""
PATH_ROWS = 2_000_000
"""Rows that the path is walked on at most: those of some users, of larger logs."""
PATH_USERS = 100_000
"""Users that it is walked on at most: where each has a row or two, a fit's time is theirs."""


def stages_of(prepared: Prepared) -> Sequence[Stage]:
    """The stages of a method, the last of which is the method itself."""
    return prepared.settings.spec.stages(prepared)


def train_stages(
    prepared: Prepared,
    save: SaveState | None = None,
    resume: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Run every stage; a checkpoint holds the stages done and the one under way."""
    _require_same_checkpoint(resume, prepared.log.operator)
    work = None if progress is None else _Work(progress, prepared.settings.epochs)
    # First, since it asks for propensities: features that cannot be binned are refused before the
    # path is walked, not after it.
    validator = prepared.validator() if prepared.settings.spec.trains else None
    prepared, choice = with_chosen_l2(prepared, resume, work)
    settings = prepared.settings
    done: dict[str, Fitted] = {}
    stages = stages_of(prepared)
    for k, stage in enumerate(stages):
        if work is not None:
            work.begin(stage.name, [_most_sweeps(other, settings) for other in stages[k:]])
        if resume is not None and f"done.{stage.name}.phi.left" in resume.tensors:
            done[stage.name] = _unpack(resume, stage.name, settings.device)
            continue
        problem = stage.build(done)
        if isinstance(problem, Fitted):
            done[stage.name] = problem
            continue
        own = resume if resume is not None and resume.state.get("stage") == stage.name else None
        keep = _with_done(save, done, choice)
        train = _solve if solves(problem, settings) else _descend
        fitted = train(problem, stage, prepared, done, validator, keep, own, work)
        worse = problem.benchmarked and not _admissible(problem, prepared)
        done[stage.name] = _benchmark_of(fitted, done) if worse else fitted
    if work is not None:
        work.end()
    history = [{"stage": stage.name, **row} for stage in stages for row in done[stage.name].history]
    used = {stage.name: done[stage.name].solver for stage in stages if done[stage.name].solver}
    unfinished = tuple(
        name for stage in stages if stage.sweeps is None for name in done[stage.name].unfinished
    )
    last = done[stages[-1].name]
    notes = {
        **_numbers(settings),
        **({} if choice is None else {"chosen": choice.describe()}),
        **last.notes,
    }
    notes |= gamma_report(prepared, last)
    if validator is not None:
        notes["validation_metric"] = validator.metric
    return replace(
        last,
        history=history,  # type: ignore[arg-type]
        solver=_in_words(used),
        unfinished=unfinished,
        notes=notes,
    )


def _most_sweeps(stage: Stage, settings: Settings) -> int:
    """Sweeps or epochs of a model of a stage, at most."""
    return settings.epochs if stage.sweeps is None else min(settings.epochs, stage.sweeps)


class _Work:
    """Counts work over all stages: sweeps, epochs and fits of the path done, of those and the most
    that is left.

    A stage that converges before its most sweeps makes the total smaller, so that the last call is
    the end.
    """

    def __init__(self, told: Progress, later: int) -> None:
        self.told, self.before, self.own, self.later = told, 0, 0, later
        self.last: tuple[str, int, int] = ("", 0, 0)

    def begin(self, stage: str, most: Sequence[int]) -> None:
        """A stage begins; most: sweeps of it and of those after it. The last may be a closed form
        that takes long."""
        self.before, self.own, self.later = self.before + self.own, 0, sum(most[1:])
        if len(most) == 1 and self.before:
            self(stage, 0, most[0], {})

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """A step of a stage: `done` of at most `total`; of the path nobody knows how many fits it
        has."""
        self.own = done if total else self.own + 1
        done = self.before + self.own
        self.last = (stage, done, done + max(total - self.own, 0) + self.later)
        self.told(*self.last, figures)

    def end(self) -> None:
        """Nothing is left."""
        stage, done, total = self.last
        if stage and done < total:
            self.told(stage, done, done, {})


def _numbers(settings: Settings) -> dict[str, Any]:
    """dim and L2 as they were used, for reports."""
    return {"dim": settings.dim_number, "l2": settings.l2_number} if settings.spec.trains else {}


def gamma_report(prepared: Prepared, fitted: Fitted) -> dict[str, Any]:
    """Γ as it entered, over pairs drawn at random."""
    if prepared.settings.spec.uncertainty == "none":
        return {}
    sample = prepared.gamma.sample(10_000, prepared.settings.seed) ** fitted.gamma_scale
    median, high = np.quantile(sample, (0.5, 0.95))
    largest = prepared.gamma.max**fitted.gamma_scale
    return {"gamma": {"median": float(median), "p95": float(high), "max": float(largest)}}


def _in_words(used: Mapping[str, str]) -> str:
    """One solver for all stages, or which stage had which."""
    if len(set(used.values())) <= 1:
        return next(iter(used.values()), "")
    return ", ".join(f"{solver} ({stage})" for stage, solver in used.items())


def solves(problem: Problem, settings: Settings) -> bool:
    """Whether least squares trains a problem; else Adam does. Refused where the caller asked for
    what cannot be."""
    if settings.solver == "adam":
        return False
    parts = problem.parts
    if parts and all(is_linear(part.backbone) for part in parts):
        return True
    if settings.solver == "least-squares":
        raise InputError(
            f"{settings.method} cannot be solved by least squares with these settings",
            found=f"backbone {settings.backbone}, loss {settings.loss}, head {settings.head}",
            expected="a loss of logged scores that are linear in the parameters",
            hint="Use solver=auto, which takes adam there.",
        )
    return False


# dim and L2


def with_chosen_l2(
    prepared: Prepared, resume: Checkpoint | None = None, progress: Progress | None = None
) -> tuple[Prepared, Choice | None]:
    """The same with numbers for `dim` and `l2`, chosen by held-out logged rows where they are left
    open.

    They are those of the log, not of the method: the path is that of the naive loss, whatever the
    method.
    """
    settings = prepared.settings
    if "auto" not in (settings.dim, settings.l2) or not settings.spec.chooses_l2:
        return prepared, None
    if resume is not None and "chosen" in resume.state:
        found: Any = resume.state["chosen"]
        numbers = int(found["dim"]), float(found["factor"]), float(found["error"])
        weight = found.get("unseen_weight")
        choice = (
            Choice(*numbers)
            if weight is None
            else LikesChoice(*numbers, unseen_weight=float(weight))
        )
        return _with_numbers(prepared, choice), choice
    if settings.backbone not in ("mf", "mf-linear"):
        return prepared, None
    if prepared.data.positives_only:
        if not settings.spec.chooses_unseen_weight or not settings.is_linear:
            return prepared, None
        choice = _walk_likes(prepared, progress)
    else:
        choice = _walk(prepared, progress)
    return _with_numbers(prepared, choice), choice


def _with_numbers(prepared: Prepared, choice: Choice) -> Prepared:
    settings = prepared.settings
    factor = choice.factor if settings.l2 == "auto" else 1.0
    numbers = settings.replace(
        dim=choice.dim if settings.dim == "auto" else settings.dim,
        l2=settings.l2_number * factor,
        l2_features=settings.l2_features * factor,
        unseen_weight=choice.unseen_weight
        if isinstance(choice, LikesChoice)
        else settings.unseen_weight,
    )
    return Prepared.of(prepared.data, prepared.split, numbers, prepared.log.world)


def _walk(prepared: Prepared, progress: Progress | None) -> Choice:
    settings = prepared.settings
    backbone = prepared.first_stage("mf").backbone("path")
    operator, item, target, users = _path_rows(prepared)
    columns = {"r": operator.filled(lambda rows: target[rows])}
    columns["a"] = columns["b"] = operator.filled(lambda rows: np.ones(rows.stop - rows.start))
    objective = Objective(operator, RobustLoss(prepared.error), columns, 1.0 / len(operator))
    hashes = row_hashes(operator.row_start, item, target, operator.n_items, settings.seed)
    small = len(operator) < FEW_ROWS
    count = FOLDS if small else 1
    code = hashes % np.uint64(FOLDS if small else HELD_OUT)
    folds = [_fold(operator, code != np.uint64(k)) for k in range(count)]
    kept = users if operator.world.size == 1 else operator.users

    def model_of(dim: int, factor: float) -> Model:
        full = linear_model(
            backbone,
            settings.l2_number * factor,
            settings.l2_features * factor,
            kept,
            operator.total,
        )
        sides = [replace(side, penalty=_columns(side.penalty, dim)) for side, _ in full.sides]
        return replace(full, users=sides[0], items=sides[1])

    start = point_of(backbone, kept)
    start = {name: x if x.ndim == 0 else 0.0 * x[:, -1:] for name, x in start.items()}
    told = None
    if progress is not None:
        told = lambda dim, error: progress("choice of dim and l2", 0, 0, {"loss_held_out": error})  # noqa: E731
    dims, factors = (
        {} if settings.dim == "auto" else {"dims": (settings.dim,)},
        {} if settings.l2 == "auto" else {"factors": (1.0,)},
    )
    return choose(objective, model_of, start, folds, progress=told, **dims, **factors)  # type: ignore[arg-type]


def _walk_likes(prepared: Prepared, progress: Progress | None) -> LikesChoice:
    operator, item, _, users = _path_rows(prepared)
    told = None
    if progress is not None:

        def told(dim: int, error: float) -> None:
            progress("choice of dim and l2", dim, 64, {"held_out_recall": -error})

    return choose_for_likes(
        prepared, (operator.row_start, np.asarray(item)), users, spectral_start, told
    )


def _columns(penalty: torch.Tensor, dim: int) -> torch.Tensor:
    """The penalty of `dim` columns and the bias: all columns have one."""
    return torch.cat([penalty[:1].expand(dim), penalty[-1:]])


def _fold(log: Log, kept: np.ndarray) -> Fold:
    def column(mask: np.ndarray) -> Column:
        return log.filled(lambda rows: mask[rows].astype(np.float64))

    return Fold(column(kept), column(~kept))


def _path_rows(prepared: Prepared) -> tuple[Log, np.ndarray, np.ndarray, slice]:
    """The log that the path is walked on: all of it, or the rows of every k-th user, in the order
    of ids, where rows or users are many."""
    log = prepared.log
    step = max(1, -(-len(log.rows) // PATH_ROWS), -(-log.data.n_users // PATH_USERS))
    if step == 1 and not isinstance(log.rows, StoredInteractions):
        return log.operator, log.items, log.ratings_array(), slice(None)
    users = slice(0, None, step)
    counts = np.diff(log.row_start)[users]
    at = np.repeat(
        log.row_start[:-1][users] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts
    )
    at = at + np.arange(at.size)
    item = np.asarray(log.items[at], dtype=np.int32)
    rows = log.rows.take(at)
    row_start = np.concatenate([[0], np.cumsum(counts)])
    operator = Log(
        row_start, item, log.data.n_items, device=prepared.settings.device, dtype=log.dtype
    )
    return operator, item, np.asarray(log.target(rows), np.float64), users


# least squares


def _solve(
    problem: Problem,
    stage: Stage,
    prepared: Prepared,
    done: Done,
    validator: Validator | None,
    save: SaveState | None,
    resume: Checkpoint | None,
    progress: Progress | None,
) -> Fitted:
    """Solve the models of a problem, one after the other, and put them into their backbones."""
    settings, log = prepared.settings, prepared.log.operator
    most = _most_sweeps(stage, settings)
    solver, resumed, solved = LeastSquares(max_sweeps=most), None, 0
    history, unfinished = list[dict[str, float]](), list[str]()
    if resume is not None:
        resumed, solved = _resumed(problem, resume, log, settings)
        history, unfinished = list(resume.state["history"]), list(resume.state["unfinished"])
    for k, part in enumerate(problem.parts):
        if k < solved:
            continue
        objective, model = part.objective(), model_for(part, settings, log)
        if stage.shrink_to is not None:
            model = model.around(_phi_point(done[stage.shrink_to], part, log))
        start: Point | State = _start(part, k, problem, stage, done, objective, model, log)
        start = resumed if resumed is not None and k == solved else start
        name = part.name

        def after(state: State, name: str = name, k: int = k) -> None:
            figures = {"epoch": len(history) + 1, f"loss_{name}": state.objective}
            history.append(figures)
            if progress is not None:
                progress(stage.name, len(history), most * len(problem.parts), figures)
            if save is not None and state.fresh:
                save(lambda: _state_of(problem, stage.name, k, state, history, unfinished, log))

        found = solver.minimise(objective, model, start, after=after)
        if found.outcome is not Outcome.CONVERGED:
            unfinished.append(f"{part.name} of stage {stage.name}")
        load_point(part.backbone, {**found.point, "users": log.gather(found.point["users"])})
    with torch.no_grad():
        phi, theta = problem.factors().detach(), problem.imputation()
        theta = None if theta is None else theta.detach()
    score = validator.score(phi) if validator is not None else None
    parameters = {
        f"{part.name}.{key}": value.detach().clone()
        for part in problem.parts
        for key, value in part.backbone.state_dict().items()
    }
    return Fitted(
        phi,
        theta,
        parameters,
        history,
        len(history),
        score,
        problem.gamma_scale,
        solver="least-squares",
        unfinished=tuple(unfinished),
    )


def model_for(part: Part, settings: Settings, log: Log) -> Model:
    """A model of a problem as the solver has it, for the users of this process."""
    l2, l2_features = (
        part.l2_factor * value for value in (settings.l2_number, settings.l2_features)
    )
    return linear_model(part.backbone, l2, l2_features, log.users, log.total)


def _start(
    part: Part,
    k: int,
    problem: Problem,
    stage: Stage,
    done: Done,
    objective: Objective,
    model: Model,
    log: Log,
) -> Point:
    """Where a model starts: at a stage before, at the model before it, or at the leading directions
    of its slope."""
    if stage.start is not None:
        return _phi_point(done[stage.start], part, log)
    if stage.refines:
        return point_of(part.backbone, log.users)
    if k > 0:
        return point_of(problem.parts[k - 1].backbone, log.users)
    return spectral_start(objective, model, point_of(part.backbone, log.users))


def spectral_start(objective: Objective, model: Model, like: Point) -> Point:
    """Biases alone, solved roughly, then all columns along the leading directions of the slope
    there."""
    empty = {name: x if x.ndim == 0 else 0.0 * x[:, -1:] for name, x in like.items()}
    sides = [replace(side, penalty=side.penalty[-1:], centre=None) for side, _ in model.sides]
    narrow = replace(model, users=sides[0], items=sides[1])
    biases = LeastSquares(tolerance=2e-3, max_sweeps=20).minimise(objective, narrow, empty).point
    return grown(objective, model, biases)


def _phi_point(fitted: Fitted, part: Part, log: Log) -> Point:
    """The parameters of φ of a stage, as the solver has them."""
    kept = {key: value.detach().clone() for key, value in part.backbone.state_dict().items()}
    part.backbone.load_state_dict(with_prefix(fitted.parameters, "phi."))
    point = point_of(part.backbone, log.users)
    part.backbone.load_state_dict(kept)
    return point


def _state_of(
    problem: Problem,
    stage: str,
    k: int,
    state: State,
    history: list[dict[str, float]],
    unfinished: list[str],
    log: Log,
) -> Checkpoint:
    """All that the next sweep depends on; the first process gets the rows of all users."""
    tensors = {
        f"now.{part.name}.{key}": value.detach()
        for part in problem.parts
        for key, value in part.backbone.state_dict().items()
    }
    for kind in ("point", "direction", "proposal", "metric"):
        for key, value in getattr(state, kind).items():
            by_user = key in USER_ROWS
            tensors[f"{kind}.{key}"] = log.gather_to_first(value) if by_user else value
    about = {name: getattr(state, name) for name in ("number", "objective", "settled", "size")} | {
        "part": k
    }
    lists = {"history": list(history), "unfinished": list(unfinished)}
    return Checkpoint(tensors, {"stage": stage, "sweep": about, **lists})


USER_ROWS = ("users", "user.inverse", "user.share")
"""Tensors of a state with a row per user."""


def _resumed(
    problem: Problem, checkpoint: Checkpoint, log: Log, settings: Settings
) -> tuple[State, int]:
    """The state of a checkpoint, and how many models were solved before it."""
    try:
        kinds = [
            with_prefix(checkpoint.tensors, f"{kind}.")
            for kind in ("point", "direction", "proposal", "metric")
        ]
        point, direction, proposal, metric = (
            {k: (log.own(t) if k in USER_ROWS else t).to(settings.device) for k, t in part.items()}
            for part in kinds
        )
        for part in problem.parts:
            part.backbone.load_state_dict(with_prefix(checkpoint.tensors, f"now.{part.name}."))
        about = checkpoint.state["sweep"]
        for name in ("history", "unfinished"):
            if not isinstance(checkpoint.state[name], list):
                raise TypeError(f"no list of {name}")
        if point["users"].shape[1] != problem.parts[0].backbone.dim + 1:
            raise ValueError(f"{point['users'].shape[1] - 1} columns")
        state = State(
            int(about["number"]),
            float(about["objective"]),
            point,
            direction,
            proposal,
            int(about["settled"]),
            float(about["size"]),
            metric,
        )
        return state, int(about["part"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            "the checkpoint does not fit this model", found=str(error)[:60], hint=HINT
        ) from error


# Adam


def _descend(
    problem: Problem,
    stage: Stage,
    prepared: Prepared,
    done: Done,
    validator: Validator | None,
    save: SaveState | None,
    resume: Checkpoint | None,
    progress: Progress | None,
) -> Fitted:
    """Train a problem by Adam."""
    settings = prepared.settings
    if stage.shrink_to is not None:
        raise InputError("shrink_to needs a method solved by least squares", found=settings.method)
    trainer = Trainer(
        problem.steps,
        problem.factors,
        stage.name,
        settings.epochs,
        settings.lr * (REFINING if stage.refines else 1.0),
        settings.patience,
        validator,
        lambda: not problem.benchmarked or _admissible(problem, prepared),
        save,
        settings.seed,
    )
    if resume is not None:
        trainer.restore(resume)
    trainer.run(progress)
    with torch.no_grad():
        phi, theta = problem.factors().detach(), problem.imputation()
        theta = None if theta is None else theta.detach()
    score = trainer.stopping.best if validator is not None else None
    epoch = trainer.stopping.best_epoch + 1
    scale = problem.gamma_scale
    return Fitted(phi, theta, trainer.best, trainer.history, epoch, score, scale, solver="adam")


# benchmarks and checkpoints


@torch.no_grad()
def _admissible(problem: Problem, prepared: Prepared) -> bool:
    """Whether a benchmarked model may be chosen: its loss must not be above the benchmark's, which
    is 0."""
    log = prepared.log.operator
    if problem.parts:
        objective = problem.parts[-1].objective()
        phi = problem.factors().detach()
        factors = LowRank.of(log.own(phi.lefts[0]), phi.rights[0])
        return objective.value(log.scores_of(phi), factors) <= ADMISSIBLE
    return float(problem.steps[0].loss()) <= ADMISSIBLE


def _benchmark_of(fitted: Fitted, done: Done) -> Fitted:
    """A benchmarked method never returns a model whose robust loss is above its benchmark's: it
    returns that one."""
    base = done["benchmark"]
    return replace(fitted, phi=base.phi, theta=base.theta, parameters=base.parameters)


def _require_same_checkpoint(resume: Checkpoint | None, log: Log) -> None:
    """All processes go on from the same epoch, or none does: else they would add up steps of
    different models."""
    history = None if resume is None else resume.state.get("history")
    epochs = len(history) if isinstance(history, list) else -1
    behind = log.world.sum_number(float(epochs)) - log.world.size * epochs
    if log.world.sum_number(abs(behind)) > 0:
        raise InputError(
            "the processes do not see the same checkpoint",
            found="another epoch, or none, on some machine",
            expected="--out in a folder that all of them share",
            hint="Copy the checkpoint to all, or remove it.",
        )


def _with_done(save: SaveState | None, done: Done, choice: Choice | None) -> SaveState | None:
    """Add the finished stages, and what was chosen, to every checkpoint of the current one."""
    if save is None:
        return None
    tensors: dict[str, torch.Tensor] = {}
    for name, fitted in done.items():
        for part, factors in (("phi", fitted.phi), ("theta", fitted.theta)):
            if factors is not None:
                tensors[f"done.{name}.{part}.left"] = torch.cat(factors.lefts, 1)
                tensors[f"done.{name}.{part}.right"] = torch.cat(factors.rights, 1)
        tensors |= {
            f"done.{name}.parameter.{key}": value for key, value in fitted.parameters.items()
        }
    finished = {
        name: {
            "history": fitted.history,
            "best_epoch": fitted.best_epoch,
            "solver": fitted.solver,
            "gamma_scale": fitted.gamma_scale,
            "unfinished": list(fitted.unfinished),
        }
        for name, fitted in done.items()
    }
    more: dict[str, Any] = {"done": finished}
    if choice is not None:
        more["chosen"] = {"dim": choice.dim, "factor": choice.factor, "error": choice.error}
        if isinstance(choice, LikesChoice):
            more["chosen"]["unseen_weight"] = choice.unseen_weight

    def with_more(make: Any) -> Checkpoint:
        state = make()
        return Checkpoint({**state.tensors, **tensors}, {**state.state, **more})

    return lambda make: save(lambda: with_more(make))


def _unpack(checkpoint: Checkpoint, name: str, device: str) -> Fitted:
    """A finished stage from a checkpoint, where the next one trains."""

    def factors(part: str) -> LowRank | None:
        key = f"done.{name}.{part}."
        if f"{key}left" not in checkpoint.tensors:
            return None
        return LowRank.of(
            *(checkpoint.tensors[f"{key}{side}"].to(device) for side in ("left", "right"))
        )

    parameters = with_prefix(checkpoint.tensors, f"done.{name}.parameter.")
    try:
        finished = checkpoint.state["done"][name]
        phi = factors("phi")
        if phi is None:
            raise KeyError(f"done.{name}.phi.left")
        return Fitted(
            phi,
            factors("theta"),
            parameters,
            list(finished["history"]),
            int(finished["best_epoch"]),
            gamma_scale=float(finished["gamma_scale"]),
            solver=str(finished["solver"]),
            unfinished=tuple(map(str, finished["unfinished"])),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "the checkpoint does not fit this model", found=str(error)[:60], hint=HINT
        ) from error


__all__ = ["DEFAULT_L2", "stages_of", "train_stages", "with_chosen_l2"]

"""Runs the stages of a method one after the other: first what chooses dim and L2, then a benchmark
or a naive fit where the method needs one, then the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from puidrec.errors import InputError
from puidrec.features.bins import refuse_id
from puidrec.features.encode import feature_columns
from puidrec.losses.pair_loss import Objective
from puidrec.methods.dim_and_l2 import Chosen, spectral_start, with_chosen_l2
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Part, Problem, Stage
from puidrec.methods.report import Work
from puidrec.optimise.adam import REFINING, Progress, SaveState, Trainer
from puidrec.optimise.checkpoint import HINT, Checkpoint, with_prefix
from puidrec.optimise.least_squares import LeastSquares, Outcome, State
from puidrec.optimise.model import Model, Point, is_linear, linear_model, load_point, point_of
from puidrec.optimise.stopping import Validator
from puidrec.scores.log import Log
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings

ADMISSIBLE = 1e-6
"""A benchmarked loss up to this much above 0 counts as 0: sums over all pairs are rounded."""
USER_ROWS = ("users", "user.inverse", "user.share")
"""Tensors of a solver's state with a row per user."""
KINDS = ("point", "direction", "proposal", "metric")
"""What a solver's state has tensors of."""
PLAIN = ("history", "best_epoch", "gamma_scale", "solver", "unfinished")
"""What a checkpoint says of a finished stage beside its tensors."""


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
    _require_inputs(prepared)
    work = None if progress is None else Work(progress, prepared.settings.epochs)
    validator = prepared.validator() if prepared.settings.spec.trains else None
    prepared, chosen = with_chosen_l2(prepared, resume, work)
    settings = prepared.settings
    run, stages = Run(prepared, validator, chosen, save, resume, work), stages_of(prepared)
    for k, stage in enumerate(stages):
        if work is not None:
            work.begin(stage.name, [_most_sweeps(other, settings) for other in stages[k:]])
        run.train(stage)
    if work is not None:
        work.end()
    done, last = run.done, run.done[stages[-1].name]
    notes: dict[str, Any] = {}
    if settings.spec.trains:
        notes = {"dim": settings.dim_number, "l2": settings.l2_number}
    if chosen is not None:
        notes["chosen"] = chosen["notes"]
    notes |= {**last.notes, **gamma_report(prepared, last)}
    if validator is not None:
        notes["validation_metric"] = validator.metric
    return replace(
        last,
        history=[{"stage": one.name, **row} for one in stages for row in done[one.name].history],  # type: ignore[dict-item]
        solver=_in_words({one.name: done[one.name].solver for one in stages}),
        unfinished=tuple(
            name for one in stages if one.sweeps is None for name in done[one.name].unfinished
        ),
        notes=notes,
    )


def _require_inputs(prepared: Prepared) -> None:
    """Refuse too few uniform rows, and features that cannot be binned, where the method reads them:
    before dim and L2 are chosen, which takes longest."""
    spec, data = prepared.settings.spec, prepared.data
    if spec.needs_uniform:
        prepared.uniform_rows()
    if spec.reads_bins and not data.positives_only:
        for table, key in ((data.users, "user_id"), (data.items, "item_id")):
            for column in feature_columns(table, key):
                refuse_id(column, key)


def _most_sweeps(stage: Stage, settings: Settings) -> int:
    """Sweeps or epochs of a model of a stage, at most."""
    return settings.epochs if stage.sweeps is None else min(settings.epochs, stage.sweeps)


def gamma_report(prepared: Prepared, fitted: Fitted) -> dict[str, Any]:
    """Γ as it entered, over pairs drawn at random."""
    if prepared.settings.spec.uncertainty == "none":
        return {}
    sample = prepared.gamma.sample(10_000, prepared.settings.seed) ** fitted.gamma_scale
    median, high = np.quantile(sample, (0.5, 0.95))
    largest = prepared.gamma.max**fitted.gamma_scale
    return {"gamma": {"median": float(median), "p95": float(high), "max": float(largest)}}


def _in_words(solvers: Mapping[str, str]) -> str:
    """One solver for all stages, or which stage had which."""
    used = {stage: solver for stage, solver in solvers.items() if solver}
    if len(set(used.values())) <= 1:
        return next(iter(used.values()), "")
    return ", ".join(f"{solver} ({stage})" for stage, solver in used.items())


def solves(problem: Problem, settings: Settings) -> bool:
    """Whether least squares trains a problem; else Adam does. Refused where the caller asked for
    what cannot be."""
    if settings.solver == "adam":
        return False
    if problem.solvable and all(is_linear(part.backbone) for part in problem.parts):
        return True
    if settings.solver == "least-squares":
        raise InputError(
            f"{settings.method} cannot be solved by least squares with these settings",
            found=f"backbone {settings.backbone}, loss {settings.loss}, head {settings.head}",
            expected="a loss of logged scores that are linear in the parameters",
            hint="Use solver=auto, which takes adam there.",
        )
    return False


def model_for(part: Part, settings: Settings, log: Log) -> Model:
    """A model of a problem as the solver has it, for the users of this process."""
    l2, l2_features = (
        part.l2_factor * value for value in (settings.l2_number, settings.l2_features)
    )
    return linear_model(part.backbone, l2, l2_features, log.users, log.total)


@dataclass
class Run:
    """One training: the stages done so far, and what they are trained and saved with."""

    prepared: Prepared
    validator: Validator | None = None
    chosen: Chosen | None = None
    save: SaveState | None = None
    resume: Checkpoint | None = None
    progress: Progress | None = None
    done: dict[str, Fitted] = field(default_factory=dict)

    def train(self, stage: Stage) -> None:
        """Do a stage: as the checkpoint has it, in closed form, by least squares, or by Adam."""
        if self.resume is not None and f"done.{stage.name}.phi.left" in self.resume.tensors:
            self.done[stage.name] = _unpack(self.resume, stage.name, self.prepared.settings.device)
            return
        problem = stage.build(self.done)
        if isinstance(problem, Problem):
            solved = solves(problem, self.prepared.settings)
            fitted = (self.solve if solved else self.descend)(problem, stage)
            if problem.excess() > ADMISSIBLE:  # never above the benchmark: it is returned instead
                base = self.done["benchmark"]
                fitted = replace(fitted, phi=base.phi, theta=base.theta, parameters=base.parameters)
        else:
            fitted = problem
        self.done[stage.name] = fitted

    @property
    def _log(self) -> Log:
        return self.prepared.log.operator

    def _begun(self, stage: Stage) -> Checkpoint | None:
        """The checkpoint, where it was written in this stage."""
        resume = self.resume
        return resume if resume is not None and resume.state.get("stage") == stage.name else None

    def solve(self, problem: Problem, stage: Stage) -> Fitted:
        """Solve the models of a problem, one after the other, and put them into their backbones."""
        log, parts = self._log, problem.parts
        most = _most_sweeps(stage, self.prepared.settings)
        solver, state, solved = LeastSquares(max_sweeps=most), None, 0
        history, unfinished = list[dict[str, float]](), list[str]()
        begun, save = self._begun(stage), self._saving()
        if begun is not None:
            state, solved = _resumed(problem, begun, log, self.prepared.settings.device)
            history, unfinished = list(begun.state["history"]), list(begun.state["unfinished"])
        for k, part in enumerate(parts[solved:], solved):
            objective, model = part.objective(), model_for(part, self.prepared.settings, log)
            if stage.shrink_to is not None:
                model = model.around(_phi_point(self.done[stage.shrink_to], part, log))

            def after(now: State, name: str = part.name, k: int = k) -> None:
                figures = {"epoch": len(history) + 1, f"loss_{name}": now.objective}
                history.append(figures)
                if self.progress is not None:
                    self.progress(stage.name, len(history), most * len(parts), figures)
                if save is not None and now.fresh:
                    so_far = {"stage": stage.name, "history": [*history]}
                    save(
                        lambda: _state_of(
                            problem, k, now, {**so_far, "unfinished": [*unfinished]}, log
                        )
                    )

            start = state or self._start(parts, k, stage, objective, model)
            found, state = solver.minimise(objective, model, start, after=after), None
            if found.outcome is not Outcome.CONVERGED:
                unfinished.append(f"{part.name} of stage {stage.name}")
            load_point(part.backbone, {**found.point, "users": log.gather(found.point["users"])})
        parameters = {
            f"{part.name}.{key}": value.detach().clone()
            for part in parts
            for key, value in part.backbone.state_dict().items()
        }
        fitted = _fitted(problem, parameters, history, "least-squares")
        score = self.validator.score(fitted.phi) if self.validator is not None else None
        return replace(
            fitted, best_epoch=len(history), best_score=score, unfinished=tuple(unfinished)
        )

    def _start(
        self, parts: Sequence[Part], k: int, stage: Stage, objective: Objective, model: Model
    ) -> Point:
        """Where a model starts: at a stage before, at the model before it, or at the leading
        directions of its slope."""
        backbone, users = parts[k].backbone, self._log.users
        if stage.refines:
            return point_of(backbone, users)
        if (near := stage.start or stage.shrink_to) is not None:
            return _phi_point(self.done[near], parts[k], self._log)
        if k > 0:
            return point_of(parts[k - 1].backbone, users)
        return spectral_start(objective, model, point_of(backbone, users))

    def descend(self, problem: Problem, stage: Stage) -> Fitted:
        """Train a problem by Adam."""
        settings, validator = self.prepared.settings, self.validator
        self._log.require_simple(settings.method)
        if stage.shrink_to is not None:
            raise InputError(
                "shrink_to needs a method solved by least squares", found=settings.method
            )
        trainer = Trainer(
            problem.steps,
            problem.factors,
            stage.name,
            settings.epochs,
            settings.lr * (REFINING if stage.refines else 1.0),
            settings.patience,
            validator,
            lambda: problem.excess() <= ADMISSIBLE,
            self._saving(),
            settings.seed,
        )
        if (begun := self._begun(stage)) is not None:
            trainer.restore(begun)
        trainer.run(self.progress)
        fitted, stopping = _fitted(problem, trainer.best, trainer.history, "adam"), trainer.stopping
        score = stopping.best if validator is not None else None
        return replace(fitted, best_epoch=stopping.best_epoch + 1, best_score=score)

    def _saving(self) -> SaveState | None:
        """Saves with the finished stages, and what was chosen, in every checkpoint."""
        if (save := self.save) is None:
            return None
        tensors = {
            key: tensor for name, one in self.done.items() for key, tensor in _packed(name, one)
        }
        done = {
            name: {key: getattr(fitted, key) for key in PLAIN} for name, fitted in self.done.items()
        }
        more = {"done": done} | ({} if self.chosen is None else {"chosen": self.chosen})

        def with_more(make: Any) -> Checkpoint:
            state = make()
            return Checkpoint({**state.tensors, **tensors}, {**state.state, **more})

        return lambda make: save(lambda: with_more(make))


@torch.no_grad()
def _fitted(
    problem: Problem,
    parameters: Mapping[str, torch.Tensor],
    history: list[dict[str, float]],
    solver: str,
) -> Fitted:
    phi, theta = problem.factors().detach(), problem.imputation()
    theta = None if theta is None else theta.detach()
    scale = problem.gamma_scale
    return Fitted(phi, theta, parameters, history, gamma_scale=scale, solver=solver)


def _phi_point(fitted: Fitted, part: Part, log: Log) -> Point:
    """The parameters of φ of a stage, as the solver has them."""
    kept = {key: value.detach().clone() for key, value in part.backbone.state_dict().items()}
    part.backbone.load_state_dict(with_prefix(fitted.parameters, "phi."))
    point = point_of(part.backbone, log.users)
    part.backbone.load_state_dict(kept)
    return point


# checkpoints


def _state_of(
    problem: Problem, k: int, state: State, so_far: Mapping[str, Any], log: Log
) -> Checkpoint:
    """All that the next sweep depends on; with the rows of all users."""
    tensors = {
        f"now.{part.name}.{key}": value.detach()
        for part in problem.parts
        for key, value in part.backbone.state_dict().items()
    }
    for kind in KINDS:
        for key, value in getattr(state, kind).items():
            by_user = key in USER_ROWS
            tensors[f"{kind}.{key}"] = log.gather(value) if by_user else value
    about = {name: getattr(state, name) for name in ("number", "objective", "settled", "size")}
    return Checkpoint(tensors, {"sweep": about | {"part": k}, **so_far})


def _resumed(problem: Problem, checkpoint: Checkpoint, log: Log, device: str) -> tuple[State, int]:
    """The state of a checkpoint, and how many models were solved before it."""
    try:
        parts = {
            kind: {
                key: (log.own(tensor) if key in USER_ROWS else tensor).to(device)
                for key, tensor in with_prefix(checkpoint.tensors, f"{kind}.").items()
            }
            for kind in KINDS
        }
        for part in problem.parts:
            part.backbone.load_state_dict(with_prefix(checkpoint.tensors, f"now.{part.name}."))
        for name in ("history", "unfinished"):
            if not isinstance(checkpoint.state[name], list):
                raise TypeError(f"no list of {name}")
        columns = parts["point"]["users"].shape[1] - 1
        if columns != problem.parts[0].backbone.dim:
            raise ValueError(f"{columns} columns")
        about = checkpoint.state["sweep"]
        whole = {name: int(about[name]) for name in ("number", "settled")}
        real = {name: float(about[name]) for name in ("objective", "size")}
        return State(**whole, **real, **parts), int(about["part"])  # type: ignore[arg-type]
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            "the checkpoint does not fit this model", found=str(error)[:60], hint=HINT
        ) from error


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


def _packed(name: str, fitted: Fitted) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a finished stage, by name."""
    models = [("phi", fitted.phi), *([] if fitted.theta is None else [("theta", fitted.theta)])]
    return [
        *(
            (f"done.{name}.{part}.{side}", torch.cat(columns, 1))
            for part, factors in models
            for side, columns in (("left", factors.lefts), ("right", factors.rights))
        ),
        *((f"done.{name}.parameter.{key}", value) for key, value in fitted.parameters.items()),
    ]


def _unpack(checkpoint: Checkpoint, name: str, device: str) -> Fitted:
    """A finished stage from a checkpoint, where the next one trains."""
    tensors = with_prefix(checkpoint.tensors, f"done.{name}.")
    try:
        found: dict[str, Any] = {
            part: LowRank.of(*(tensors[f"{part}.{side}"].to(device) for side in ("left", "right")))
            for part in ("phi", "theta")
            if f"{part}.left" in tensors
        }
        found |= {key: checkpoint.state["done"][name][key] for key in PLAIN}
        found |= {"history": [*found["history"]], "unfinished": tuple(found["unfinished"])}
        return Fitted(parameters=with_prefix(tensors, "parameter."), **found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            "the checkpoint does not fit this model", found=str(error)[:60], hint=HINT
        ) from error

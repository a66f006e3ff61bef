"""Runs the stages of a method one after the other: first what chooses dim and L2, then a benchmark
or a naive fit where the method needs one, then the method; and says what was found on the way."""

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
from puidrec.losses.signed import DEFAULT_GAMMA, MIN_UNIFORM
from puidrec.methods.dim_and_l2 import Chosen, spectral_start, with_chosen_l2
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Part, Problem, Stage
from puidrec.methods.table import GAMMA_SCALE
from puidrec.optimise.adam import REFINING, SaveState, Trainer
from puidrec.optimise.checkpoint import HINT, Checkpoint, with_prefix
from puidrec.optimise.least_squares import LeastSquares, Outcome, State
from puidrec.optimise.model import Model, Point, is_linear, linear_model, load_point, point_of
from puidrec.optimise.stopping import Validator
from puidrec.plugins import named
from puidrec.scores.log import Log
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings
from puidrec.view import Progress, Work

ADMISSIBLE = 1e-6
"""A benchmarked loss up to this much above 0 counts as 0: sums over all pairs are rounded."""
USER_ROWS = ("users", "user.inverse", "user.share")
"""Tensors of a solver's state with a row per user."""
PLAIN = ("history", "best_epoch", "gamma_scale", "solver", "unfinished")
"""What a checkpoint says of a finished stage beside its tensors."""


def stages_of(prepared: Prepared) -> Sequence[Stage]:
    """The stages of a method, the last of which is the method itself."""
    stages: Sequence[Stage] = named(prepared.settings.spec.build)(prepared)
    return stages


def train_stages(
    prepared: Prepared,
    save: SaveState | None = None,
    resume: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Run every stage; a checkpoint holds the stages done and the one under way."""
    _require_same_checkpoint(resume, prepared.log.operator)
    _require_inputs(prepared)
    validator = prepared.validator() if prepared.settings.spec.trains else None
    work = None if progress is None else Work(progress, prepared.settings.epochs)
    prepared, chosen = with_chosen_l2(prepared, resume, work)
    settings = prepared.settings
    run, stages = Run(prepared, validator, chosen, save, resume, work), stages_of(prepared)
    for k, stage in enumerate(stages):
        if work is not None:
            most = (min(settings.epochs, one.sweeps or settings.epochs) for one in stages[k:])
            work.begin(stage.name, list(most))
        run.train(stage)
    if work is not None:
        work.end()
    done, last = run.done, run.done[stages[-1].name]
    notes: dict[str, Any] = {}
    if settings.spec.trains:
        notes = {"dim": settings.dim_number, "l2": settings.l2_number}
    if chosen is not None:
        notes["chosen"] = chosen["notes"]
    if validator is not None:
        notes["validation_metric"] = validator.metric
    solvers = dict.fromkeys(one.solver for one in done.values() if one.solver)
    return replace(
        last,
        history=[{"stage": one.name, **row} for one in stages for row in done[one.name].history],  # type: ignore[dict-item]
        solver=", ".join(solvers),
        unfinished=tuple(
            name for one in stages if one.sweeps is None for name in done[one.name].unfinished
        ),
        notes={**notes, **last.notes},
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
    l2, l2_features = settings.l2_number, settings.l2_features
    return linear_model(part.backbone, l2, l2_features, log.users, log.total)


@dataclass
class Run:
    """One training: the stages done so far, and what they are trained and saved with."""

    prepared: Prepared
    validator: Validator | None = None
    chosen: Chosen | None = None
    saver: SaveState | None = None
    resume: Checkpoint | None = None
    progress: Progress | None = None
    done: dict[str, Fitted] = field(default_factory=dict)

    def train(self, stage: Stage) -> None:
        """Do a stage: as the checkpoint has it, in closed form, by least squares, or by Adam."""
        resume, settings = self.resume, self.prepared.settings
        if resume is not None and f"done.{stage.name}.phi.left" in resume.tensors:
            self.done[stage.name] = _unpack(resume, stage.name, settings.device)
            return
        fitted = stage.build(self.done)
        if isinstance(fitted, Problem):
            problem, begun = fitted, None
            if resume is not None and resume.state.get("stage") == stage.name:
                begun = resume
            train = self.solve if solves(problem, settings) else self.descend
            fitted = train(problem, stage, begun)
            if problem.excess() > ADMISSIBLE:  # never above the benchmark: it is returned instead
                base = self.done["benchmark"]
                fitted = replace(fitted, phi=base.phi, theta=base.theta, parameters=base.parameters)
        self.done[stage.name] = fitted

    def solve(self, problem: Problem, stage: Stage, begun: Checkpoint | None = None) -> Fitted:
        """Solve the models of a problem, one after the other, and put them into their backbones."""
        settings, log, parts = self.prepared.settings, self.prepared.log.operator, problem.parts
        most, state, solved = min(settings.epochs, stage.sweeps or settings.epochs), None, 0
        history, unfinished = list[dict[str, float]](), list[str]()
        if begun is not None:
            state, solved = _resumed(problem, begun, log, settings.device)
            history, unfinished = list(begun.state["history"]), list(begun.state["unfinished"])
        for k, part in enumerate(parts[solved:], solved):
            objective, model = part.objective(), model_for(part, settings, log)
            start = state or self._start(parts, k, stage, objective, model)
            if stage.shrink_to is not None:
                model = model.around(self._phi_point(stage.shrink_to, part))

            def after(now: State, name: str = part.name, k: int = k) -> None:
                figures = {"epoch": len(history) + 1, f"loss_{name}": now.objective}
                history.append(figures)
                if self.progress is not None:
                    self.progress(stage.name, len(history), most * len(parts), figures)
                if self.saver is not None and now.fresh:
                    about = {"stage": stage.name, "history": history, "unfinished": unfinished}
                    self.save(lambda: _state_of(problem, k, now, about, log))

            found = LeastSquares(max_sweeps=most).minimise(objective, model, start, after=after)
            state = None
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
        own = point_of(parts[k].backbone, self.prepared.log.operator.users)
        if stage.refines:
            return own
        if (near := stage.start or stage.shrink_to) is not None:
            return self._phi_point(near, parts[k])
        if k > 0:
            return point_of(parts[k - 1].backbone, self.prepared.log.operator.users)
        return spectral_start(objective, model, own)

    def _phi_point(self, stage: str, part: Part) -> Point:
        """The parameters of φ of a stage, in place of what the model was drawn with."""
        part.backbone.load_state_dict(with_prefix(self.done[stage].parameters, "phi."))
        return point_of(part.backbone, self.prepared.log.operator.users)

    def descend(self, problem: Problem, stage: Stage, begun: Checkpoint | None = None) -> Fitted:
        """Train a problem by Adam."""
        settings, validator = self.prepared.settings, self.validator
        self.prepared.log.operator.require_simple(settings.method)
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
            None if self.saver is None else self.save,
            settings.seed,
        )
        if begun is not None:
            trainer.restore(begun)
        trainer.run(self.progress)
        fitted, stopping = _fitted(problem, trainer.best, trainer.history, "adam"), trainer.stopping
        score = stopping.best if validator is not None else None
        return replace(fitted, best_epoch=stopping.best_epoch + 1, best_score=score)

    def save(self, make: Any) -> None:
        """Save what is under way with the finished stages, and what was chosen."""
        assert self.saver is not None  # noqa: S101 (asked by who saves)

        def whole() -> Checkpoint:
            own, chosen = make(), {} if self.chosen is None else {"chosen": self.chosen}
            tensors, done = dict(own.tensors), dict[str, Any]()
            for name, fitted in self.done.items():
                tensors |= _packed(name, fitted)
                done[name] = {key: getattr(fitted, key) for key in PLAIN}
            return Checkpoint(tensors, {**own.state, "done": done, **chosen})

        self.saver(whole)


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


# checkpoints


def _state_of(
    problem: Problem, k: int, state: State, about: Mapping[str, Any], log: Log
) -> Checkpoint:
    """All that the next sweep depends on; with the rows of all users."""
    tensors = {
        f"now.{part.name}.{key}": value.detach()
        for part in problem.parts
        for key, value in part.backbone.state_dict().items()
    }
    sweep: dict[str, Any] = {"part": k}
    for kind, value in state._asdict().items():
        if not isinstance(value, Mapping):
            sweep[kind] = value
            continue
        for key, rows in value.items():
            tensors[f"{kind}.{key}"] = log.gather(rows) if key in USER_ROWS else rows
    return Checkpoint(tensors, {"sweep": sweep, **about})


def _resumed(problem: Problem, checkpoint: Checkpoint, log: Log, device: str) -> tuple[State, int]:
    """The state of a checkpoint, and how many models were solved before it."""
    try:
        sweep = dict(checkpoint.state["sweep"])
        k = int(sweep.pop("part"))
        parts = {
            kind: {
                key: (log.own(tensor) if key in USER_ROWS else tensor).to(device)
                for key, tensor in with_prefix(checkpoint.tensors, f"{kind}.").items()
            }
            for kind in set(State._fields) - set(sweep)
        }
        for part in problem.parts:
            part.backbone.load_state_dict(with_prefix(checkpoint.tensors, f"now.{part.name}."))
        columns = parts["point"]["users"].shape[1] - 1
        if columns != problem.parts[0].backbone.dim:
            raise ValueError(f"{columns} columns")
        return State(**{**sweep, **parts}), k
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise _misfit(error) from error


def _misfit(error: Exception) -> InputError:
    return InputError("the checkpoint does not fit this model", found=str(error)[:60], hint=HINT)


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


def _packed(name: str, fitted: Fitted) -> dict[str, torch.Tensor]:
    """The tensors of a finished stage, by name."""
    found = {f"done.{name}.parameter.{key}": value for key, value in fitted.parameters.items()}
    for part, factors in (("phi", fitted.phi), ("theta", fitted.theta)):
        if factors is not None:
            found[f"done.{name}.{part}.left"] = torch.cat(factors.lefts, 1)
            found[f"done.{name}.{part}.right"] = torch.cat(factors.rights, 1)
    return found


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
        raise _misfit(error) from error


# what is said of a fit


def training_report(prepared: Prepared, fitted: Fitted, seconds: float) -> dict[str, Any]:
    """What is worth knowing of one training, in plain values: what was estimated, what set Γ, which
    uniform rows entered."""
    settings, spec = prepared.settings, prepared.settings.spec
    report: dict[str, Any] = {
        "solver": fitted.solver or "closed form",
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "seconds": round(seconds, 3),
    }
    if fitted.unfinished:
        names = " and ".join(fitted.unfinished)
        report["not_converged"] = (
            f"{names} stopped after {settings.epochs} sweeps before the optimum; raise epochs or l2"
        )
    if fitted.best_score is not None:
        report["validation"] = fitted.best_score
    if settings.shrink_to is not None and spec.estimator != "naive":
        report["shrunk_to"] = settings.shrink_to
    if spec.benchmark:
        report["benchmark"] = "mf" if settings.benchmark == "mf" else spec.estimator
    if spec.uses_propensity is True:
        report["propensity"] = prepared.log.nominal.propensity.describe()
    if spec.uncertainty != "none":
        sample = prepared.gamma.sample(10_000, settings.seed) ** fitted.gamma_scale
        median, high = (float(x) for x in np.quantile(sample, (0.5, 0.95)))
        largest = float(prepared.gamma.max**fitted.gamma_scale)
        report["gamma"] = {"median": median, "p95": high, "max": largest}
    held_out = prepared.split.propensity
    rows = 0 if held_out is None else len(held_out)
    if settings.gamma == "learned" and spec.uncertainty != "none":
        report["gamma_set_by"] = "the posterior mean of spectrum, fitted first with uniform ratings"
    elif prepared.scales_gamma:
        report["gamma_set_by"] = gamma_set_by(rows)
    return report | _uniform_use(prepared, fitted, rows >= MIN_UNIFORM) | dict(fitted.notes)


def gamma_set_by(rows: int) -> str:
    """What set the scale of Γ where the caller did not: uniform ratings, or a default where there
    are too few."""
    if rows >= MIN_UNIFORM:
        return f"{rows:,} uniform ratings held out for calibration"
    found = "no uniform rating" if rows == 0 else f"only {rows:,} uniform rating{'s' * (rows > 1)}"
    return (
        f"the default {DEFAULT_GAMMA:g}: {found} held out for calibration, at least "
        f"{MIN_UNIFORM} are needed"
    )


def _uniform_use(prepared: Prepared, fitted: Fitted, enough: bool) -> dict[str, Any]:
    """How uniform rows entered the model, in words, and how many of which part of the split;
    `calibration` is propensity and validation rows together."""
    uses, rows, split = [], {}, prepared.split
    settings, spec = prepared.settings, prepared.settings.spec
    if split.uniform_in_training:
        uses.append("training")
    if spec.weighs_rows(settings) and prepared.log.nominal.propensity.uses_uniform:
        uses.append("propensity")
    learned = settings.gamma == "learned" and spec.uncertainty != "none"
    proved = settings.gamma == "certified" and spec.uncertainty != "none"
    if learned or proved or (prepared.scales_gamma and enough):
        uses.append(GAMMA_SCALE)
    if spec.uses_uniform not in ("", GAMMA_SCALE):
        uses.append(spec.uses_uniform)
    if uses and split.propensity is not None:
        rows["propensity"] = len(split.propensity)
    chooses = settings.select != "none" and "adam" in fitted.solver
    if chooses and split.selection == "uniform" and len(split.validation):
        uses.append("choice of the epoch")
        rows["validation"] = len(split.validation)
    if learned:
        rows = {"calibration": prepared.calibration_rows().user.size}
    return {"uniform_rows_used": ", ".join(uses) or "none", "uniform_parts": rows}

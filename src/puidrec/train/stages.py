"""Which problems a method solves, one after the other: a benchmark or a naive fit first where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from puidrec.errors import InputError
from puidrec.objective.low_rank import LowRank
from puidrec.settings import Settings
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.closed import closed_form
from puidrec.train.distributed import ALONE, World
from puidrec.train.grid import Benchmark, GridProblem
from puidrec.train.multi import MultiProblem, SharedHeads
from puidrec.train.owned import user_axes, with_users
from puidrec.train.pieces import Plan
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Problem, with_prefix
from puidrec.train.strength import (
    MIN_UNIFORM,
    certified_strength,
    mild_strength,
    require_uniform,
    settled_mean,
    unseen_mean,
)
from puidrec.train.trainer import Fitted, Progress, SaveState, Trainer
from puidrec.train.unseen import UnseenProblem, log_parts

Done = Mapping[str, Fitted]
REFINING = 0.1
"""Share of the step size with which a warm-started method leaves its benchmark: Adam's first steps are all of one
size, and at full size they would throw the model out of the basin it starts in."""


@dataclass(frozen=True)
class Stage:
    """One problem of a method, built from the stages before it."""

    name: str
    build: Callable[[Done], Problem]
    pace: float = 1.0
    """Share of the settings' step size."""


def stages_of(prepared: Prepared, plan: Plan | None = None) -> list[Stage]:
    """The stages of a method, the last of which is the method itself; the users are those of the plan, or all."""
    plan = plan or Plan.one_piece(prepared.data.n_users)
    settings, spec = prepared.settings, prepared.settings.spec
    if spec.family == "multi":
        return [Stage("main", lambda done: _multi(prepared, plan))]
    if spec.family == "unseen":
        first = prepared.first_stage(_base_settings(settings, "ips" if settings.adjusts else "mf"))
        return [
            Stage("seen", lambda done: _grid(first, "seen", plan)),
            Stage("main", lambda done: _unseen(prepared, done, plan)),
        ]
    if not spec.benchmark:
        return [Stage("main", lambda done: _grid(prepared, "main", plan))]
    base = prepared.first_stage(_base_settings(settings, spec.estimator))
    return [
        Stage("benchmark", lambda done: _grid(base, "benchmark", plan)),
        Stage(
            "main",
            lambda done: _benchmarked(prepared, done["benchmark"], plan),
            REFINING if settings.warm_start else 1.0,
        ),
    ]


def train_stages(
    prepared: Prepared,
    save: SaveState | None,
    resume: Checkpoint | None,
    progress: Progress | None,
    world: World = ALONE,
) -> Fitted:
    """Run every stage; a checkpoint holds the stages done and the one under way."""
    settings = prepared.settings
    if settings.spec.family == "closed":
        scores = closed_form(settings.method, prepared.ratings, settings.dim, settings.seed)
        return Fitted(scores, None, {})
    validator = prepared.validator()
    plan = plan_of(prepared, world)
    _agree(resume, world)
    done: dict[str, Fitted] = {}
    history: list[dict[str, float]] = []
    strength = 1.0
    stages = stages_of(prepared, plan)
    for stage in stages:
        if resume is not None and f"done.{stage.name}.phi.left" in resume.tensors:
            done[stage.name] = _unpack(resume, stage.name, settings.device)
            continue
        problem = stage.build(done)
        lr = settings.lr * stage.pace
        trainer = Trainer(problem, settings, validator, stage=stage.name, save=_with_done(save, done), lr=lr, plan=plan)
        if resume is not None and resume.state.get("stage") == stage.name:
            trainer.restore(resume)
        fitted = trainer.run(progress)
        done[stage.name] = fitted if trainer.admissible() else _benchmark_of(fitted, done)
        strength = problem.strength if isinstance(problem, UnseenProblem) else 1.0
    for stage in stages:
        history += [{"stage": stage.name, **row} for row in done[stage.name].history]  # type: ignore[dict-item]
    return replace(done[stages[-1].name], history=history, strength=strength)


def _agree(resume: Checkpoint | None, world: World) -> None:
    """All processes go on from the same epoch, or none does: else they would add up steps of different models."""
    history = None if resume is None else resume.state.get("history")
    epochs = len(history) if isinstance(history, list) else -1
    behind = world.sum_number(float(epochs)) - world.size * epochs
    if world.sum_number(abs(behind)) > 0:
        raise InputError(
            "the processes do not see the same checkpoint", found="another epoch, or none, on some machine",
            expected="--out in a folder that all of them share", hint="Copy the checkpoint to all, or remove it.",
        )  # fmt: skip


def plan_of(prepared: Prepared, world: World = ALONE) -> Plan:
    """Who works on which users."""
    block = prepared.settings.block_users or prepared.data.n_users
    return Plan(prepared.crow, block, world, prepared.piece_pairs)


def _base_settings(settings: Settings, method: str) -> Settings:
    return settings.replace(method=method, gamma="auto", normalise=False)


def _grid(prepared: Prepared, stage: str, plan: Plan) -> GridProblem:
    spec = prepared.settings.spec
    observed = prepared.log("unit" if spec.estimator == "naive" else "box")
    theta = prepared.backbone(f"{stage} theta", _imputation_start(prepared), plan.share) if spec.imputes else None
    phi = prepared.backbone(f"{stage} phi", own_users=plan.share)
    return GridProblem(prepared.settings, observed, prepared.error, phi, theta)


def _imputation_start(prepared: Prepared) -> float | None:
    """Where g starts: at the mean label, or at 0 where it stands for a residual or an error."""
    return None if prepared.settings.head in ("label", "label-squared") else 0.0


def _benchmarked(prepared: Prepared, base: Fitted, plan: Plan) -> GridProblem:
    problem = _grid(prepared, "main", plan)
    problem.benchmark = Benchmark(base.phi, base.theta)
    if prepared.settings.warm_start:
        for step in problem.steps:
            step.load(with_users(base.parameters, user_axes(step), plan.cut))
    return problem


def _unseen(prepared: Prepared, done: Done, plan: Plan) -> UnseenProblem:
    settings, seen = prepared.settings, done["seen"].phi
    observed = prepared.log("inverse" if settings.adjusts else "unit")
    users, items = log_parts(prepared.gamma, seen.lefts[0])
    strength = _strength(prepared, seen, users, items)
    phi = prepared.backbone("main phi", own_users=plan.share)
    return UnseenProblem(settings, observed, phi, seen, prepared.gamma, users, items, strength)


def _strength(prepared: Prepared, seen: LowRank, users: torch.Tensor, items: torch.Tensor) -> float:
    """κ of the unseen family: 1 where the caller chose Γ; else what uniform ratings certify, or a mild default."""
    settings, uniform = prepared.settings, prepared.uniform_target()
    if settings.gamma == "certified":
        require_uniform(uniform.size, prepared.data.name)
    elif settings.gamma != "auto":
        return 1.0
    if uniform.size < MIN_UNIFORM:
        return mild_strength(prepared.gamma.mean_log)
    if settings.adjusts and settings.unseen_weight > 0:
        mean = settled_mean(prepared.reweighted_mean, uniform, settings.unseen_weight)
    else:
        mean = unseen_mean(prepared.target_mean, len(prepared.rows), uniform, seen.n_pairs)
    return certified_strength(seen, users, items, mean, liked=settings.liked)


def _multi(prepared: Prepared, plan: Plan) -> MultiProblem:
    mean, rate = prepared.target_mean, prepared.exposure.rate
    heads = (rate, mean, mean) if prepared.settings.spec.imputes else (rate, mean)
    backbone = prepared.backbone("main heads", 0.0, plan.share)
    shared = SharedHeads(backbone, heads, own=prepared.settings.ids is not False)
    return MultiProblem(prepared.settings, prepared.log("unit"), shared.to(prepared.settings.device))


def _benchmark_of(fitted: Fitted, done: Done) -> Fitted:
    """A benchmarked method never returns a model whose robust loss is above its benchmark's: it returns that one."""
    base = done["benchmark"]
    return replace(fitted, phi=base.phi, theta=base.theta, parameters=base.parameters)


def _with_done(save: SaveState | None, done: Done) -> SaveState | None:
    """Add the finished stages to every checkpoint of the current one."""
    if save is None:
        return None
    tensors: dict[str, torch.Tensor] = {}
    for name, fitted in done.items():
        for part, factors in (("phi", fitted.phi), ("theta", fitted.theta)):
            if factors is not None:
                tensors[f"done.{name}.{part}.left"] = factors.lefts[0]
                tensors[f"done.{name}.{part}.right"] = factors.rights[0]
        tensors |= {f"done.{name}.parameter.{key}": value for key, value in fitted.parameters.items()}
    facts = {name: {"history": fitted.history, "best_epoch": fitted.best_epoch} for name, fitted in done.items()}
    return lambda state: save(Checkpoint({**state.tensors, **tensors}, {**state.state, "done": facts}))


def _unpack(checkpoint: Checkpoint, name: str, device: str) -> Fitted:
    """A finished stage from a checkpoint, where the next one trains."""

    def factors(part: str) -> LowRank | None:
        key = f"done.{name}.{part}."
        if f"{key}left" not in checkpoint.tensors:
            return None
        left, right = (checkpoint.tensors[f"{key}{side}"].to(device) for side in ("left", "right"))
        return LowRank.of(left, right)

    parameters = with_prefix(checkpoint.tensors, f"done.{name}.parameter.")
    try:
        facts = checkpoint.state["done"][name]
        phi = factors("phi")
        if phi is None:
            raise KeyError(f"done.{name}.phi.left")
        return Fitted(phi, factors("theta"), parameters, list(facts["history"]), int(facts["best_epoch"]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError("the checkpoint does not fit this model", found=str(error)[:60], hint=HINT) from error

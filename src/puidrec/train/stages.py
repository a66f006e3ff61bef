"""Which problems a method solves, one after the other: a benchmark or a naive fit first where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from puidrec.errors import InputError
from puidrec.objective.low_rank import LowRank
from puidrec.objective.worst_case import Box
from puidrec.settings import Settings
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.closed import closed_form
from puidrec.train.distributed import ALONE, World
from puidrec.train.grid import Benchmark, GridProblem
from puidrec.train.multi import MultiProblem, SharedHeads
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


def stages_of(prepared: Prepared) -> list[Stage]:
    """The stages of a method, the last of which is the method itself."""
    settings, spec = prepared.settings, prepared.settings.spec
    if spec.family == "multi":
        return [Stage("main", lambda done: _multi(prepared))]
    if spec.family == "unseen":
        first = prepared.first_stage(_base_settings(settings, "ips" if settings.adjusts else "mf"))
        return [Stage("seen", lambda done: _grid(first, "seen")), Stage("main", lambda done: _unseen(prepared, done))]
    if not spec.benchmark:
        return [Stage("main", lambda done: _grid(prepared, "main"))]
    base = prepared.first_stage(_base_settings(settings, spec.estimator))
    return [
        Stage("benchmark", lambda done: _grid(base, "benchmark")),
        Stage("main", lambda done: _benchmarked(prepared, done["benchmark"]), REFINING if settings.warm_start else 1.0),
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
        rows = prepared.rows
        shape = (prepared.data.n_users, prepared.data.n_items)
        target = prepared.target.astype(np.float64)
        scores = closed_form(settings.method, rows.user, rows.item, target, shape, settings.dim, settings.seed)
        return Fitted(scores, None, {})
    validator = prepared.validator()
    plan = plan_of(prepared, world)
    done: dict[str, Fitted] = {}
    history: list[dict[str, float]] = []
    strength = 1.0
    stages = stages_of(prepared)
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


def plan_of(prepared: Prepared, world: World = ALONE) -> Plan:
    """Who works on which users; refuses what cannot be divided."""
    settings, data = prepared.settings, prepared.data
    if world.size > 1 and settings.spec.family == "multi":
        raise InputError("this method trains in one process", found=f"{settings.method} on {world.size} processes",
                         expected="a method of the grid, or signed", hint="Run it without torchrun.")  # fmt: skip
    plan = Plan(prepared.crow, settings.block_users or data.n_users, world, prepared.piece_pairs)
    if settings.normalise and not all(plan.whole(*block) for block in plan.blocks):
        raise InputError("normalise divides by the weights of a whole block, which must be one piece",
                         found=f"{len(prepared.rows):,} rows on {world.size} process(es)",
                         hint="Set normalise=false, or smaller blocks (block_users) in one process.")  # fmt: skip
    return plan


def _base_settings(settings: Settings, method: str) -> Settings:
    return settings.replace(method=method, gamma="auto", normalise=False)


def _grid(prepared: Prepared, stage: str) -> GridProblem:
    spec = prepared.settings.spec
    observed = prepared.log(weighted=spec.estimator != "naive")
    theta = prepared.backbone(f"{stage} theta", _imputation_start(prepared)) if spec.imputes else None
    return GridProblem(prepared.settings, observed, prepared.error, prepared.backbone(f"{stage} phi"), theta)


def _imputation_start(prepared: Prepared) -> float | None:
    """Where g starts: at the mean label, or at 0 where it stands for a residual or an error."""
    return None if prepared.settings.head in ("label", "label-squared") else 0.0


def _benchmarked(prepared: Prepared, base: Fitted) -> GridProblem:
    problem = _grid(prepared, "main")
    problem.benchmark = Benchmark(base.phi, base.theta)
    if prepared.settings.warm_start:
        for step in problem.steps:
            step.load(base.parameters)
    return problem


def _unseen(prepared: Prepared, done: Done) -> UnseenProblem:
    settings, observed, seen = prepared.settings, prepared.observed(weighted=False), done["seen"].phi
    if settings.adjusts:
        weight = torch.from_numpy(1.0 / prepared.row_propensity).to(observed.target)
        observed = replace(observed, bounds=Box.exactly(weight / weight.mean()))
    users, items = log_parts(prepared.gamma, observed.target)
    strength = _strength(prepared, seen, users, items)
    return UnseenProblem(
        settings, observed, prepared.backbone("main phi"), seen, prepared.gamma, users, items, strength
    )


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
        weight = 1.0 / prepared.row_propensity
        mean = settled_mean(float(np.average(prepared.target, weights=weight)), uniform, settings.unseen_weight)
    else:
        mean = unseen_mean(prepared.target, uniform, seen.n_pairs)
    return certified_strength(seen, users, items, mean, liked=settings.liked)


def _multi(prepared: Prepared) -> MultiProblem:
    mean, rate = prepared.target_mean, prepared.exposure.rate
    heads = (rate, mean, mean) if prepared.settings.spec.imputes else (rate, mean)
    shared = SharedHeads(prepared.backbone("main heads", 0.0), heads, own=prepared.settings.ids is not False).to(
        prepared.settings.device
    )
    return MultiProblem(prepared.settings, prepared.log(weighted=False), shared)


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

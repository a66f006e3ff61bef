"""Runs the stages of a method one after the other: a benchmark or a naive fit first where the method needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError
from puidrec.train.adam import REFINING, Progress, SaveState, Trainer
from puidrec.train.blocks import UserPartition
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.distributed import ALONE, World
from puidrec.train.least_squares import Solver, parts_to_solve
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Done, Fitted, Problem, Stage, Step, with_prefix
from puidrec.train.stopping import Validator

PATH_LOG = 20_000_000
"""Training rows up to which validation rows choose the strength of L2: a path would add minutes to larger logs."""


def stages_of(prepared: Prepared, partition: UserPartition | None = None) -> Sequence[Stage]:
    """The stages of a method, the last of which is the method itself."""
    return prepared.settings.spec.stages(prepared, partition or UserPartition.undivided(prepared.data.n_users))


def partition_of(prepared: Prepared, world: World = ALONE) -> UserPartition:
    """Which process works on which users."""
    block = prepared.settings.block_users or prepared.data.n_users
    return UserPartition(prepared.log.row_start, block, world, prepared.log.max_pairs)


def train_stages(
    prepared: Prepared,
    save: SaveState | None,
    resume: Checkpoint | None,
    progress: Progress | None,
    world: World = ALONE,
) -> Fitted:
    """Run every stage; a checkpoint holds the stages done and the one under way."""
    settings = prepared.settings
    validator = prepared.validator() if settings.spec.trains else None
    partition = partition_of(prepared, world)
    _require_same_checkpoint(resume, world)
    done: dict[str, Fitted] = {}
    stages = stages_of(prepared, partition)
    for k in range(len(stages)):
        stage = stages[k]
        if resume is not None and f"done.{stage.name}.phi.left" in resume.tensors:
            done[stage.name] = _unpack(resume, stage.name, settings.device)
        else:
            problem = stage.build(done)
            if isinstance(problem, Fitted):
                done[stage.name] = problem
                continue
            own = replace(stage, chooses_l2=stage.chooses_l2 and k == 0 and _l2_is_open(prepared))
            trainer = _trainer(problem, own, prepared, validator, _with_done(save, done), partition, done)
            if resume is not None and resume.state.get("stage") == stage.name:
                trainer.restore(resume)
            fitted = trainer.run(progress)
            done[stage.name] = fitted if trainer.admissible() else _benchmark_of(fitted, done)
        if (share := done[stage.name].edge_share) is not None:  # it holds for the stages to come
            prepared = replace(prepared, edge_share=share)
            stages = stages_of(prepared, partition)
    history = [{"stage": stage.name, **row} for stage in stages for row in done[stage.name].history]
    used = {stage.name: done[stage.name].solver for stage in stages if done[stage.name].solver}
    unfinished = tuple(name for stage in stages if stage.sweeps is None for name in done[stage.name].unfinished)
    chosen = [done[stage.name] for stage in stages if done[stage.name].edge_share is not None]
    return replace(
        done[stages[-1].name], history=history, solver=_in_words(used), unfinished=unfinished,  # type: ignore[arg-type]
        edge_share=chosen[-1].edge_share if chosen else None, l2_validated=any(one.l2_validated for one in chosen),
    )  # fmt: skip


def _l2_is_open(prepared: Prepared) -> bool:
    """Whether the strength of L2 is to be chosen: no number was given, and there are ratings to miss."""
    return prepared.settings.l2_vectors == "auto" and not prepared.data.positives_only


def _in_words(used: Mapping[str, str]) -> str:
    """One solver for all stages, or which stage had which."""
    if len(set(used.values())) <= 1:
        return next(iter(used.values()), "")
    return ", ".join(f"{solver} ({stage})" for stage, solver in used.items())


def _trainer(
    problem: Problem,
    stage: Stage,
    prepared: Prepared,
    validator: Validator | None,
    save: SaveState | None,
    partition: UserPartition,
    done: Done,
) -> Solver | Trainer:
    """Least squares where the loss is quadratic in linear scores, Adam elsewhere."""
    settings = prepared.settings
    parts = parts_to_solve(problem, settings, partition)
    if parts is not None:
        start = stage.after or (None if stage.warm else stage.anchor)
        if start is not None:
            for step in problem.steps:
                step.load(_own_phi(done[start], step, partition))
        anchor = None
        if stage.anchor is not None:
            phi = problem.steps[0]
            anchor = with_prefix(_own_phi(done[stage.anchor], phi, partition), f"{phi.name}.")
        own = settings if stage.sweeps is None else settings.replace(epochs=min(settings.epochs, stage.sweeps))
        return Solver(
            problem, parts, own, validator, stage=stage.name, save=save, partition=partition,
            warm=stage.warm or start is not None, chooses_l2=stage.chooses_l2, anchor=anchor,
            l2_path=len(prepared.rows) <= PATH_LOG,
        )  # fmt: skip
    lr = settings.lr * (REFINING if stage.warm else 1.0)
    return Trainer(problem, settings, validator, stage=stage.name, save=save, lr=lr, partition=partition)


def _own_phi(fitted: Fitted, step: Step, partition: UserPartition) -> Mapping[str, torch.Tensor]:
    """The parameters of φ of a stage as those of a step, for the users of this process."""
    found = {f"{step.name}.{key}": value for key, value in with_prefix(fitted.parameters, "phi.").items()}
    return partition.take_own_parameters(step, found)


def _require_same_checkpoint(resume: Checkpoint | None, world: World) -> None:
    """All processes go on from the same epoch, or none does: else they would add up steps of different models."""
    history = None if resume is None else resume.state.get("history")
    epochs = len(history) if isinstance(history, list) else -1
    behind = world.sum_number(float(epochs)) - world.size * epochs
    if world.sum_number(abs(behind)) > 0:
        raise InputError(
            "the processes do not see the same checkpoint", found="another epoch, or none, on some machine",
            expected="--out in a folder that all of them share", hint="Copy the checkpoint to all, or remove it.",
        )  # fmt: skip


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
    finished = {
        name: {
            "history": fitted.history,
            "best_epoch": fitted.best_epoch,
            "solver": fitted.solver,
            "gamma_scale": fitted.gamma_scale,
            "unfinished": list(fitted.unfinished),
            "edge_share": fitted.edge_share,
            "l2_validated": fitted.l2_validated,
        }
        for name, fitted in done.items()
    }
    return lambda state: save(Checkpoint({**state.tensors, **tensors}, {**state.state, "done": finished}))


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
        finished = checkpoint.state["done"][name]
        phi = factors("phi")
        if phi is None:
            raise KeyError(f"done.{name}.phi.left")
        history, epoch, solver = list(finished["history"]), int(finished["best_epoch"]), str(finished["solver"])
        scale, unfinished = float(finished["gamma_scale"]), tuple(map(str, finished["unfinished"]))
        return Fitted(
            phi, factors("theta"), parameters, history, epoch, gamma_scale=scale, solver=solver, unfinished=unfinished,
            edge_share=None if finished["edge_share"] is None else float(finished["edge_share"]),
            l2_validated=bool(finished["l2_validated"]),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError("the checkpoint does not fit this model", found=str(error)[:60], hint=HINT) from error

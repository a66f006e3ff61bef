"""Does Adam find anything below what least squares ends at? Every method that is solved, on the same objective.

    python bench/optimum.py [--data FOLDER of coat] [--methods mf,dr,…] [--epochs 1000]

The strength of L2 is given (`l2_vectors`), so that both lower the same function: the loss at its worst weights, as it
is defined, and the penalty. Adam gets many epochs, the last third of them with a tenth of the step size. Stages before
are those of least squares for both, and so is the imputation model that a prediction model is trained with. The table
shows the objective of each model, and how far Adam's is above it. The solver rounds off the bends of worst cases: where
Adam ended clearly below, that would be too coarse.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from puidrec.train.blocks import UserPartition
from puidrec.train.least_squares import Solver, parts_to_solve

import puidrec as pr
from puidrec.methods import METHODS
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Problem
from puidrec.methods.stages import partition_of, stages_of
from puidrec.optimise.adam import Trainer
from puidrec.settings import Settings

L2_VECTORS = 0.8
REFINED = 3
"""The share of the epochs, one in so many, that have a tenth of the step size."""


class Row(NamedTuple):
    """Objectives of one model of one stage."""

    method: str
    stage: str
    model: str
    solved: float
    adam: float

    @property
    def above(self) -> float:
        """What Adam ends above the solution, as a share of it; below 0: it found something better."""
        return (self.adam - self.solved) / abs(self.solved)


def objective(problem: Problem, name: str, partition: UserPartition) -> float:
    """Loss and penalty of one model of a problem."""
    step = next(step for step in problem.steps if step.name == name)
    return partition.total(step) + float(step.penalty().detach())


def by_adam(problem: Problem, settings: Settings, partition: UserPartition, frozen: Fitted | None, epochs: int) -> None:
    """Train by Adam; with `frozen`, the imputation model stays what it is there."""
    if frozen is not None:
        for step in problem.steps[1:]:
            step.load(frozen.parameters)
    few = max(1, epochs // REFINED)
    for count, lr in ((epochs - few, settings.lr), (few, 0.1 * settings.lr)):
        own = settings.replace(epochs=count, patience=0)
        trainer = Trainer(problem, own, None, stage="main", save=None, lr=lr, partition=partition)
        for step in problem.steps[1:] if frozen is not None else ():
            trainer.optimizers[step.name].lr = 0.0
        trainer.run()


def compare(data: Any, method: str, epochs: int, **given: Any) -> Iterator[Row]:
    """Every model of a method, stage by stage."""
    settings = Settings.of(method, **{"l2_vectors": L2_VECTORS, "select": "none", "seed": 0, **given})
    prepared = Prepared.of(data, data.split("rd", 0, select="none"), settings)
    partition, done = partition_of(prepared), dict[str, Fitted]()
    for stage in stages_of(prepared, partition):
        solved = stage.build(done)
        if isinstance(solved, Fitted):
            return
        parts = parts_to_solve(solved, settings, partition)
        if parts is None:
            return
        solver = Solver(
            solved, parts, settings, None, stage=stage.name, save=None, partition=partition, warm=stage.warm
        )
        fitted = solver.run()
        for name in [part.name for part in parts]:
            tried = stage.build(done)
            assert not isinstance(tried, Fitted)
            by_adam(tried, settings, partition, fitted if name == "phi" else None, epochs)
            values = (objective(problem, name, partition) for problem in (solved, tried))
            yield Row(method, stage.name, name, *values)
        done[stage.name] = fitted


def solved_methods() -> list[str]:
    """Methods with training; those that Adam trains are passed over, `spectrum` mixes fits of others."""
    return [name for name, spec in METHODS.items() if spec.trains and name not in ("spectrum", "all-rank")]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| method | stage | model | least squares | Adam | above |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.method} | {row.stage} | {row.model} | {row.solved:.6f} | {row.adam:.6f} | {row.above:+.4%} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of Coat; without it a simulated log")
    parser.add_argument("--methods", default=",".join(solved_methods()))
    parser.add_argument("--epochs", type=int, default=1000)
    given = parser.parse_args()
    data = pr.load_dataset("coat", given.data) if given.data else pr.load_dataset("simulated", world="mixed", seed=0)
    rows: list[Row] = []
    for method in given.methods.split(","):
        try:
            rows += compare(data, method, given.epochs)
        except pr.InputError as error:
            print(f"{method}: {error}")
    print(table(rows))
    print(f"lowest: {min((row.above for row in rows), default=0.0):+.4%}")


if __name__ == "__main__":
    main()

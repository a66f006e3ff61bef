"""RQ3 and RQ4 seed by seed: each seed is a file, so that an interrupted run goes on and a finished one is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from puidrec.atomic import write_json
from puidrec.data.sources import load_dataset
from puidrec.experiments.reproduce.chain import PERMUTATIONS, Exposed
from puidrec.experiments.reproduce.rq3 import DRAWS, run_rq3
from puidrec.experiments.reproduce.rq4 import run_rq4

DATA = "ml-100k"
VERSION = 1
RUNS = {"rq3": run_rq3, "rq4": run_rq4}


@dataclass(frozen=True)
class EntropyTask:
    """One question under one random order of the features."""

    question: str
    folder: Path
    seed: int
    permutations: int
    digest: str
    """Of the data."""

    def path(self, out: Path) -> Path:
        """Named by all that decides the rows."""
        content = f"{VERSION} {self.question} {self.seed} {self.permutations} {self.digest}"
        return out / "entropy" / f"{self.question}-{self.seed}-{sha256(content.encode()).hexdigest()[:16]}.json"


def entropy_tasks(questions: Sequence[str], folder: Path, seeds: int, *, quick: bool) -> list[EntropyTask]:
    """At least ten orders, since they are cheap; a quick run takes two and few permutations."""
    digest = load_dataset(DATA, folder).sha256
    n, permutations = (2, 4) if quick else (max(seeds, DRAWS), PERMUTATIONS)
    return [EntropyTask(q, folder, seed, permutations, digest) for q in questions if q in RUNS for seed in range(n)]


def run_entropies(
    tasks: Sequence[EntropyTask], out: Path, workers: int, tell: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """All rows, in the order of the tasks, whatever ran them."""
    waiting = [task for task in tasks if _read(task.path(out)) is None]
    done = len(tasks) - len(waiting)
    if workers < 2 or len(waiting) < 2:
        for task in waiting:
            tell(f"{task.question}, order {task.seed}", done, len(tasks))
            finish(task, out)
            done += 1
    else:
        with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=get_context("spawn")) as pool:
            for ended in as_completed([pool.submit(finish, task, out) for task in waiting]):
                task = ended.result()
                done += 1
                tell(f"{task.question}, order {task.seed}", done, len(tasks))
    return [row for task in tasks for row in _read(task.path(out)) or ()]


def finish(task: EntropyTask, out: Path) -> EntropyTask:
    """Compute a task and leave its file."""
    exposed = Exposed.of(load_dataset(DATA, task.folder))
    names = {"data": DATA, "method": "information gain", "protocol": "whole log"}
    rows = RUNS[task.question](exposed, task.seed, task.permutations)
    write_json(task.path(out), [{**names, **row} for row in rows])
    return task


def _read(path: Path) -> list[dict[str, Any]] | None:
    """The rows of a finished task; None where there are none, or the file is damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) and rows else None

"""A study: many cells, run wherever an engine runs them, finished ones never again, and the files it leaves.

OUT/cells holds one file per finished cell, named by what decides its result. The same command goes on where it was
interrupted; another command in the same folder has other cells, and the tables are those of the last command.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from puidrec.atomic import refuse_overwriting, write_json, write_text
from puidrec.errors import InputError
from puidrec.experiments.cell_files import CellFolder
from puidrec.experiments.cells import Cell, DataSpec, Result
from puidrec.experiments.engines import Task, cores, get_engine
from puidrec.experiments.summary import SummaryRow, summarise
from puidrec.experiments.tables import markdown

__all__ = [
    "Cell", "DataSpec", "Event", "Failure", "Result", "Results", "SummaryRow", "claim", "cores", "run_study",
    "summarise", "write_study",
]  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A cell that could not be finished, and why."""

    cell: Cell
    error: str

    def __str__(self) -> str:
        return f"{self.cell.name} on {self.cell.data.title}, seed {self.cell.seed}: {self.error}"


@dataclass(frozen=True)
class Event:
    """A cell has ended, or was found finished."""

    done: int
    total: int
    outcome: Result | Failure
    resumed: bool


Progress = Callable[[Event], None]


class Results(list[Result]):
    """The results in the order of their cells, and the cells that failed."""

    def __init__(self, results: Iterable[Result] = (), failures: Sequence[Failure] = ()) -> None:
        super().__init__(results)
        self.failures = list(failures)


def run_study(
    cells: Iterable[Cell],
    out: Path | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run every cell that is not finished in `out`, and return all results in the order of the cells.

    A cell that fails does not end the study: see `failures` of what is returned. Without `out` nothing is kept.
    workers: processes, by default one per core.
    """
    wanted = [cell.check() for cell in cells]
    start = get_engine(engine)
    if workers is not None and workers < 1:
        raise InputError("a study needs a worker", found=workers, expected="at least 1")
    digests = {spec.identity: spec.load().sha256 for spec in {c.data.identity: c.data for c in wanted}.values()}
    with _folder(out) as folder:
        state = _State(CellFolder(folder), digests, wanted, progress)
        pending = state.find_finished()
        tasks = [Task(cell, folder) for cell in pending]
        with contextlib.closing(start(tasks, workers)) as ended:
            for task, error in ended:
                state.end(task.cell, error)
    return state.results()


@dataclass
class _State:
    """What is known of each distinct cell so far."""

    files: CellFolder
    digests: dict[str, str]
    cells: list[Cell]
    progress: Progress | None
    outcomes: dict[str, Result | Failure] = field(default_factory=dict)

    @cached_property
    def total(self) -> int:
        """Distinct cells."""
        return len({cell.key for cell in self.cells})

    def find_finished(self) -> list[Cell]:
        """Load what is finished; returns the rest, each once."""
        pending: dict[str, Cell] = {}
        for cell in self.cells:
            if cell.key in self.outcomes or cell.key in pending:
                continue
            found = self.files.load(cell, self.digests[cell.data.identity])
            if found is None:
                pending[cell.key] = cell
            else:
                self._note(cell, found, resumed=True)
        return list(pending.values())

    def end(self, cell: Cell, error: str | None) -> None:
        """A cell has ended: read its file back, so that fresh and resumed results are the same to the last bit."""
        found = self.files.load(cell, self.digests[cell.data.identity]) if error is None else None
        message = error or "its file could not be read back, or the data changed while it ran"
        self._note(cell, Failure(cell, message) if found is None else found, resumed=False)

    def results(self) -> Results:
        """In the order of the cells; equal cells under two names give two results."""
        outcomes = [(cell, self.outcomes[cell.key]) for cell in self.cells]
        done = [_named(cell, outcome) for cell, outcome in outcomes if isinstance(outcome, Result)]
        return Results(done, [Failure(cell, o.error) for cell, o in outcomes if isinstance(o, Failure)])

    def _note(self, cell: Cell, outcome: Result | Failure, *, resumed: bool) -> None:
        self.outcomes[cell.key] = outcome
        if self.progress is not None:
            self.progress(Event(len(self.outcomes), self.total, outcome, resumed))


def _named(cell: Cell, result: Result) -> Result:
    """The result under the name that the cell has in this study."""
    return replace(result, cell=cell)


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder of the cells: in `out`, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="puid-study-") as folder:
            yield Path(folder)
        return
    claim(out)
    yield out / "cells"


WRITTEN = (
    "results.json", "summary.json", "timings.json", "table.md", "results.md", "report.html", "trials.json", "best.toml",
    "entropy",
)  # fmt: skip
"""What comparisons, searches and reproductions put beside their cells."""


def claim(out: Path) -> None:
    """Make sure that results can be written before any work is spent on them."""
    if out.exists() and not out.is_dir():
        raise InputError("results need a folder", file=out, found="a file", hint="Choose another --out.")
    refuse_overwriting(out, WRITTEN, "cells")
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / "cells"):
            pass
    except OSError as error:
        raise InputError("cannot write there", file=out, found=error.strerror, hint="Choose another --out.") from error


def write_study(out: Path, results: Sequence[Result], reference: str, metrics: Sequence[str]) -> list[SummaryRow]:
    """Write results.json, summary.json, table.md and timings.json; returns the rows of the summary.

    Only timings.json knows of clocks: the others are the same bytes for the same cells, whatever ran them.
    """
    failures = getattr(results, "failures", [])
    rows = summarise(results, reference, metrics)
    failed = [{**failure.cell.names(), "error": failure.error} for failure in failures]
    write_json(out / "results.json", [result.row() for result in results])
    write_json(
        out / "summary.json",
        {"reference": reference, "metrics": list(metrics), "rows": [row.plain() for row in rows], "failed": failed},
    )
    write_text(out / "table.md", markdown(rows, metrics, reference, [str(failure) for failure in failures]))
    seconds = [{**result.cell.names(), "seconds": result.seconds} for result in results]
    write_json(out / "timings.json", {"cells": seconds, "seconds": sum(result.seconds for result in results)})
    return rows

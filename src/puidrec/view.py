"""What notebooks show: small tables of HTML without colours of their own, charts, the history of a
fit, and how far one is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
from markupsafe import Markup

from puidrec.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def view(label: str, words: str, tables: Markup) -> str:
    """A label, a sentence and tables; everything that is not markup is escaped."""
    return str(Markup("<div><p><strong>{}</strong> {}</p>{}</div>").format(label, words, tables))


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table without colours, so that it follows the notebook's theme; nothing where it has no
    row."""
    cells = [Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row) for row in rows]
    head = Markup("").join(Markup("<th scope='col'>{}</th>").format(name) for name in heads)
    body = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in cells)
    whole = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
    return whole.format(head, body) if cells else Markup("")


Chart = TypeVar("Chart", "Axes", "Figure")


def pictured(chart: Chart) -> Chart:
    """A chart that a notebook shows as a picture, whether or not pyplot was ever imported."""
    chart._repr_png_ = partial(_png, chart.figure)  # type: ignore[attr-defined]
    return chart


def _png(figure: Any) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


SHOWN = 5


class History(list[dict[str, Any]]):
    """Rows `stage, epoch, loss_…, score`, in the order of training."""

    def to_frame(self) -> pl.DataFrame:
        """A row per sweep or epoch; what a stage does not have is null."""
        frame = pl.DataFrame(list(self), infer_schema_length=None)
        first = [name for name in ("stage", "epoch") if name in frame.columns]
        return frame.select(*first, *sorted(set(frame.columns) - set(first)))

    def plot(self, column: str | None = None) -> Axes:
        """The loss (or another column) against sweeps, a line per stage; returns Matplotlib's
        axes."""
        from matplotlib.figure import Figure

        frame = self.to_frame()
        losses = [name for name in frame.columns if name.startswith("loss_")]
        wanted = [column] if column is not None else losses
        axes: Axes = Figure(figsize=(6.4, 3.6), layout="constrained").subplots()
        for name in wanted:
            for (stage,), rows in frame.drop_nulls(name).group_by("stage", maintain_order=True):
                axes.plot(rows["epoch"], rows[name], label=f"{stage}: {name.removeprefix('loss_')}")
        axes.set_xlabel("sweep or epoch")
        axes.set_ylabel(column or "loss")
        if wanted and frame.height:
            axes.legend(frameon=False)
        return pictured(axes)

    def _repr_html_(self) -> str:
        """The last rows, as a notebook shows them."""
        frame = self.to_frame().tail(SHOWN)
        return view(
            "history", f"{len(self):,} sweeps or epochs", html_table(frame.columns, frame.rows())
        )


Progress = Callable[[str, int, int, dict[str, float]], None]
"""Called after each epoch or sweep with stage, those done, the most there may be, and figures:
losses, `score` if judged. `Work` makes those of a whole training out of those of its stages, which
give 0 where nobody knows the most."""


@contextlib.contextmanager
def shown_progress(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What training calls with its progress: a function as given; a bar where one is asked for;
    None shows nothing.

    Left open (None), a notebook shows a bar once a fit has taken a second.
    """
    notebook = _in_notebook()
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool | None):
        found = type(progress).__name__
        raise InputError(
            "progress is no function",
            found=found,
            expected="True, False, or a function of four arguments",
        )
    elif progress is False or (progress is None and not notebook):
        yield None
    elif notebook:
        yield _NotebookBar()
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("training", total=None)
            yield lambda stage, done, total, figures: bar.update(
                task,
                completed=done,
                total=total,
                description=_progress_words(stage, done, total, figures),
            )


class Work:
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


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def _progress_words(stage: str, done: int, total: int, figures: dict[str, float]) -> str:
    loss = next(
        (f", loss {value:.4f}" for name, value in figures.items() if name.startswith("loss_")), ""
    )
    return f"{stage}: {done} of {total}{loss}"


class _NotebookBar:
    """An output cell that is rewritten while training goes on; the browser draws the bar."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.due = time.monotonic() + 1.0

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        if time.monotonic() < self.due and not (self.handle is not None and done == total):
            return
        from IPython.display import display

        self.due = time.monotonic() + 0.2
        words = _progress_words(stage, done, total, figures)
        shown = {
            "text/plain": words,
            "text/html": f'<progress max="{total}" value="{done}"></progress> {escape(words)}',
        }
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(shown, raw=True)

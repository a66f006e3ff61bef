"""What notebooks show: small tables of HTML without colours of their own, charts, and the history
of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
from markupsafe import Markup

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

"""How figures look: drawn in stand-in colours, saved with CSS variables, readable in light and in dark."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
LIGHT = {"ink": "#22303a", "soft": "#5f6c76", "grid": "#d9dfe3", "paper": "#ffffff",
         "a": "#1f6f8b", "b": "#c8601f", "c": "#3d8b53", "d": "#8a5aa8"}  # fmt: skip
DARK = {"ink": "#e3e8ec", "soft": "#a3b0ba", "grid": "#3b4650", "paper": "#1e2429",
        "a": "#6bbdd8", "b": "#f0955a", "c": "#7fc995", "d": "#c39ade"}  # fmt: skip
STAND_IN = {name: f"#01010{digit}" for digit, name in enumerate(LIGHT, 1)}
INK, SOFT, GRID, PAPER, A, B, C, D = STAND_IN.values()


def start(name: str) -> None:
    """Set the style; the name salts the ids inside the file, so that figures can share a page."""
    mpl.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10.5,
        "text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.titlesize": 11,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 10, "axes.titlecolor": INK,
        "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True, "lines.linewidth": 2.2,
        "xtick.major.size": 0, "ytick.major.size": 0, "figure.constrained_layout.use": True,
        "figure.constrained_layout.wspace": 0.08,
    })  # fmt: skip


def grid(ax: Axes, axis: str = "y") -> None:
    """Quiet lines along one axis."""
    ax.grid(visible=True, axis=axis)  # type: ignore[arg-type]


def save(figure: Figure, name: str) -> None:
    """Write the SVG with variables for colours; used as a file it brings its own light and dark values."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    for role, colour in STAND_IN.items():
        text = text.replace(colour, f"var(--fig-{role})")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(
        r"-?\d+\.\d{4,}", lambda found: f"{float(found[0]):.2f}", text
    )  # coordinates; labels have fewer digits
    own = (
        "svg{"
        + _variables(LIGHT)
        + "}@media(prefers-color-scheme:dark){svg{"
        + _variables(DARK)
        + "}}"
    )
    text = re.sub(r"(<svg [^>]*>)", rf'\1\n <style id="scheme">{own}</style>', text, count=1)
    (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--fig-{role}:{colour};" for role, colour in colours.items())

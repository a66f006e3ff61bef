"""Charts of a reproduction: methods beside the paper's figures, masks, maps of ratios, gains of hidden features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from puidrec.report.charts import BLUE, COLOURS, DARK
from puidrec.report.reproduce_tables import METRIC, NAMES, Row, by

ORANGE, GREY = "#c96a16", "#8a8a8a"
STYLES = ((BLUE, "o"), (ORANGE, "s"), (DARK, "^"), (GREY, "D"), ("#6a8d3a", "v"))
FEWEST = 3
"""Orders below which an interval would hide the chart."""
ESTIMATOR = {"plugin": "plug-in (the paper)", "miller-madow": "Miller–Madow", "permutation": "minus equally fine noise"}


def all_charts(summary: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """File name → how to draw it, for everything that the summary holds; in the order of the questions."""
    rows: list[Row] = summary["tables"]
    charts: dict[str, Callable[[], Figure]] = {}
    for question in ("rq1", "ablation"):
        own = [row for row in rows if row["experiment"] == question]
        for key, part in by(own, lambda row: (row["source"], row["preset"], row["protocol"])).items():
            charts["-".join((question, *key)) + ".png"] = partial(dots, part)
    masked = [row for row in rows if row["experiment"] == "rq2"]
    for key, part in by(masked, lambda row: (row["source"], row["preset"], row["protocol"])).items():
        charts["-".join(("rq2", *key)) + ".png"] = partial(mask_lines, part)
    if summary["rq3"]:
        for name in ("ratio_user", "ratio_item"):
            charts[f"rq3-{name.replace('_', '-')}.png"] = partial(ratio_maps, summary["rq3"], name)
    if summary["rq4"]:
        charts["rq4.png"] = partial(rising_gains, summary["rq4"])
    return charts


def dots(rows: Sequence[Row]) -> Figure:
    """Ours with intervals over users, the paper's figures beside them; one panel per metric, best on top."""
    first, metrics = rows[0], list(dict.fromkeys(row["metric"] for row in rows))
    labels = list(by(rows, lambda row: row["label"]))
    title = f"{NAMES.get(first['source'], first['source'])}: preset {first['preset']}, protocol {first['protocol']}"
    caption = "Dots: ours, with 95 % intervals over users. Diamonds: as printed in the paper."
    figure, panels = _panels(len(metrics), 1.9 + 0.26 * len(labels), title, caption, share_y=True)
    at = {label: -k for k, label in enumerate(labels)}
    for axes, metric in zip(panels, metrics, strict=True):
        for row in (row for row in rows if row["metric"] == metric):
            low, high = (row["user_low"], row["user_high"]) if row["user_low"] is not None else (row["mean"],) * 2
            axes.hlines(at[row["label"]], low, high, color=BLUE, linewidth=1.4)
            axes.plot(row["mean"], at[row["label"]], "o", color=BLUE, markersize=5)
            if row["paper"] is not None:
                axes.plot(row["paper"], at[row["label"]], "D", markerfacecolor="none", color=ORANGE, markersize=5)
        axes.set_xlabel(METRIC.get(metric, metric))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    panels[0].set_yticks(list(at.values()), labels, fontsize=8)
    return figure


def mask_lines(rows: Sequence[Row]) -> Figure:
    """The first metric against the share removed: a panel per kind of mask, a line per method; dashed as printed."""
    first = rows[0]
    metric = str(first["metric"])
    kinds = by([row for row in rows if row["metric"] == metric], lambda row: row["mask"][0])
    title = f"{NAMES.get(first['source'], first['source'])}: {METRIC.get(metric, metric)} when the log loses rows"
    caption = f"Preset {first['preset']}, protocol {first['protocol']}. Lines: ours. Dashed: as printed in the paper."
    figure, panels = _panels(len(kinds), 4.8, title, caption, share_y=True)
    for axes, (kind, part) in zip(panels, kinds.items(), strict=True):
        for k, (label, found) in enumerate(by(part, lambda row: row["label"]).items()):
            colour, mark = STYLES[k % len(STYLES)]
            own = sorted(found, key=lambda row: float(row["mask"][1]))
            fill_style = "full" if k < len(STYLES) else "none"
            axes.plot(
                [row["mask"][1] for row in own], [row["mean"] for row in own], color=colour, marker=mark,
                fillstyle=fill_style, markersize=5, linewidth=1.2, label=label,
            )  # fmt: skip
            told = [row for row in own if row["paper"] is not None]
            axes.plot([r["mask"][1] for r in told], [r["paper"] for r in told], "--", color=colour, linewidth=0.8)
        axes.set_xlabel("share of all rows removed" if kind == "random" else "share of positive rows removed")
        axes.grid(color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel(METRIC.get(metric, metric))
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def ratio_maps(rq3: Mapping[str, Any], name: str) -> Figure:
    """A ratio over the 16 combinations: by estimator, and with permuted feature rows; blank where undefined."""
    side = "user" if name == "ratio_user" else "item"
    maps = [("none", key, words) for key, words in ESTIMATOR.items()]
    maps.append(("permuted", "plugin", "plug-in, rows of features permuted"))
    title = f"RQ3, {side} side: gain of observed over gain of hidden features ({NAMES.get(rq3['data'], rq3['data'])})"
    caption = (
        f"Means over {rq3['orders']} random orders of the features. Blank: fewer than half of the orders have a ratio "
        "(gains within chance). A positive ratio means nothing where permuted rows give one too."
    )
    figure, panels = _panels(4, 4.3, title, caption, width=13.0)
    tables = [_table(rq3["ratios"], name, control, estimator) for control, estimator, _ in maps]
    values = np.concatenate([table[np.isfinite(table) & (table > 0)] for table in tables])
    low, high = (float(values.min()), float(values.max())) if values.size else (1.0, 10.0)
    norm = LogNorm(low, high if high > low * 1.001 else low * 1.1)
    for axes, (_, _, words), table in zip(panels, maps, tables, strict=True):
        axes.imshow(np.ma.masked_invalid(table), cmap=COLOURS, norm=norm, aspect="auto")
        axes.set_xticks(range(4), ["1/2", "1/3", "1/4", "1/5"])
        axes.set_yticks(range(4), ["1/2", "1/3", "1/4", "1/5"])
        axes.set_title(words, fontsize=9, color=DARK)
        axes.set_xlabel("items: share observed")
        for row, column in zip(*np.nonzero(np.isfinite(table)), strict=True):
            light = float(np.asarray(norm(max(table[row, column], low)))) > 0.55
            axes.text(column, row, f"{table[row, column]:.2f}", ha="center", va="center", fontsize=8,
                      color="black" if light else "white")  # fmt: skip
    panels[0].set_ylabel("users: share observed")
    return figure


def _table(rows: Sequence[Row], name: str, control: str, estimator: str) -> np.ndarray:
    table = np.full((4, 4), np.nan)
    for row in rows:
        if (row["ratio"], row["control"], row["estimator"]) == (name, control, estimator) and row["n"] * 2 >= row["of"]:
            table[row["share_user"] - 2, row["share_item"] - 2] = np.nan if row["mean"] is None else row["mean"]
    return table


def rising_gains(rq4: Mapping[str, Any]) -> Figure:
    """Gains against the number of hidden features: plug-in, equally fine noise, and the difference, with bands."""
    title = f"RQ4: the gain of hidden features, and of equally fine noise ({NAMES.get(rq4['data'], rq4['data'])})"
    caption = (
        f"Means over {rq4['orders']} random orders, with 95 % intervals. Plug-in gains rise with the number of bins, "
        "whatever the features know."
    )
    figure, panels = _panels(2, 4.4, title, caption, width=11.0)
    lines = (("plugin", "plug-in (the paper)"), ("noise", "noise of the same fineness"), ("permutation", "difference"))
    for axes, side in zip(panels, ("user", "item"), strict=True):
        steps = [row for row in rq4["steps"] if row["side"] == side]
        x = [row["hidden"] for row in steps]
        for (key, words), (colour, mark) in zip(lines, STYLES, strict=False):
            mean = [row[key]["mean"] for row in steps]
            axes.plot(x, mean, color=colour, marker=mark, markersize=3.5, linewidth=1.3, label=words)
            ends = [(row[key]["low"], row[key]["high"]) for row in steps]
            if rq4["orders"] >= FEWEST and all(low is not None for low, _ in ends):
                axes.fill_between(x, *np.array(ends).T, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(0.0, color=DARK, linewidth=0.6)
        axes.set_xlabel(f"hidden {side} features")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel("information gain (nats)")
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def _panels(
    n: int, height: float, title: str, caption: str, *, share_y: bool = False, width: float = 10.5
) -> tuple[Figure, list[Axes]]:
    """Panels side by side under one bold title and a caption."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, n, sharey=share_y, squeeze=False)[0].tolist()
    figure.suptitle(fill(title, int(width * 10)), x=0.01, ha="left", fontsize=12, fontweight="bold", color=DARK)
    figure.supxlabel(fill(caption, int(width * 13)), x=0.01, ha="left", fontsize=9, color=DARK)
    for axes in panels:
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, panels

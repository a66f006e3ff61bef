"""Draw the figures of the documentation: `python docs/figures/make.py`. All data come from the simulator, seed 1."""

from __future__ import annotations

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch
from style import INK, PAPER, SOFT, A, B, C, D, grid, save, start  # type: ignore[import-not-found]

import puidrec as pr
from puidrec.auditing.envelope import Pairs, over_grid
from puidrec.auditing.inputs import strata
from puidrec.auditing.envelope import tipping_point
from puidrec.data.synthetic import Simulation, simulate
from puidrec.exposure.bounds import bounds

WORLD = {"world": "pair", "n_users": 800, "n_items": 400, "rng": 1}


@cache
def world() -> Simulation:
    """The world that most figures show: what is hidden varies from pair to pair, and people pick what they like."""
    return simulate(**WORLD)  # type: ignore[arg-type]


def selection() -> None:
    """Ratings in the log against ratings of all pairs."""
    start("selection")
    everyone = world().truth.matrix("rating").ravel().astype(float)
    logged = world().data.logged.rating
    figure, ax = plt.subplots(figsize=(7.2, 3.1))
    for values, shift, colour, name in (
        (logged, -0.2, B, "in the log"),
        (everyone, 0.2, A, "all pairs"),
    ):
        share = np.bincount(values.astype(int), minlength=6)[1:] / values.size
        ax.bar(np.arange(1, 6) + shift, share, 0.38, color=colour)
        for level, height in enumerate(share, 1):
            ax.text(
                level + shift,
                height + 0.008,
                f"{height:.0%}",
                ha="center",
                color=colour,
                fontsize=9.5,
            )
        ax.axvline(values.mean(), 0.8, 0.95, color=colour, linewidth=1.4)
        side = 1 if name == "in the log" else -1
        ax.text(values.mean() + 0.05 * side, 0.47, f"{name}: mean {values.mean():.2f}", color=colour,
                ha="left" if side > 0 else "right", va="top", fontweight="bold")  # fmt: skip
    ax.set(
        xticks=range(1, 6),
        xticklabels=[f"{level} ★" for level in range(1, 6)],
        ylim=(0, 0.48),
        yticks=[],
    )
    ax.spines["left"].set_visible(False)
    save(figure, "selection")


def confounding() -> None:
    """The causal picture, and what the hidden effect does to exposure and rating."""
    start("confounding")
    figure, (graph, seen, rated) = plt.subplots(1, 3, figsize=(8.8, 3.0), width_ratios=(1.75, 1, 1))
    _draw_graph(graph)
    truth = world().truth
    users, items = np.divmod(np.arange(world().data.n_pairs), world().data.n_items)
    hidden = truth.hidden_effect(users, items)
    edges = np.linspace(-1, 1, 17)
    cell = np.digitize(hidden, edges[1:-1])
    middle = (edges[1:] + edges[:-1]) / 2
    for ax, value, colour, title in (
        (seen, truth.true_propensity(users, items), A, "chance of being rated"),
        (rated, truth.utility(users, items), B, "mean rating"),
    ):  # fmt: skip
        ax.plot(
            middle,
            np.bincount(cell, value) / np.bincount(cell),
            color=colour,
            marker="o",
            markersize=4,
        )
        ax.set(
            title=title,
            xlabel="what is hidden",
            xticks=(-1, 0, 1),
            xticklabels=("against", "0", "for"),
        )
        grid(ax)
    seen.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    seen.set_ylim(0, None)
    save(figure, "confounding")


def _draw_graph(ax: Axes) -> None:
    places = {"x": (0, 0), "o": (1.3, 0.6), "r": (1.3, -0.6), "h": (2.6, 0)}
    names = {"x": "features", "o": "choice", "r": "rating", "h": "hidden"}
    colours = {"x": C, "o": A, "r": B, "h": D}
    for start_at, end_at in (("x", "o"), ("x", "r"), ("h", "o"), ("h", "r")):
        hidden = start_at == "h"
        ax.add_patch(FancyArrowPatch(
            places[start_at], places[end_at], arrowstyle="-|>", mutation_scale=13, shrinkA=26, shrinkB=26,
            color=D if hidden else SOFT, linestyle=(0, (4, 3)) if hidden else "-", linewidth=1.6,
        ))  # fmt: skip
    for key, (x, y) in places.items():
        ax.add_patch(Circle((x, y), 0.44, facecolor=PAPER, edgecolor=colours[key], linewidth=2,
                            linestyle=(0, (4, 3)) if key == "h" else "-"))  # fmt: skip
        ax.text(x, y, names[key], ha="center", va="center", color=colours[key], fontsize=11)
    ax.text(0, -0.6, "recorded: x", ha="center", va="top", color=SOFT)
    ax.text(2.6, -0.6, "not recorded: h", ha="center", va="top", color=SOFT)
    ax.set(xlim=(-0.75, 3.35), ylim=(-1.1, 1.1), aspect="equal")
    ax.axis("off")


def gamma_bounds() -> None:
    """What Γ allows around a nominal propensity: the true chance, and the weight."""
    start("gamma")
    figure, (chance, weight) = plt.subplots(1, 2, figsize=(8.6, 3.5))
    p = np.linspace(0.005, 0.995, 100)
    for gamma, alpha in ((4.0, 0.16), (2.0, 0.24), (1.5, 0.36)):
        box = bounds(p, gamma)
        for ax, low, high in ((chance, 1 / box.b, 1 / box.a), (weight, box.a, box.b)):
            ax.fill_between(p, low, high, color=A, alpha=alpha, linewidth=0)
        top = 1 / bounds(np.array([0.4]), gamma).a[0]
        chance.text(
            0.4,
            top - 0.035,
            f"Γ = {gamma:g}",
            color=INK,
            fontsize=9,
            ha="center",
            va="center",
            rotation=40,
        )
    chance.plot(p, p, color=INK, linewidth=1.5)
    weight.plot(p, 1 / p, color=INK, linewidth=1.5)
    chance.set(
        title="true chance of being rated", xlabel="nominal propensity p", xlim=(0, 1), ylim=(0, 1)
    )
    weight.set(
        title="weight 1/p, from a to b",
        xlabel="nominal propensity p",
        yscale="log",
        xlim=(0, 1),
        ylim=(1, 100),
    )
    weight.set_yticks((1, 3, 10, 30, 100), ("1", "3", "10", "30", "100"))
    weight.minorticks_off()
    for ax in (chance, weight):
        grid(ax, "both")
    save(figure, "gamma")


@cache
def models() -> tuple[pr.Dataset, dict[str, pr.Recommender]]:
    """Two models of one log without uniform rows: as it is, and with unseen ratings taken to be lower."""
    data = world().data
    log = pr.Dataset.from_frame(
        data.logged.to_frame(),
        None,
        data.users,
        data.items,
        scale=(1, 5),
        unknown_ids="keep",
        name="log",
    )
    makers = {"mf": {}, "signed-rd": {"gamma": 1.3}}
    return log, {
        name: pr.Recommender(name, rng=0, **more).fit(log) for name, more in makers.items()
    }


def _held_out() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Ratings, nominal propensities, and predictions on held-out rows and on all pairs."""
    log, fitted = models()
    rows = log.split("rd", 0).test
    everywhere = {
        name: model.user_factors_ @ model.item_factors_.T for name, model in fitted.items()
    }
    here = {name: scores[rows.user, rows.item] for name, scores in everywhere.items()}
    return (
        log.scale.unit(rows.rating),
        world().truth.propensity(rows.user, rows.item),
        here,
        everywhere,
    )


def sets() -> None:
    """Box, normalised and sharp envelopes of one model's error, and where the truth is."""
    start("sets")
    outcome, p, here, everywhere = _held_out()
    truth = (world().truth.matrix("rating") - 1.0) / 4.0
    true_error = float(((everywhere["mf"] - truth) ** 2).mean())
    pairs = Pairs((here["mf"] - outcome) ** 2, p, strata(here["mf"]))
    steps = np.linspace(1, 3, 41)
    figure, ax = plt.subplots(figsize=(7.6, 3.7))
    for kind, colour, name in (
        ("box", D, "box"),
        ("normalised", A, "normalised"),
        ("sharp", C, "sharp"),
    ):
        curve = over_grid(pairs, kind, steps)  # type: ignore[arg-type]
        ax.fill_between(steps, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
        ax.plot(steps, curve.low, color=colour)
        ax.plot(steps, curve.high, color=colour)
        ax.text(3.03, curve.high[-1], name, color=colour, va="center", fontweight="bold")
    ax.axhline(true_error, color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    ax.text(3.03, true_error, f"truth {true_error:.3f}", color=INK, va="center")
    ax.plot(1, pairs.point, "o", color=B, markersize=7, zorder=5, clip_on=False)
    ax.annotate(f"the log says {pairs.point:.3f}", (1, pairs.point), (1.1, 0.012), color=B, fontweight="bold",
                arrowprops={"arrowstyle": "-", "color": B, "linewidth": 1})  # fmt: skip
    ax.set(xlim=(1, 3), ylim=(0, None), xlabel="Γ: how strong hidden confounding may be",
           title="Mean squared error of mf over all pairs")  # fmt: skip
    grid(ax)
    save(figure, "sets")


def signed() -> None:
    """The mean of unseen ratings that Γ allows, and the end that “people pick what they like” takes."""
    start("signed")
    figure, ax = plt.subplots(figsize=(5.6, 4.2))
    q = np.linspace(0, 1, 61)
    for gamma, alpha in ((4.0, 0.14), (2.0, 0.22), (1.5, 0.32)):
        low, high = (
            np.maximum(q / gamma, 1 - gamma * (1 - q)),
            np.minimum(gamma * q, 1 - (1 - q) / gamma),
        )
        ax.fill_between(q, low, high, color=C, alpha=alpha, linewidth=0)
        corner = 1.0 / (1.0 + gamma)
        ax.text(
            corner - 0.015,
            gamma * corner + 0.01,
            f"Γ = {gamma:g}",
            color=INK,
            fontsize=9,
            ha="right",
        )
    ax.plot(q, q, color=INK, linewidth=1.4)
    ax.plot(q, q / 2, color=B, linestyle=(0, (5, 2)))
    ax.text(
        0.75,
        0.33,
        "signed: q/Γ, here Γ = 2",
        color=B,
        ha="center",
        va="center",
        rotation=26.6,
        fontsize=9.5,
    )
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="mean of seen ratings q",
        title="mean of unseen ratings",
        aspect="equal",
    )
    ax.text(0.02, 0.98, "ratings scaled to 0..1", color=SOFT, fontsize=9, va="top")
    grid(ax, "both")
    save(figure, "signed")


def tipping() -> None:
    """The gap between two models as Γ grows, and where it may be 0."""
    start("tipping")
    outcome, p, here, everywhere = _held_out()
    gap = (here["signed-rd"] - outcome) ** 2 - (here["mf"] - outcome) ** 2
    pairs = Pairs(gap, p, strata(here["mf"] - here["signed-rd"]))
    star = tipping_point(pairs, np.arange(pairs.value.size))
    truth = (world().truth.matrix("rating") - 1.0) / 4.0
    true_gap = float(
        ((everywhere["signed-rd"] - truth) ** 2 - (everywhere["mf"] - truth) ** 2).mean()
    )
    steps = np.geomspace(1, 2, 41)
    figure, ax = plt.subplots(figsize=(7.6, 3.7))
    curve = over_grid(pairs, "normalised", steps)
    ax.fill_between(steps, curve.low, curve.high, color=A, alpha=0.16, linewidth=0)
    for end, name in ((curve.low, "least"), (curve.high, "most")):
        ax.plot(steps, end, color=A)
        ax.text(2.015, end[-1], name, color=A, va="center", fontweight="bold")
    ax.axhline(0, color=SOFT, linewidth=1)
    ax.axhline(true_gap, color=INK, linewidth=1.4, linestyle=(0, (4, 3)))
    ax.text(2.015, true_gap, "truth", color=INK, va="center")
    ax.plot(star.gamma, 0, "o", color=B, markersize=8, zorder=5)
    ax.annotate(f"Γ* = {star.gamma:.2f}", (star.gamma, 0), (star.gamma + 0.03, ax.get_ylim()[0] * 0.55), color=B,
                fontweight="bold", arrowprops={"arrowstyle": "-", "color": B, "linewidth": 1})  # fmt: skip
    ax.text(1.01, ax.get_ylim()[1] * 0.97, "mf better ↑", color=SOFT, va="top")
    ax.text(1.01, ax.get_ylim()[0] * 0.97, "signed-rd better ↓", color=SOFT, va="bottom")
    ax.set(xlim=(1, 2), xlabel="Γ", title="Error of signed-rd minus error of mf, over all pairs")
    grid(ax)
    save(figure, "tipping")


if __name__ == "__main__":
    for draw in (selection, confounding, gamma_bounds, sets, signed, tipping):
        draw()
    plt.close("all")

"""Tables about the data rather than the methods: Γ as printed, the level of chance, and the gains of RQ3 and RQ4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puidrec.report.blocks import Cell
from puidrec.report.heat_map import HeatMap
from puidrec.report.numbers import Value
from puidrec.report.reproduce_tables import METRIC, NAMES, Row, Sheet

KINDS = ("plugin", "noise", "permutation")
SIDES = ("user", "item")
RATIOS = {"ratio_user": "user", "ratio_item": "item"}


def gamma_sheet(facts: Sequence[Row]) -> Sheet:
    """Γ as printed, and the gains it is made of."""
    columns = (
        "data", "features", "H(o)", "gain of users", "beyond noise", "gain of items", "beyond noise ",
        "Γ as printed", "pairs below 1", "mean Γ as exp",
    )  # fmt: skip
    body = tuple(
        (
            NAMES.get(row["data"], row["data"]), row["features"], *(
                Cell(value, f"{value:.5f}") for value in (
                    row["H"], row["gain_user"]["plugin"], row["gain_user"]["permutation"],
                    row["gain_item"]["plugin"], row["gain_item"]["permutation"], row["value"],
                )
            ),
            Cell(row["share_below_one"], f"{row['share_below_one']:.1%}"),
            Cell(row["mean_gamma"], f"{row['mean_gamma']:.4f}"),
        )
        for row in facts if row["experiment"] == "gamma"
    )  # fmt: skip
    caption = (
        "Gains in nats, plug-in, and what is left after the gain of permuted feature rows is taken off. Γ as printed "
        "is 2 · gain of users + 5 · gain of items; the last column takes the same sum as log Γ of each pair's own bins."
    )
    return Sheet("The printed equation for Γ", caption, columns, body)


def chance_sheet(facts: Sequence[Row]) -> Sheet:
    """What a random order scores under each protocol."""
    body = []
    for row in (row for row in facts if row["experiment"] == "chance"):
        metric = next(name for name in ("ndcg@5", "ndcg@50") if name in row)
        body.append((
            NAMES.get(row["data"], row["data"]), row["protocol"], Cell(row["test_rows"], f"{row['test_rows']:,}"),
            Cell(row["positive_rate"], f"{row['positive_rate']:.1%}"), Cell(row["uauc"], f"{row['uauc']:.3f}"),
            METRIC[metric], Cell(row[metric], f"{row[metric]:.3f}"),
        ))  # fmt: skip
    columns = ("data", "protocol", "test rows", "positive", "UAUC of chance", "metric", "of chance")
    return Sheet("What a random order scores", "The level depends on the protocol alone.", columns, tuple(body))


def ratio_sheet(rq3: Mapping[str, Any]) -> Sheet:
    """RQ3: gains by step, with and without information."""
    words = {"x_u": "observed user features", "x_i": "observed item features",
             "h_u": "hidden user features", "h_i": "hidden item features"}  # fmt: skip
    body = tuple(
        (
            words[row["step"]], "permuted rows" if row["control"] == "permuted" else "as recorded",
            Cell(row["plugin"], f"{row['plugin']:.5f}"), Cell(row["noise"], f"{row['noise']:.5f}"),
            Cell(row["permutation"], f"{row['permutation']:.5f}"),
            _share(row["artefact"]), _share(row["beyond_chance"]),
        )
        for row in rq3["gains"]
    )  # fmt: skip
    columns = ("step of the chain", "features", "plug-in gain", "gain of noise", "left", "artefact", "beyond chance")
    caption = (
        f"Nats, means over 16 combinations and {rq3['orders']} random orders. Noise: the step's values handed round "
        "among users (items) that agree in what was known before."
    )
    return Sheet("RQ3: what each step of the chain gains", caption, columns, body)


def combination_sheet(rq3: Mapping[str, Any], ratio: str) -> Sheet:
    """RQ3: a ratio for each of the 16 combinations, by estimator, and for permuted feature rows."""
    rows = [row for row in rq3["ratios"] if row["ratio"] == ratio]
    columns = {
        "plug-in": ("none", "plugin"), "Miller–Madow": ("none", "miller-madow"),
        "minus noise": ("none", "permutation"), "plug-in, permuted rows": ("permuted", "plugin"),
    }  # fmt: skip
    at = {(row["share_user"], row["share_item"], row["control"], row["estimator"]): row for row in rows}
    shares = dict.fromkeys((row["share_user"], row["share_item"]) for row in rows)
    body: tuple[tuple[Value | Cell, ...], ...] = tuple(
        (f"1/{u}", f"1/{i}", *(_mean(at[u, i, *key], 2) for key in columns.values()),
         Cell(at[u, i, "none", "permutation"]["n"], f"{at[u, i, 'none', 'permutation']['n']} of {rq3['orders']}"))
        for u, i in shares
    )  # fmt: skip
    caption = (
        f"Mean over {rq3['orders']} random orders [95 % interval]. Minus noise: over the orders, counted in the last "
        "column, in which both gains are beyond chance. Rows of features permuted: nothing is known, and ratios remain."
    )
    head = ("users observed", "items observed", *columns, "beyond chance")
    return Sheet(f"RQ3: gain of observed over hidden {RATIOS[ratio]} features", caption, head, body)


def ratio_map(rq3: Mapping[str, Any], ratio: str, estimator: str, words: str, control: str = "none") -> HeatMap:
    """The same as a map for the page; blank where fewer than half of the orders have a ratio."""
    at = {
        (row["share_user"], row["share_item"]): row["mean"] if row["n"] * 2 >= row["of"] else None
        for row in rq3["ratios"]
        if (row["ratio"], row["estimator"], row["control"]) == (ratio, estimator, control)
    }
    users, items = (sorted({key[k] for key in at}) for k in (0, 1))
    return HeatMap(
        [[at[u, i] for i in items] for u in users], [f"1/{u}" for u in users], [f"1/{i}" for i in items],
        f"RQ3, {RATIOS[ratio]} side, {words}", "users observed", "items observed", "ratio", log=True,
    )  # fmt: skip


def rise_sheet(rq4: Mapping[str, Any]) -> Sheet:
    """RQ4: gains when all features of a side are hidden, and how often they rise on the way."""
    body: tuple[tuple[Value | Cell, ...], ...] = tuple(
        (
            f"{side} features ({facts['features']})",
            *(_mean(facts["final"][name]) for name in KINDS),
            _share(facts["artefact_at_the_end"]),
            *(_share(facts["rising"][name]) for name in KINDS),
        )
        for side, facts in ((side, rq4["sides"][side]) for side in SIDES)
    )  # fmt: skip
    columns = (
        "hidden", "plug-in gain", "gain of noise", "left", "artefact", "plug-in rises", "noise rises", "rest rises",
    )  # fmt: skip
    caption = (
        f"Gains in nats when all features of the side are hidden, {rq4['orders']} random orders [95 % interval]; then "
        "the share of steps, one feature more each, at which a gain does not fall."
    )
    return Sheet("RQ4: the gain of hidden features", caption, columns, body)


def _mean(facts: Mapping[str, Any], digits: int = 4) -> Cell:
    """A mean with its interval."""
    if facts["mean"] is None:
        return Cell(None, "–")
    text = f"{facts['mean']:.{digits}f}"
    return Cell(
        facts["mean"],
        text if facts["low"] is None else f"{text} [{facts['low']:.{digits}f}, {facts['high']:.{digits}f}]",
    )


def _share(value: float | None) -> Cell:
    return Cell(value, "–" if value is None else f"{value:.0%}")

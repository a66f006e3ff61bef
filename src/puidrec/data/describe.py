"""A data set in figures: sizes, rating levels, and how far the log is from uniform rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Protocol, get_protocol
from puidrec.data.tables import Overlap

IMPLICIT = (
    "Every logged row is a like (implicit feedback): only methods that look at unseen "
    "pairs can learn from it."
)
_BARS = "▁▂▃▄▅▆▇█"


def describe_dataset(data: Dataset, protocol: str | Protocol = "rd") -> dict[str, Any]:
    """Figures of a data set, ready for JSON, and one sentence on the selection effect."""
    rule = get_protocol(protocol)
    regimes = {"logged": _describe_part(data, data.logged, rule)}
    if data.uniform is not None:
        regimes["uniform"] = _describe_part(data, data.uniform, rule)
    sentences = (
        IMPLICIT if data.positives_only else "",
        _sentence(regimes, data.overlap),
        f"Data leakage: {data.overlap}." if data.overlap.in_log else "",
    )
    return {
        "name": data.name,
        "n_users": data.n_users,
        "n_items": data.n_items,
        "scale": [data.scale.low, data.scale.high],
        "protocol": rule.name,
        "regimes": regimes,
        "features": {
            side: [] if table is None else table.columns[1:]
            for side, table in (("users", data.users), ("items", data.items))
        },
        "overlap": data.overlap.plain(),
        "sentence": " ".join(part for part in sentences if part),
        "notes": dict(data.notes),
        "sha256": data.sha256,
    }


def _describe_part(data: Dataset, part: Interactions, rule: Protocol) -> dict[str, Any]:
    rating = part.rating.astype(np.float64)
    label = rule.label(part.rating, data.scale)
    counts, _ = np.histogram(rating, bins=5, range=(data.scale.low, data.scale.high))
    return {
        "rows": len(part),
        "density": len(part) / data.n_pairs,
        "mean_rating": float(rating.mean()),
        "half_width": float(1.96 * rating.std() / np.sqrt(len(part))),
        "positive_rate": float((label == 1).sum() / max((label >= 0).sum(), 1)),
        "histogram": "".join(_BARS[int(7 * c / counts.max())] for c in counts),
        "users": int(np.unique(part.user).size),
        "items": int(np.unique(part.item).size),
    }


def _sentence(regimes: dict[str, dict[str, Any]], overlap: Overlap) -> str:
    """Say in words what the comparison of the two regimes shows."""
    if "uniform" not in regimes:
        return (
            "No uniform rows: how far the log is from the truth cannot be measured here, only "
            "bounded."
        )
    logged, uniform = regimes["logged"], regimes["uniform"]
    gap = logged["mean_rating"] - uniform["mean_rating"]
    noise = float(np.hypot(logged["half_width"], uniform["half_width"]))
    if abs(gap) <= noise:
        return f"Logged and uniform ratings agree on average (difference {gap:+.3f} ± {noise:.3f})."
    word = "higher" if gap > 0 else "lower"
    drawn = (
        "unseen items" if overlap.dropped else "items"
    )  # without logged pairs, draws are of unseen ones
    return (
        f"Ratings people chose to give are {abs(gap):.2f} ± {noise:.2f} {word} than ratings of "
        f"{drawn} drawn at "
        "random: the log is not a fair sample."
    )

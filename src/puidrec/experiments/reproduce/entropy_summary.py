"""RQ3 and RQ4 over random orders of the features: means, intervals, and how much of each gain is artefact."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from puidrec.experiments.reproduce.chain import ESTIMATORS
from puidrec.experiments.reproduce.rq3 import RATIOS, STEPS

Row = dict[str, Any]


def interval(values: Sequence[float], level: float = 0.95) -> dict[str, float | int | None]:
    """Mean and t-interval; what cannot be said of so few values is None."""
    x = np.asarray(values, np.float64)
    if not x.size:
        return {"n": 0, "mean": None, "low": None, "high": None}
    mean = float(x.mean())
    if x.size < 2:
        return {"n": 1, "mean": mean, "low": None, "high": None}
    half = float(stats.t.ppf(0.5 + level / 2, x.size - 1) * x.std(ddof=1) / np.sqrt(x.size))
    return {"n": int(x.size), "mean": mean, "low": mean - half, "high": mean + half}


def summarise_rq3(rows: Sequence[Row]) -> Row:
    """Ratios by combination, estimator and control; gains by step and control."""
    own = [row for row in rows if row["experiment"] == "rq3"]
    if not own:
        return {}
    combinations = _by(own, lambda row: (row["control"], row["share_user"], row["share_item"]))
    ratios = [
        _ratio(part, name, estimator)
        for part in combinations.values()
        for name in RATIOS
        for estimator in ESTIMATORS
    ]  # fmt: skip
    gains = [
        {"control": control, "step": step, **_gains([row["gains"][step] for row in part])}
        for control, part in _by(own, lambda row: row["control"]).items()
        for step in STEPS
    ]
    return {"ratios": ratios, "gains": gains, "orders": len({row["seed"] for row in own}), "data": own[0]["data"]}


def summarise_rq4(rows: Sequence[Row]) -> Row:
    """Gains by number of hidden features, and how often they rise from one number to the next."""
    own = [row for row in rows if row["experiment"] == "rq4"]
    if not own:
        return {}
    steps = [
        {
            "side": side, "hidden": hidden, "of": part[0]["of"],
            **{name: interval([row[name] for row in part]) for name in (*ESTIMATORS, "noise")},
            "beyond_chance": float(np.mean([row["beyond_chance"] for row in part])),
        }
        for (side, hidden), part in _by(own, lambda row: (row["side"], row["hidden"])).items()
    ]  # fmt: skip
    sides = {side: _side(part) for side, part in _by(own, lambda row: row["side"]).items()}
    return {"steps": steps, "sides": sides, "orders": len({row["seed"] for row in own}), "data": own[0]["data"]}


def _side(rows: Sequence[Row]) -> Row:
    last = [row for row in rows if row["hidden"] == row["of"]]
    rising = {name: float(np.mean(_rises(rows, name))) for name in ("plugin", "noise", "permutation")}
    artefact = float(np.mean([row["noise"] for row in last]) / np.mean([row["plugin"] for row in last]))
    return {
        "features": rows[0]["of"], "rising": rising, "artefact_at_the_end": artefact,
        "final": {name: interval([row[name] for row in last]) for name in ("plugin", "noise", "permutation")},
        "beyond_chance": float(np.mean([row["beyond_chance"] for row in rows])),
    }  # fmt: skip


def _rises(rows: Sequence[Row], name: str) -> list[bool]:
    """Whether a gain is no smaller with one feature more, for every order and step."""
    rises: list[bool] = []
    for part in _by(rows, lambda row: row["seed"]).values():
        values = [row[name] for row in sorted(part, key=lambda row: int(row["hidden"]))]
        rises += (np.diff(values) >= -1e-12).tolist()
    return rises or [True]


def _ratio(part: Sequence[Row], name: str, estimator: str) -> Row:
    values = [row[name][estimator] for row in part if row[name][estimator] is not None]
    keys = {key: part[0][key] for key in ("control", "share_user", "share_item")}
    positive = sum(value > 0 for value in values) / len(part)
    return {**keys, "ratio": name, "estimator": estimator, "of": len(part), "positive": positive, **interval(values)}


def _gains(parts: Sequence[Row]) -> Row:
    """A step's gain, what noise of the same fineness gains, and how often it is beyond chance."""
    plugin, noise = (float(np.mean([gain[name] for gain in parts])) for name in ("plugin", "noise"))
    return {
        "plugin": plugin, "noise": noise, "permutation": plugin - noise,
        "artefact": noise / plugin if plugin > 0 else None,
        "beyond_chance": float(np.mean([gain["beyond_chance"] for gain in parts])),
    }  # fmt: skip


def _by(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups

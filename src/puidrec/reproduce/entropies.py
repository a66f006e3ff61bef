"""RQ3 and RQ4: how much hidden features tell about exposure, under random orders of the features,
one file per order.

RQ3 asks whether observed and hidden features inform in proportion; RQ4 puts the gain of hidden
features against their number. Both stand beside the gain of noise with equally many bins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np

from puidrec.atomic import write_json
from puidrec.comparing.summary import by, t_interval
from puidrec.data.sources import load_dataset
from puidrec.features.bins import cross
from puidrec.reproduce.information_gains import (
    ESTIMATORS,
    PERMUTATIONS,
    ExposureLog,
    Gain,
    SideFeatures,
    item_gain,
    user_gain,
)
from puidrec.reproduce.paper_tables import SHARES
from puidrec.rng import generator

DRAWS = 10
"""Random choices of the observed features, at least: they are cheap."""
STEPS = ("x_u", "x_i", "h_u", "h_i")
RATIOS = {"ratio_user": ("x_u", "h_u"), "ratio_item": ("x_i", "h_i")}
"""`eq:entropy-ratios`: the gain of observed features over that of hidden ones."""


def run_rq3(
    exposed: ExposureLog, seed: int, n_permutations: int = PERMUTATIONS
) -> list[dict[str, Any]]:
    """Both ratios for the 16 combinations of shares, for one random order of the features.

    An order is drawn once per seed, and a share takes its first features, so that shares are
    nested. The control has whole rows of features permuted: whatever gain it shows is artefact.
    """
    rng = generator(seed, "rq3")
    order = rng.permutation(len(exposed.users)), rng.permutation(len(exposed.items))
    rows = []
    for control, log in (("none", exposed), ("permuted", exposed.shuffled(rng))):
        for r_user in SHARES:
            for r_item in SHARES:
                users, items = (
                    _parts(log.users, order[0], r_user),
                    _parts(log.items, order[1], r_item),
                )
                gains = chain_gains(log, users, items, rng, n_permutations)
                rows.append(
                    {"control": control, "share_user": r_user, "share_item": r_item, **_row(gains)}
                )
    return [{"experiment": "rq3", "seed": seed, **row} for row in rows]


def observed_features(n: int, one_in: int) -> int:
    """How many features a share of one in `one_in` is: rounded, and at least one."""
    return max(1, round(n / one_in))


def chain_gains(
    exposed: ExposureLog,
    users: tuple[np.ndarray, np.ndarray],
    items: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> dict[str, Gain]:
    """The four gains of the chain o | x_u | x_i | h_u | h_i, as the paper orders it."""
    (x_u, h_u), (x_i, h_i) = users, items
    no_user, no_item = np.zeros_like(x_u), np.zeros_like(x_i)
    return {
        "x_u": user_gain(exposed, no_user, x_u, no_item, rng, n),
        "x_i": item_gain(exposed, x_u, no_item, x_i, rng, n),
        "h_u": user_gain(exposed, x_u, h_u, x_i, rng, n),
        "h_i": item_gain(exposed, cross(x_u, h_u), x_i, h_i, rng, n),
    }


def ratios(gains: dict[str, Gain]) -> dict[str, dict[str, float | None]]:
    """Both ratios under every estimator; None where the hidden gain is not positive.

    Corrected by permutation, a ratio also needs both gains beyond chance: a quotient of noise says
    nothing.
    """
    return {
        name: {estimator: _ratio(gains[top], gains[bottom], estimator) for estimator in ESTIMATORS}
        for name, (top, bottom) in RATIOS.items()
    }


def _ratio(top: Gain, bottom: Gain, estimator: str) -> float | None:
    if estimator == "permutation" and not (top.beyond_chance and bottom.beyond_chance):
        return None
    below = bottom.by(estimator)
    return top.by(estimator) / below if below > 1e-12 else None


def _row(gains: dict[str, Gain]) -> dict[str, Any]:
    return {"gains": {step: gain.row() for step, gain in gains.items()}, **ratios(gains)}


def _parts(side: SideFeatures, order: np.ndarray, one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of observed and of hidden features."""
    n = observed_features(len(side), one_in)
    return side.block(order[:n].tolist()), side.block(order[n:].tolist())


SideName = Literal["user", "item"]


def run_rq4(
    exposed: ExposureLog, seed: int, n_permutations: int = PERMUTATIONS
) -> list[dict[str, Any]]:
    """`eq:delta-h-user` and `eq:delta-h-item` as features move, in one random order, from observed
    to hidden.

    The other side is observed in full. Observed and hidden features together are always all of
    them, so the entropy given both stays and the entropy given the observed ones can only rise: a
    plug-in gain rises by construction.
    """
    rng = generator(seed, "rq4")
    rows = []
    for side in ("user", "item"):
        table = exposed.users if side == "user" else exposed.items
        order = rng.permutation(len(table))
        for hidden in range(1, len(table) + 1):
            row = _step(exposed, side, order, hidden, rng, n_permutations)
            rows.append(
                {
                    "experiment": "rq4",
                    "seed": seed,
                    "side": side,
                    "hidden": hidden,
                    "of": len(table),
                    **row,
                }
            )
    return rows


def _step(
    exposed: ExposureLog,
    side: SideName,
    order: np.ndarray,
    hidden: int,
    rng: np.random.Generator,
    n: int,
) -> dict[str, Any]:
    table, other = (
        (exposed.users, exposed.items) if side == "user" else (exposed.items, exposed.users)
    )
    h, x = table.block(order[:hidden].tolist()), table.block(order[hidden:].tolist())
    rest = other.block(range(len(other)))
    gain = (
        user_gain(exposed, x, h, rest, rng, n)
        if side == "user"
        else item_gain(exposed, rest, x, h, rng, n)
    )
    bins = {"observed_bins": int(x.max()) + 1, "all_bins": int(cross(x, h).max()) + 1}
    return {**gain.row(), **bins}


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
        return (
            out
            / "entropy"
            / f"{self.question}-{self.seed}-{sha256(content.encode()).hexdigest()[:16]}.json"
        )


def entropy_tasks(
    questions: Sequence[str], folder: Path, seeds: int, *, quick: bool
) -> list[EntropyTask]:
    """At least ten orders, since they are cheap; a quick run takes two and few permutations."""
    digest = load_dataset(DATA, folder).sha256
    n, permutations = (2, 4) if quick else (max(seeds, DRAWS), PERMUTATIONS)
    return [
        EntropyTask(q, folder, seed, permutations, digest)
        for q in questions
        if q in RUNS
        for seed in range(n)
    ]


def run_entropies(
    tasks: Sequence[EntropyTask], out: Path, workers: int, tell: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """All rows, in the order of the tasks, whatever ran them."""
    waiting = [task for task in tasks if _read(task.path(out)) is None]
    done = len(tasks) - len(waiting)
    pool = joblib.Parallel(min(workers, max(len(waiting), 1)), return_as="generator_unordered")
    for task in pool(joblib.delayed(finish)(task, out) for task in waiting):
        done += 1
        tell(f"{task.question}, order {task.seed}", done, len(tasks))
    return [row for task in tasks for row in _read(task.path(out)) or ()]


def finish(task: EntropyTask, out: Path) -> EntropyTask:
    """Compute a task and leave its file."""
    exposed = ExposureLog.of(load_dataset(DATA, task.folder))
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
    return (
        rows
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) and rows
        else None
    )


Row = dict[str, Any]


def interval(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean and t-interval; what cannot be said of so few values is None."""
    mean, low, high = t_interval(values) if values else (None, None, None)
    return {"n": len(values), "mean": mean, "low": low, "high": high}


def summarise_rq3(rows: Sequence[Row]) -> Row:
    """Ratios by combination, estimator and control; gains by step and control."""
    own = [row for row in rows if row["experiment"] == "rq3"]
    if not own:
        return {}
    combinations = by(own, lambda row: (row["control"], row["share_user"], row["share_item"]))
    ratios = [
        _ratio_summary(part, name, estimator)
        for part in combinations.values()
        for name in RATIOS
        for estimator in ESTIMATORS
    ]
    gains = [
        {"control": control, "step": step, **_gains([row["gains"][step] for row in part])}
        for control, part in by(own, lambda row: row["control"]).items()
        for step in STEPS
    ]
    return {
        "ratios": ratios,
        "gains": gains,
        "orders": len({row["seed"] for row in own}),
        "data": own[0]["data"],
    }


def summarise_rq4(rows: Sequence[Row]) -> Row:
    """Gains by number of hidden features, and how often they rise from one number to the next."""
    own = [row for row in rows if row["experiment"] == "rq4"]
    if not own:
        return {}
    steps = [
        {
            "side": side,
            "hidden": hidden,
            "of": part[0]["of"],
            **{name: interval([row[name] for row in part]) for name in (*ESTIMATORS, "noise")},
            "beyond_chance": float(np.mean([row["beyond_chance"] for row in part])),
        }
        for (side, hidden), part in by(own, lambda row: (row["side"], row["hidden"])).items()
    ]
    sides = {side: _side(part) for side, part in by(own, lambda row: row["side"]).items()}
    return {
        "steps": steps,
        "sides": sides,
        "orders": len({row["seed"] for row in own}),
        "data": own[0]["data"],
    }


def _side(rows: Sequence[Row]) -> Row:
    last = [row for row in rows if row["hidden"] == row["of"]]
    rising = {
        name: float(np.mean(_rises(rows, name))) for name in ("plugin", "noise", "permutation")
    }
    artefact = float(
        np.mean([row["noise"] for row in last]) / np.mean([row["plugin"] for row in last])
    )
    return {
        "features": rows[0]["of"],
        "rising": rising,
        "artefact_at_the_end": artefact,
        "final": {
            name: interval([row[name] for row in last])
            for name in ("plugin", "noise", "permutation")
        },
        "beyond_chance": float(np.mean([row["beyond_chance"] for row in rows])),
    }


def _rises(rows: Sequence[Row], name: str) -> list[bool]:
    """Whether a gain is no smaller with one feature more, for every order and step."""
    rises: list[bool] = []
    for part in by(rows, lambda row: row["seed"]).values():
        values = [row[name] for row in sorted(part, key=lambda row: int(row["hidden"]))]
        rises += (np.diff(values) >= -1e-12).tolist()
    return rises or [True]


def _ratio_summary(part: Sequence[Row], name: str, estimator: str) -> Row:
    values = [row[name][estimator] for row in part if row[name][estimator] is not None]
    keys = {key: part[0][key] for key in ("control", "share_user", "share_item")}
    positive = sum(value > 0 for value in values) / len(part)
    return {
        **keys,
        "ratio": name,
        "estimator": estimator,
        "of": len(part),
        "positive": positive,
        **interval(values),
    }


def _gains(parts: Sequence[Row]) -> Row:
    """A step's gain, the gain of noise with equally many bins, and how often it is beyond chance."""
    plugin, noise = (float(np.mean([gain[name] for gain in parts])) for name in ("plugin", "noise"))
    return {
        "plugin": plugin,
        "noise": noise,
        "permutation": plugin - noise,
        "artefact": noise / plugin if plugin > 0 else None,
        "beyond_chance": float(np.mean([gain["beyond_chance"] for gain in parts])),
    }

"""RQ3 and RQ4: how much hidden features tell about exposure, under random orders of the features.

RQ3 asks whether observed and hidden features inform in proportion; RQ4 puts the gain of hidden
features against their number. Finer bins never raise a plug-in entropy, so every further block of
features "gains", informative or not. So each gain stands beside the gain of noise that has equally
many bins: the block's values, permuted among users (or items) that agree in all features used
before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import polars as pl

from puidrec.atomic import write_json
from puidrec.comparing.summary import by
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.errors import InputError
from puidrec.exposure.counts import conditional_entropy
from puidrec.features.bins import cross
from puidrec.features.encode import feature_codes
from puidrec.reproduce.grids import SHARES
from puidrec.rng import generator

DATA = "ml-100k"
ORDERS = 10
"""Random orders of the features: they are cheap."""
PERMUTATIONS = 19
"""A gain above all of them is beyond chance at the 5 % level (1 in 20)."""
Table = dict[str, Any]


@dataclass(frozen=True)
class SideFeatures:
    """The features of users, or of items: names, and codes [features, entities]."""

    names: tuple[str, ...]
    codes: np.ndarray

    @classmethod
    def of(cls, frame: pl.DataFrame | None, id_column: str) -> SideFeatures:
        """Numbers in four bins; text of more than two values, and lists, as one yes/no feature per
        value."""
        if frame is None or frame.width < 2:
            expected = f"a table beside {id_column}"
            raise InputError("this experiment needs features", found="none", expected=expected)
        return cls(*feature_codes(frame, id_column))

    def __len__(self) -> int:
        return len(self.names)

    def block(self, features: Sequence[int] | np.ndarray) -> np.ndarray:
        """Composite code of some features; one bin for none."""
        if not len(features):
            return np.zeros(self.codes.shape[1], np.int32)
        return cross(*self.codes[np.asarray(features)])

    def shuffled(self, rng: np.random.Generator) -> SideFeatures:
        """Whole rows given to other users (or items): the same features, without information on
        exposure."""
        return SideFeatures(self.names, self.codes[:, rng.permutation(self.codes.shape[1])])


@dataclass(frozen=True)
class ExposureLog:
    """Who saw what, and the features of both sides."""

    user: np.ndarray
    item: np.ndarray
    users: SideFeatures
    items: SideFeatures

    @classmethod
    def of(cls, data: Dataset) -> ExposureLog:
        """The whole log of a data set: exposure is what is explained, so no row is held out."""
        sides = SideFeatures.of(data.users, "user_id"), SideFeatures.of(data.items, "item_id")
        return cls(data.logged.user, data.logged.item, *sides)

    def shuffled(self, rng: np.random.Generator) -> ExposureLog:
        """The control: rows of features permuted on both sides."""
        return ExposureLog(self.user, self.item, self.users.shuffled(rng), self.items.shuffled(rng))

    def entropy(self, users: np.ndarray, items: np.ndarray) -> float:
        """Plug-in H(o | user bins, item bins). Cells without an observed pair have no entropy; they
        are counted together."""
        width = int(items.max()) + 1
        observed = np.bincount(users[self.user].astype(np.int64) * width + items[self.item])
        cell = np.flatnonzero(observed)
        sizes = np.bincount(users).astype(np.float64), np.bincount(items)
        pairs = sizes[0][cell // width] * sizes[1][cell % width]
        rest = float(users.size * items.size) - pairs.sum()
        return conditional_entropy(np.append(observed[cell], 0), np.append(pairs, rest))


@dataclass(frozen=True)
class Gain:
    """By how much a block of features lowers the entropy, and by how much noise with equally many
    bins does: on average, and at most."""

    plugin: float
    noise: float
    noise_high: float

    @property
    def beyond_chance(self) -> bool:
        """Whether the gain exceeds that of every permutation."""
        return self.plugin > self.noise_high


def gain(
    entropy: Callable[[np.ndarray], float],
    known: np.ndarray,
    added: np.ndarray,
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> Gain:
    """H(o | known) − H(o | known, added); `entropy` takes bins of one side, the other is fixed."""
    before = entropy(known)
    null = [before - entropy(cross(known, permuted_within(added, known, rng))) for _ in range(n)]
    return Gain(before - entropy(cross(known, added)), float(np.mean(null)), max(null))


def permuted_within(values: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values permuted within groups."""
    result = np.empty_like(values)
    drawn = np.lexsort((rng.random(groups.size), groups))
    result[np.argsort(groups, kind="stable")] = values[drawn]
    return result


def run_rq3(exposed: ExposureLog, seed: int, n: int = PERMUTATIONS) -> list[Table]:
    """Both ratios of `eq:entropy-ratios` for the 16 combinations of shares, for one random order.

    An order is drawn once per seed, and a share takes its first features, so that shares are
    nested. The control has whole rows of features permuted: whatever gain it shows is artefact.
    """
    rng = generator(seed, "rq3")
    order = rng.permutation(len(exposed.users)), rng.permutation(len(exposed.items))
    rows = []
    for control, log in ((False, exposed), (True, exposed.shuffled(rng))):
        for one_user in SHARES:
            for one_item in SHARES:
                x_u, h_u = _parts(log.users, order[0], one_user)
                x_i, h_i = _parts(log.items, order[1], one_item)
                ratios = chain_ratios(log, (x_u, h_u), (x_i, h_i), rng, n)
                names = {"control": control, "share_user": one_user, "share_item": one_item}
                rows.append({"question": "rq3", "seed": seed, **names, **ratios})
    return rows


def observed_features(n: int, one_in: int) -> int:
    """How many features a share of one in `one_in` is: rounded, and at least one."""
    return max(1, round(n / one_in))


def _parts(side: SideFeatures, order: np.ndarray, one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of observed and of hidden features."""
    n = observed_features(len(side), one_in)
    return side.block(order[:n]), side.block(order[n:])


def chain_ratios(
    log: ExposureLog,
    users: tuple[np.ndarray, np.ndarray],
    items: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> Table:
    """Gain of observed features over that of hidden ones, per side, along the paper's chain
    o | x_u | x_i | h_u | h_i; and whether both gains are beyond chance."""
    (x_u, h_u), (x_i, h_i) = users, items
    all_u, no_u, no_i = cross(x_u, h_u), np.zeros_like(x_u), np.zeros_like(x_i)
    found = {
        "user": (
            gain(lambda bins: log.entropy(bins, no_i), no_u, x_u, rng, n),
            gain(lambda bins: log.entropy(bins, x_i), x_u, h_u, rng, n),
        ),
        "item": (
            gain(lambda bins: log.entropy(x_u, bins), no_i, x_i, rng, n),
            gain(lambda bins: log.entropy(all_u, bins), x_i, h_i, rng, n),
        ),
    }
    ratios = {side: ratio(*gains) for side, gains in found.items()}
    sure = {side: all(g.beyond_chance for g in gains) for side, gains in found.items()}
    return {"ratio": ratios, "beyond_chance": sure}


def ratio(observed: Gain, hidden: Gain) -> float | None:
    """Of plug-in gains; None where the hidden one is not positive."""
    return observed.plugin / hidden.plugin if hidden.plugin > 1e-12 else None


def run_rq4(exposed: ExposureLog, seed: int, n: int = PERMUTATIONS) -> list[Table]:
    """`eq:delta-h-user` and `eq:delta-h-item` as features move, in one random order, from observed
    to hidden.

    The other side is observed in full. Observed and hidden features together are always all of
    them, so the entropy given both stays and the entropy given the observed ones can only rise: a
    plug-in gain rises by construction.
    """
    rng = generator(seed, "rq4")
    whole_u, whole_i = (side.block(range(len(side))) for side in (exposed.users, exposed.items))
    sides = {
        "user": (exposed.users, lambda bins: exposed.entropy(bins, whole_i)),
        "item": (exposed.items, lambda bins: exposed.entropy(whole_u, bins)),
    }
    rows = []
    for side, (table, entropy) in sides.items():
        order = rng.permutation(len(table))
        for hidden in range(1, len(table) + 1):
            h, x = table.block(order[:hidden]), table.block(order[hidden:])
            found = gain(entropy, x, h, rng, n)
            values = {"plugin": found.plugin, "noise": found.noise}
            names = {"side": side, "hidden": hidden, "of": len(table)}
            rows.append({"question": "rq4", "seed": seed, **names, **values})
    return rows


RUNS = {"rq3": run_rq3, "rq4": run_rq4}


def run_entropies(
    questions: Sequence[str], folder: Path, out: Path, workers: int, *, quick: bool
) -> list[Table]:
    """All rows, one file per question and order; what is finished is not computed again."""
    n, permutations = (2, 4) if quick else (ORDERS, PERMUTATIONS)
    tasks = [
        (question, seed, out / "entropy" / f"{question}-{seed}-{permutations}.json")
        for question in questions
        if question in RUNS
        for seed in range(n)
    ]
    waiting = [task for task in tasks if not task[2].exists()]
    if waiting:
        exposed = ExposureLog.of(load_dataset(DATA, folder))
        joblib.Parallel(min(workers, len(waiting)))(
            joblib.delayed(_finish)(exposed, *task, permutations) for task in waiting
        )
    return [row for *_, path in tasks for row in json.loads(path.read_text(encoding="utf-8"))]


def _finish(exposed: ExposureLog, question: str, seed: int, path: Path, n: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, RUNS[question](exposed, seed, n))


def summarise_rq3(rows: Sequence[Table]) -> dict[str, Table]:
    """By side: mean ratios [user share, item share], with the features and with the control; how
    often a ratio is positive, and how often both of its gains are beyond chance."""
    own = [row for row in rows if row["question"] == "rq3"]
    found: dict[str, Table] = {}
    for side in ("user", "item") if own else ():
        found[side] = {"orders": len({row["seed"] for row in own})}
        for control, part in by(own, lambda row: row["control"]).items():
            cells = by(part, lambda row: (row["share_user"], row["share_item"]))
            ratios = [row["ratio"][side] for row in part]
            found[side]["control" if control else "features"] = {
                "means": [
                    [_mean([r["ratio"][side] for r in cells[u, i]]) for i in SHARES] for u in SHARES
                ],
                "positive": _mean([r is not None and r > 0 for r in ratios]),
                "beyond_chance": _mean([row["beyond_chance"][side] for row in part]),
            }
    return found


def summarise_rq4(rows: Sequence[Table]) -> dict[str, Table]:
    """By side: mean gains and mean gains of noise by number of hidden features, and how often each
    does not fall from one number to the next."""
    own = [row for row in rows if row["question"] == "rq4"]
    found: dict[str, Table] = {}
    for side, part in by(own, lambda row: row["side"]).items():
        steps = by(part, lambda row: row["hidden"]).values()
        found[side] = {"orders": len({row["seed"] for row in part})}
        for name in ("plugin", "noise"):
            orders = by(part, lambda row: row["seed"]).values()
            rises = np.concatenate(
                [np.diff([row[name] for row in one]) >= -1e-12 for one in orders]
            )
            found[side][name] = [_mean([row[name] for row in step]) for step in steps]
            found[side][f"{name}_rises"] = _mean(rises)
    return found


def _mean(values: Sequence[Any] | np.ndarray) -> float | None:
    """Of what is known."""
    known = [float(value) for value in values if value is not None]
    return float(np.mean(known)) if known else None

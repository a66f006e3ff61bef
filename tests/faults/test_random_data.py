"""Small and odd data sets through every method: finite scores, or one line that says what the data
cannot support."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.errors import PuidError
from puidrec.exposure import PROPENSITIES
from puidrec.methods import METHODS
from puidrec.model import Recommender

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(0)]

LONG = "PUIDREC_FAULTS" in os.environ
"""The long form takes every method on every seed; the short one a third of them in turn, so that
each has its seeds."""
OWN_PATH = ("mf", "spectrum", "all-rank")
"""Methods that choose L2 in the short form: the path is that of the log, not of the method, but for
likes."""
FIRST = int(os.environ.get("PUIDREC_FAULTS_FIRST", "0"))
RATINGS = ("spread", "constant", "all liked", "none liked", "two levels", "fractions")
RATING_SHARES = (0.45, 0.05, 0.15, 0.1, 0.2, 0.05)
LOGS = ("sparse", "dense", "full", "one per user", "one item", "diagonal")


def ratings(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    if kind == "constant":
        return np.full(n, float(rng.integers(1, 6)))
    if kind == "fractions":
        return np.round(rng.uniform(1, 5, n), 3)
    low, high = {"spread": (1, 6), "all liked": (4, 6), "none liked": (1, 4), "two levels": (2, 4)}[
        kind
    ]
    return rng.integers(low, high, n).astype(float)


def pairs(
    rng: np.random.Generator, kind: str, users: int, items: int
) -> tuple[np.ndarray, np.ndarray]:
    shares = {"sparse": rng.uniform(0.05, 0.3), "dense": rng.uniform(0.4, 0.9), "full": 1.0}
    if kind in shares:
        return np.nonzero(rng.random((users, items)) <= shares[kind])
    user = np.arange(users)
    if kind == "one per user":
        return user, rng.integers(0, items, users)
    if kind == "one item":
        return user, np.zeros(users, np.int64)
    return user, user % items


def rated(
    rng: np.random.Generator, user: np.ndarray, item: np.ndarray, text: bool, kind: str
) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"user_id": user, "item_id": item, "rating": ratings(rng, kind, user.size)}
    )
    names = pl.format("u{}", pl.col("user_id")).alias("user_id")
    return frame.with_columns(names) if text else frame


def side(rng: np.random.Generator, key: str, count: int, text: bool) -> pl.DataFrame:
    """Features of every awkward kind: one value, a copy, all missing, some missing, huge, as many
    values as rows."""
    ids = [f"u{k}" for k in range(count)] if text else list(range(count))
    number = np.round(rng.normal(0, 1, count), 3)
    holes = [None if rng.random() < 0.4 else float(x) for x in number]
    words = [None if rng.random() < 0.2 else str(rng.choice(["a", "b", ""])) for _ in range(count)]
    columns = {
        "number": number.tolist(),
        "copy": number.tolist(),
        "constant": [1.0] * count,
        "holes": holes,
        "words": words,
        "name": [f"n{k}" for k in range(count)],
        "huge": (number * 1e12).tolist(),
        "flag": [bool(x > 0) for x in number],
        "same": ["x"] * count,
        "list": [["p", "q"][: int(rng.integers(0, 3))] for _ in range(count)],
    }
    chosen = [
        name for name in columns if rng.random() < (0.05 if name == "name" else 0.5)
    ]  # a name is refused
    schema = {"list": pl.List(pl.String), "words": pl.String, "holes": pl.Float64}
    return pl.DataFrame(
        {key: ids, **{name: columns[name] for name in chosen}},
        schema_overrides={name: kind for name, kind in schema.items() if name in chosen},
    )


def odd_dataset(seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    users, items = (int(n) for n in rng.integers(2, 31, 2))
    text = bool(rng.random() < 0.3)
    kind = str(rng.choice(RATINGS, p=RATING_SHARES))
    logged = rated(rng, *pairs(rng, str(rng.choice(LOGS)), users, items), text, kind)
    uniform = None
    if rng.random() < 0.6:
        drawn = np.nonzero(rng.random((users, items)) < rng.choice([0.05, 0.5]))
        uniform = (
            rated(rng, *drawn, text, str(rng.choice([kind, "spread"]))) if drawn[0].size else None
        )
    tables = {
        "users": side(rng, "user_id", users, text) if rng.random() < 0.6 else None,
        "items": side(rng, "item_id", items, False) if rng.random() < 0.6 else None,
    }
    scale = (1.0, 5.0) if rng.random() < 0.8 else None
    return Dataset.from_frame(logged, uniform, **tables, scale=scale, unknown_ids="keep")


def odd_settings(seed: int, method: str) -> dict[str, object]:
    """Mostly the defaults, for they are what people run."""
    rng = np.random.default_rng([seed, 1])
    options: dict[str, object] = {"epochs": 2, "dim": int(rng.choice([1, 3, 16])), "seed": seed}
    if not LONG and method not in OWN_PATH:
        options["l2"] = 0.1
    if rng.random() < 0.5:
        options["backbone"] = str(rng.choice(["mf", "mf-linear", "mf-mlp"]))
        options["propensity"] = str(rng.choice([name for name in PROPENSITIES if name != "given"]))
        options["target"] = str(rng.choice(["rating", "binary"]))
        options["select"] = str(rng.choice(["uniform", "observational", "none"]))
        options["ids"] = bool(rng.integers(2))
        if METHODS[method].uncertainty == "personalised":
            options["gamma"] = str(rng.choice(["information", "exposure-gap", "random"]))
    return options


def line(error: PuidError) -> str:
    assert str(error).splitlines() == [str(error)]
    return str(error)


def outcome(method: str, data: Dataset, options: dict[str, object]) -> str:
    """`fitted`, or the line of the refusal. Anything else is a fault."""
    try:
        model = Recommender(method, **options).fit(data)
    except PuidError as error:
        return line(error)
    users, items = data.user_ids.ids, data.item_ids.ids
    grid = np.divmod(np.arange(data.n_pairs), data.n_items)
    scores = model.predict(users.gather(grid[0]), items.gather(grid[1]))
    assert np.isfinite(scores).all(), f"{method} predicts what is no number"
    assert np.isfinite(model.recommend(users, k=3)["score"].to_numpy()).all()
    assert np.isfinite(model.user_factors_).all()
    json.dumps([model.report_, model.history_], allow_nan=False)
    return "fitted"


def test_every_method_fits_or_says_why_not(repeats: Callable[[int], int]) -> None:
    faults: list[str] = []
    seen: collections.Counter[str] = collections.Counter()
    for seed in range(FIRST, FIRST + repeats(25)):
        try:
            data = odd_dataset(seed)
        except PuidError as error:
            line(error)
            seen["no data set"] += 1
            continue
        for method in METHODS if LONG else list(METHODS)[seed % 3 :: 3]:
            try:
                seen[outcome(method, data, odd_settings(seed, method))] += 1
            except Exception as error:  # all faults in one list
                faults.append(f"seed {seed}, {method}: {type(error).__name__}: {error}"[:300])
    print("\n".join(f"{count:6d}  {line}" for line, count in seen.most_common()))  # noqa: T201 (for the long form)
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:20])
    assert seen["fitted"] > 0.6 * (seen.total() - seen["no data set"]), (
        "a test of refusals only would prove nothing"
    )

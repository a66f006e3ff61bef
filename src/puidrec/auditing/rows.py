"""Rows that the models have not seen: which logged rows an audit judges by, and which fit judges
each of them.

Errors on training rows favour the model that memorised more of them, so none is ever judged by. In
this order:

given         the caller names rows, or a split with held-out logged rows
held-out      logged rows that the fits as they are have not been trained on: no training
cross-fitted  where no such rows are left, or folds are asked for: each model is trained again with
              its own settings on the log without one of K parts, in turn; every row is judged by
              the fit that did not see it
hold-out      the same with one part only, where the log is too large to train on K times
claimed       a model that cannot be trained again here, whose owner says that it has not seen the
              rows

A model whose scores reproduce the ratings of the rows nevertheless is reported (`leakage`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.auditing.models import AuditedModel
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.schema import Origin, check_ids, require_columns, require_rows, to_polars
from puidrec.data.split import Split
from puidrec.data.tables import row_starts
from puidrec.errors import InputError
from puidrec.rng import generator

Source = Literal["given", "held-out", "cross-fitted", "hold-out", "claimed"]
Progress = Callable[[str], None]
FOLDS = 5
MAX_CROSS_FIT = 100_000
"""Rows of a log that is trained on K times unless asked; of a larger one a part is held out, once.
"""
MIN_HELD_OUT = 50
"""Fewest held-out rows that serve; with fewer, models are trained again."""
HOLD_OUT, MAX_HOLD_OUT = 0.1, 500_000
LEAK = 0.5
"""A model that explains more than this share of what shrunk user and item means leave unexplained
reproduces the
ratings: on rows that they have not seen, the best models of the field explain a tenth to a fifth.
"""
SHRINK = 5.0
AS_IS = -1
"""In the place of a part: the model as it is."""


@dataclass(frozen=True)
class Judged:
    """The rows of an audit; part k of them is judged by fit k, which was trained on
    `trained_on[k]`."""

    rows: Interactions
    source: Source
    words: str
    """Which rows these are, for the report."""
    part: np.ndarray
    """The part of every row, from 0."""
    trained_on: tuple[Split | None, ...]
    """What fit k was trained on, where that is known."""
    refit: bool = False

    def rows_of(self, k: int) -> np.ndarray:
        """Positions of the rows that fit k judges."""
        return np.flatnonzero(self.part == k)

    def not_judged(
        self, k: int, logged: Interactions, users: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logged pairs of some users that fit k does not judge, by user: their lists leave these
        out."""
        asked = np.zeros(len(logged.users), bool)
        asked[users] = True
        pairs = (np.asarray(logged.user), np.asarray(logged.item))
        user, item = (column[asked[pairs[0]]] for column in pairs)
        kept = ~self.rows.take(self.rows_of(k)).holds(user, item)
        return row_starts(user[kept], asked.size), item[kept]


@dataclass(frozen=True)
class Fits:
    """One model as it judges the parts of the rows: trained again without each, or as it is."""

    own: AuditedModel
    parts: tuple[AuditedModel, ...]
    lists: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    """Lists by the fit of each part (`AS_IS`: by the model as it measures), kept once made."""

    def scores(self, judged: Judged) -> np.ndarray:
        """The score of every row by the fit that has not seen it."""
        if len(self.parts) == 1:
            return self.parts[0].scores(judged.rows)
        found = np.empty(len(judged.rows))
        for k, fit in enumerate(self.parts):
            mine = judged.part == k
            found[mine] = fit.scores(judged.rows.take(mine))
        return found


def choose_rows(
    models: tuple[AuditedModel, ...], data: Dataset, split: Split, asked: Asked
) -> Judged:
    """The rows that none of the models has seen, and what each was trained on; refused where there
    are none."""
    foreign = [model for model in models if not model.refits]
    own_split = asked.split_given or not foreign
    if asked.rows is not None:
        rows, words = _named_rows(asked.rows, data, split), "rows that the caller named"
        if len(foreign) == len(models):
            return _one(rows, "given", f"{words} as not seen by the models", None)
        return _without(rows, split, asked, words)
    held_out = _held_out(split, models) if own_split and asked.folds is None else None
    if held_out is not None:
        return _one(held_out[0], "held-out", held_out[1], split)
    if foreign and not asked.unseen:
        raise InputError(
            f"{foreign[0].label} cannot be trained again here, so it must be judged by rows that "
            "it has not seen",
            found="no such rows",
            expected="rows=… (--rows FILE), or unseen=True (--unseen) if it has seen none",
            hint="Ratings that a model was trained on say nothing about it.",
        )
    train = split.train if not foreign else data.logged.labelled(split.protocol)
    if len(foreign) == len(models):
        return _one(
            train, "claimed", "all logged rows: not seen in training, as the caller says", None
        )
    if asked.folds == 1 or (asked.folds is None and len(train) > MAX_CROSS_FIT):
        n = min(round(HOLD_OUT * len(train)), MAX_HOLD_OUT)
        drawn = generator(asked.rng, "audit-hold-out").choice(len(train), max(n, 1), replace=False)
        train = train.take(drawn)
        return _without(
            train, split, replace(asked, folds=1), f"{len(train):,} logged rows drawn at random"
        )
    return _without(train.take(np.arange(len(train))), split, asked, "all logged rows")  # in memory


@dataclass(frozen=True)
class Asked:
    """What the caller says about rows."""

    rows: Any = None
    unseen: bool = False
    folds: int | None = None
    """Parts of a cross-fit that was asked for; None: held-out rows where there are some."""
    split_given: bool = False
    rng: int = 0


def fit_parts(
    model: AuditedModel, judged: Judged, data: Dataset, progress: Progress | None = None
) -> Fits:
    """The fits of a model that judge the parts of the rows."""
    if not judged.refit or not model.refits:
        return Fits(model, (model,))
    parts = []
    for k, split in enumerate(judged.trained_on):
        if progress is not None:
            progress(f"training {model.label} again, {k + 1} of {len(judged.trained_on)}")
        if split is None:
            raise InputError("nothing to train on", found=model.label)
        parts.append(model.refitted(data, split))
    return Fits(model, tuple(parts))


def _one(rows: Interactions, source: Source, words: str, split: Split | None) -> Judged:
    """All rows judged by the models as they are."""
    if not len(rows):
        raise InputError("no logged row to audit with", found=f"{len(rows)} rows", expected="some")
    return Judged(rows, source, words, np.zeros(len(rows), np.int8), (split,))


def _held_out(split: Split, models: tuple[AuditedModel, ...]) -> tuple[Interactions, str] | None:
    """Logged rows that the split keeps out of training and no model says it was trained on."""
    if split.evaluation == "logged" and len(split.test):
        rows, words = split.test, "test rows of the log"
    elif split.selection == "logged" and len(split.validation):
        rows, words = split.validation, "validation rows of the log"
    else:
        return None
    unseen = ~np.any([model.trained_on(rows) for model in models], axis=0)
    if np.count_nonzero(unseen) < min(MIN_HELD_OUT, len(rows)):
        return None
    return rows if unseen.all() else rows.take(unseen), words


def _without(rows: Interactions, split: Split, asked: Asked, words: str) -> Judged:
    """The rows in K random parts, each judged by fits that were trained on the split's rows without
    that part."""
    width = len(split.train.items)
    own, trained = (_pairs(part, width) for part in (rows, split.train))
    seen = np.isin(own, trained)
    if not seen.any():
        return _one(rows, "given", f"{words}, none of which trained the models", split)
    folds = FOLDS if asked.folds is None else asked.folds
    if not 1 <= folds <= 50:
        raise InputError("folds out of range", found=folds, expected="from 1 (a hold-out) to 50")
    n = min(folds, len(rows))
    part = (generator(asked.rng, "audit-folds").permutation(len(rows)) % n).astype(np.int8)
    splits = [
        replace(split, train=split.train.take(~np.isin(trained, own[part == k]))) for k in range(n)
    ]
    if any(not len(fold.train) for fold in splits):
        raise InputError(
            "too few logged rows to judge by some and train on the others",
            found=f"{len(rows)} rows",
        )
    how = (
        f"{n} parts, each judged by fits trained without it"
        if n > 1
        else "judged by fits trained without them"
    )
    source: Source = "cross-fitted" if n > 1 else "hold-out"
    return Judged(
        rows,
        source,
        f"{words}, {how}" if n == 1 else f"{words} in {how}",
        part,
        tuple(splits),
        refit=True,
    )


def _named_rows(table: Any, data: Dataset, split: Split) -> Interactions:
    """The logged rows that a table of pairs names, with their logged ratings."""
    logged = data.logged.labelled(split.protocol)
    if isinstance(table, Interactions):
        user, item = table.user, table.item
    else:
        origin = Origin("rows")
        frame = to_polars(table, origin)
        require_columns(frame, ("user_id", "item_id"), origin)
        require_rows(frame, origin)
        user = data.user_ids.encode(check_ids(frame["user_id"], origin))
        item = data.item_ids.encode(check_ids(frame["item_id"], origin))
    missing = np.count_nonzero(~data.logged.holds(user, item))
    if missing:
        raise InputError(
            f"{missing:,} of {len(user):,} rows to audit are not in the log",
            expected="user_id, item_id of logged rows",
        )
    wanted = np.unique(user.astype(np.int64) * data.n_items + item)
    return logged.take(np.isin(_pairs(logged, data.n_items), wanted))


def _pairs(rows: Interactions, width: int) -> np.ndarray:
    """A number for each pair of rows that may be on disk."""
    found: np.ndarray = np.asarray(rows.user).astype(np.int64) * width + np.asarray(rows.item)
    return found


def leakage(prediction: np.ndarray, outcome: np.ndarray, rows: Interactions) -> float:
    """The share of what shrunk user and item means leave unexplained that a model explains; above
    `LEAK`, too much.

    The means of a row are made of the other rows.
    """
    error = _left_over(outcome, rows)
    reference = float(error @ error) / error.size
    return 1.0 - float(((prediction - outcome) ** 2).mean()) / reference if reference > 0.0 else 0.0


def _left_over(outcome: np.ndarray, rows: Interactions) -> np.ndarray:
    """Outcomes less what means of their item's and of their user's other rows say, shrunk towards
    the overall mean."""
    left = outcome - outcome.mean()
    for code in (rows.item, rows.user):
        n, total = np.bincount(code), np.bincount(code, left)
        left = left - (total[code] - left) / (n[code] - 1.0 + SHRINK)
    return left


def read_rows(path: Any) -> pl.DataFrame:
    """A file of pairs."""
    from puidrec.data.sources.reading import read_table

    return read_table(Path(path))

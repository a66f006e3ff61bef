"""A caller's tables, checked against each other: ratings on one scale, ids of one type, one
population.

`schema` checks a table by itself; here are the rules between tables. `Dataset` then gives every id
its code.

Pairs in both the log and the uniform rows are data leakage: a model that memorises its log answers
such rows from memory, so their figures say nothing about unseen pairs. By default they neither
validate nor test nor calibrate: a data set leaves them out when it is built (`Dataset.uniform` has
none), keeps them apart (`Dataset.repeated`) and counts them (`Dataset.overlap`). `overlap="keep"`
leaves them in, for comparison with figures that were printed so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from scipy import sparse

from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    Frame,
    Origin,
    RatingScale,
    check_choice,
    clean_interactions,
    clean_side,
    refuse_near_rating,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.errors import InputError

Matrix = Any
"""A SciPy CSR array, users × items (its own type has parameters that differ between versions)."""
UnknownIds = Literal["error", "keep", "drop"]
"""What to do with rows of a side table whose id was never rated."""
RATED, SIDES = ("logged", "uniform"), ("users", "items")


def check_tables(
    tables: Mapping[str, Frame | None],
    origin: Mapping[str, Origin],
    *,
    scale: tuple[float, float] | None,
    liked_from: float | None,
    unknown_ids: UnknownIds,
) -> tuple[dict[str, pl.DataFrame], dict[str, pl.DataFrame], dict[str, pl.Series], RatingScale]:
    """Check `logged`, `uniform`, `users` and `items` (None: not given) against each other; the
    options are those of `Dataset.from_frame`.

    Returns, under the caller's own ids: the logs; the side tables, a row for every id of the
    population in its order; the population of `users` and of `items`, sorted ids; and the scale.
    """
    check_choice("unknown_ids", unknown_ids, get_args(UnknownIds))
    given = {key: table for key, table in tables.items() if key == "logged" or table is not None}
    limits = RatingScale.of(scale)
    logs = {
        key: with_our_names(to_polars(given[key], origin[key])) for key in RATED if key in given
    }
    likes = "rating" not in logs["logged"].columns
    if likes:
        require_columns(logs["logged"], INTERACTION_COLUMNS[:2], origin["logged"])
        refuse_near_rating(logs["logged"].columns, origin["logged"])
        like = 1.0 if limits is None or liked_from is not None else limits.high
        logs["logged"] = logs["logged"].with_columns(rating=pl.lit(like))
    rated = {key: clean_interactions(frame, limits, origin[key]) for key, frame in logs.items()}
    if liked_from is not None:
        rated, limits = _liked(rated, liked_from, likes), RatingScale(0.0, 1.0)
    sides = {
        key: clean_side(given[key], f"{key[:-1]}_id", origin[key]) for key in SIDES if key in given
    }
    _same_id_types(rated, sides, origin)
    if limits is None:
        rated, limits = _scaled(rated, likes, origin)
    ids = {key: _population(key, rated, sides.get(key), unknown_ids, origin[key]) for key in SIDES}
    for key, side in sides.items():
        own = side.columns[0]
        aligned = ids[key].to_frame(own)
        sides[key] = aligned.join(side, on=own, how="left", maintain_order="left")
    rated = {key: _rerated(frame, pl.col("rating")) for key, frame in rated.items()}
    return rated, sides, ids, limits


def _same_id_types(
    rated: Mapping[str, pl.DataFrame],
    side: Mapping[str, pl.DataFrame],
    origin: Mapping[str, Origin],
) -> None:
    """Refuse text ids in one table and integer ids in another: 7 and "7" would never match."""
    for key in ("user_id", "item_id"):
        expected = rated["logged"][key].dtype
        for name, table in {**rated, **side}.items():
            if key in table.columns and table[key].dtype != expected:
                raise origin[name].error(
                    "ids of another type than in the log",
                    column=key,
                    found=str(table[key].dtype),
                    expected=str(expected),
                    hint="Write the ids the same way in every table.",
                )


def _scaled(
    rated: Mapping[str, pl.DataFrame], likes: bool, origin: Mapping[str, Origin]
) -> tuple[dict[str, pl.DataFrame], RatingScale]:
    """The ratings and their range, when the caller names none; equal ratings throughout are likes,
    1 on 0 to 1."""
    ratings = pl.concat([frame["rating"] for frame in rated.values()])
    low, high = float(ratings.min()), float(ratings.max())  # type: ignore[arg-type]
    if likes and "uniform" in rated and (low < 0.0 or high > 1.0):
        raise origin["uniform"].error(
            "ratings of another kind than the log's likes",
            column="rating",
            found=f"{low:g} to {high:g}",
            expected="0 (not liked) or 1 (liked)",
            hint="Say from where on they are likes, such as --liked-from 4.",
        )
    if low == high:
        equal = {key: _rerated(frame, pl.lit(1.0)) for key, frame in rated.items()}
        return equal, RatingScale(0.0, 1.0)
    if likes:
        return dict(rated), RatingScale(0.0, 1.0)
    RatingScale(low, high)  # refused where 32 bits are too few
    return dict(rated), RatingScale(float(np.float32(low)), float(np.float32(high)))


def _liked(
    rated: Mapping[str, pl.DataFrame], liked_from: float, likes: bool
) -> dict[str, pl.DataFrame]:
    """Ratings as likes: 1 from a threshold on, 0 below it. A log that came without ratings holds
    likes already."""
    number = isinstance(liked_from, int | float) and not isinstance(liked_from, bool)
    if not number or not np.isfinite(liked_from):
        raise InputError("liked_from is no rating", found=liked_from, expected="a number, as 4")
    like = pl.col("rating") >= liked_from
    return {
        key: frame if likes and key == "logged" else _rerated(frame, like)
        for key, frame in rated.items()
    }


def _rerated(frame: pl.DataFrame, rating: pl.Expr) -> pl.DataFrame:
    """The table with other ratings, in the type in which they are kept."""
    return frame.with_columns(rating.cast(pl.Float32).alias("rating"))


def _population(
    key: str,
    rated: Mapping[str, pl.DataFrame],
    side: pl.DataFrame | None,
    unknown_ids: UnknownIds,
    origin: Origin,
) -> pl.Series:
    """Every id of the population, sorted; refuses ids that a side table lacks, or that only it
    has."""
    column = f"{key[:-1]}_id"
    seen = pl.concat([frame[column].unique() for frame in rated.values()]).unique()
    if side is None:
        return seen.sort()
    listed = side[column]
    without = seen.filter(~seen.is_in(listed.implode())).sort()
    if without.len():
        raise origin.error(
            f"no row for {without.len():,} rated id(s)",
            column=column,
            found=without[0],
            expected="a row for every id in the interactions",
            hint="Add the rows; leave cells empty where a feature is unknown.",
        )
    extra = ~listed.is_in(seen.implode())
    if unknown_ids == "error" and extra.any():
        raise origin.error(
            f"{int(extra.sum()):,} id(s) never rated",
            row=int(extra.arg_true()[0]) + 1,
            column=column,
            found=listed.filter(extra)[0],
            expected="only ids of the interactions",
            hint="Choose unknown_ids='keep' or 'drop' (--set data.unknown_ids=keep).",
        )
    return (listed if unknown_ids == "keep" else seen).sort()


def matrix_frame(
    matrix: Any,
    user_ids: Sequence[Any] | None = None,
    item_ids: Sequence[Any] | None = None,
    label: str = "matrix",
) -> pl.DataFrame:
    """The stored entries of a sparse matrix as `user_id, item_id, rating`; entries stored twice are
    added up."""
    origin = Origin(label)
    is_sparse: bool = sparse.issparse(matrix)
    if not is_sparse or matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise origin.error(
            "not a sparse matrix of real numbers",
            found=f"{type(matrix).__name__} of {getattr(matrix, 'dtype', 'objects')}",
            hint="Wrap it: scipy.sparse.csr_array.",
        )
    entries: Matrix = sparse.csr_array(matrix, copy=True)
    entries.sum_duplicates()
    rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    columns = []
    for key, ids, at, size in (
        ("user_id", user_ids, rows, entries.shape[0]),
        ("item_id", item_ids, entries.indices, entries.shape[1]),
    ):
        named = pl.Series(key, range(size) if ids is None else ids)
        if named.len() != size or named.is_duplicated().any():
            raise origin.error(
                "ids do not fit the matrix",
                column=key,
                found=f"{named.n_unique()} different ids of {named.len()}",
                expected=f"{size}, one per {'row' if key == 'user_id' else 'column'}",
            )
        columns.append(named.gather(at))
    return pl.DataFrame([*columns, pl.Series("rating", entries.data.astype(np.float64))])


OverlapRule = Literal["drop", "keep"]
MOST_REPEATED = 0.5
"""Share of uniform rows that may be logged pairs; rows drawn at random repeat about the share of
pairs logged."""


@dataclass(frozen=True)
class Overlap:
    """How many uniform rows repeat a logged pair, and what was done with them."""

    rule: OverlapRule = "drop"
    rows: int = 0
    """Uniform rows as given."""
    in_log: int = 0
    """Those of them whose pair is in the log."""

    @property
    def dropped(self) -> int:
        """Uniform rows left out."""
        return self.in_log if self.rule == "drop" else 0

    def unseen_mean(self, uniform_mean: float, seen_mean: float, density: float) -> float:
        """The mean over unseen pairs: that of the uniform rows, or what it leaves once seen pairs
        are taken out."""
        if self.dropped or density >= 1.0:
            return uniform_mean
        return (uniform_mean - density * seen_mean) / (1.0 - density)

    def population_mean(self, uniform_mean: float, seen_mean: float, density: float) -> float:
        """The mean over all pairs: uniform rows outside the log lack the seen pairs, which are put
        back here."""
        return (
            density * seen_mean + (1.0 - density) * uniform_mean if self.dropped else uniform_mean
        )

    def plain(self) -> dict[str, Any]:
        """Plain values for run folders and reports."""
        return {"overlap": self.rule, "uniform_rows": self.rows, "uniform_rows_in_log": self.in_log}

    def __str__(self) -> str:
        return overlap_words(self.rule, self.rows, self.in_log)


def overlap_words(rule: str, rows: int, in_log: int) -> str:
    """What was found and done, for tables; nothing where there are no uniform rows."""
    if not rows:
        return ""
    if not in_log:
        return f"none of {rows:,} uniform rows is a logged pair"
    return (
        f"{in_log:,} of {rows:,} uniform rows are logged pairs "
        f"({'dropped' if rule == 'drop' else 'kept'})"
    )


def check_overlap(rule: str) -> None:
    """Refuse another word than `drop` or `keep`."""
    check_choice("overlap", rule, get_args(OverlapRule))


def require_fresh(
    rows: int, repeated: int, words: str, density: float = 0.0, file: Any = None
) -> None:
    """Refuse rows that are mostly known pairs: they were not drawn at random, whatever they are
    called.

    density: share of all pairs that is known; random rows repeat about that share, so a dense log
    is allowed more.
    """
    if repeated > max(MOST_REPEATED, 2.0 * density) * rows or 0 < repeated == rows:
        raise InputError(
            words,
            file=file,
            found=f"{repeated:,} of {rows:,}",
            expected="pairs drawn at random, most of them new",
            hint="Give other rows, or insist with overlap='keep' (--overlap keep).",
        )


def pairs_by_user(
    user: np.ndarray, item: np.ndarray, n_users: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of codes by user: where each user's start, and their items. Those of unknown users or
    items (−1) are left out."""
    known = (user >= 0) & (item >= 0)
    user, item = user[known], item[known]
    return row_starts(user, n_users), item[np.argsort(user, kind="stable")]


def row_starts(code: np.ndarray, n: int, chunk: int = 1 << 20) -> np.ndarray:
    """Rows of all smaller codes, of each code below n and of n itself, [n + 1]: where the rows of a
    user start in a log sorted by user. Some rows at a time, for logs on disk."""
    count = np.zeros(n, np.int64)
    for start in range(0, code.size, chunk):
        count += np.bincount(code[start : start + chunk], minlength=n)
    return np.concatenate([[0], np.cumsum(count)])


def pair_matrix(
    row_start: np.ndarray, item: np.ndarray, values: np.ndarray, n_items: int
) -> Matrix:
    """A number per row of a log as a CSR matrix, users × items; items and values stay where they
    are, on disk as well (SciPy would copy items whose type is not that of `row_start`)."""
    start = row_start.astype(np.int32) if row_start[-1] < 2**31 else row_start
    return sparse.csr_array((values, item, start), (start.size - 1, n_items))


def rows_outside(
    user: np.ndarray,
    item: np.ndarray,
    row_start: np.ndarray,
    items: np.ndarray,
    chunk: int = 1 << 17,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a log that another log lacks, by user: `row_start` and items, as the other log is
    given.

    Both are sorted by user and item, and may be on disk: each is read once, some rows at a time.
    """
    users, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, user.size, chunk):
        own_user, own_item = user[start : start + chunk], item[start : start + chunk]
        outside = ~pairs_among(own_user, own_item, row_start, items)
        users.append(own_user[outside])
        found.append(own_item[outside])
    return row_starts(np.concatenate(users), row_start.size - 1), np.concatenate(found)


def pairs_among(
    user: np.ndarray, item: np.ndarray, row_start: np.ndarray, items: np.ndarray
) -> np.ndarray:
    """Which pairs are in a log sorted by user and item; `row_start` and `items` are its rows by
    user.

    A binary search of all pairs at once, so that a log on disk is read only where it is asked for.
    """
    low, high = row_start[user].astype(np.int64), row_start[user + 1].astype(np.int64)
    end = high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        below = np.asarray(items[middle]) < item[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
    found = np.zeros(user.size, bool)
    inside = np.flatnonzero(low < end)
    found[inside] = np.asarray(items[low[inside]]) == item[inside]
    return found

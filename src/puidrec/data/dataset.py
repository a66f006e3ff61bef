"""One immutable data set: the log that users chose, the uniform rows (if any) kept apart, and the
side tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import polars as pl

from puidrec.data.schema import Duplicates, Frame, Origin, RatingScale, check_choice
from puidrec.data.tables import (
    Matrix,
    Overlap,
    OverlapRule,
    UnknownIds,
    check_overlap,
    check_tables,
    matrix_frame,
    pair_matrix,
    pairs_among,
    require_fresh,
    row_starts,
)
from puidrec.errors import InputError
from puidrec.view import html_table, view

if TYPE_CHECKING:
    from puidrec.data.split import MaskKind, Protocol, Selection, Split
    from puidrec.rng import Rng


@dataclass(frozen=True)
class IdMap:
    """The caller's ids in order of their codes 0, 1, 2, …: sorted, so the codes do not depend on
    row order."""

    ids: pl.Series

    def __len__(self) -> int:
        return self.ids.len()

    def __repr__(self) -> str:
        ends = f", {self.ids[0]!r} to {self.ids[-1]!r}" if len(self) else ""
        return f"IdMap({len(self):,} ids{ends})"

    def encode(self, ids: Any) -> np.ndarray:
        """Codes (int32) of the caller's ids; -1 where an id is unknown, as 7 is where ids are text
        such as "7"."""
        ids = plain_ids(ids)
        try:
            wanted = pl.Series("id", ids)
        except UnicodeEncodeError as error:
            problem = "an id is not text: it holds half a character (a lone surrogate)"
            raise InputError(problem, found=error.object[error.start : error.end]) from error
        except (OverflowError, TypeError) as error:
            if not all(isinstance(own, int) for own in ids):
                raise InputError(
                    "ids of mixed types", expected=f"all of them {self.ids.dtype}"
                ) from error
            wanted = pl.Series(
                "id", [own if abs(own) < 2**63 else None for own in ids], pl.Int64
            )  # unknown
        if wanted.dtype.is_float() or wanted.dtype.is_numeric() != self.ids.dtype.is_numeric():
            return np.full(wanted.len(), -1, dtype=np.int32)
        wanted = wanted.cast(self.ids.dtype, strict=False)
        table = pl.DataFrame({"id": self.ids, "code": np.arange(len(self), dtype=np.int32)})
        joined = wanted.to_frame("id").join(table, on="id", how="left", maintain_order="left")
        return joined["code"].fill_null(-1).to_numpy()

    def decode(self, codes: np.ndarray) -> pl.Series:
        """The caller's ids of codes."""
        return self.ids.gather(codes)


def plain_ids(ids: Any) -> Any:
    """Ids as Polars reads them: those of an `IdMap`, and arrays of pandas (3: text is one) as
    lists."""
    if isinstance(ids, IdMap):
        return ids.ids
    if (
        type(ids).__module__.split(".")[0] == "pandas"
        and hasattr(ids, "tolist")
        and not hasattr(ids, "to_frame")
    ):
        # what is missing is not itself
        return [None if own != own else own for own in ids.tolist()]  # noqa: PLR0124
    return ids


@dataclass(frozen=True)
class Interactions:
    """Rated pairs as codes, sorted by user then item. Column `label` (1/0) is there once a protocol
    was applied."""

    frame: pl.DataFrame
    """`user`, `item` (Int32 codes), `rating` (Float32), and `propensity`, `timestamp`, `label`
    where they exist."""
    users: IdMap
    items: IdMap
    scale: RatingScale

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        pairs = f"{len(self.users):,} users × {len(self.items):,} items"
        return f"{type(self).__name__}({len(self):,} rows of {pairs}, ratings {self.scale})"

    @property
    def user(self) -> np.ndarray:
        """User codes, int32."""
        return self.frame["user"].to_numpy()

    @property
    def item(self) -> np.ndarray:
        """Item codes, int32."""
        return self.frame["item"].to_numpy()

    @property
    def rating(self) -> np.ndarray:
        """Ratings on the data set's own scale, float32."""
        return self.frame["rating"].to_numpy()

    @property
    def label(self) -> np.ndarray:
        """Labels 1/0 (int8) of the protocol that made this part."""
        return self.frame["label"].to_numpy()

    @property
    def propensity(self) -> np.ndarray | None:
        """The propensities that came with the log, if any."""
        return self.frame["propensity"].to_numpy() if "propensity" in self.frame.columns else None

    def parts(self) -> Iterator[Interactions]:
        """All rows; those of a log on disk come some at a time."""
        yield self

    def take(self, rows: np.ndarray) -> Self:
        """The given rows (positions, or a mask), in order."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else np.sort(rows)
        return replace(self, frame=self.frame[positions])

    def without(self, rows: np.ndarray) -> Self:
        """All rows but those at the given positions, in order."""
        kept = np.ones(len(self), dtype=bool)
        kept[rows] = False
        return self.take(kept)

    def holds(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Which pairs are among these rows."""
        return pairs_among(user, item, row_starts(self.user, len(self.users)), self.item)

    def labelled(self, protocol: Protocol) -> Self:
        """Add the protocol's labels and leave out the rows it drops."""
        label = pl.Series("label", protocol.label(self.rating, self.scale))
        return replace(self, frame=self.frame.with_columns(label).filter(pl.col("label") >= 0))

    def to_frame(self) -> pl.DataFrame:
        """The rows under the caller's own ids."""
        ids = [
            self.users.decode(self.user).alias("user_id"),
            self.items.decode(self.item).alias("item_id"),
        ]
        return pl.DataFrame(ids).hstack(self.frame.drop("user", "item"))

    def to_matrix(self) -> Matrix:
        """The ratings as a SciPy CSR matrix, users × items in the order of their codes; ratings of
        0 stay stored."""
        start = row_starts(self.user, len(self.users))
        return pair_matrix(start, self.item, self.rating, len(self.items))


@dataclass(frozen=True)
class Dataset:
    """Logged interactions, optional uniform interactions, user and item tables, and the id maps.

    Build one with `Dataset.from_frame` or `load_dataset`; both check everything once, when the data
    are loaded. D, the population that losses and audits speak of, is every user of `user_ids` with
    every item of `item_ids`.
    """

    name: str
    logged: Interactions
    uniform: Interactions | None
    user_ids: IdMap
    item_ids: IdMap
    users: pl.DataFrame | None
    """User features; row k belongs to user code k, the first column is `user_id`."""
    items: pl.DataFrame | None
    scale: RatingScale
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What a source wants reports to say: how a log was synthesised, which files were read."""
    overlap: Overlap = field(default_factory=Overlap)
    """How many uniform rows repeat logged pairs, and whether they were dropped."""
    repeated: Interactions | None = None
    """The uniform rows that were left out of `uniform` because their pair is in the log."""

    @classmethod
    def from_frame(
        cls,
        logged: Frame,
        uniform: Frame | None = None,
        users: Frame | None = None,
        items: Frame | None = None,
        *,
        scale: tuple[float, float] | None = None,
        liked_from: float | None = None,
        duplicates: Duplicates = "error",
        unknown_ids: UnknownIds = "error",
        overlap: OverlapRule = "drop",
        name: str = "frame",
        origins: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Check the tables and build a data set.

        logged, uniform: `user_id, item_id, rating`, optionally `propensity`, `timestamp`.
        users, items: `user_id` / `item_id` and feature columns; text is categorical, lists are
        multi-valued.
        scale: lowest and highest possible rating; taken from the ratings when not given. A log
        without `rating`, or with one rating throughout, is implicit feedback: every row is a like,
        on the scale 0 to 1 unless `scale` says otherwise. liked_from: ratings from here on become
        1, lower ones 0 (clicks, likes).
        duplicates: what to do with a pair rated twice (`first` and `last` by timestamp, where there
        is one; `max`: a click counts although the item was also shown without). unknown_ids: what
        to do with rows of a side table whose id was never rated: refuse, keep (the entity belongs
        to the population), or drop. overlap: what to do with uniform rows whose pair is in the log;
        they are dropped, for a model that memorises its log knows them.
        origins: names for messages, such as the paths the tables were read from.
        """
        check_choice("duplicates", duplicates, get_args(Duplicates))
        given = {"logged": logged, "uniform": uniform, "users": users, "items": items}
        origin = {key: Origin((origins or {}).get(key, key)) for key in given}
        rated, sides, ids, limits = check_tables(
            given, origin, scale=scale, liked_from=liked_from, unknown_ids=unknown_ids
        )
        maps = IdMap(ids["users"]), IdMap(ids["items"])
        parts = {
            key: Interactions(coded_pairs(frame, *maps, duplicates, origin[key]), *maps, limits)
            for key, frame in rated.items()
        }
        _require_signal(parts["logged"], origin["logged"])
        data = cls(
            name=name,
            logged=parts["logged"],
            uniform=parts.get("uniform"),
            user_ids=maps[0],
            item_ids=maps[1],
            users=sides.get("users"),
            items=sides.get("items"),
            scale=limits,
            notes=dict(notes or {}),
        )
        if data.positives_only:
            notes = {**data.notes, "feedback": "implicit: every logged row is a like"}
            data = replace(data, notes=notes)
        return data.with_overlap(overlap, (origins or {}).get("uniform"))

    def with_overlap(self, rule: OverlapRule, file: Any = None) -> Dataset:
        """The same data with uniform rows whose pair is in the log dropped, or kept for comparison
        with print.

        Uniform rows that are mostly logged pairs were not drawn at random, and are refused unless
        they are kept.
        """
        check_overlap(rule)
        given = self._given_uniform
        if given is None:
            return replace(self, overlap=Overlap(rule))
        known = self.logged.holds(given.user, given.item)
        found = Overlap(rule, len(given), int(known.sum()))
        if rule == "keep":
            return replace(self, uniform=given, repeated=None, overlap=found)
        density = len(self.logged) / self.n_pairs
        require_fresh(
            found.rows, found.in_log, "the uniform rows are mostly pairs of the log", density, file
        )
        return replace(self, uniform=given.take(~known), repeated=given.take(known), overlap=found)

    @property
    def _given_uniform(self) -> Interactions | None:
        """The uniform rows as they were given, those left out included."""
        if self.uniform is None or self.repeated is None or not len(self.repeated):
            return self.uniform
        both = pl.concat([self.uniform.frame, self.repeated.frame])
        return replace(self.uniform, frame=both.sort("user", "item"))

    @classmethod
    def from_matrix(
        cls,
        logged: Any,
        uniform: Any = None,
        *,
        user_ids: Sequence[Any] | None = None,
        item_ids: Sequence[Any] | None = None,
        name: str = "matrix",
        **options: Any,
    ) -> Dataset:
        """Build a data set from a SciPy sparse matrix, users × items: each stored entry is a
        rating, zeros too.

        user_ids, item_ids: of its rows and columns; by default their numbers. Rows and columns
        without an entry are no users and items of the data set, unless side tables (`users=`,
        `items=`) list them and `unknown_ids="keep"`.
        uniform: another matrix of the same shape. options: those of `from_frame`.
        """
        frames: dict[str, Any] = {
            key: matrix_frame(matrix, user_ids, item_ids, key)
            for key, matrix in (("logged", logged), ("uniform", uniform))
            if matrix is not None
        }
        return cls.from_frame(**frames, name=name, **options)

    def to_matrix(self) -> Matrix:
        """The log as a SciPy CSR matrix; row k is user k of `user_ids`, column k item k of
        `item_ids`."""
        return self.logged.to_matrix()

    def __repr__(self) -> str:
        uniform = (
            "no uniform rows" if self.uniform is None else f"{len(self.uniform):,} uniform rows"
        )
        if self.overlap.dropped:
            uniform += f" ({self.overlap.dropped:,} more are logged pairs: dropped)"
        likes = " (every one a like: all ratings are equal)" if "feedback" in self.notes else ""
        sides = {"users": self.users, "items": self.items}
        features = [
            f"{table.width - 1} of {side}" for side, table in sides.items() if table is not None
        ]
        return (
            f"Dataset {self.name!r}: {self.n_users:,} users × {self.n_items:,} items, ratings "
            f"{self.scale}\n"
            f"  {len(self.logged):,} logged rows{likes}, {uniform}\n"
            f"  features: {', '.join(features) or 'none'}"
        )

    def _repr_html_(self) -> str:
        """Sizes and regimes, as a notebook shows them."""
        parts = {"logged": self.logged, "uniform": self.uniform}
        rows = [
            (key, f"{len(part):,}", f"{len(part) / self.n_pairs:.2%}", f"{part.rating.mean():.3f}")
            for key, part in parts.items()
            if part is not None
        ]
        words = f"{self.n_users:,} users × {self.n_items:,} items, ratings {self.scale}"
        return view(
            self.name, words, html_table(("rows", "number", "of all pairs", "mean rating"), rows)
        )

    @property
    def n_users(self) -> int:
        """Users of the population."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Items of the population."""
        return len(self.item_ids)

    @property
    def n_pairs(self) -> int:
        """The number of all user-item pairs, D."""
        return self.n_users * self.n_items

    def split(
        self,
        protocol: str | Protocol = "rd",
        seed: int = 0,
        *,
        add_uniform: bool = False,
        select: Selection = "uniform",
    ) -> Split:
        """Divide the data under a protocol. Uniform rows are trained on only if `add_uniform` is
        set."""
        from puidrec.data.split import split_dataset

        return split_dataset(self, protocol, seed, add_uniform=add_uniform, select=select)

    def masked(
        self, ratio: float, kind: MaskKind = "random", rng: Rng = 0, protocol: str | Protocol = "rd"
    ) -> Dataset:
        """A copy without a share `ratio` of its logged rows (`random`), or of the positive ones
        (`positives`)."""
        from puidrec.data.split import mask_logged

        return mask_logged(self, ratio, kind, rng, protocol)

    @cached_property
    def positives_only(self) -> bool:
        """Whether the log is implicit feedback: every row has the highest rating, so that none
        tells of dislike."""
        return bool((self.logged.rating == np.float32(self.scale.high)).all())

    @cached_property
    def _default_split(self) -> Split:
        return self.split()

    @property
    def train(self) -> Interactions:
        """Training rows of the default split (protocol `rd`, seed 0)."""
        return self._default_split.train

    @property
    def validation(self) -> Interactions:
        """Validation rows of the default split."""
        return self._default_split.validation

    @property
    def test(self) -> Interactions:
        """Test rows of the default split."""
        return self._default_split.test

    @cached_property
    def sha256(self) -> str:
        """A digest of the content (ids, interactions, features), equal for equal data whatever its
        file form."""
        digest = hashlib.sha256(repr((self.scale.low, self.scale.high)).encode())
        uniform = self._given_uniform  # the same digest whether repeated pairs were dropped or kept
        tables = [self.logged.frame, uniform.frame if uniform else None, self.users, self.items]
        tables += [self.user_ids.ids.to_frame("user_id"), self.item_ids.ids.to_frame("item_id")]
        for column in (c for table in tables if table is not None for c in table.get_columns()):
            digest.update(f"{column.name} {column.dtype} {column.len()} ".encode())
            digest.update(_content(column))
        return digest.hexdigest()


def _content(column: pl.Series) -> bytes:
    """The bytes that identify a column, independent of file form and library version."""
    if column.dtype.is_numeric():
        filled = column.cast(pl.Float64).fill_null(float("nan")) if column.null_count() else column
        return filled.to_numpy().tobytes()
    if isinstance(column.dtype, pl.List):
        column = column.list.join("\x1e")
    return "\x1f".join(column.fill_null("\x00").to_list()).encode()


def coded_pairs(
    frame: pl.DataFrame, users: IdMap, items: IdMap, duplicates: Duplicates, origin: Origin
) -> pl.DataFrame:
    """The rows of a checked table under the codes of their users and items, sorted by them, with
    one row of pairs that were rated twice."""
    user, item = users.encode(frame["user_id"]), items.encode(frame["item_id"])
    key = user.astype(np.int64) * (int(item.max()) + 1) + item
    order = np.argsort(key, kind="stable")
    repeated = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    coded = pl.DataFrame({"user": user[order], "item": item[order]}).hstack(
        frame.drop("user_id", "item_id")[order]
    )
    if not repeated.size:
        return coded
    if duplicates == "error":
        row = int(order[repeated].min())
        raise origin.error(
            f"pair rated twice ({repeated.size:,} repeated rows)",
            row=row + 1,
            column="user_id, item_id",
            found=f"{frame['user_id'][row]}, {frame['item_id'][row]}",
            expected="one row per user and item",
            hint="Choose duplicates='first', 'last', 'mean' or 'max' (--set data.duplicates=mean).",
        )
    # first and last in time; rows without one, and of one time, as in the file
    if "timestamp" in coded.columns:
        coded = coded.sort(
            "user", "item", "timestamp", nulls_last=duplicates != "last", maintain_order=True
        )
    by, rating = coded.group_by("user", "item", maintain_order=True), pl.col("rating")
    if duplicates in ("mean", "max"):
        one = rating.mean() if duplicates == "mean" else rating.max()
        return by.agg(one, pl.exclude("user", "item", "rating").first()).select(coded.columns)
    return by.first() if duplicates == "first" else by.last()


def _require_signal(logged: Interactions, origin: Origin) -> None:
    """Refuse a log with one user, one item or one rating value: nothing can be learned from it."""
    for name, codes in (("user", logged.user), ("item", logged.item)):
        if codes.min() == codes.max():
            raise origin.error(
                f"the log has one {name} only",
                column=f"{name}_id",
                found=getattr(logged, f"{name}s").decode(codes[:1])[0],
                expected=f"at least two {name}s",
                hint="Check that the right column was read.",
            )
    if logged.rating.min() == logged.rating.max() != logged.scale.high:
        raise origin.error(
            "all ratings are equal",
            column="rating",
            found=f"{logged.rating[0]:g} in every row",
            expected=f"at least two different ratings, or likes only ({logged.scale.high:g} "
            "throughout)",
            hint="For a log of likes, leave the scale (and the column rating) out.",
        )

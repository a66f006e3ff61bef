"""One immutable data set: the log people chose, the uniform rows (if any) kept apart, and the side tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import polars as pl

from puidrec.data.protocol import Protocol
from puidrec.data.schema import Duplicates, Frame, RatingScale
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.split import MaskKind, Selection, Split
    from puidrec.rng import Rng

UnknownIds = Literal["error", "keep", "drop"]


@dataclass(frozen=True)
class IdMap:
    """The caller's ids in order of their codes 0, 1, 2, …: sorted, so the codes do not depend on row order."""

    ids: pl.Series

    def __len__(self) -> int:
        return self.ids.len()

    def encode(self, ids: Any) -> np.ndarray:
        """Codes (int32) of the caller's ids; -1 where an id is unknown, as 7 is where ids are text such as "7"."""
        try:
            wanted = pl.Series("id", ids)
        except (OverflowError, TypeError) as error:
            if not all(isinstance(own, int) for own in ids):
                raise InputError("ids of mixed types", expected=f"all of them {self.ids.dtype}") from error
            wanted = pl.Series("id", [own if abs(own) < 2**63 else None for own in ids], pl.Int64)  # none of ours
        if wanted.dtype.is_float() or wanted.dtype.is_numeric() != self.ids.dtype.is_numeric():
            return np.full(wanted.len(), -1, dtype=np.int32)
        wanted = wanted.cast(self.ids.dtype, strict=False)
        table = pl.DataFrame({"id": self.ids, "code": np.arange(len(self), dtype=np.int32)})
        joined = wanted.to_frame("id").join(table, on="id", how="left", maintain_order="left")
        return joined["code"].fill_null(-1).to_numpy()

    def decode(self, codes: np.ndarray) -> pl.Series:
        """The caller's ids of codes."""
        return self.ids.gather(codes)


@dataclass(frozen=True)
class Interactions:
    """Rated pairs as codes, sorted by user then item. Column `label` (1/0) is there once a protocol was applied."""

    frame: pl.DataFrame
    """`user`, `item` (Int32 codes), `rating` (Float32), and `propensity`, `timestamp`, `label` where they exist."""
    users: IdMap
    items: IdMap
    scale: RatingScale

    def __len__(self) -> int:
        return self.frame.height

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

    def take(self, rows: np.ndarray) -> Self:
        """The given rows (positions, or a mask), in order."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else np.sort(rows)
        return replace(self, frame=self.frame[positions])

    def without(self, rows: np.ndarray) -> Self:
        """All rows but those at the given positions, in order."""
        kept = np.ones(len(self), dtype=bool)
        kept[rows] = False
        return self.take(kept)

    def labelled(self, protocol: Protocol) -> Self:
        """Add the protocol's labels and leave out the rows it drops."""
        label = pl.Series("label", protocol.label(self.rating, self.scale))
        return replace(self, frame=self.frame.with_columns(label).filter(pl.col("label") >= 0))

    def to_frame(self) -> pl.DataFrame:
        """The rows under the caller's own ids."""
        ids = [self.users.decode(self.user).alias("user_id"), self.items.decode(self.item).alias("item_id")]
        return pl.DataFrame(ids).hstack(self.frame.drop("user", "item"))


@dataclass(frozen=True)
class Dataset:
    """Logged interactions, optional uniform interactions, user and item tables, and the id maps.

    Build one with `Dataset.from_frame` or `load_dataset`; both check everything once, at the door. D, the
    population that losses and audits speak of, is every user of `user_ids` with every item of `item_ids`.
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

    @classmethod
    def from_frame(
        cls,
        logged: Frame,
        uniform: Frame | None = None,
        users: Frame | None = None,
        items: Frame | None = None,
        *,
        scale: tuple[float, float] | None = None,
        duplicates: Duplicates = "error",
        unknown_ids: UnknownIds = "error",
        name: str = "frame",
        origins: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Check the tables and build a data set.

        logged, uniform: `user_id, item_id, rating`, optionally `propensity`, `timestamp`.
        users, items: `user_id` / `item_id` and feature columns; text is categorical, lists are multi-valued.
        scale: lowest and highest possible rating; taken from the ratings when not given.
        duplicates: what to do with a pair rated twice. unknown_ids: what to do with rows of a side table whose
        id was never rated: refuse, keep (the entity belongs to the population), or drop.
        origins: names for messages, such as the paths the tables were read from.
        """
        from puidrec.data.build import build_dataset

        return build_dataset(
            {"logged": logged, "uniform": uniform, "users": users, "items": items},
            scale=RatingScale.of(scale),
            duplicates=duplicates,
            unknown_ids=unknown_ids,
            name=name,
            origins=origins or {},
            notes=notes or {},
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
        """The size of D."""
        return self.n_users * self.n_items

    def split(
        self,
        protocol: str | Protocol = "rd",
        seed: int = 0,
        *,
        add_uniform: bool = False,
        select: Selection = "uniform",
    ) -> Split:
        """Divide the data under a protocol. Uniform rows join the training rows only if `add_uniform` asks."""
        from puidrec.data.split import split_dataset

        return split_dataset(self, protocol, seed, add_uniform=add_uniform, select=select)

    def masked(self, ratio: float, kind: MaskKind = "random", rng: Rng = 0, protocol: str | Protocol = "rd") -> Dataset:
        """A copy whose log lost `ratio` of its rows (`random`), or of its positive rows (`positives`)."""
        from puidrec.data.split import mask_logged

        return mask_logged(self, ratio, kind, rng, protocol)

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
        """A digest of the content (ids, interactions, features), equal for equal data whatever its file form."""
        digest = hashlib.sha256(repr((self.scale.low, self.scale.high)).encode())
        tables = [self.logged.frame, self.uniform.frame if self.uniform else None, self.users, self.items]
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

"""Users and items of a model: ids in any container, their codes, and a row of factors for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, plain_ids
from puidrec.data.schema import (
    Frame,
    Origin,
    check_ids,
    clean_side,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.data.tables import row_starts
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.cold_start import ColdStart
    from puidrec.model import Recommender

Side = Literal["user", "item"]
SIDES: tuple[Side, Side] = ("user", "item")
PairsByUser = tuple[np.ndarray, np.ndarray]
"""Items of user u are items[row_start[u]:row_start[u + 1]], in order: row_start and items."""
CALIBRATED = "calibrated.pairs"
"""Parameter of a model: users and items of the uniform rows, where all of them were used, so that
nothing is left to evaluate with."""


def require_positive(k: Any) -> int:
    """How many are wanted: a whole number from 1 on."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError("k must be a positive integer", found=k)
    return int(k)


def is_single_id(ids: Any) -> bool:
    """Whether this is one id, not a container of ids."""
    if isinstance(ids, np.ndarray):
        return ids.ndim == 0
    return isinstance(ids, str | int | np.integer | np.str_) and not isinstance(ids, bool)


def one_id(ids: Any, what: str) -> Any:
    """A single id; a container of ids is refused."""
    if not is_single_id(ids):
        raise InputError(f"{what} must be one id", found=type(ids).__name__, expected="a single id")
    return ids


def listed_ids(ids: Any, what: str) -> Any:
    """Ids as a container that has a length, a single id as a list of it; all else is refused."""
    if is_single_id(ids):
        return [ids.item() if isinstance(ids, np.ndarray) else ids]
    ids = plain_ids(ids)
    shape = getattr(ids, "shape", None)
    if shape is not None and len(shape) == 1:  # columns and arrays of any library
        return ids
    if shape is not None or isinstance(ids, bytes | Mapping) or not isinstance(ids, Iterable):
        kind = type(ids).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
        raise InputError(
            f"{what} must be ids", found=kind, expected="one id, or a list, array or column of ids"
        )
    listed = ids.to_pylist() if hasattr(ids, "to_pylist") else list(ids)  # Arrow's scalars: no ids
    nested = next((own for own in listed if isinstance(own, list | tuple | dict | set)), None)
    if nested is not None:
        raise InputError(f"{what} must be ids", found=nested, expected="a flat list of ids")
    return listed


def known_codes(ids: IdMap, wanted: Any, what: str, otherwise: str = "") -> np.ndarray:
    """Codes of users or items (`what`) by id; unknown ones are refused."""
    wanted = listed_ids(wanted, f"{what}s")
    codes = ids.encode(wanted)
    if (codes < 0).any():
        raise InputError(
            f"{int((codes < 0).sum())} unknown {what}(s)",
            found=list(wanted)[int(np.argmax(codes < 0))],
            expected=f"{what}s of the training data ({ids.ids.dtype} ids){otherwise}",
        )
    return codes


def paired_ids(users: Any, items: Any) -> tuple[Any, Any]:
    """Ids of pairs: a single id of one side goes with every id of the other."""
    alone = is_single_id(users), is_single_id(items)
    users, items = listed_ids(users, "users"), listed_ids(items, "items")
    if len(users) != len(items) and not any(alone):
        raise InputError(
            "users and items must be of one length", found=f"{len(users)} and {len(items)}"
        )
    return (users * len(items) if alone[0] else users, items * len(users) if alone[1] else items)


def pairs_of(table: Frame, what: str = "pairs") -> tuple[pl.Series, pl.Series]:
    """The ids of a table of pairs; a list or column of users alone is refused."""
    if is_single_id(table) or isinstance(table, list | tuple | np.ndarray | pl.Series):
        raise InputError(
            "items are missing",
            found=type(table).__name__,
            expected="users and items, or a table user_id, item_id",
        )
    origin = Origin(what)
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, ("user_id", "item_id"), origin)
    return check_ids(frame["user_id"], origin), check_ids(frame["item_id"], origin)


def require_same_type(column: pl.Series, ids: IdMap, origin: Origin) -> None:
    """Refuse ids that cannot be of this model: text where its own are numbers, or the reverse."""
    if column.dtype != ids.ids.dtype:
        raise origin.error(
            "ids of another type than in training",
            column=column.name,
            found=str(column.dtype),
            expected=str(ids.ids.dtype),
        )


@dataclass(frozen=True)
class Entities:
    """One side of a model: ids, and a row of factors for each."""

    ids: IdMap
    factors: np.ndarray
    n_trained: int | None = None
    """How many of them were in training; those after them are known by features only. None: all."""

    @classmethod
    def of(cls, model: Recommender, side: Side) -> Entities:
        """Those of training."""
        if side == "user":
            return cls(model.user_ids_, model.user_factors_)
        return cls(model.item_ids_, model.item_factors_)

    @cached_property
    def with_average(self) -> np.ndarray:
        """One row more: the average of those in training, for ids that nothing is known of."""
        average = self.factors[: self.n_trained].mean(0, keepdims=True)
        return np.concatenate([self.factors, average])

    def rows(self, ids: Any) -> np.ndarray:
        """The row of each id in `with_average`."""
        codes = self.ids.encode(ids)
        return np.where(codes < 0, len(self.ids), codes)

    def with_cold_start(self, cold_start: ColdStart, side: Side, table: Frame) -> Entities:
        """These, and after them the entities of a side table (id and features) that were not in
        training, in order."""
        key, origin = f"{side}_id", Origin(f"{side}_features")
        if not cold_start.names(side):
            raise origin.error(
                f"the model reads no {side} features",
                found=f"it was trained without: {key} alone is known to it",
                hint=f"Train on {side} features, with a backbone that reads them "
                "(mf-linear, mf-mlp).",
            )
        clean = clean_side(table, key, origin)
        require_same_type(clean[key], self.ids, origin)
        new = clean.filter(~clean[key].is_in(self.ids.ids.implode()))
        rows = cold_start.represent_columns(side, new.drop(key), origin)
        return Entities(
            joined_ids(self.ids, new[key]), np.concatenate([self.factors, rows]), len(self.ids)
        )


def joined_ids(known: IdMap, ids: pl.Series) -> IdMap:
    """The known ids, and after them those of a column that are new."""
    ids = ids.unique(maintain_order=True)
    new = ids.filter(pl.Series(known.encode(ids) < 0))
    return IdMap(pl.concat([known.ids, new.alias(known.ids.name)]))


def merged_pairs(
    pairs: PairsByUser, user: np.ndarray, item: np.ndarray, n_users: int
) -> PairsByUser:
    """Pairs by user with more of them, each once, for `n_users` users."""
    width = int(max(np.max(pairs[1], initial=0), np.max(item, initial=0))) + 1
    own = np.repeat(np.arange(pairs[0].size - 1) * width, np.diff(pairs[0])) + pairs[1]
    key = np.unique(np.concatenate([own, user.astype(np.int64) * width + item]))
    return row_starts(key // width, n_users), (key % width).astype(np.int32)

"""From checked tables to a `Dataset`: id maps, codes, one canonical row order, aligned side tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, IdMap, Interactions, UnknownIds
from puidrec.data.schema import Duplicates, Frame, Origin, RatingScale, check_choice, clean_interactions, clean_side
from puidrec.errors import InputError


def build_dataset(
    tables: Mapping[str, Frame | None],
    *,
    scale: RatingScale | None,
    duplicates: Duplicates,
    unknown_ids: UnknownIds,
    name: str,
    origins: Mapping[str, Any],
    notes: Mapping[str, Any],
) -> Dataset:
    """Check the four tables (`logged`, `uniform`, `users`, `items`) and assemble the data set."""
    check_choice("duplicates", duplicates, ("error", "first", "last", "mean"))
    check_choice("unknown_ids", unknown_ids, ("error", "keep", "drop"))
    origin = {key: Origin(origins.get(key, key)) for key in tables}
    rated = {
        key: clean_interactions(table, scale, origin[key])
        for key in ("logged", "uniform")
        if (table := tables.get(key)) is not None
    }
    side = {
        key: clean_side(table, f"{key[:-1]}_id", origin[key])
        for key in ("users", "items")
        if (table := tables.get(key)) is not None
    }
    _same_id_types(rated, side, origin)
    scale = scale or _scale_of(rated, origin["logged"])
    maps = {key: _id_map(key, rated, side.get(key), unknown_ids, origin[key]) for key in ("users", "items")}
    parts = {
        key: Interactions(_encode(frame, maps, duplicates, origin[key]), maps["users"], maps["items"], scale)
        for key, frame in rated.items()
    }
    _require_signal(parts["logged"], origin["logged"])
    return Dataset(
        name=name,
        logged=parts["logged"],
        uniform=parts.get("uniform"),
        user_ids=maps["users"],
        item_ids=maps["items"],
        users=_align(side.get("users"), maps["users"]),
        items=_align(side.get("items"), maps["items"]),
        scale=scale,
        notes=dict(notes),
    )


def _same_id_types(
    rated: Mapping[str, pl.DataFrame], side: Mapping[str, pl.DataFrame], origin: Mapping[str, Origin]
) -> None:
    """Refuse text ids in one table and integer ids in another: they would silently never meet."""
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


def _scale_of(rated: Mapping[str, pl.DataFrame], origin: Origin) -> RatingScale:
    """The range of the ratings, when the caller names none."""
    lows = [float(frame["rating"].min()) for frame in rated.values()]  # type: ignore[arg-type]
    highs = [float(frame["rating"].max()) for frame in rated.values()]  # type: ignore[arg-type]
    if min(lows) == max(highs):
        raise _one_class(origin, min(lows))
    return RatingScale(min(lows), max(highs))


def _id_map(
    key: str,
    rated: Mapping[str, pl.DataFrame],
    side: pl.DataFrame | None,
    unknown_ids: UnknownIds,
    origin: Origin,
) -> IdMap:
    """Every id of the population, sorted; refuses ids that a side table lacks, or that only it has."""
    column = f"{key[:-1]}_id"
    seen = pl.concat([frame[column].unique() for frame in rated.values()]).unique()
    if side is None:
        return IdMap(seen.sort())
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
            hint="Use unknown_ids='keep' if they belong to the population, or 'drop' (--set data.unknown_ids=keep).",
        )
    return IdMap((listed if unknown_ids == "keep" else seen).sort())


def _encode(frame: pl.DataFrame, maps: Mapping[str, IdMap], duplicates: Duplicates, origin: Origin) -> pl.DataFrame:
    """Replace ids by codes, sort by (user, item), and settle pairs rated twice."""
    user, item = maps["users"].encode(frame["user_id"]), maps["items"].encode(frame["item_id"])
    key = user.astype(np.int64) * len(maps["items"]) + item
    order = np.argsort(key, kind="stable")
    repeated = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    coded = pl.DataFrame({"user": user[order], "item": item[order]}).hstack(frame.drop("user_id", "item_id")[order])
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
            hint="Remove repeats, or choose duplicates='first', 'last' or 'mean' (--set data.duplicates=mean).",
        )
    by = coded.group_by("user", "item", maintain_order=True)
    if duplicates == "mean":
        first = [pl.col(c).first() for c in coded.columns if c not in ("user", "item", "rating")]
        return by.agg(pl.col("rating").mean(), *first).select(coded.columns)
    return by.first() if duplicates == "first" else by.last()


def _require_signal(logged: Interactions, origin: Origin) -> None:
    """A log with one user, one item or one rating value teaches nothing; say so at the door."""
    for name, codes in (("user", logged.user), ("item", logged.item)):
        if codes.min() == codes.max():
            raise origin.error(
                f"the log has one {name} only",
                column=f"{name}_id",
                found=getattr(logged, f"{name}s").decode(codes[:1])[0],
                expected=f"at least two {name}s",
                hint="Check that the right column was read.",
            )
    if logged.rating.min() == logged.rating.max():
        raise _one_class(origin, float(logged.rating[0]))


def _one_class(origin: Origin, value: float) -> InputError:
    return origin.error(
        "all ratings are equal",
        column="rating",
        found=f"{value:g} in every row",
        expected="at least two different ratings",
        hint="A log of likes only needs its dislikes (or exposures) as well.",
    )


def _align(side: pl.DataFrame | None, ids: IdMap) -> pl.DataFrame | None:
    """Order a side table by code."""
    if side is None:
        return None
    key = side.columns[0]
    return ids.ids.to_frame(key).join(side, on=key, how="left", maintain_order="left")

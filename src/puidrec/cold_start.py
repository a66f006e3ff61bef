"""Users and items of a model: those of training, and cold-start ones that are known by their
features only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from puidrec.data.dataset import IdMap, plain_ids
from puidrec.data.schema import (
    MAX_FEATURE,
    Frame,
    Origin,
    check_ids,
    clean_side,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.errors import InputError
from puidrec.features.encode import ColumnEncoder, FeatureEncoder
from puidrec.methods.problem import with_prefix
from puidrec.scores import make_backbone
from puidrec.scores.features import Design
from puidrec.scores.shared_heads import RATING, SharedHeads
from puidrec.scores.sparse import LogPattern
from puidrec.scores.towers import Backbone, Tower

if TYPE_CHECKING:
    from puidrec.model import Recommender

Side = Literal["user", "item"]
Features = Mapping[str, Any]


class ColdStart:
    """Factors of users and items known by features only, on the scale of the model's own factors.

    What features say comes from the towers that read them; what belongs to single entities (IDs) is
    unknown and taken at its mean over the training population. So an entity with average features
    is the average entity, which is also what an id without features gets. Columns that a method
    puts before those of the backbone (`dcf`: exposure, which cold-start users have none of) are 0.
    """

    def __init__(self, model: Recommender) -> None:
        self.encoders = _encoders(model)
        self._width = model.user_factors_.shape[1]
        self._heads: SharedHeads | None = None
        self._backbone: Backbone | None = None
        self._linear = with_prefix(model.parameters_, "cold.")
        if self.encoders and self._linear:
            _check_linear(self._linear, self.encoders, model.user_factors_.shape[1])
        elif self.encoders:
            self._heads, self._backbone = _rebuilt(model, self.encoders)

    def names(self, side: Side) -> list[str]:
        """The features that the model reads of a side; none where it does not look at features."""
        return (
            [column.name for column in self.encoders[side].columns] if side in self.encoders else []
        )

    def check(self, side: Side, features: Sequence[Features]) -> None:
        """Refuse names and kinds of values that the model does not have; a model that reads none
        takes any."""
        if side in self.encoders:
            _table(self.encoders[side], features, side)

    def represent(self, side: Side, features: Sequence[Features]) -> np.ndarray:
        """Factors of cold-start entities; features left out count as missing, unknown names are
        refused."""
        return self.represent_table(side, _table(self.encoders[side], features, side))

    @torch.no_grad()
    def represent_table(self, side: Side, table: pl.DataFrame) -> np.ndarray:
        """Factors of the rows of a table that has the encoder's columns and types."""
        if self._linear:  # factors are linear in features: nothing has to be rebuilt
            rows = Design.of(self.encoders[side].encode(table)) @ self._linear[f"{side}.weight"]
            linear: np.ndarray = (rows + self._linear[f"{side}.offset"]).numpy()
            return linear
        backbone = self._backbone
        assert backbone is not None  # noqa: S101 (there is one wherever there is an encoder)
        design = Design.of(self.encoders[side].encode(table))
        own = _mean_of_ids(
            backbone.user_towers if side == "user" else backbone.item_towers, backbone.dim
        )
        dim = backbone.dim
        factors = backbone.cold_users(design) if side == "user" else backbone.cold_items(design)
        factors[:, :dim] += own[:dim]
        bias = dim if side == "user" else dim + 1
        factors[:, bias] += own[dim]
        if self._heads is not None:
            factors = _rating_factors(self._heads, factors, side)
        found: np.ndarray = factors.numpy()
        return np.pad(found, ((0, 0), (self._width - found.shape[1], 0)))


def _encoders(model: Recommender) -> dict[Side, FeatureEncoder]:
    """How the side tables of training were encoded; a side without features has none."""
    found: dict[Side, FeatureEncoder] = {}
    sides: tuple[Side, ...] = ("user", "item")
    for side in sides if model.settings.spec.trains else ():
        state: list[Mapping[str, Any]] = list(model.encoders_.get(f"{side}_id", []))
        try:
            encoder = FeatureEncoder.from_state(state)
        except (KeyError, TypeError) as error:
            raise InputError(
                "the saved feature encoders are damaged", found=str(error)[:60]
            ) from error
        if encoder.width:
            found[side] = encoder
    return found


def _rebuilt(
    model: Recommender, encoders: Mapping[Side, FeatureEncoder]
) -> tuple[SharedHeads | None, Backbone]:
    """The trained backbone, from parameters by name; the designs of training are not needed and
    left empty."""
    settings, sizes = model.settings, {"user": len(model.user_ids_), "item": len(model.item_ids_)}
    designs = {
        side: _empty_design(sizes[side], encoder.width) for side, encoder in encoders.items()
    }
    backbone = make_backbone(
        settings.backbone,
        sizes["user"],
        sizes["item"],
        model.dim_,
        user_features=designs.get("user"),
        item_features=designs.get("item"),
        ids=settings.ids,
        hidden=settings.hidden,
    )
    shared = with_prefix(model.parameters_, "heads.")
    means = tuple(shared["means"].flatten().tolist()) if "means" in shared else ()
    heads = SharedHeads(backbone, means, own=settings.ids is not False) if means else None
    module: nn.Module = heads if heads is not None else backbone
    try:
        module.load_state_dict(shared or with_prefix(model.parameters_, "phi."))
    except RuntimeError as error:
        raise InputError(
            "the saved parameters do not fit the saved settings",
            found=str(error).split("\n")[-1].strip()[:60],
        ) from error
    return heads, backbone


def _check_linear(
    linear: Mapping[str, Tensor], encoders: Mapping[Side, FeatureEncoder], width: int
) -> None:
    """Refuse saved maps from features to factors that do not fit the model."""
    for side, encoder in encoders.items():
        shapes = [
            tuple(linear[name].shape)
            for name in (f"{side}.weight", f"{side}.offset")
            if name in linear
        ]
        if shapes != [(encoder.width, width), (width,)]:
            raise InputError("the saved parameters do not fit the saved settings", found=shapes)


def _rating_factors(heads: SharedHeads, rows: Tensor, side: Side) -> Tensor:
    """Rows of shared representations as the rating head reads them; biases of its own are taken at
    their mean."""
    own = heads.user_bias if side == "user" else heads.item_bias
    bias = own[RATING].mean() if own.numel() else 0.0
    return (
        heads.user_factors(RATING, rows, bias)
        if side == "user"
        else heads.item_factors(RATING, rows, bias)
    )


def _empty_design(n_rows: int, n_columns: int) -> Design:
    none = np.zeros(0, np.int64)
    return Design(LogPattern.from_pairs(none, none, n_rows, n_columns), torch.zeros(0))


def _mean_of_ids(towers: nn.ModuleList, dim: int) -> Tensor:
    """Mean over the population of the parts that features say nothing of."""
    total = torch.zeros(dim + 1)
    for tower in towers:
        if isinstance(tower, Tower) and tower.uses_ids:
            total += tower(slice(None)).mean(0)
    return total


def _table(encoder: FeatureEncoder, features: Sequence[Features], side: Side) -> pl.DataFrame:
    """Features as a side table with the encoder's columns and types."""
    known = {column.name for column in encoder.columns}
    strange = next((name for row in features for name in row if name not in known), None)
    if strange is not None:
        raise InputError(
            f"unknown {side} feature", found=strange, expected=f"one of {', '.join(sorted(known))}"
        )
    columns = {c.name: [_value(c, row.get(c.name)) for row in features] for c in encoder.columns}
    try:
        return pl.DataFrame(columns, {c.name: dtype_of(c) for c in encoder.columns})
    except UnicodeEncodeError as error:
        problem = f"a {side} feature is not text: it holds half a character (a lone surrogate)"
        raise InputError(problem, found=error.object[error.start : error.end]) from error


def dtype_of(column: ColumnEncoder) -> pl.DataType:
    """The type of a column in a side table that was checked."""
    return {"number": pl.Float64(), "category": pl.String(), "list": pl.List(pl.String)}[
        column.kind
    ]


def _value(column: ColumnEncoder, value: Any) -> Any:
    """One feature of one entity in the column's type; whole numbers and truth values may name
    categories."""
    number = (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FEATURE
    )
    if value is None or (column.kind == "number" and number):
        return None if value is None else float(value)
    if column.kind == "category" and isinstance(value, str | int):
        return _word(value)
    if (
        column.kind == "list"
        and isinstance(value, list)
        and all(isinstance(part, str | int) for part in value)
    ):
        return [_word(part) for part in value]
    expected = {"number": "a number", "category": "text", "list": "a list of text"}[column.kind]
    raise InputError(
        f"feature {column.name} is of the wrong kind", found=value, expected=f"{expected}, or null"
    )


def _word(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_single_id(ids: Any) -> bool:
    """Whether this is one id, not a container of ids."""
    return isinstance(ids, str | int | np.integer | np.str_) and not isinstance(ids, bool)


def one_id(ids: Any) -> Any:
    """An array without dimensions as the id that it holds; anything else as it is."""
    return ids.item() if isinstance(ids, np.ndarray) and ids.ndim == 0 else ids


def require_ids(ids: Any, what: str) -> Any:
    """A one-dimensional container of ids, as one that has a length; anything else is refused."""
    ids = plain_ids(ids)
    shape = getattr(ids, "shape", None)
    flat = shape is None or len(shape) == 1
    if flat and shape is not None:  # columns and arrays of any library
        return ids
    if not flat or isinstance(ids, bytes | Mapping) or not isinstance(ids, Iterable):
        kind = type(ids).__name__ if flat else f"{type(ids).__name__} of shape {tuple(shape or ())}"
        raise InputError(
            f"{what} must be ids", found=kind, expected="one id, or a list, array or column of ids"
        )
    listed = (
        ids.to_pylist() if hasattr(ids, "to_pylist") else list(ids)
    )  # Arrow's own scalars are no ids
    nested = next((own for own in listed if isinstance(own, list | tuple | dict | set)), None)
    if nested is not None:
        raise InputError(f"{what} must be ids", found=nested, expected="a flat list of ids")
    return listed


def pairs_of(table: Frame) -> tuple[pl.Series, pl.Series]:
    """The ids of a table of pairs; a list or column of users alone is refused."""
    origin = Origin("pairs")
    if is_single_id(table) or isinstance(table, list | tuple | np.ndarray | pl.Series):
        raise InputError(
            "items are missing",
            found=type(table).__name__,
            expected="users and items, or a table user_id, item_id",
        )
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, ("user_id", "item_id"), origin)
    return check_ids(frame["user_id"], origin), check_ids(frame["item_id"], origin)


@dataclass(frozen=True)
class Entities:
    """One side of a model: ids, and a row of factors for each."""

    ids: IdMap
    factors: np.ndarray
    n_trained: int | None = None
    """How many of them were in training; those after them are known by features only. None: all."""

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
                hint=f"Train on {side} features, with a backbone that reads them (mf-linear, mf-mlp).",
            )
        clean = clean_side(table, key, origin)
        if clean[key].dtype != self.ids.ids.dtype:
            raise origin.error(
                "ids of another type than in training",
                column=key,
                found=str(clean[key].dtype),
                expected=str(self.ids.ids.dtype),
            )
        new = clean.filter(~clean[key].is_in(self.ids.ids.implode()))
        rows = cold_start.represent_table(
            side, _typed(cold_start.encoders[side], new.drop(key), side, origin)
        )
        ids = IdMap(pl.concat([self.ids.ids, new[key].alias(self.ids.ids.name)]))
        return Entities(ids, np.concatenate([self.factors, rows]), len(self.ids))


def _typed(
    encoder: FeatureEncoder, table: pl.DataFrame, side: Side, origin: Origin
) -> pl.DataFrame:
    """A checked side table with all columns of the encoder; those left out are unknown values."""
    known = {column.name: column for column in encoder.columns}
    given = {column.name for column in table.get_columns() if column.null_count() < column.len()}
    for column in table.get_columns():
        if column.name not in known:
            expected = f"some of {', '.join(sorted(known))}"
            raise origin.error(
                f"unknown {side} feature", column=column.name, found=column.name, expected=expected
            )
        wanted = dtype_of(known[column.name])
        if column.dtype != wanted and column.name in given:
            raise origin.error(
                "a feature of another kind than in training",
                column=column.name,
                found=str(column.dtype),
                expected=str(wanted),
            )
    absent = [
        pl.lit(None, dtype_of(column)).alias(name)
        for name, column in known.items()
        if name not in given
    ]
    return table.with_columns(absent)

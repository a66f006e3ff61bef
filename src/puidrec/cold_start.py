"""Cold-start users and items: factors of entities that are known by their features only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from puidrec.data.schema import MAX_FEATURE, Origin
from puidrec.entities import SIDES, Side
from puidrec.errors import InputError
from puidrec.features.encode import ColumnEncoder, FeatureEncoder
from puidrec.optimise.checkpoint import with_prefix
from puidrec.scores import make_backbone
from puidrec.scores.log import LogPattern
from puidrec.scores.towers import Backbone, Design, Tower

if TYPE_CHECKING:
    from puidrec.model import Recommender

Features = Mapping[str, Any]
KINDS: dict[str, tuple[pl.DataType, str]] = {
    "number": (pl.Float64(), "a number"),
    "category": (pl.String(), "text"),
    "list": (pl.List(pl.String), "a list of text"),
}
"""Kinds of features: the type of their column in a checked side table, and what they are called."""


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
        self._backbone: Backbone | None = None
        self._linear = with_prefix(model.parameters_, "cold.")
        if self.encoders and self._linear:
            _check_linear(self._linear, self.encoders, self._width)
        elif self.encoders:
            self._backbone = _rebuilt(model, self.encoders)

    def names(self, side: Side) -> list[str]:
        """The features that the model reads of a side; none where it does not look at features."""
        encoder = self.encoders.get(side)
        return [] if encoder is None else [column.name for column in encoder.columns]

    def check(self, side: Side, features: Sequence[Features]) -> None:
        """Refuse names and kinds of values that the model does not have; a model that reads none
        takes any."""
        if side in self.encoders:
            _table(self.encoders[side], features, side)

    def represent(self, side: Side, features: Sequence[Features]) -> np.ndarray:
        """Factors of cold-start entities; features left out count as missing, unknown names are
        refused."""
        return self._factors(side, _table(self.encoders[side], features, side))

    def represent_columns(self, side: Side, table: pl.DataFrame, origin: Origin) -> np.ndarray:
        """Factors of the rows of a checked side table without its ids."""
        return self._factors(side, _typed(self.encoders[side], table, side, origin))

    @torch.no_grad()
    def _factors(self, side: Side, table: pl.DataFrame) -> np.ndarray:
        """Factors of the rows of a table that has the encoder's columns and types."""
        design = Design.of(self.encoders[side].encode(table))
        if self._linear:  # factors are linear in features: nothing has to be rebuilt
            return np.asarray(
                design @ self._linear[f"{side}.weight"] + self._linear[f"{side}.offset"]
            )
        backbone = self._backbone
        assert backbone is not None  # noqa: S101 (there is one wherever there is an encoder)
        users, dim = side == "user", backbone.dim
        towers = backbone.user_towers if users else backbone.item_towers
        factors = backbone.cold_users(design) if users else backbone.cold_items(design)
        for tower in towers:  # what features say nothing of: its mean over the population
            if isinstance(tower, Tower) and tower.uses_ids:
                own = tower(slice(None)).mean(0)
                factors[:, :dim] += own[:dim]
                factors[:, dim if users else dim + 1] += own[dim]
        return np.pad(factors.numpy(), ((0, 0), (self._width - factors.shape[1], 0)))


def _encoders(model: Recommender) -> dict[Side, FeatureEncoder]:
    """How the side tables of training were encoded; a side without features has none, nor has a
    model whose heads share its towers (`multi-*`)."""
    found: dict[Side, FeatureEncoder] = {}
    reads = model.settings.spec.trains and not with_prefix(model.parameters_, "heads.")
    for side in SIDES if reads else ():
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


def _rebuilt(model: Recommender, encoders: Mapping[Side, FeatureEncoder]) -> Backbone:
    """The trained backbone, from parameters by name; the designs of training are not needed and
    left empty."""
    settings, sizes = model.settings, {"user": len(model.user_ids_), "item": len(model.item_ids_)}
    none, designs = np.zeros(0, np.int64), {}
    for side, encoder in encoders.items():
        pattern = LogPattern.from_pairs(none, none, sizes[side], encoder.width)
        designs[side] = Design(pattern, torch.zeros(0))
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
    try:
        backbone.load_state_dict(with_prefix(model.parameters_, "phi."))
    except RuntimeError as error:
        raise InputError(
            "the saved parameters do not fit the saved settings",
            found=str(error).split("\n")[-1].strip()[:60],
        ) from error
    return backbone


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
        return pl.DataFrame(columns, {c.name: KINDS[c.kind][0] for c in encoder.columns})
    except UnicodeEncodeError as error:
        problem = f"a {side} feature is not text: it holds half a character (a lone surrogate)"
        raise InputError(problem, found=error.object[error.start : error.end]) from error


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
    raise InputError(
        f"feature {column.name} is of the wrong kind",
        found=value,
        expected=f"{KINDS[column.kind][1]}, or null",
    )


def _word(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(
    encoder: FeatureEncoder, table: pl.DataFrame, side: Side, origin: Origin
) -> pl.DataFrame:
    """A checked side table with all columns of the encoder; those left out are unknown values."""
    wanted = {column.name: KINDS[column.kind][0] for column in encoder.columns}
    given = {column.name for column in table.get_columns() if column.null_count() < column.len()}
    for name, dtype in table.schema.items():
        if name not in wanted:
            expected = f"some of {', '.join(sorted(wanted))}"
            raise origin.error(
                f"unknown {side} feature", column=name, found=name, expected=expected
            )
        if dtype != wanted[name] and name in given:
            raise origin.error(
                "a feature of another kind than in training",
                column=name,
                found=str(dtype),
                expected=str(wanted[name]),
            )
    absent = [pl.lit(None, wanted[name]).alias(name) for name in wanted if name not in given]
    return table.with_columns(absent)

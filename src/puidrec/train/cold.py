"""Users and items never seen in training: from their features where the model has feature towers.

What features say comes from the towers that read them; what belongs to single entities (IDs) is unknown of a stranger
and stands at its mean over the training population. So a stranger with everybody's features is the average entity,
which is also what an id without features gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from puidrec.backbones import make_backbone
from puidrec.backbones.base import Backbone, Tower
from puidrec.backbones.features import Design
from puidrec.backbones.sparse import LogPattern
from puidrec.errors import InputError
from puidrec.features.encode import ColumnEncoder, FeatureEncoder
from puidrec.train.multi import RATING, SharedHeads
from puidrec.train.problem import with_prefix

if TYPE_CHECKING:
    from puidrec.model import Recommender

Side = Literal["user", "item"]
Features = Mapping[str, Any]
MAX_NUMBER = 1e100
"""Beyond, a number divided by its column's spread may be no number; no feature is that large."""


class Strangers:
    """Representations [n, dim + 2] of entities known by features only, on the scale of the model's own factors."""

    def __init__(self, model: Recommender) -> None:
        self.encoders = _encoders(model)
        self._heads: SharedHeads | None = None
        self._backbone: Backbone | None = None
        if self.encoders:
            self._heads, self._backbone = _rebuilt(model, self.encoders)

    def names(self, side: Side) -> list[str]:
        """The features that the model reads of a side; none where it does not look at features."""
        return [column.name for column in self.encoders[side].columns] if side in self.encoders else []

    def check(self, side: Side, features: Sequence[Features]) -> None:
        """Refuse names and kinds of values that the model does not have; a model that reads none takes any."""
        if side in self.encoders:
            _table(self.encoders[side], features, side)

    def represent(self, side: Side, features: Sequence[Features]) -> np.ndarray:
        """Factors of strangers; names left out count as unknown values, names nobody knows are refused."""
        return self.represent_table(side, _table(self.encoders[side], features, side))

    @torch.no_grad()
    def represent_table(self, side: Side, table: pl.DataFrame) -> np.ndarray:
        """Factors of the rows of a table that has the encoder's columns and types."""
        backbone = self._backbone
        assert backbone is not None  # noqa: S101 (there is one wherever there is an encoder)
        design = Design.of(self.encoders[side].encode(table))
        own = _mean_of_ids(backbone.user_towers if side == "user" else backbone.item_towers, backbone.dim)
        dim = backbone.dim
        factors = backbone.cold_users(design) if side == "user" else backbone.cold_items(design)
        factors[:, :dim] += own[:dim]
        bias = dim if side == "user" else dim + 1
        factors[:, bias] += own[dim]
        if self._heads is not None:
            factors = _rating_head(self._heads, factors, side)
        result: np.ndarray = factors.numpy()
        return result


def _encoders(model: Recommender) -> dict[Side, FeatureEncoder]:
    """How the side tables of training were encoded; a side without features has none."""
    found: dict[Side, FeatureEncoder] = {}
    sides: tuple[Side, ...] = ("user", "item")
    for side in sides if model.settings.spec.family != "closed" else ():
        state: list[Mapping[str, Any]] = list(model.encoders_.get(f"{side}_id", []))
        try:
            encoder = FeatureEncoder.from_state(state)
        except (KeyError, TypeError) as error:
            raise InputError("the saved feature encoders are damaged", found=str(error)[:60]) from error
        if encoder.width:
            found[side] = encoder
    return found


def _rebuilt(model: Recommender, encoders: Mapping[Side, FeatureEncoder]) -> tuple[SharedHeads | None, Backbone]:
    """The trained backbone, from parameters by name; the designs of training are not needed and left empty."""
    settings, sizes = model.settings, {"user": len(model.user_ids_), "item": len(model.item_ids_)}
    designs = {side: _empty_design(sizes[side], encoder.width) for side, encoder in encoders.items()}
    backbone = make_backbone(
        settings.backbone, sizes["user"], sizes["item"], settings.dim, user_features=designs.get("user"),
        item_features=designs.get("item"), ids=settings.ids, hidden=settings.hidden,
    )  # fmt: skip
    multi = settings.spec.family == "multi"
    means = (0.0,) * (3 if settings.spec.imputes else 2)
    heads = SharedHeads(backbone, means, own=settings.ids is not False) if multi else None
    module: nn.Module = heads if heads is not None else backbone
    try:
        module.load_state_dict(with_prefix(model.parameters_, "heads." if multi else "phi."))
    except RuntimeError as error:
        raise InputError(
            "the saved parameters do not fit the saved settings", found=str(error).split("\n")[-1].strip()[:60]
        ) from error
    return heads, backbone


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


class _Rows(nn.Module):
    """Given rows in the place of a backbone, so that the head's formula stays where it is."""

    def __init__(self, rows: Tensor, dim: int) -> None:
        super().__init__()
        self.rows, self.dim, self.n_users, self.n_items = rows, dim, 0, 0

    def users(self, rows: slice) -> Tensor:
        return self.rows[rows]

    def items(self) -> Tensor:
        return self.rows


def _rating_head(trained: SharedHeads, rows: Tensor, side: Side) -> Tensor:
    """The rating head on strangers; its own biases stand at their means."""
    dim = trained.backbone.dim
    head = SharedHeads(_Rows(rows, dim), tuple(trained.means.tolist()), own=False)  # type: ignore[arg-type]
    head.maps, head.gains = trained.maps, trained.gains
    factors = head.factors(RATING)
    result = (factors.lefts if side == "user" else factors.rights)[0].clone()
    own = trained.user_bias if side == "user" else trained.item_bias
    if own.numel():
        result[:, dim if side == "user" else dim + 1] += own[RATING].mean()
    return result


def _table(encoder: FeatureEncoder, features: Sequence[Features], side: Side) -> pl.DataFrame:
    """Features as a side table with the encoder's columns and types."""
    known = {column.name for column in encoder.columns}
    strange = next((name for row in features for name in row if name not in known), None)
    if strange is not None:
        raise InputError(f"unknown {side} feature", found=strange, expected=f"one of {', '.join(sorted(known))}")
    columns = [
        pl.Series(c.name, [_value(c, row.get(c.name)) for row in features], dtype_of(c)) for c in encoder.columns
    ]
    return pl.DataFrame(columns)


def dtype_of(column: ColumnEncoder) -> pl.DataType:
    """The type of a column in a side table that was checked."""
    return {"number": pl.Float64(), "category": pl.String(), "list": pl.List(pl.String)}[column.kind]


def _value(column: ColumnEncoder, value: Any) -> Any:
    """One feature of one stranger in the column's type; whole numbers and truth values may name categories."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
    if value is None or (column.kind == "number" and number):
        return None if value is None else float(value)
    if column.kind == "category" and isinstance(value, str | int):
        return _word(value)
    if column.kind == "list" and isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return [_word(part) for part in value]
    expected = {"number": "a number", "category": "text", "list": "a list of text"}[column.kind]
    raise InputError(f"feature {column.name} is of the wrong kind", found=value, expected=f"{expected}, or null")


def _word(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

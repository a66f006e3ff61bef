"""The users or items of a model: those of training, and after them strangers that a side table describes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap
from puidrec.data.schema import Frame, Origin, clean_side
from puidrec.features.encode import FeatureEncoder
from puidrec.train.cold import Side, Strangers, dtype_of


@dataclass(frozen=True)
class Entities:
    """One side of a model: ids, and a row of factors for each."""

    ids: IdMap
    factors: np.ndarray
    n_trained: int | None = None
    """How many of them were in training; the others, after them, are strangers. None: all."""

    @cached_property
    def with_average(self) -> np.ndarray:
        """One row more: the average of those in training, for ids that nothing is known of."""
        average = self.factors[: self.n_trained].mean(0, keepdims=True)
        return np.concatenate([self.factors, average])

    def rows(self, ids: Any) -> np.ndarray:
        """The row of each id in `with_average`."""
        codes = self.ids.encode(ids)
        return np.where(codes < 0, len(self.ids), codes)

    def joined(self, strangers: Strangers, side: Side, table: Frame) -> Entities:
        """With the strangers of a side table (id and features) after those in training, in the table's order."""
        key, origin = f"{side}_id", Origin(f"{side}_features")
        if not strangers.names(side):
            raise origin.error(
                f"the model reads no {side} features", found=f"it was trained without: {key} alone is known to it",
                hint=f"Train on {side} features, with a backbone that reads them (mf-linear, mf-mlp).",
            )  # fmt: skip
        clean = clean_side(table, key, origin)
        if clean[key].dtype != self.ids.ids.dtype:
            raise origin.error(
                "ids of another type than in training", column=key, found=str(clean[key].dtype),
                expected=str(self.ids.ids.dtype),
            )  # fmt: skip
        new = clean.filter(~clean[key].is_in(self.ids.ids.implode()))
        rows = strangers.represent_table(side, _typed(strangers.encoders[side], new.drop(key), side, origin))
        ids = IdMap(pl.concat([self.ids.ids, new[key].alias(self.ids.ids.name)]))
        return Entities(ids, np.concatenate([self.factors, rows]), len(self.ids))


def _typed(encoder: FeatureEncoder, table: pl.DataFrame, side: Side, origin: Origin) -> pl.DataFrame:
    """A checked side table with all columns of the encoder; those left out are unknown values."""
    known = {column.name: column for column in encoder.columns}
    given = {column.name for column in table.get_columns() if column.null_count() < column.len()}
    for column in table.get_columns():
        if column.name not in known:
            expected = f"some of {', '.join(sorted(known))}"
            raise origin.error(f"unknown {side} feature", column=column.name, found=column.name, expected=expected)
        wanted = dtype_of(known[column.name])
        if column.dtype != wanted and column.name in given:
            raise origin.error(
                "a feature of another kind than in training", column=column.name, found=str(column.dtype),
                expected=str(wanted),
            )  # fmt: skip
    absent = [pl.lit(None, dtype_of(column)).alias(name) for name, column in known.items() if name not in given]
    return table.with_columns(absent)

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from puidrec.data.dataset import Dataset, IdMap

LOG = pl.DataFrame({"user_id": [1, 1, 2, 3], "item_id": [5, 6, 5, 6], "rating": [1.0, 4.0, 5.0, 3.0]})
ITEMS = pl.DataFrame({"item_id": [5, 6], "kind": ["a", None], "tags": [["x", "y"], []]})


def test_a_data_set_cannot_be_changed() -> None:
    data = Dataset.from_frame(LOG)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"


def test_id_maps_go_both_ways() -> None:
    ids = IdMap(pl.Series(["a", "b", "c"]))
    assert ids.encode(["c", "x", "a"]).tolist() == [2, -1, 0]
    assert ids.encode(pl.Series(["b"])).dtype == np.int32
    assert ids.decode(np.array([2, 0])).to_list() == ["c", "a"]
    assert ids.encode([]).tolist() == []


@pytest.mark.parametrize("wanted", [[1.5, 1.0], ["1", "2"], [None, None]])
def test_ids_of_another_type_are_unknown_not_converted(wanted: list[object]) -> None:
    assert IdMap(pl.Series([1, 2])).encode(wanted).tolist() == [-1, -1]
    assert IdMap(pl.Series(["1", "2"])).encode([1, 2]).tolist() == [-1, -1]


def test_ids_of_mixed_types_are_refused(refusal) -> None:
    refusal(lambda: IdMap(pl.Series([1, 2])).encode([1, "a"]), "mixed types", "Int64")


def test_equal_content_has_one_digest_whatever_its_form() -> None:
    data = Dataset.from_frame(LOG, items=ITEMS)
    assert Dataset.from_frame(LOG.to_pandas(), items=ITEMS).sha256 == data.sha256
    assert Dataset.from_frame(LOG.to_arrow(), items=ITEMS.to_arrow()).sha256 == data.sha256
    assert isinstance(LOG.to_pandas(), pd.DataFrame)
    assert isinstance(LOG.to_arrow(), pa.Table)


@pytest.mark.parametrize(
    "changed",
    [
        {"logged": LOG.with_columns(rating=pl.Series([1.0, 4.0, 5.0, 2.0]))},
        {"logged": LOG.with_columns(user_id=pl.Series([1, 1, 2, 4]))},
        {"items": ITEMS.with_columns(kind=pl.Series(["a", "b"]))},
        {"items": ITEMS.with_columns(tags=pl.Series([["x"], []]))},
        {"items": None},
        {"uniform": LOG},
        {"scale": (0, 5)},
    ],
)
def test_any_change_changes_the_digest(changed: dict[str, object]) -> None:
    tables = {"logged": LOG, "items": ITEMS}
    assert Dataset.from_frame(**{**tables, **changed}).sha256 != Dataset.from_frame(**tables).sha256


def test_take_keeps_rows_in_order() -> None:
    logged = Dataset.from_frame(LOG).logged
    assert logged.take(np.array([3, 0])).rating.tolist() == [1.0, 3.0]
    assert logged.take(logged.rating > 3).rating.tolist() == [4.0, 5.0]
    assert logged.propensity is None


def test_default_parts_are_the_default_split() -> None:
    data = Dataset.from_frame(LOG, LOG)
    split = data.split("rd", 0)
    for part in ("train", "validation", "test"):
        assert getattr(data, part).frame.equals(getattr(split, part).frame)

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset, IdMap

LOG = pl.DataFrame(
    {"user_id": [1, 1, 2, 3], "item_id": [5, 6, 5, 6], "rating": [1.0, 4.0, 5.0, 3.0]}
)
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


@pytest.mark.parametrize("ids", [pl.Series([1, 2]), pl.Series(["a", "b"])])
def test_an_id_with_half_a_character_is_refused(ids: pl.Series, refusal) -> None:
    refusal(lambda: IdMap(ids).encode(["b", "a\ud800"]), "not text", "lone surrogate")


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
        {"uniform": LOG, "overlap": "keep"},
        {"scale": (0, 5)},
    ],
)
def test_any_change_changes_the_digest(changed: dict[str, object]) -> None:
    tables = {"logged": LOG, "items": ITEMS}
    assert Dataset.from_frame(**{**tables, **changed}).sha256 != Dataset.from_frame(**tables).sha256


def test_a_data_set_and_its_parts_show_themselves_in_three_lines(tiny_data: Dataset) -> None:
    rows, uniform = len(tiny_data.logged), len(tiny_data.uniform)
    assert repr(tiny_data).splitlines() == [
        "Dataset 'simulated': 60 users × 40 items, ratings 1 to 5",
        f"  {rows:,} logged rows, {uniform:,} uniform rows ({600 - uniform:,} more are logged "
        "pairs: dropped)",
        "  features: 4 of users, 3 of items",
    ]
    assert (
        repr(tiny_data.logged)
        == f"Interactions({rows:,} rows of 60 users × 40 items, ratings 1 to 5)"
    )
    assert repr(tiny_data.user_ids) == "IdMap(60 ids, 0 to 59)"
    assert repr(IdMap(pl.Series([], dtype=pl.Int64))) == "IdMap(0 ids)"
    split = tiny_data.split("rd", 7)
    held_out = f"{len(split.propensity):,} uniform rows for propensities"
    assert repr(split).splitlines() == [
        f"Split by protocol 'rd', seed 7: {rows:,} training rows, {held_out}",
        f"  {len(split.validation):,} validation rows (uniform), {len(split.test):,} test rows "
        "(uniform)",
    ]
    bare = repr(Dataset.from_frame(LOG))
    assert "no uniform rows" in bare
    assert "features: none" in bare


def test_take_keeps_rows_in_order() -> None:
    logged = Dataset.from_frame(LOG).logged
    assert logged.take(np.array([3, 0])).rating.tolist() == [1.0, 3.0]
    assert logged.take(logged.rating > 3).rating.tolist() == [4.0, 5.0]
    assert logged.propensity is None


def test_default_parts_are_the_default_split() -> None:
    data = Dataset.from_frame(LOG, LOG, overlap="keep")
    split = data.split("rd", 0)
    for part in ("train", "validation", "test"):
        assert getattr(data, part).frame.equals(getattr(split, part).frame)


NAMED_LOG = pl.DataFrame(
    {"user_id": [2, 1, 3], "item_id": ["b", "a", "a"], "rating": [5.0, 1.0, 3.0]}
)
USERS = pl.DataFrame({"user_id": [3, 1, 2], "age": [30.0, 10.0, 20.0]})


def twice(**options: object) -> Dataset:
    table = pl.DataFrame(
        {
            "user_id": [1, 2, 1],
            "item_id": [7, 7, 7],
            "rating": [1.0, 2.0, 5.0],
            "propensity": [0.1, 0.2, 0.3],
        }
    )
    other = pl.DataFrame({"user_id": [2], "item_id": [8], "rating": [4.0], "propensity": [0.4]})
    return Dataset.from_frame(pl.concat([table, other]), **options)


def test_codes_and_rows_are_sorted_by_id() -> None:
    data = Dataset.from_frame(NAMED_LOG)
    assert data.user_ids.ids.to_list() == [1, 2, 3]
    assert data.item_ids.ids.to_list() == ["a", "b"]
    assert data.logged.user.tolist() == [0, 1, 2]
    assert data.logged.item.tolist() == [0, 1, 0]
    assert (data.logged.user.dtype, data.logged.item.dtype) == (np.int32, np.int32)
    assert data.scale.low == 1
    assert data.scale.high == 5
    assert data.logged.to_frame().equals(
        NAMED_LOG.sort("user_id").with_columns(pl.col("rating").cast(pl.Float32))
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_rows_does_not_matter(order: tuple[int, ...]) -> None:
    same = Dataset.from_frame(NAMED_LOG[list(order)], users=USERS[list(order)])
    assert same.sha256 == Dataset.from_frame(NAMED_LOG, users=USERS).sha256


def test_side_tables_are_aligned_with_codes() -> None:
    assert Dataset.from_frame(NAMED_LOG, users=USERS).users["age"].to_list() == [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("duplicates", "rating", "propensity"),
    [("first", 1.0, 0.1), ("last", 5.0, 0.3), ("mean", 3.0, 0.1)],
)
def test_repeated_pairs_are_settled_as_asked(
    duplicates: str, rating: float, propensity: float
) -> None:
    logged = twice(duplicates=duplicates).logged
    assert logged.rating.tolist() == [rating, 2.0, 4.0]
    assert logged.propensity[0] == propensity
    assert logged.frame.columns == ["user", "item", "rating", "propensity"]


def test_repeated_pairs_are_refused_by_default(refusal) -> None:
    refusal(twice, "logged", "row 3", "user_id, item_id", "1, 7", "duplicates=")


@pytest.mark.parametrize("option", ["duplicates", "unknown_ids"])
def test_options_outside_their_list_are_refused(option: str, refusal) -> None:
    refusal(lambda: twice(**{option: "ignore"}), option, "'ignore'", "one of error")


def test_ids_only_in_a_side_table(refusal) -> None:
    users = pl.concat([pl.DataFrame({"user_id": [9], "age": [1.0]}), USERS])
    origins = {"users": "users.csv"}
    refusal(
        lambda: Dataset.from_frame(NAMED_LOG, users=users, origins=origins),
        "users.csv",
        "row 1",
        "column 'user_id'",
        "found 9",
    )
    kept = Dataset.from_frame(NAMED_LOG, users=users, unknown_ids="keep")
    assert kept.n_users == 4
    assert kept.users["age"].to_list() == [10.0, 20.0, 30.0, 1.0]
    dropped = Dataset.from_frame(NAMED_LOG, users=users, unknown_ids="drop")
    assert dropped.n_users == 3
    assert dropped.users["user_id"].to_list() == [1, 2, 3]


@pytest.mark.parametrize("unknown_ids", ["error", "keep", "drop"])
def test_a_rated_id_without_a_row_is_refused(unknown_ids: str, refusal) -> None:
    few = USERS.filter(pl.col("user_id") != 2)
    refusal(
        lambda: Dataset.from_frame(NAMED_LOG, users=few, unknown_ids=unknown_ids),
        "users",
        "column 'user_id'",
        "found 2",
    )


@pytest.mark.parametrize("table", ["uniform", "items"])
def test_ids_of_another_type_are_refused(table: str, refusal) -> None:
    columns = (
        {"user_id": [1], "item_id": [5], "rating": [2.0]}
        if table == "uniform"
        else {"item_id": [5, 6]}
    )
    frames = {table: pl.DataFrame(columns)}
    call = partial(Dataset.from_frame, NAMED_LOG, **frames, origins={table: "x.csv"})
    refusal(call, "x.csv", "column 'item_id'", "Int64", "String")


@pytest.mark.parametrize("column", ["user_id", "item_id", "rating"])
def test_a_log_of_one_user_item_or_rating_teaches_nothing(column: str, refusal) -> None:
    log = pl.DataFrame({"user_id": [1, 2, 3], "item_id": [1, 2, 3], "rating": [1.0, 2.0, 3.0]})
    one = log.with_columns(pl.col(column).first())
    refusal(
        lambda: Dataset.from_frame(one, scale=(0, 5), origins={"logged": "log.csv"}),
        "log.csv",
        f"column '{column}'",
        "at least two",
    )
    refusal(lambda: Dataset.from_frame(one, scale=(0, 5)), f"column '{column}'", "at least two")


def test_uniform_rows_extend_the_population_but_not_the_log() -> None:
    uniform = pl.DataFrame({"user_id": [7], "item_id": ["z"], "rating": [2.0]})
    data = Dataset.from_frame(NAMED_LOG, uniform)
    assert (data.n_users, data.n_items, data.n_pairs) == (4, 3, 12)
    assert (len(data.logged), len(data.uniform)) == (3, 1)
    assert data.uniform.to_frame()["item_id"].to_list() == ["z"]


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=60),
    kind=st.sampled_from(["integers", "text"]),
    seed=st.integers(0, 99),
)
def test_what_goes_in_comes_out(pairs: set[tuple[int, int]], kind: str, seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(np.array(sorted(pairs)))
    users, items = set(rows[:, 0]), set(rows[:, 1])
    if len(users) < 2 or len(items) < 2:
        return
    rating = np.arange(len(rows), dtype=np.float32)
    log = pl.DataFrame({"user_id": rows[:, 0], "item_id": rows[:, 1], "rating": rating})
    if kind == "text":
        log = log.with_columns(pl.col("user_id", "item_id").cast(pl.String))
    out = Dataset.from_frame(log).logged.to_frame()
    assert out.sort("rating").equals(log)

"""Uniform rows whose pair is in the log: found in every form of a log, dropped everywhere, counted,
or refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.describe import describe_dataset
from puidrec.data.on_disk import StoredInteractions, shard_log
from puidrec.data.sources import load_dataset
from puidrec.data.tables import Overlap, overlap_words, pairs_among, row_starts, rows_outside
from puidrec.exposure import make_propensity
from puidrec.exposure.base import Exposure


def table(mask: np.ndarray, rating: np.ndarray) -> pl.DataFrame:
    user, item = np.nonzero(mask)
    return pl.DataFrame(
        {"user_id": user, "item_id": item, "rating": rating[user, item].astype(float)}
    )


def keys(rows: Interactions) -> set[tuple[int, int]]:
    return set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))


@pytest.fixture(scope="module")
def tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    """A log and uniform rows of 40 users and 30 items; about a fifth of the uniform rows is
    logged."""
    rng = np.random.default_rng(0)
    rating = rng.integers(1, 6, (40, 30))
    return table(rng.random((40, 30)) < 0.2, rating), table(rng.random((40, 30)) < 0.3, rating)


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 7))),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7))),
)
def test_pairs_are_found_as_a_set_finds_them(
    log: set[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    rows = np.array(sorted(log), np.int32).reshape(-1, 2)
    user, item = np.array(asked, np.int32).reshape(-1, 2).T
    found = pairs_among(user, item, row_starts(rows[:, 0], 6, chunk=3), rows[:, 1])
    assert found.tolist() == [pair in log for pair in asked]


@given(*[st.sets(st.tuples(st.integers(0, 5), st.integers(0, 7)))] * 2, st.integers(1, 50))
def test_rows_outside_another_log_are_the_difference_of_two_sets(
    log: set[tuple[int, int]], other: set[tuple[int, int]], chunk: int
) -> None:
    own, theirs = (np.array(sorted(pairs), np.int32).reshape(-1, 2) for pairs in (log, other))
    row_start, items = rows_outside(
        own[:, 0], own[:, 1], row_starts(theirs[:, 0], 6), theirs[:, 1], chunk
    )
    users = np.repeat(np.arange(6), np.diff(row_start))
    assert list(zip(users.tolist(), items.tolist(), strict=True)) == sorted(log - other)


def test_no_part_of_a_split_repeats_a_logged_pair(tables) -> None:
    data = Dataset.from_frame(*tables, scale=(1, 5))
    logged = set(tables[0].select("user_id", "item_id").rows())
    uniform = set(tables[1].select("user_id", "item_id").rows())
    assert data.overlap == Overlap("drop", len(uniform), len(logged & uniform))
    assert data.overlap.in_log > 40
    assert keys(data.uniform) == uniform - logged
    for protocol in ("rd", "paper"):
        split = data.split(protocol, 3)
        for part in (split.propensity, split.validation, split.test):
            assert not keys(part) & logged
        assert split.overlap == data.overlap


def test_kept_rows_are_all_there_and_the_digest_is_that_of_the_data_as_given(tables) -> None:
    data, kept = (
        Dataset.from_frame(*tables, scale=(1, 5), overlap=rule) for rule in ("drop", "keep")
    )
    assert len(kept.uniform) == len(tables[1])
    assert kept.overlap == Overlap("keep", data.overlap.rows, data.overlap.in_log)
    assert kept.sha256 == data.sha256
    back = data.with_overlap("keep")
    assert back.uniform.frame.equals(kept.uniform.frame)
    assert back.with_overlap("drop").uniform.frame.equals(data.uniform.frame)


def test_a_log_on_disk_drops_the_same_rows(tables, tmp_path: Path) -> None:
    tables[0].write_parquet(tmp_path / "logged.parquet")
    tables[1].write_parquet(tmp_path / "uniform.parquet")
    memory = load_dataset("files", tmp_path, scale=(1, 5))
    disk = load_dataset("files", tmp_path, scale=(1, 5), shards=tmp_path / "shards")
    assert isinstance(disk.logged, StoredInteractions)
    assert disk.overlap == memory.overlap
    assert disk.uniform.frame.equals(memory.uniform.frame)
    kept = load_dataset("files", tmp_path, scale=(1, 5), shards=tmp_path / "shards", overlap="keep")
    assert len(kept.uniform) == len(tables[1])
    build = partial(
        Dataset.from_frame, uniform=tables[1], scale=(1, 5)
    )  # drops by the ids of the skeleton
    assert shard_log(tmp_path / "logged.parquet", tmp_path / "shards", build).uniform.frame.equals(
        disk.uniform.frame
    )


def test_uniform_rows_that_are_mostly_logged_are_refused_in_one_line(
    tables, refusal, tmp_path: Path
) -> None:
    log = tables[0]
    fresh = tables[1].join(log, on=["user_id", "item_id"], how="anti")
    subset = log.sample(100, seed=0)
    refusal(
        lambda: Dataset.from_frame(log, subset, scale=(1, 5)),
        "mostly pairs of the log",
        "100 of 100",
        "keep",
    )
    mixed = pl.concat([subset, fresh.head(99)])
    refusal(lambda: Dataset.from_frame(log, mixed, scale=(1, 5)), "100 of 199")
    half = pl.concat([subset, fresh.head(100)])
    assert len(Dataset.from_frame(log, half, scale=(1, 5)).uniform) == 100
    assert len(Dataset.from_frame(log, subset, scale=(1, 5), overlap="keep").uniform) == 100
    for name, rows in (("logged", log), ("uniform", subset)):
        rows.write_csv(tmp_path / f"{name}.csv")
    refusal(lambda: load_dataset("files", tmp_path), "uniform.csv", "mostly")
    assert len(load_dataset("files", tmp_path, overlap="keep").uniform) == 100
    refusal(lambda: load_dataset("files", tmp_path, overlap="maybe"), "overlap", "maybe", "drop")


def test_a_dense_log_is_no_leak_as_long_as_new_pairs_are_left() -> None:
    rng = np.random.default_rng(1)
    rating = rng.integers(1, 6, (30, 20))
    log = table(rng.random((30, 20)) < 0.8, rating)
    data = Dataset.from_frame(log, table(rng.random((30, 20)) < 0.5, rating), scale=(1, 5))
    assert data.overlap.in_log > 0.6 * data.overlap.rows
    assert len(data.uniform) == data.overlap.rows - data.overlap.in_log


def test_counts_are_told_in_words_and_by_describe(tables) -> None:
    assert overlap_words("drop", 0, 0) == ""
    assert overlap_words("drop", 40, 0) == "none of 40 uniform rows is a logged pair"
    assert overlap_words("keep", 4640, 366) == "366 of 4,640 uniform rows are logged pairs (kept)"
    facts = describe_dataset(Dataset.from_frame(*tables, scale=(1, 5)))
    assert facts["overlap"]["uniform_rows_in_log"] > 40
    assert "Data leakage: " in facts["sentence"]
    assert "are logged pairs (dropped)" in facts["sentence"]
    kept = describe_dataset(Dataset.from_frame(*tables, scale=(1, 5), overlap="keep"))
    assert "(kept)" in kept["sentence"]


def test_means_of_unseen_and_of_all_pairs_are_right_either_way() -> None:
    """Ratings of a known matrix: with every pair drawn, both ways give the exact means."""
    rng = np.random.default_rng(2)
    rating = rng.random((20, 15))
    seen = rng.random((20, 15)) < rating * 0.5
    density, seen_mean = float(seen.mean()), float(rating[seen].mean())
    for overlap, drawn in (
        (Overlap("drop", 300, int(seen.sum())), rating[~seen]),
        (Overlap("keep", 300, 9), rating),
    ):
        means = float(drawn.mean()), seen_mean, density
        assert overlap.unseen_mean(*means) == pytest.approx(rating[~seen].mean())
        assert overlap.population_mean(*means) == pytest.approx(rating.mean())


def test_naive_bayes_puts_the_dropped_pairs_back() -> None:
    """P(o | r) by counting all pairs is known here; uniform rows of every pair give it, without the
    logged ones too."""
    rng = np.random.default_rng(3)
    rating = rng.integers(1, 6, (60, 50))
    seen = rng.random((60, 50)) < np.array([0, 0.05, 0.1, 0.2, 0.3, 0.4])[rating]
    expected = [seen[rating == level].mean() for level in range(1, 6)]
    for rule in ("drop", "keep"):
        data = Dataset.from_frame(
            table(seen, rating), table(np.ones_like(seen), rating), scale=(1, 5), overlap=rule
        )
        model = make_propensity("naive-bayes").fit(
            Exposure.from_rows(data, data.logged, data.uniform)
        )
        np.testing.assert_allclose(list(model.describe()["by_level"].values()), expected, rtol=0.01)

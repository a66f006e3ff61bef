"""RQ3 and RQ4: gains of features and of noise, shares, ratios, nested orders, and their
summaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec import load_dataset
from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.exposure.counts import ExposureCounts, information_gains
from puidrec.reproduce.entropies import (
    ExposureLog,
    Gain,
    SideFeatures,
    gain,
    observed_features,
    permuted_within,
    ratio,
    run_entropies,
    run_rq3,
    run_rq4,
    summarise_rq3,
    summarise_rq4,
)


def test_features_split_into_yes_no_questions(exposed: ExposureLog) -> None:
    jobs, towns = [f"job={k}" for k in "abcd"], [f"town={k}" for k in "xyz"]
    assert exposed.users.names == ("active", *jobs, "age", *towns)
    assert exposed.items.names == ("year", "tags=hit", *(f"tags=t{k}" for k in range(4)))


def test_missing_values_are_no_and_constant_columns_are_dropped() -> None:
    frame = pl.DataFrame({"user_id": range(4), "same": ["a"] * 4, "job": ["x", None, "y", "z"]})
    side = SideFeatures.of(frame, "user_id")
    assert side.names == ("job=x", "job=y", "job=z")
    assert len({tuple(column) for column in side.codes.T.tolist()}) == 4
    with pytest.raises(InputError, match="needs features"):
        SideFeatures.of(None, "user_id")


def test_entropies_are_those_of_exposure_counts(made: Dataset, exposed: ExposureLog) -> None:
    users, items = exposed.users.block([0, 2, 5]), exposed.items.block([0, 1])
    counts = ExposureCounts.from_pairs(exposed.user, exposed.item, users, items)
    no_users, no_items = np.zeros(made.n_users, np.int32), np.zeros(made.n_items, np.int32)
    gains = information_gains(counts, "plugin")
    middle = exposed.entropy(users, no_items)
    assert exposed.entropy(no_users, no_items) - middle == pytest.approx(gains.gain_user, abs=1e-13)
    assert middle - exposed.entropy(users, items) == pytest.approx(gains.gain_item, abs=1e-13)


def test_real_features_gain_beyond_chance_and_noise_does_not(exposed: ExposureLog) -> None:
    rng = np.random.default_rng(0)
    active, hit = exposed.users.block([0]), exposed.items.block([1])
    no_users, no_items = np.zeros(120, np.int32), np.zeros(90, np.int32)
    real = gain(lambda bins: exposed.entropy(bins, no_items), no_users, active, rng)
    assert real.beyond_chance
    assert real.noise < 0.1 * real.plugin
    assert gain(lambda bins: exposed.entropy(active, bins), no_items, hit, rng).beyond_chance
    noise = [
        gain(lambda bins: exposed.entropy(bins, hit), active, rng.integers(0, 30, 120), rng)
        for _ in range(40)
    ]
    assert all(one.plugin > 0 for one in noise)
    assert sum(one.beyond_chance for one in noise) <= 7  # 5 % of 40 is 2
    corrected = np.array([one.plugin - one.noise for one in noise])
    assert abs(corrected.mean()) < 4 * corrected.std() / np.sqrt(40)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(0, 99),
)
def test_values_stay_in_their_group(rows: list[tuple[int, int]], seed: int) -> None:
    groups, values = (np.array(column) for column in zip(*rows, strict=True))
    handed = permuted_within(values, groups, np.random.default_rng(seed))
    for group in np.unique(groups):
        assert sorted(handed[groups == group]) == sorted(values[groups == group])


def test_values_are_handed_round_evenly() -> None:
    rng = np.random.default_rng(1)
    groups = np.array([1, 0, 1, 0, 1])
    counts = np.zeros((5, 5))
    for _ in range(3000):
        counts[np.arange(5), permuted_within(np.arange(5), groups, rng)] += 1
    expected = np.equal.outer(groups, groups) / np.where(groups == 1, 3, 2)[:, None]
    np.testing.assert_allclose(counts / 3000, expected, atol=0.05)


def test_sixteen_combinations_and_their_control(exposed: ExposureLog) -> None:
    rows = run_rq3(exposed, 3, 5)
    keys = {(row["control"], row["share_user"], row["share_item"]) for row in rows}
    assert len(rows) == len(keys) == 32
    assert rows == run_rq3(exposed, 3, 5)
    assert rows != run_rq3(exposed, 4, 5)


def test_ratios_by_hand() -> None:
    assert ratio(Gain(0.2, 0.1, 0.15), Gain(0.4, 0.2, 0.3)) == pytest.approx(0.5)
    assert ratio(Gain(0.2, 0.1, 0.15), Gain(0.0, 0.0, 0.0)) is None
    assert not Gain(0.2, 0.1, 0.25).beyond_chance


def test_shares_round_and_keep_one() -> None:
    assert [observed_features(34, k) for k in (2, 3, 4, 5)] == [17, 11, 8, 7]
    assert observed_features(3, 5) == 1


@pytest.mark.real_data
def test_on_movielens_plugin_ratios_are_positive_with_or_without_information(
    data_root: Path,
) -> None:
    folder = data_root / "ml-100k"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    rows = run_rq3(ExposureLog.of(load_dataset("ml-100k", folder)), 0, 1)
    assert all(row["ratio"][side] > 0 for row in rows for side in ("user", "item"))


def test_plugin_gains_rise_by_construction_and_end_at_the_whole_side(exposed: ExposureLog) -> None:
    for log in (exposed, exposed.shuffled(np.random.default_rng(0))):
        rows = run_rq4(log, 1, 2)
        whole_user, whole_item = (side.block(range(len(side))) for side in (log.users, log.items))
        none = {
            "user": (np.zeros_like(whole_user), whole_item),
            "item": (whole_user, np.zeros_like(whole_item)),
        }
        for side, n in (("user", 9), ("item", 6)):
            own = [row for row in rows if row["side"] == side]
            assert [row["hidden"] for row in own] == list(range(1, n + 1))
            assert (np.diff([row["plugin"] for row in own]) > -1e-12).all()
            total = log.entropy(*none[side]) - log.entropy(whole_user, whole_item)
            assert own[-1]["plugin"] == pytest.approx(total, abs=1e-12)


def test_with_permuted_features_noise_gains_as_much(exposed: ExposureLog) -> None:
    shuffled = exposed.shuffled(np.random.default_rng(5))
    for row in (row for row in run_rq4(shuffled, 0, 9) if row["hidden"] == row["of"]):
        assert abs(row["plugin"] - row["noise"]) < 0.1 * row["plugin"]


def test_summaries_are_means_over_orders(exposed: ExposureLog) -> None:
    rows = [row for seed in range(3) for row in run_rq3(exposed, seed, 3)]
    found = summarise_rq3(rows)["item"]
    own = [
        row["ratio"]["item"]
        for row in rows
        if (row["control"], row["share_user"], row["share_item"]) == (False, 2, 3)
    ]
    assert found["orders"] == 3
    assert found["features"]["means"][0][1] == pytest.approx(np.mean(own))
    assert found["features"]["beyond_chance"] > found["control"]["beyond_chance"]
    steps = [row for seed in range(3) for row in run_rq4(exposed, seed, 3)]
    rises = summarise_rq4(steps)["user"]
    assert rises["plugin_rises"] == 1.0
    assert len(rises["plugin"]) == len(rises["noise"]) == 9
    fallen = [{**row, "plugin": -row["hidden"]} for row in steps]
    assert summarise_rq4(fallen)["user"]["plugin_rises"] == 0.0
    assert summarise_rq3([]) == summarise_rq4([]) == {}


def test_rows_do_not_depend_on_workers_and_are_kept(
    small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_root / "ml-100k"
    one = run_entropies(["rq4"], folder, tmp_path / "one", 1, quick=True)
    assert one == run_entropies(["rq4"], folder, tmp_path / "two", 2, quick=True)
    monkeypatch.setattr(
        "puidrec.reproduce.entropies.load_dataset", lambda *_: pytest.fail("run again")
    )
    assert one == run_entropies(["rq4"], folder, tmp_path / "one", 1, quick=True)

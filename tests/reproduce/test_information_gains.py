from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.exposure.entropy import conditional_entropy, information_gains
from puidrec.features.counts import ExposureCounts
from puidrec.reproduce.information_gains import (
    ExposureLog,
    SideFeatures,
    item_gain,
    permuted_within,
    user_gain,
)


def test_features_split_into_yes_no_questions(exposed: ExposureLog) -> None:
    jobs, towns = [f"job={k}" for k in "abcd"], [f"town={k}" for k in "xyz"]
    assert exposed.users.names == ("active", *jobs, "age", *towns)
    assert exposed.items.names == ("year", "tags=hit", *(f"tags=t{k}" for k in range(4)))
    assert exposed.users.codes.shape == (9, 120)


def test_missing_values_are_no_and_constant_columns_are_dropped() -> None:
    frame = pl.DataFrame({"user_id": range(4), "same": ["a"] * 4, "job": ["x", None, "y", "z"]})
    side = SideFeatures.of(frame, "user_id")
    assert side.names == ("job=x", "job=y", "job=z")
    assert len({tuple(column) for column in side.codes.T.tolist()}) == 4
    with pytest.raises(InputError, match="needs features"):
        SideFeatures.of(None, "user_id")


def test_entropy_equals_that_of_exposure_counts(made: Dataset, exposed: ExposureLog) -> None:
    users, items = exposed.users.block([0, 2, 5]), exposed.items.block([0, 1])
    counts = ExposureCounts.from_pairs(exposed.user, exposed.item, users, items)
    plugin, bias = exposed.entropy(users, items)
    assert plugin == pytest.approx(conditional_entropy(counts.cells, counts.pairs), abs=1e-13)
    nobody, nothing = np.zeros(made.n_users, np.int32), np.zeros(made.n_items, np.int32)
    gains = information_gains(counts, "miller-madow")
    before, middle = exposed.entropy(nobody, nothing), exposed.entropy(users, nothing)
    assert sum(before) - sum(middle) == pytest.approx(gains.gain_user, abs=1e-13)
    assert sum(middle) - (plugin + bias) == pytest.approx(gains.gain_item, abs=1e-13)


def test_real_features_gain_beyond_chance_and_noise_does_not(exposed: ExposureLog) -> None:
    rng = np.random.default_rng(0)
    nobody, nothing = np.zeros(120, np.int32), np.zeros(90, np.int32)
    real = user_gain(exposed, nobody, exposed.users.block([0]), nothing, rng)
    assert real.beyond_chance
    assert real.permutation > 0.9 * real.plugin
    hit = item_gain(exposed, exposed.users.block([0]), nothing, exposed.items.block([1]), rng)
    assert hit.beyond_chance
    noise = [
        user_gain(
            exposed,
            exposed.users.block([0]),
            rng.integers(0, 30, 120),
            exposed.items.block([1]),
            rng,
        )
        for _ in range(40)
    ]
    assert all(gain.plugin > 0 for gain in noise)
    assert sum(gain.beyond_chance for gain in noise) <= 7  # 5 % of 40 is 2
    corrected = np.array([gain.permutation for gain in noise])
    assert abs(corrected.mean()) < 4 * corrected.std() / np.sqrt(40)
    assert abs(corrected.mean()) < 0.05 * np.mean([gain.plugin for gain in noise])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
def test_plugin_gains_never_fall_below_zero(seed: int, coarse: int, fine: int) -> None:
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((20, 15)) < 0.3)
    side = (
        SideFeatures(("a",), np.zeros((1, 20), np.int32)),
        SideFeatures(("b",), np.zeros((1, 15), np.int32)),
    )
    exposed = ExposureLog(user, item, *side)
    known, added = rng.integers(0, coarse, 20), rng.integers(0, fine, 20)
    assert user_gain(exposed, known, added, rng.integers(0, 3, 15), rng, 2).plugin > -1e-12


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

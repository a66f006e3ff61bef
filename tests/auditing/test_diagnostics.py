"""Diagnostics worked by hand, and against a log whose propensities are known."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing.diagnostics import (
    by_popularity,
    concentration,
    diagnose,
    overlap,
    population_pairs,
    reliability,
    weight_tails,
    without_support,
)
from puidrec.errors import InputError
from puidrec.exposure.counts import ExposureCounts


def test_weight_tails() -> None:
    found = weight_tails(np.append(np.full(99, 0.5), 0.01))
    assert found["max"] == 100.0
    assert found["median"] == 2.0
    assert found["top1_weight_share"] == pytest.approx(100 / 298)
    assert found["ess_share"] == pytest.approx(298**2 / (99 * 4 + 100**2) / 100)


def test_concentration() -> None:
    even = concentration(np.full(200, 3))
    assert even == {
        "gini": pytest.approx(0.0, abs=1e-12),
        "top1_items_share": 0.01,
        "top10_items_share": 0.1,
    }
    alone = concentration(np.append(np.zeros(199), 5))
    assert alone["gini"] == pytest.approx(199 / 200)
    assert alone["top1_items_share"] == 1.0
    assert concentration(np.array([1, 3]))["gini"] == pytest.approx(0.25)


def test_deciles_of_items_start_with_the_most_seen() -> None:
    degree = np.arange(100)[::-1]  # item 0 is the most seen
    item = np.array([0, 1, 1, 99])
    found = by_popularity(item, np.array([0.5, 0.5, 0.25, 0.1]), degree)
    assert [row["rows"] for row in found] == [3, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert found[0]["ess"] == pytest.approx((2 + 2 + 4) ** 2 / (4 + 4 + 16))
    assert found[0]["share_of_log"] == pytest.approx(sum(range(90, 100)) / 4950)
    assert found[9]["mean_weight"] == pytest.approx(10.0)
    assert found[4]["mean_weight"] is None
    assert (
        len(by_popularity(np.array([0, 1]), np.ones(2), np.array([2, 1]))) == 2
    )  # fewer items than deciles


def test_reliability_of_propensities_that_are_true_and_of_ones_that_are_not() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.01, 0.6, 100_000)
    seen = rng.random(p.size) < p
    for row in reliability(p, p[seen], p.size):
        assert row["observed"] == pytest.approx(row["predicted"], abs=4 * np.sqrt(0.25 / 10_000))
        assert row["pairs"] == pytest.approx(10_000, rel=0.01)
    wrong = reliability(p**2, (p**2)[seen], p.size)
    assert wrong[0]["observed"] > 5 * wrong[0]["predicted"]


def test_a_constant_propensity_is_one_bin() -> None:
    found = reliability(np.full(50, 0.2), np.full(10, 0.2), 50)
    assert [(row["predicted"], row["observed"]) for row in found] == [(pytest.approx(0.2), 0.2)]


def test_all_pairs_of_a_small_population_and_a_sample_of_a_large_one() -> None:
    users, items = population_pairs(3, 4, np.random.default_rng(0))
    assert set(zip(users.tolist(), items.tolist(), strict=True)) == {
        (u, i) for u in range(3) for i in range(4)
    }
    users, items = population_pairs(10_000, 1_000, np.random.default_rng(0))
    assert users.size == 200_000
    assert users.max() < 10_000
    assert items.max() < 1_000


def test_propensities_known_for_logged_pairs_only_have_no_table() -> None:
    def ask(users: np.ndarray, items: np.ndarray) -> np.ndarray:
        raise InputError("no propensity was given")

    found = overlap(ask, np.full(3, 0.2), (5, 5), 0)
    assert found == {"reliability": [], "calibration_error": None, "population": None}


def test_everything_together_is_plain() -> None:
    import json

    rng = np.random.default_rng(1)
    table = rng.uniform(0.1, 0.5, (40, 30))
    user, item = np.nonzero(rng.random((40, 30)) < table)
    p = table[user, item]
    bins = np.arange(40) // 20, np.arange(30) // 10
    counts = ExposureCounts.from_pairs(user, item, *bins)
    found = diagnose(
        item,
        p,
        p,
        counts,
        lambda u, i: table[u, i],
        about={"name": "given", "low": 0.01, "share_clipped": 0.25},
    )
    json.dumps(found, allow_nan=False)
    assert found["share_clipped"] == 0.25
    assert found["calibration_error"] < 0.2
    assert found["share_without_support"] == 0.0
    assert sum(row["rows"] for row in found["ess_by_item_decile"]) == item.size


def test_pairs_in_groups_without_a_logged_row_have_no_support() -> None:
    """Users 0, 1 | 2 and items 0 | 1, 2: only the first group of users has seen the second group of
    items."""
    counts = ExposureCounts.from_pairs(
        np.array([0, 1, 2]), np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([0, 1, 1])
    )
    assert without_support(counts) == pytest.approx(2 / 9)

"""Paired bootstrap: coverage, false wins, pairing, seeds, Holm against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from puidrec.evaluation.significance import PerUser, compare, compare_all, holm, mean_interval


def _per_user(values: np.ndarray, size: np.ndarray | None = None) -> PerUser:
    return PerUser(np.arange(values.size), values, size)


def test_interval_matches_the_normal_one_for_many_users() -> None:
    rng = np.random.default_rng(0)
    reference, size = rng.normal(size=2_000), rng.integers(1, 9, 2_000).astype(float)
    method = reference + rng.normal(0.05, 0.5, 2_000)
    for s in (None, size):
        found = compare([_per_user(method, s)], [_per_user(reference, s)], replicates=4_000)
        normal = mean_interval(_per_user(method - reference, s))
        assert found.difference == pytest.approx(normal.value)
        np.testing.assert_allclose(
            [found.low, found.high],
            [normal.low, normal.high],
            atol=0.05 * normal.standard_error * 4,
        )


def test_pairing_sees_what_means_hide() -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal(size=300)
    better, worse = (
        reference + 0.01 + rng.normal(0, 0.02, 300),
        reference - 0.01 + rng.normal(0, 0.02, 300),
    )
    table = {
        "a": [_per_user(better)],
        "b": [_per_user(worse)],
        "ref": [_per_user(reference)],
        "same": [_per_user(reference)],
    }
    found = compare_all(table, "ref")
    assert {name: c.verdict for name, c in found.items()} == {
        "a": "wins",
        "b": "loses",
        "same": "ties",
    }
    assert found["same"].p_value == 1.0
    errors = compare_all(table, "ref", higher_is_better=False)
    assert (errors["a"].verdict, errors["b"].verdict) == ("loses", "wins")
    assert errors["a"].difference == found["a"].difference > 0


def test_false_wins_are_as_rare_as_promised() -> None:
    """Equal methods in a table of five: some verdict other than a tie in about one table of twenty,
    at most."""
    rng, false, trials = np.random.default_rng(2), 0, 150
    for trial in range(trials):
        table = {f"m{j}": [_per_user(rng.normal(size=100))] for j in range(6)}
        found = compare_all(table, "m0", replicates=500, rng=trial)
        false += any(c.verdict != "ties" for c in found.values())
    assert false / trials < 0.1


def _same_people(seeds: int, rng: np.random.Generator) -> tuple[list[PerUser], list[PerUser]]:
    """Seeds meet the same users, whose differences persist from seed to seed; no difference in
    truth."""
    person = rng.normal(size=60)
    zero = [_per_user(np.zeros(60)) for _ in range(seeds)]
    return [_per_user(person + rng.normal(0, 0.3, 60)) for _ in range(seeds)], zero


def test_intervals_cover_where_seeds_meet_the_same_people() -> None:
    rng, hits, trials = np.random.default_rng(3), {"users": 0, "hierarchical": 0}, 200
    for trial in range(trials):
        method, reference = _same_people(5, rng)
        for resample in hits:
            found = compare(method, reference, replicates=300, resample=resample, rng=trial)
            hits[resample] += found.low <= 0 <= found.high
    assert hits["users"] / trials > 0.89
    assert hits["hierarchical"] >= hits["users"]


def test_seeds_are_averaged_and_seed_variance_widens() -> None:
    rng = np.random.default_rng(4)
    shift = [0.0, 0.4, -0.2, 0.6]
    reference = [_per_user(rng.normal(size=200)) for _ in shift]
    method = [
        _per_user(r.values + s + rng.normal(0, 0.1, 200))
        for r, s in zip(reference, shift, strict=True)
    ]
    plain, wide = (compare(method, reference, resample=r) for r in ("users", "hierarchical"))
    means = [m.mean - r.mean for m, r in zip(method, reference, strict=True)]
    assert plain.difference == wide.difference == pytest.approx(np.mean(means))
    assert wide.high - wide.low > 5 * (plain.high - plain.low)
    assert (plain.n_users, plain.n_seeds) == (200, 4)


def test_users_are_matched_by_id() -> None:
    a = PerUser(np.array(["amy", "bob", "zoe"], object), np.array([1.0, 2.0, 3.0]))
    b = PerUser(np.array(["bob", "eve", "zoe"], object), np.array([1.5, 9.0, 3.5]))
    found = compare([a], [b])
    assert found.n_users == 2
    assert found.difference == 0.0


def test_one_seed_one_result() -> None:
    rng = np.random.default_rng(5)
    a, b = [_per_user(rng.normal(size=50))], [_per_user(rng.normal(size=50))]
    assert compare(a, b, rng=7) == compare(a, b, rng=7)
    assert compare(a, b, rng=7) != compare(a, b, rng=8)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@example([0.03, 0.031])  # the second is within 0.05 alone, but stands behind one that is not
def test_holm_rejects_what_its_definition_rejects(p) -> None:
    adjusted = holm(np.array(p))
    for alpha in (0.01, 0.05, 0.2):
        rejected, left = set(), len(p)
        for j in np.argsort(p, kind="stable"):
            if p[j] * left > alpha:
                break
            rejected.add(int(j))
            left -= 1
        assert set(np.flatnonzero(adjusted <= alpha).tolist()) == rejected


def test_unsound_tables_are_refused(refusal) -> None:
    one, other = [_per_user(np.zeros(3))], [PerUser(np.array([7, 8]), np.zeros(2))]
    refusal(lambda: compare_all({"a": one}, "a"), "a")
    refusal(lambda: compare_all({"a": one, "b": one}, "c"), "'c'")
    refusal(lambda: compare(one, one * 2), "seeds")
    refusal(lambda: compare(one, other), "no user")
    refusal(lambda: compare(one, one, resample="rows"), "rows")
    refusal(lambda: compare(one, one, replicates=10), "10")


def test_equal_sizes_give_the_textbook_interval() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = mean_interval(PerUser(np.arange(50), values))
    assert found.value == pytest.approx(values.mean())
    assert found.standard_error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    assert found.high - found.value == pytest.approx(1.959964 * found.standard_error, rel=1e-6)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_sizes_make_it_a_mean_over_rows_that_covers_the_truth() -> None:
    """True ratio: E[size·value]/E[size], with sizes that go along with values."""
    rng, hits, trials = np.random.default_rng(1), 0, 600
    for _ in range(trials):
        size = rng.integers(1, 10, 80).astype(float)
        values = 0.1 * size + rng.normal(size=80)
        found = mean_interval(PerUser(np.arange(80), values, size), 0.9)
        hits += (
            found.low <= 0.1 * (np.arange(1, 10) ** 2).sum() / np.arange(1, 10).sum() <= found.high
        )
    assert 0.86 < hits / trials < 0.94


def test_one_user_or_none_has_no_interval() -> None:
    assert np.isnan(mean_interval(PerUser(np.array([3]), np.array([0.5]))).low)
    assert np.isnan(PerUser(np.array([], int), np.array([])).mean)


def test_shapes_and_levels_are_checked(refusal) -> None:
    refusal(lambda: PerUser(np.arange(2), np.arange(3)), "one length")
    refusal(lambda: mean_interval(PerUser(np.arange(2), np.arange(2)), 95), "95")


def test_two_runs_of_one_method_rarely_differ_and_would_without_seeds_in_the_interval() -> None:
    """Training noise moves every user a little, the same way within a seed: the interval must count
    it."""
    rng, users = np.random.default_rng(0), np.arange(150)
    wrong = {"hierarchical": 0, "users": 0}
    for _ in range(250):
        people = rng.normal(0.7, 0.1, 150)
        runs = [
            [
                PerUser(users, people + rng.normal(0, 0.012) + rng.normal(0, 0.05, 150))
                for _ in range(4)
            ]
            for _ in "ab"
        ]
        for kind in wrong:
            found = compare(*runs, resample=kind, replicates=400)
            wrong[kind] += found.verdict != "ties"
    assert wrong["hierarchical"] <= 0.06 * 250 + 2.3 * np.sqrt(0.06 * 0.94 * 250)
    assert wrong["users"] > 0.25 * 250


def test_more_seeds_than_one_widen_the_interval_and_one_is_users_only() -> None:
    rng, users = np.random.default_rng(0), np.arange(80)
    runs = [
        [PerUser(users, rng.normal(0.7 + shift, 0.1, 80)) for shift in (0.0, 0.1, -0.1)]
        for _ in "ab"
    ]
    wide, narrow = (compare(*runs, resample=kind) for kind in ("hierarchical", "users"))
    assert wide.high - wide.low > narrow.high - narrow.low
    one, same = (
        compare(runs[0][:1], runs[1][:1], resample=kind) for kind in ("hierarchical", "users")
    )
    assert (one.low, one.high) == (same.low, same.high)

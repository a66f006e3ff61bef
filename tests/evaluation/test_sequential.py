"""The sequential test: capital by hand, its level under continuous looking, and how soon it
ends."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from puidrec.evaluation.sequential import BETS, settle


def test_capital_is_the_mean_over_bets_by_hand() -> None:
    value = np.array([0.5, -0.2, 0.9])
    found = settle(value)
    expected = [
        max(np.prod(1 + np.outer(BETS, sign * value[:n]), axis=1).mean() for sign in (1, -1))
        for n in (1, 2, 3)
    ]
    assert found.evidence == pytest.approx(expected)
    assert (found.leader, found.n, found.difference) == (None, 3, pytest.approx(0.4))


def test_looking_after_every_rating_keeps_the_level() -> None:
    """400 streams without a difference, skewed ones, looked at 2,000 times each; a t-test would
    fail in a third."""
    rng, wrong, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        value = np.where(rng.random(2_000) < 0.1, 0.9, -0.1)
        wrong += settle(value).leader is not None
        mean = np.cumsum(value) / np.arange(1, 2_001)
        spread = np.maximum(np.cumsum(value**2) / np.arange(1, 2_001) - mean**2, 1e-9)
        error = np.sqrt(spread / np.arange(1, 2_001))
        naive += (np.abs(mean[50:]) > 1.96 * error[50:]).any()
    assert wrong <= 0.05 * 400 + 2.3 * np.sqrt(0.05 * 0.95 * 400)
    assert naive > 0.25 * 400  # what looking does to a test made for one look


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_difference_is_settled_within_a_few_times_the_fixed_size(sign: float) -> None:
    rng, mean, sd = np.random.default_rng(1), 0.05, 0.2
    fixed = (
        (stats.norm.isf(0.025) + stats.norm.isf(0.5)) * sd / mean
    ) ** 2  # half of all tests of this size decide
    found = [settle(np.clip(rng.normal(sign * mean, sd, 3_000), -1, 1)) for _ in range(60)]
    assert {row.leader for row in found} == {"model" if sign > 0 else "against"}
    sizes = [row.settled_after for row in found]
    assert fixed < np.median(sizes) < 6 * fixed


def test_what_is_still_needed_is_about_right() -> None:
    rng = np.random.default_rng(2)
    streams = [np.clip(rng.normal(0.04, 0.25, 6_000), -1, 1) for _ in range(40)]
    early = [settle(stream[:100]) for stream in streams]
    guessed = [row.more_needed for row in early if row.more_needed]
    truly = np.median([settle(stream).settled_after for stream in streams])
    assert 0.2 * truly < np.median(guessed) < 5.0 * truly
    assert "about" in early[0].sentence or "settled" in early[0].sentence.lower()
    assert settle(streams[0]).more_needed == 0


def test_no_difference_at_all_has_no_end_in_sight() -> None:
    found = settle(np.zeros(50))
    assert (found.leader, found.more_needed, found.difference) == (None, None, 0.0)
    assert "no end is in sight" in found.sentence


def test_ratings_of_one_user_that_come_together_count_once() -> None:
    value, user = np.tile([0.3, -0.1], 50), np.repeat(np.arange(25), 4)
    found = settle(value, user)
    assert (found.n, found.n_units) == (100, 25)
    assert found.evidence == pytest.approx(settle(np.full(25, 0.1)).evidence)
    alike = settle(np.repeat([0.5], 200), np.zeros(200, int))
    assert alike.leader is None  # 200 ratings of one user are one observation


@pytest.mark.parametrize(
    "call",
    [
        {"difference": np.zeros(0)},
        {"difference": np.array([0.0, 1.5])},
        {"difference": np.array([np.nan])},
        {"difference": np.zeros(3), "user": np.zeros(2)},
        {"difference": np.zeros(3), "alpha": 0.0},
    ],
)
def test_mistakes_are_refused(call, refusal) -> None:
    refusal(lambda: settle(**call))

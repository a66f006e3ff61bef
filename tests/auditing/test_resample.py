"""Bands over users."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing.envelope import ENVELOPES, KINDS, Pairs
from puidrec.auditing.resample import Users, band, contributions
from puidrec.evaluation.significance import resampled_sums
from puidrec.rng import generator


def users_rows(rng: np.random.Generator, n_users: int) -> tuple[Pairs, np.ndarray]:
    user = np.repeat(np.arange(n_users), 5)
    z = rng.normal(0.2, 0.4, n_users)[user] + rng.normal(0, 1, user.size)
    return Pairs(z, rng.uniform(0.1, 0.6, user.size), (user % 2).astype(np.int64)), user


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_contributions_add_up_to_the_envelope(kind: str, end: str) -> None:
    pairs, _ = users_rows(np.random.default_rng(0), 60)
    for gamma in (1.0, 1.7, np.random.default_rng(1).uniform(1, 3, pairs.value.size)):
        top, bottom = contributions(pairs, kind, gamma, end)
        assert top.sum() / bottom.sum() == pytest.approx(getattr(ENVELOPES[kind](pairs, gamma), end), abs=1e-10)


@pytest.mark.parametrize("kind", ["normalised", "sharp"])
def test_kept_thresholds_are_as_good_as_sorting_every_replicate(kind: str) -> None:
    rng = np.random.default_rng(3)
    pairs, _ = users_rows(rng, 300)
    gaps, spread = [], []
    top, bottom = contributions(pairs, kind, 2.0, "high")
    for _ in range(40):
        drawn = rng.integers(0, 300, 300)
        rows = (drawn[:, None] * 5 + np.arange(5)).ravel()
        again = ENVELOPES[kind](Pairs(pairs.value[rows], pairs.propensity[rows], pairs.stratum[rows]), 2.0).high
        gaps.append(top[rows].sum() / bottom[rows].sum() - again)
        spread.append(again)
    assert np.abs(gaps).max() < 0.1 * np.std(spread)
    if kind == "sharp":
        assert min(gaps) > -1e-12  # the dual errs outwards


@pytest.mark.parametrize("kind", KINDS)
def test_bands_cover_the_envelope_of_the_population(kind: str) -> None:
    rng = np.random.default_rng(5)
    large, _ = users_rows(rng, 60_000)
    true = [ENVELOPES[kind](large, gamma) for gamma in (1.0, 2.0)]
    held = []
    for seed in range(150):
        pairs, user = users_rows(rng, 150)
        found = band(pairs, kind, [1.0, 2.0], user, replicates=150, rng=seed)
        held.append([found.low[j] <= true[j].low and true[j].high <= found.high[j] for j in range(2)])
    share = np.mean(held, axis=0)
    assert 0.88 <= share[0] <= 0.99
    assert share[1] >= 0.88


def test_users_are_drawn_whole() -> None:
    sums = Users.of(np.array([7, 3, 7, 9])).sums(np.array([1.0, 10.0, 2.0, 100.0]))
    np.testing.assert_array_equal(sums[:, 0], [10.0, 3.0, 100.0])
    totals = resampled_sums(sums, 500, generator(0, "x"))[:, 0]
    assert totals.mean() == pytest.approx(113.0, rel=0.1)
    assert set(totals) <= {a * 10 + b * 3 + c * 100 for a in range(4) for b in range(4) for c in range(4)}


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.arange(20.0)[:, None]
    whole = resampled_sums(sums, 30, generator(1, "x"))
    monkeypatch.setattr("puidrec.evaluation.significance.CHUNK", 100)
    np.testing.assert_array_equal(whole, resampled_sums(sums, 30, generator(1, "x")))

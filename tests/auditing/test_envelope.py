"""Envelopes against linear and linear-fractional programs, each other, and a known truth; bands
over users."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.auditing.envelope import (
    ENVELOPES,
    KINDS,
    Interval,
    Pairs,
    band,
    box,
    gamma_grid,
    normalised,
    over_grid,
    sharp,
    sharp_by_stratum,
    sums_of_users,
)
from puidrec.auditing.estimates import sums_by_user
from puidrec.data.synthetic import Truth, simulation_options
from puidrec.evaluation.significance import resampled_sums
from puidrec.exposure.bounds import bounds
from puidrec.rng import generator


def draw_pairs(seed: int, n: int, strata: int = 3, ties: bool = False) -> Pairs:
    """Random pairs."""
    rng = np.random.default_rng(seed)
    z = np.round(rng.normal(0, 1, n), 1 if ties else 16)
    p = rng.uniform(0.05, 1.0, n)
    p[rng.random(n) < 0.1] = 1.0  # seen for certain: no unseen pair like it
    return Pairs(z, p, rng.integers(0, strata, n))


def program(pairs: Pairs, gamma: np.ndarray | float, kind: str) -> Interval:
    """The same by a solver that knows nothing of sorting."""
    limits = bounds(pairs.propensity, gamma)
    total = (1.0 / pairs.propensity).sum()
    n, z = pairs.value.size, pairs.value
    ends = []
    for sign in (1.0, -1.0):
        if kind == "normalised":  # Charnes & Cooper: y = t w, Σ y = 1, a t <= y <= b t
            matrix = np.block([[np.eye(n), -limits.b[:, None]], [-np.eye(n), limits.a[:, None]]])
            equal = np.append(np.ones(n), 0.0)[None]
            found = linprog(
                np.append(sign * z, 0.0),
                matrix,
                np.zeros(2 * n),
                equal,
                [1.0],
                bounds=[(None, None)] * n + [(0, None)],
            )
            ends.append(sign * found.fun)
            continue
        more = {}
        if kind == "sharp":
            member = (pairs.stratum == np.arange(pairs.stratum.max() + 1)[:, None]).astype(float)
            more = {"A_eq": member, "b_eq": member @ (1.0 / pairs.propensity)}
        found = linprog(sign * z / total, bounds=np.stack([limits.a, limits.b], 1), **more)
        ends.append(sign * found.fun)
    return Interval(*ends)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 25), gamma=st.floats(1.0, 8.0), ties=st.booleans()
)
def test_equal_to_a_linear_program(kind: str, seed: int, n: int, gamma: float, ties: bool) -> None:
    pairs = draw_pairs(seed, n, ties=ties)
    found, expected = ENVELOPES[kind](pairs, gamma), program(pairs, gamma, kind)
    np.testing.assert_allclose(
        [found.low, found.high], [expected.low, expected.high], rtol=0, atol=1e-8
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), gamma=st.floats(1.0, 20.0))
def test_sharp_lies_in_the_others_and_all_hold_the_point(seed: int, n: int, gamma: float) -> None:
    pairs = draw_pairs(seed, n)
    inner = sharp(pairs, gamma)
    assert inner.low - 1e-12 <= pairs.point <= inner.high + 1e-12
    for outer in (normalised(pairs, gamma), box(pairs, gamma)):
        assert outer.low <= inner.low + 1e-12
        assert inner.high <= outer.high + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_at_one_it_is_the_point_estimate_and_then_it_only_widens(kind: str) -> None:
    pairs = draw_pairs(3, 400)
    weighted = np.average(pairs.value, weights=1.0 / pairs.propensity)
    curve = over_grid(pairs, kind, gamma_grid(9.0))
    np.testing.assert_allclose([curve.low[0], curve.high[0]], weighted, rtol=0, atol=1e-12)
    assert (np.diff(curve.low) < 0).all()
    assert (np.diff(curve.high) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_does_not_matter_and_swapping_the_models_mirrors_it(kind: str) -> None:
    pairs = draw_pairs(7, 200, ties=True)
    order = np.random.default_rng(0).permutation(200)
    shuffled = Pairs(pairs.value[order], pairs.propensity[order], pairs.stratum[order])
    mirrored = Pairs(-pairs.value, pairs.propensity, pairs.stratum)
    straight, other, swapped = (ENVELOPES[kind](one, 2.0) for one in (pairs, shuffled, mirrored))
    np.testing.assert_allclose(
        [straight.low, straight.high], [other.low, other.high], rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        [straight.low, straight.high], [-swapped.high, -swapped.low], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("levels", [np.array([0.0, 1.0]), np.linspace(0.0, 1.0, 5)])
@pytest.mark.parametrize("gamma", [1.0, 1.4, 3.0])
def test_sharp_is_the_interval_of_the_unseen_mean(levels: np.ndarray, gamma: float) -> None:
    """One stratum, one propensity, z the rating: the quantile form of the docstring."""
    rating = np.random.default_rng(2).choice(levels, 500)
    p = 0.1
    share = np.array([(rating == level).mean() for level in levels])
    ratios = {"A_eq": share[None], "b_eq": [1.0], "bounds": [(1 / gamma, gamma)] * levels.size}
    low, high = (sign * linprog(sign * share * levels, **ratios).fun for sign in (1, -1))
    found = sharp(Pairs(rating, np.full(500, p)), gamma)
    seen = p * rating.mean()
    np.testing.assert_allclose(
        [found.low, found.high], [seen + 0.9 * low, seen + 0.9 * high], rtol=0, atol=1e-9
    )
    if levels.size == 2:
        q = rating.mean()  # the closed form of two levels
        ends = max(q / gamma, 1.0 - gamma * (1.0 - q)), min(gamma * q, 1.0 - (1.0 - q) / gamma)
        np.testing.assert_allclose([low, high], ends, rtol=0, atol=1e-9)


def test_the_gap_of_two_models_depends_on_the_unseen_mean_alone() -> None:
    """With predictions that are constant in a stratum, the gap's envelope is linear in the ends of
    E[r | unseen]."""
    rating = np.random.default_rng(4).choice(np.linspace(0, 1, 5), 400)
    a, b, gamma = 0.7, 0.4, 2.0
    mean = sharp(Pairs(rating, np.full(400, 0.2)), gamma)
    gap = sharp(Pairs((b - rating) ** 2 - (a - rating) ** 2, np.full(400, 0.2)), gamma)
    linear = [b**2 - a**2 + 2.0 * (a - b) * m for m in (mean.low, mean.high)]
    np.testing.assert_allclose([gap.low, gap.high], linear, rtol=0, atol=1e-12)


def test_the_loss_cannot_exceed_the_largest_loss_where_it_is_sharp() -> None:
    pairs = Pairs(np.random.default_rng(0).integers(0, 2, 100).astype(float), np.full(100, 0.05))
    assert sharp(pairs, 50.0).high <= 1.0
    assert normalised(pairs, 50.0).high <= 1.0
    assert box(pairs, 50.0).high > 5.0


def test_every_stratum_on_its_own() -> None:
    pairs = draw_pairs(11, 90, strata=4)
    parts = sharp_by_stratum(pairs, 2.3)
    for s in range(4):
        inside = pairs.stratum == s
        alone = sharp(Pairs(pairs.value[inside], pairs.propensity[inside]), 2.3)
        np.testing.assert_allclose(
            [parts.low[s], parts.high[s]], [alone.low, alone.high], rtol=0, atol=1e-12
        )


def test_a_stratum_without_pairs_changes_nothing() -> None:
    pairs = draw_pairs(12, 60, strata=3)
    spread = Pairs(pairs.value, pairs.propensity, pairs.stratum * 5 + 1)
    assert sharp(spread, 2.0).low == pytest.approx(sharp(pairs, 2.0).low, abs=1e-12)
    assert np.isnan(sharp_by_stratum(spread, 2.0).low[0])


@pytest.mark.parametrize("world", ["mixed", "pair", "entity", "proportional"])
def test_the_truth_lies_in_the_sharp_envelope_at_the_true_gamma(world: str) -> None:
    """50 logs of each world (200 in all): nominal propensities, the true Γ, a model of features
    only."""
    truth = Truth.from_options(simulation_options(world, 60, 60, rng=1, density=0.15, n_uniform=0))
    user, item = (axis.ravel() for axis in np.indices((60, 60)))
    rating, predicted = ((r(user, item) - 1.0) / 4.0 for r in (truth.rating, truth.expected_rating))
    loss = (predicted - rating) ** 2
    nominal, exposed, own = (
        f(user, item) for f in (truth.propensity, truth.true_propensity, truth.gamma)
    )
    rng = np.random.default_rng(0)
    held, too_weak = [], []
    for _ in range(50):
        seen = rng.random(user.size) < exposed
        stratum = np.digitize(predicted[seen], np.quantile(predicted[seen], [0.33, 0.67]))
        for z in (loss, rating):
            pairs = Pairs(z[seen], nominal[seen], stratum)
            found, widest = (kind(pairs, float(own.max())) for kind in (sharp, box))
            held.append(found.low <= z.mean() <= found.high)
            assert found.high - found.low < widest.high - widest.low
        weak = sharp(pairs, 1.02)  # of the mean rating, which confounding moves most
        too_weak.append(weak.low <= z.mean() <= weak.high)
    assert np.reshape(held, (50, 2)).mean(axis=0).min() >= 0.95
    assert np.mean(too_weak) < 0.2  # an envelope that held everything would prove nothing


@pytest.mark.parametrize("limit", [1.0, 0.5, np.inf, np.nan, 1e7])
def test_limits_out_of_range_are_refused(refusal, limit: float) -> None:
    refusal(lambda: gamma_grid(limit), "limit")


def users_rows(rng: np.random.Generator, n_users: int) -> tuple[Pairs, np.ndarray]:
    user = np.repeat(np.arange(n_users), 5)
    z = rng.normal(0.2, 0.4, n_users)[user] + rng.normal(0, 1, user.size)
    return Pairs(z, rng.uniform(0.1, 0.6, user.size), (user % 2).astype(np.int64)), user


def contributions(pairs: Pairs, kind: str, gamma: float, end: str) -> tuple[np.ndarray, np.ndarray]:
    """Of every row: each is a user of its own."""
    rows = np.arange(pairs.value.size)
    return sums_of_users(pairs, kind, np.array([gamma]), rows, end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_sums_of_users_are_those_of_their_rows(kind: str, end: str) -> None:
    pairs, user = users_rows(np.random.default_rng(1), 40)
    grid = np.array([1.0, 1.3, 2.0, 5.0])
    found = sums_of_users(pairs, kind, grid, user + 7, end)
    for j, gamma in enumerate(grid):
        for by_user, by_row in zip(found, contributions(pairs, kind, gamma, end), strict=True):
            np.testing.assert_allclose(
                by_user[:, min(j, by_user.shape[1] - 1)],
                np.bincount(user, by_row[:, 0]),
                rtol=1e-12,
                atol=1e-12,
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_contributions_add_up_to_the_envelope(kind: str, end: str) -> None:
    pairs, _ = users_rows(np.random.default_rng(0), 60)
    for gamma in (1.0, 1.7, 3.0):
        top, bottom = contributions(pairs, kind, gamma, end)
        assert top.sum() / bottom.sum() == pytest.approx(
            getattr(ENVELOPES[kind](pairs, gamma), end), abs=1e-10
        )


@pytest.mark.parametrize("kind", ["normalised", "sharp"])
def test_kept_thresholds_are_as_good_as_sorting_every_replicate(kind: str) -> None:
    rng = np.random.default_rng(3)
    pairs, _ = users_rows(rng, 300)
    gaps, spread = [], []
    top, bottom = contributions(pairs, kind, 2.0, "high")
    for _ in range(40):
        drawn = rng.integers(0, 300, 300)
        rows = (drawn[:, None] * 5 + np.arange(5)).ravel()
        again = ENVELOPES[kind](
            Pairs(pairs.value[rows], pairs.propensity[rows], pairs.stratum[rows]), 2.0
        ).high
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
        found = band(pairs, kind, np.array([1.0, 2.0]), user, 150, rng=seed)
        held.append(
            [found.low[j] <= true[j].low and true[j].high <= found.high[j] for j in range(2)]
        )
    share = np.mean(held, axis=0)
    assert 0.88 <= share[0] <= 0.99
    assert share[1] >= 0.88


def test_users_are_drawn_whole() -> None:
    sums = sums_by_user(np.array([7, 3, 7, 9]), np.array([1.0, 10.0, 2.0, 100.0]))
    np.testing.assert_array_equal(sums[:, 0], [10.0, 3.0, 100.0])
    totals = resampled_sums(sums, 500, generator(0, "x"))[:, 0]
    assert totals.mean() == pytest.approx(113.0, rel=0.1)
    assert set(totals) <= {
        a * 10 + b * 3 + c * 100 for a in range(4) for b in range(4) for c in range(4)
    }


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.arange(20.0)[:, None]
    whole = resampled_sums(sums, 30, generator(1, "x"))
    monkeypatch.setattr("puidrec.evaluation.significance.CHUNK", 100)
    np.testing.assert_array_equal(whole, resampled_sums(sums, 30, generator(1, "x")))

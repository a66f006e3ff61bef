"""Envelopes against linear and linear-fractional programs, against each other, and against a known truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.auditing import ladder
from puidrec.auditing.envelope import (
    ENVELOPES,
    KINDS,
    Interval,
    Pairs,
    box,
    gamma_grid,
    normalised,
    over_grid,
    over_kappa,
    sharp,
    sharp_by_stratum,
)
from puidrec.data.synthetic import Truth, simulation_options
from puidrec.objective.sharp import histogram_interval, unseen_interval
from puidrec.sensitivity.bounds import bounds


def draw_pairs(seed: int, n: int, strata: int = 3, ties: bool = False) -> tuple[Pairs, np.ndarray]:
    """Random pairs, and a Γ per pair."""
    rng = np.random.default_rng(seed)
    z = np.round(rng.normal(0, 1, n), 1 if ties else 16)
    p = rng.uniform(0.05, 1.0, n)
    p[rng.random(n) < 0.1] = 1.0  # seen for certain: no unseen pair like it
    return Pairs(z, p, rng.integers(0, strata, n)), rng.uniform(1.0, 3.0, n)


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
                np.append(sign * z, 0.0), matrix, np.zeros(2 * n), equal, [1.0], bounds=[(None, None)] * n + [(0, None)]
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
@pytest.mark.parametrize("personal", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 25), gamma=st.floats(1.0, 8.0), ties=st.booleans())
def test_equal_to_a_linear_program(kind: str, personal: bool, seed: int, n: int, gamma: float, ties: bool) -> None:
    pairs, own = draw_pairs(seed, n, ties=ties)
    strength = own if personal else gamma
    found, expected = ENVELOPES[kind](pairs, strength), program(pairs, strength, kind)
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=0, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), gamma=st.floats(1.0, 20.0))
def test_sharp_lies_in_the_others_and_all_hold_the_point(seed: int, n: int, gamma: float) -> None:
    pairs, own = draw_pairs(seed, n)
    for strength in (gamma, own):
        inner = sharp(pairs, strength)
        assert inner.low - 1e-12 <= pairs.point <= inner.high + 1e-12
        for outer in (normalised(pairs, strength), box(pairs, strength)):
            assert outer.low <= inner.low + 1e-12
            assert inner.high <= outer.high + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_at_one_it_is_the_point_estimate_and_then_it_only_widens(kind: str) -> None:
    pairs, own = draw_pairs(3, 400)
    weighted = np.average(pairs.value, weights=1.0 / pairs.propensity)
    for curve in (
        over_grid(pairs, kind, gamma_grid(9.0)),
        over_kappa(pairs, np.log(own), np.linspace(0.0, 3.0, 20))[kind],
    ):
        np.testing.assert_allclose([curve.low[0], curve.high[0]], weighted, rtol=0, atol=1e-12)
        assert (np.diff(curve.low) < 0).all()
        assert (np.diff(curve.high) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_kappa_is_a_power_of_every_gamma(kind: str) -> None:
    pairs, own = draw_pairs(4, 300)
    curve = over_kappa(pairs, np.log(own), np.array([0.0, 0.7, 2.0]))[kind]
    for k, kappa in enumerate((0.0, 0.7, 2.0)):
        alone = ENVELOPES[kind](pairs, own**kappa)
        np.testing.assert_allclose([curve.low[k], curve.high[k]], [alone.low, alone.high], rtol=0, atol=1e-12)


@pytest.mark.parametrize("part", [1, 7, 90, 300])
def test_parts_of_any_size_give_the_same(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 pairs in strata of all sizes, empty ones among them, cut where strata begin, end, and go on."""
    pairs, own = draw_pairs(6, 300)
    pairs = Pairs(pairs.value, pairs.propensity, np.sort(np.random.default_rng(0).geometric(0.4, 300)) * 2)
    whole = [ENVELOPES[kind](pairs, own) for kind in KINDS]
    monkeypatch.setattr(ladder, "PART", part)
    for kind, expected in zip(KINDS, whole, strict=True):
        found = ENVELOPES[kind](pairs, own)
        np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_gamma_is_the_same_gamma_for_every_pair(kind: str) -> None:
    pairs, _ = draw_pairs(5, 300)
    one, many = ENVELOPES[kind](pairs, 2.5), ENVELOPES[kind](pairs, np.full(300, 2.5))
    np.testing.assert_allclose([one.low, one.high], [many.low, many.high], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_does_not_matter_and_swapping_the_models_mirrors_it(kind: str) -> None:
    pairs, own = draw_pairs(7, 200, ties=True)
    order = np.random.default_rng(0).permutation(200)
    shuffled = Pairs(pairs.value[order], pairs.propensity[order], pairs.stratum[order])
    mirrored = Pairs(-pairs.value, pairs.propensity, pairs.stratum)
    for strength, moved in ((2.0, 2.0), (own, own[order])):
        straight = ENVELOPES[kind](pairs, strength)
        other = ENVELOPES[kind](shuffled, moved)
        np.testing.assert_allclose([straight.low, straight.high], [other.low, other.high], rtol=0, atol=1e-12)
        swapped = ENVELOPES[kind](mirrored, strength)
        np.testing.assert_allclose([straight.low, straight.high], [-swapped.high, -swapped.low], rtol=0, atol=1e-12)


def test_the_plain_ips_mean_divides_by_the_size_of_the_population() -> None:
    pairs, _ = draw_pairs(1, 50)
    plain = box(Pairs(pairs.value, pairs.propensity, total=1000.0), 1.0)
    assert plain.low == pytest.approx((pairs.value / pairs.propensity).sum() / 1000.0, abs=1e-12)


@pytest.mark.parametrize("levels", [np.array([0.0, 1.0]), np.linspace(0.0, 1.0, 5)])
@pytest.mark.parametrize("gamma", [1.0, 1.4, 3.0])
def test_sharp_is_the_interval_of_the_unseen_mean(levels: np.ndarray, gamma: float) -> None:
    """One stratum, one propensity, z the rating: exactly the bounds that the sharp methods train with."""
    rating = np.random.default_rng(2).choice(levels, 500)
    p = 0.1
    counts = torch.tensor([[(rating == level).sum() for level in levels]])
    low, high = (float(end[0]) for end in histogram_interval(counts, torch.from_numpy(levels), gamma))
    found = sharp(Pairs(rating, np.full(500, p)), gamma)
    seen = p * rating.mean()
    np.testing.assert_allclose([found.low, found.high], [seen + 0.9 * low, seen + 0.9 * high], rtol=0, atol=1e-12)
    if levels.size == 2:
        ends = unseen_interval(torch.tensor(rating.mean()), gamma)
        np.testing.assert_allclose([low, high], [float(end) for end in ends], rtol=0, atol=1e-12)


def test_the_gap_of_two_models_depends_on_the_unseen_mean_alone() -> None:
    """With predictions that are constant in a stratum, the gap's envelope is linear in the ends of E[r | unseen]."""
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
    pairs, own = draw_pairs(11, 90, strata=4)
    parts = sharp_by_stratum(pairs, own)
    for s in range(4):
        inside = pairs.stratum == s
        alone = sharp(Pairs(pairs.value[inside], pairs.propensity[inside]), own[inside])
        np.testing.assert_allclose([parts.low[s], parts.high[s]], [alone.low, alone.high], rtol=0, atol=1e-12)


def test_a_stratum_without_pairs_changes_nothing() -> None:
    pairs, _ = draw_pairs(12, 60, strata=3)
    spread = Pairs(pairs.value, pairs.propensity, pairs.stratum * 5 + 1)
    assert sharp(spread, 2.0).low == pytest.approx(sharp(pairs, 2.0).low, abs=1e-12)
    assert np.isnan(sharp_by_stratum(spread, 2.0).low[0])


@pytest.mark.parametrize("world", ["mixed", "pair", "entity", "proportional"])
def test_the_truth_lies_in_the_sharp_envelope_at_the_true_gamma(world: str) -> None:
    """50 logs of each world (200 in all): nominal propensities, the true Γ, a model of features only."""
    truth = Truth.from_options(simulation_options(world, 60, 60, rng=1, density=0.15, n_uniform=0))
    user, item = (axis.ravel() for axis in np.indices((60, 60)))
    rating, predicted = ((r(user, item) - 1.0) / 4.0 for r in (truth.rating, truth.expected_rating))
    loss = (predicted - rating) ** 2
    nominal, exposed, own = (f(user, item) for f in (truth.propensity, truth.true_propensity, truth.gamma))
    rng = np.random.default_rng(0)
    held, too_weak = [], []
    for _ in range(50):
        seen = rng.random(user.size) < exposed
        stratum = np.digitize(predicted[seen], np.quantile(predicted[seen], [0.33, 0.67]))
        for z in (loss, rating):
            pairs = Pairs(z[seen], nominal[seen], stratum)
            for gamma in (float(own.max()), own[seen]):
                found = sharp(pairs, gamma)
                held.append(found.low <= z.mean() <= found.high)
                assert found.width < box(pairs, gamma).width
        weak = sharp(pairs, 1.02)  # of the mean rating, which confounding moves most
        too_weak.append(weak.low <= z.mean() <= weak.high)
    assert np.reshape(held, (50, 4)).mean(axis=0).min() >= 0.95
    assert np.mean(too_weak) < 0.2  # an envelope that held everything would prove nothing


@pytest.mark.parametrize("limit", [1.0, 0.5, np.inf, np.nan, 1e7])
def test_limits_out_of_range_are_refused(refusal, limit: float) -> None:
    refusal(lambda: gamma_grid(limit), "limit")


def test_what_cannot_be_bounded_is_refused(refusal) -> None:
    refusal(lambda: Pairs(np.array([1.0, np.nan]), np.full(2, 0.5)), "finite")
    refusal(lambda: Pairs(np.ones(2), np.array([0.5, 0.0])), "propensity")
    refusal(lambda: Pairs(np.ones(2), np.ones(3)), "one length")
    refusal(lambda: Pairs(np.ones(0), np.ones(0)), "not empty")
    refusal(lambda: over_grid(Pairs(np.ones(2), np.full(2, 0.5)), "box", np.array([0.9])), "at least 1")
    refusal(lambda: over_kappa(Pairs(np.ones(2), np.full(2, 0.5)), np.zeros(2), np.array([-1.0])), "κ")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.propensity.classes import DegreeClasses, Strata, fit_budget


def drawn(seed, n=3000, n_bins=4, offset=False):
    random = np.random.default_rng(seed)
    bins = random.integers(0, n_bins, n, dtype=np.int32)
    degree = random.poisson(np.exp(random.normal(3, 1, n)))
    strata = Strata.build(bins, n_bins, random.normal(size=n).round(1) if offset else None)
    return DegreeClasses.build(strata, degree), bins, degree


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(20, 400), st.booleans())
def test_grouping_keeps_the_totals_of_every_bin(seed, limit, offset):
    classes, bins, degree = drawn(seed, offset=offset)
    side = classes.at_most(limit).side()
    np.testing.assert_allclose(np.bincount(side.bin, weights=side.size), np.bincount(bins))
    np.testing.assert_allclose(np.bincount(side.bin, weights=side.observed), np.bincount(bins, weights=degree))


def test_the_limit_is_kept_down_to_one_class_per_stratum():
    classes, _, _ = drawn(0)
    assert classes.n_classes > 400
    assert classes.at_most(10**6).n_classes == classes.n_classes
    for limit in (200, 50, 4):
        assert classes.at_most(limit).n_classes <= limit
    assert classes.at_most(1).n_classes == 4


def test_values_return_to_entities_exactly_or_on_a_smooth_curve():
    classes, _, degree = drawn(1)
    side = classes.side()
    np.testing.assert_allclose(classes.to_entities(np.log1p(side.observed / side.size)), np.log1p(degree))
    coarse = classes.at_most(80)
    side = coarse.side()
    curve = lambda d: np.sqrt(np.log1p(d) + 1)  # noqa: E731
    found = coarse.to_entities(curve(side.observed / side.size))
    np.testing.assert_allclose(found, curve(degree), atol=0.02)


def test_budget_keeps_the_smaller_side_whole():
    large, small = drawn(2, 5000)[0], drawn(3, 60, 1)[0]
    users, items = fit_budget(large, small, 10_000)
    assert users.n_classes * items.n_classes <= 10_000
    assert items.n_classes == small.n_classes
    assert fit_budget(large, small, 10**9) == (large, small)


def test_strata_split_offsets_within_bins_and_never_equal_ones():
    random = np.random.default_rng(4)
    bins, offset = random.integers(0, 3, 900, dtype=np.int32), random.normal(size=900).round(1)
    strata = Strata.build(bins, 3, offset)
    np.testing.assert_array_equal(strata.bin[strata.of], bins)
    pairs = {}
    for key, stratum in zip(zip(bins, offset, strict=True), strata.of, strict=True):
        assert pairs.setdefault(key, stratum) == stratum
    assert np.mean((strata.offset[strata.of] - offset) ** 2) < 0.01, "means of narrow levels"
    assert np.isclose(np.average(strata.offset, weights=np.bincount(strata.of)), offset.mean())

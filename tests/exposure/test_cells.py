import numpy as np
import pytest
from scipy.special import expit

from puidrec.exposure.base import independent_rates, overdispersion, smoothed_rates
from puidrec.exposure.counts import ExposureCounts


def counted(
    rates: np.ndarray, per_user_bin: int, per_item_bin: int, seed: int = 0
) -> ExposureCounts:
    """A log drawn from cell rates, with as many users and items in every bin."""
    user_bin = np.repeat(np.arange(rates.shape[0], dtype=np.int32), per_user_bin)
    item_bin = np.repeat(np.arange(rates.shape[1], dtype=np.int32), per_item_bin)
    seen = (
        np.random.default_rng(seed).random((user_bin.size, item_bin.size))
        < rates[np.ix_(user_bin, item_bin)]
    )
    return ExposureCounts.from_pairs(*np.nonzero(seen), user_bin, item_bin)


def additive(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return expit(random.normal(-2, 0.5, rows)[:, None] + random.normal(0, 0.5, columns))


def test_expects_as_many_pairs_as_were_seen():
    for counts in (counted(additive(5, 4), 10, 10), counted(additive(5, 4).round(1), 30, 30)):
        for rates in (independent_rates(counts), smoothed_rates(counts)[0]):
            assert (rates * counts.pairs).sum() == pytest.approx(counts.n_observed, rel=1e-9)


def test_independent_rates_know_rows_and_columns_only():
    counts = counted(additive(3, 4), 50, 40)
    rates = independent_rates(counts)
    np.testing.assert_allclose(
        (rates * counts.pairs).sum(axis=1), counts.cells.sum(axis=1), rtol=0.05
    )
    log_odds = np.log(rates / (1 - rates))
    np.testing.assert_allclose(np.diff(np.diff(log_odds, axis=0), axis=1), 0, atol=1e-9)


def test_auto_ignores_cells_that_differ_by_chance_and_trusts_those_that_differ():
    rates = additive(8, 8)
    by_chance = [
        overdispersion(c, independent_rates(c))
        for seed in range(20)
        for c in [counted(rates, 30, 20, seed)]
    ]
    assert np.median(by_chance) < 5e-4, "of order 1 / pairs of a cell at most"
    mixed = expit(
        np.log(rates / (1 - rates)) + np.random.default_rng(1).normal(0, 1.0, rates.shape)
    )
    counts = counted(mixed, 30, 20)
    found, k = smoothed_rates(counts)
    assert k < counts.pairs[0, 0], "a cell of its own weighs more than the prior"
    assert np.mean((found - mixed) ** 2) < 0.2 * np.mean((independent_rates(counts) - mixed) ** 2)


def test_smoothing_is_near_the_best_fixed_one():
    rates = additive(12, 12)
    truth = expit(
        np.log(rates / (1 - rates)) + np.random.default_rng(2).normal(0, 0.3, rates.shape)
    )
    fixed, chosen = dict.fromkeys((0, 100, 1000, 1e12), 0.0), 0.0
    for seed in range(10):
        counts = counted(truth, 15, 12, seed)
        chosen += np.mean((smoothed_rates(counts)[0] - truth) ** 2)
        for k in fixed:
            found = (counts.cells + k * independent_rates(counts)) / (counts.pairs + k)
            fixed[k] += np.mean((found - truth) ** 2)
    assert chosen < 1.1 * min(fixed.values())
    assert chosen < 0.8 * fixed[0]


def test_empty_and_full_cells_stay_inside_the_unit_interval():
    for fill, part in ((0.0, 0), (1.0, 0), (1.0, slice(None))):
        rates = additive(3, 3)
        rates[part] = fill
        found, _ = smoothed_rates(counted(rates, 10, 10))
        assert ((found > 0) & (found < 1)).all()


def test_a_bin_code_that_nobody_has_does_not_spoil_the_others():
    user_bin = np.array([0, 0, 2, 2], np.int32)
    counts = ExposureCounts.from_pairs(
        np.array([0, 2, 3]), np.array([0, 1, 1]), user_bin, np.array([0, 1, 1], np.int32)
    )
    rates, _ = smoothed_rates(counts)
    assert np.isfinite(rates).all()

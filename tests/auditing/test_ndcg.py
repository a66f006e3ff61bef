"""The range of NDCG: against linear programs on every piece of the ideal list, random weights, and the metric."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linprog

from puidrec.auditing.ndcg import LikedRows
from puidrec.auditing.ranks import rank_credits
from puidrec.evaluation.ndcg import discounts


def lowest(c: np.ndarray, a: np.ndarray, b: np.ndarray, k: int) -> float:
    """Minimise Σwc / I(Σw) over the box: a linear-fractional program (Dinkelbach) on every linear piece of I."""
    ideal, best = discounts(k), np.inf
    for piece in range(k + 1):
        slope = ideal[piece + 1] - ideal[piece] if piece < k else 0.0
        box = {
            "A_ub": np.stack([np.ones_like(a), -np.ones_like(a)]), "b_ub": [piece + 1 if piece < k else 1e9, -piece],
            "bounds": np.stack([a, b], 1),
        }  # fmt: skip
        found = linprog(np.zeros_like(a), **box)
        if found.status != 0:
            continue
        w = found.x
        for _ in range(60):
            level = (w @ c) / (ideal[piece] + slope * (w.sum() - piece))
            w = linprog(c - level * slope, **box).x
        best = min(best, level)
    return best


@pytest.mark.parametrize("seed", range(25))
def test_both_ends_are_those_of_linear_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k, gamma, scale = int(rng.integers(1, 6)), int(rng.integers(1, 6)), rng.uniform(1, 4), rng.uniform(0.1, 1.5)
    c, odds = 0.1 * rng.normal(size=n), rng.uniform(0.2, 6, n)
    rows = LikedRows.of(np.append(np.full(n, 7), 2), np.append(c, 0.1), np.append(odds, 1.0), scale, k)
    a, b = scale * (1 + odds / gamma), scale * (1 + odds * gamma)
    assert rows.extreme(gamma, "low")[1] == pytest.approx(np.clip(lowest(c, a, b, k), -1, 1), abs=1e-7)
    assert rows.extreme(gamma, "high")[1] == pytest.approx(np.clip(-lowest(-c, a, b, k), -1, 1), abs=1e-7)


def test_no_weights_within_gamma_leave_the_range() -> None:
    rng = np.random.default_rng(0)
    c, odds, k, scale, gamma = 0.1 * rng.normal(size=6), rng.uniform(0.2, 6, 6), 4, 0.3, 2.5
    rows = LikedRows.of(np.zeros(6, int), c, odds, scale, k)
    low, high = rows.extreme(gamma, "low")[0], rows.extreme(gamma, "high")[0]
    w = scale * (1 + odds * rng.uniform(1 / gamma, gamma, (20_000, 6)))
    values = (w @ c) / np.interp(w.sum(axis=1), np.arange(k + 1), discounts(k))
    assert low <= values.min()
    assert values.max() <= high
    assert values.max() - values.min() > 0.6 * (high - low)


def test_where_all_is_seen_it_is_the_metric_whatever_gamma_is() -> None:
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(1)
    scores, label = rng.normal(size=(20, 12)), rng.integers(0, 2, (20, 12))
    label[:, 0] = 1
    user, item = np.nonzero(label)
    credit = rank_credits(scores, 5)[user, item]
    rows = LikedRows.of(user, credit, np.zeros(user.size), 1.0, 5)
    expected = [ndcg_score(label[[u]], scores[[u]], k=5) for u in range(20)]
    for gamma in (1.0, 3.0):
        for end in ("low", "high"):
            np.testing.assert_allclose(rows.extreme(gamma, end), expected, atol=1e-12)


def test_the_range_grows_with_gamma_and_starts_at_a_point() -> None:
    rng = np.random.default_rng(2)
    rows = LikedRows.of(rng.integers(0, 9, 60), 0.3 * rng.normal(size=60), rng.uniform(1, 9, 60), 0.5, 10)
    np.testing.assert_allclose(rows.extreme(1.0, "low"), rows.extreme(1.0, "high"), atol=1e-12)
    for end, sign in (("low", -1), ("high", 1)):
        ends = [sign * rows.extreme(g, end) for g in (1.0, 1.5, 3.0, 9.0)]
        assert all((after >= before - 1e-12).all() for before, after in pairwise(ends))
        assert all(np.abs(end).max() <= 1.0 for end in ends)

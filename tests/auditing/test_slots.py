"""Ranking by slots: lists and ranks by hand, ranges against linear programs, values within what a
list can be worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.auditing import slots as module
from puidrec.auditing.estimates import Limits
from puidrec.auditing.slots import (
    SlotLead,
    Slots,
    joined,
    rated_lists,
    sample_users,
    slot_discounts,
    slots_of,
    top_lists,
)
from puidrec.data.tables import pairs_by_user
from puidrec.evaluation.ranking import top_k

K = 3


@pytest.fixture(scope="module")
def world() -> dict[str, np.ndarray]:
    """30 users × 25 items, a third of the pairs logged, scores of two models, and labels of all
    pairs."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 30, 25))
    user, item = np.nonzero(rng.random((30, 25)) < 0.3)
    return {"scores": scores, "user": user, "item": item, "label": (rng.random((30, 25)) < 0.5) * 1}


def lists_of(world: dict[str, np.ndarray], k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    own, other = (top_lists(np.arange(30), lambda u, s=s: s[u], k, None) for s in world["scores"])
    return own, other


def lead(seed: int, n: int = 30, k: int = K) -> tuple[SlotLead, Slots, dict[str, np.ndarray]]:
    """A lead from random rows, all slots of which hold some."""
    rng = np.random.default_rng(seed)
    rank, against = rng.integers(0, k + 1, n), rng.integers(0, k + 1, n)
    slots = Slots(np.arange(n), rank, against, rng.random((k + 1, k + 1)), 10)
    rows = {
        "label": rng.integers(0, 2, n),
        "h": np.full(n, 0.3),
        "odds": rng.uniform(0.0, 9.0, n),
        "user": rng.integers(0, 8, n),
    }
    found = SlotLead.of(
        slots, slot_discounts("dcg", k), rows["label"], (rows["h"], rows["odds"]), rows["user"], 8
    )
    return found, slots, rows


def program(z: np.ndarray, h: np.ndarray, k: np.ndarray, gamma: float, sign: float) -> float:
    """Lowest (or highest) Σ w z / Σ w over w in [h + k/Γ, h + kΓ], by Charnes and Cooper."""
    n = z.size
    low, high = h + k / gamma, h + k * gamma
    matrix = np.block([[np.eye(n), -high[:, None]], [-np.eye(n), low[:, None]]])
    equal = np.append(np.ones(n), 0.0)[None]
    found = linprog(
        np.append(sign * z, 0.0),
        matrix,
        np.zeros(2 * n),
        equal,
        [1.0],
        bounds=[(None, None)] * n + [(0, None)],
    )
    return float(sign * found.fun)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(1.0, 8.0))
def test_both_ends_are_those_of_linear_fractional_programs(seed: int, gamma: float) -> None:
    found, slots, rows = lead(seed)
    discount = slot_discounts("dcg", K)
    gap = discount[slots.rank] - discount[slots.against]
    ends = []
    for sign in (
        1.0,
        -1.0,
    ):  # the lowest lead: least liked where the model gains, most where it loses
        total = 0.0
        for side, own, factor in ((found.gain, gap > 0, 1.0), (found.loss, gap < 0, -1.0)):
            z, g = rows["label"][own].astype(float), np.abs(gap[own])
            if z.size:
                total += (
                    factor
                    * side.mass
                    * program(z, g * rows["h"][own], g * rows["odds"][own], gamma, sign * factor)
                )
        total += -found.loss.unsupported if sign > 0 else found.gain.unsupported
        ends.append(total)
    if min(found.gain.rows, found.loss.rows):
        np.testing.assert_allclose(
            [found.at(gamma, "low").value, found.at(gamma, "high").value], ends, atol=1e-7
        )
        curve = found.curve(np.array([gamma]))
        np.testing.assert_allclose([curve.low[0], curve.high[0]], ends, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(1.0, 1e5), n=st.integers(0, 40))
def test_a_value_lies_between_0_and_the_sum_of_discounts(seed: int, gamma: float, n: int) -> None:
    _, slots, rows = lead(seed, n)
    rng = np.random.default_rng(seed)
    pairs = np.zeros((K + 1, K + 1))
    pairs[:K, K] = 1.0  # every list is full
    alone = Slots(slots.row, slots.rank, np.full(n, K), pairs, 10)
    for metric, most in (("dcg", 1 + 1 / np.log2(3) + 0.5), ("precision", 1.0)):
        found = SlotLead.of(
            alone,
            slot_discounts(metric, K),
            rows["label"],
            (rows["h"], 1e4 * rng.random(n)),
            rows["user"],
            8,
        )
        assert found.size == pytest.approx(most)
        for value in (found.point, found.at(gamma, "low").value, found.at(gamma, "high").value):
            assert -1e-9 <= value <= most + 1e-9


def test_with_every_label_known_a_lead_is_the_difference_of_true_dcg(
    world: dict[str, np.ndarray],
) -> None:
    """All pairs are rows of the same weight: lead and values are those of sklearn's DCG."""
    from sklearn.metrics import dcg_score

    user, item = (axis.ravel() for axis in np.indices((30, 25)))
    found = slots_of(np.arange(30), *lists_of(world), user, item)
    label = world["label"][user, item]
    true = [
        np.mean([dcg_score(world["label"][[u]], scores[[u]], k=5) for u in range(30)])
        for scores in world["scores"]
    ]
    own = found.row
    ones = np.ones(own.size), np.zeros(own.size)
    whole = SlotLead.of(found, slot_discounts("dcg", 5), label[own], ones, user[own], 30)
    assert whole.point == pytest.approx(true[0] - true[1])
    assert whole.gain.unsupported == whole.loss.unsupported == 0.0
    for which in (0, 1):
        alone = found.alone(which)
        weights = np.ones(alone.row.size), np.zeros(alone.row.size)
        value = SlotLead.of(
            alone, slot_discounts("dcg", 5), label[alone.row], weights, user[alone.row], 30
        )
        assert value.point == pytest.approx(true[which])


def test_weights_of_a_random_log_are_unbiased_where_popularity_and_quality_go_together() -> None:
    """Popular items are seen more and liked more: the mean lead of 300 logs is the true one."""
    rng = np.random.default_rng(4)
    quality = rng.normal(size=60)
    p = np.clip(0.15 * np.exp(0.8 * quality), 0.02, 0.9)
    label = (rng.random((80, 60)) < 1 / (1 + np.exp(-quality))) * 1
    scores = [np.tile(quality, (80, 1)) + rng.normal(0, 0.5, (80, 60)), rng.normal(size=(80, 60))]
    lists = [top_lists(np.arange(80), lambda u, s=s: s[u], 5, None) for s in scores]
    discount = slot_discounts("dcg", 5)
    true = [
        float((np.take_along_axis(label, one, 1) * discount[:5]).sum(1).mean()) for one in lists
    ]
    found = []
    for _ in range(300):
        user, item = np.nonzero(rng.random((80, 60)) < p)
        slots = slots_of(np.arange(80), lists[0], lists[1], user, item)
        own = slots.row
        weights = np.ones(own.size), 1.0 / p[item[own]] - 1.0
        found.append(
            SlotLead.of(slots, discount, label[user, item][own], weights, user[own], 80).point
        )
    assert np.mean(found) == pytest.approx(true[0] - true[1], abs=0.03)


def test_a_slot_without_a_row_may_be_liked_by_none_or_all() -> None:
    pairs = np.zeros((3, 3))
    pairs[0, 2], pairs[1, 2], pairs[2, 0], pairs[2, 1] = (
        1.0,
        1.0,
        1.0,
        1.0,
    )  # lists of two with nothing in common
    rank, against = np.array([0, 2, 2]), np.array([2, 0, 1])
    slots = Slots(np.arange(3), rank, against, pairs, 5)
    found = SlotLead.of(
        slots,
        slot_discounts("precision", 2),
        np.array([1, 0, 1]),
        (np.ones(3), np.zeros(3)),
        np.arange(3),
        3,
    )
    assert (found.gain.slots, found.loss.slots) == (1, 0)
    assert found.gain.unsupported == 0.5
    assert found.at(1.0, "low").value == pytest.approx(0.5 - 0.5)  # the open slot counts nothing
    assert found.at(1.0, "high").value == pytest.approx(1.0 - 0.5)  # or all
    assert found.point == pytest.approx(1.0 - 0.5)


def test_few_rows_that_are_all_liked_are_not_certain() -> None:
    pairs = np.zeros((2, 2))
    pairs[0, 1] = pairs[1, 0] = 1.0
    slots = Slots(np.arange(6), np.array([0] * 3 + [1] * 3), np.array([1] * 3 + [0] * 3), pairs, 6)
    rows = np.array([1, 1, 1, 0, 0, 0])
    found = SlotLead.of(
        slots, slot_discounts("dcg", 1), rows, (np.ones(6), np.zeros(6)), np.arange(6), 6
    )
    span = found.at(1.0, "low").limits(0.95)
    assert span.value == 1.0
    assert span.low < 0.3


def test_the_intervals_cover_the_true_lead() -> None:
    """Users of their own rate: of 300 logs of 60 users, 95 % intervals hold the true lead in 91 %
    or more."""
    rng, held = np.random.default_rng(2), []
    pairs = np.zeros((2, 2))
    pairs[0, 1] = pairs[1, 0] = 1.0
    for _ in range(300):
        user = np.repeat(np.arange(60), 2)
        rank = np.tile([0, 1], 60)
        rate = np.clip(np.where(rank == 0, 0.6, 0.4) + np.repeat(rng.normal(0, 0.1, 60), 2), 0, 1)
        seen = rng.random(120) < 0.4
        slots = Slots(np.flatnonzero(seen), rank[seen], 1 - rank[seen], pairs, 60)
        label = (rng.random(120) < rate)[seen] * 1
        odds = np.full(label.size, 1.5)
        found = SlotLead.of(
            slots, slot_discounts("dcg", 1), label, (np.ones(label.size), odds), user[seen], 60
        )
        span: Limits = found.at(1.0, "low").limits(0.95)
        held.append(span.low <= 0.2 <= span.high)
    assert 0.91 <= np.mean(held) <= 0.99


def test_lists_are_the_best_unseen_items_and_ranks_are_looked_up(
    world: dict[str, np.ndarray],
) -> None:
    seen = pairs_by_user(world["user"], world["item"], 30)
    scores = world["scores"][0]
    lists = top_lists(np.arange(30), lambda u: scores[u], 5, seen)
    masked = scores.copy()
    masked[world["user"], world["item"]] = -np.inf
    np.testing.assert_array_equal(lists, top_k(masked, 5)[0])
    np.testing.assert_array_equal(
        scores, world["scores"][0]
    )  # the model's own scores are left as they are
    users = np.array([2, 5, 29])
    found = slots_of(
        users,
        lists[users],
        None,
        np.array([5, 7, 29, 2]),
        np.array([lists[5, 3], lists[7, 0], lists[29, 0], 99]),
    )
    assert found.row.tolist() == [0, 2]  # user 7 was not ranked, item 99 is in no list
    assert found.rank.tolist() == [3, 0]
    assert (found.against == 5).all()


def test_short_lists_and_ties() -> None:
    scores = np.zeros((1, 4))
    seen = (np.array([0, 2]), np.array([1, 2]))
    lists = top_lists(np.array([0]), lambda u: scores[u], 3, seen)
    assert lists.tolist() == [[0, 3, -1]]  # ties in the order of the items, as a recommender does
    found = slots_of(np.array([0]), lists, lists, np.array([0, 0]), np.array([3, 1]))
    assert found.row.tolist() == [0]
    assert found.pairs.sum() == 2.0  # both lists hold the same two items


def test_tiles_change_nothing(
    world: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lists_of(world)
    monkeypatch.setattr(module, "TILE", 60)
    for one, two in zip(whole, lists_of(world), strict=True):
        np.testing.assert_array_equal(one, two)


def test_rated_rows_are_ranked_among_the_rows_of_their_user() -> None:
    user = np.array([0, 0, 0, 1, 1])
    item = np.array([4, 1, 2, 0, 3])
    scores = np.array([1.0, 3.0, 2.0, 5.0, 6.0]), np.array([3.0, 2.0, 1.0, 5.0, 6.0])
    users, lists = rated_lists(user, item, scores, 2)
    found = slots_of(users, lists[0], lists[1], user, item)
    assert dict(zip(found.row.tolist(), found.rank.tolist(), strict=True)) == {
        0: 2,
        1: 0,
        2: 1,
        3: 1,
        4: 0,
    }
    assert dict(zip(found.row.tolist(), found.against.tolist(), strict=True)) == {
        0: 0,
        1: 1,
        2: 2,
        3: 1,
        4: 0,
    }
    assert found.pairs.sum() == pytest.approx(5 / 2)


def test_parts_are_joined_with_their_own_lists(world: dict[str, np.ndarray]) -> None:
    lists, rows = lists_of(world), np.arange(world["user"].size)
    whole = slots_of(np.arange(30), *lists, world["user"], world["item"])
    parts = [
        (own, slots_of(np.arange(30), *lists, world["user"][own], world["item"][own]))
        for own in (rows[::2], rows[1::2])
    ]
    found = joined(parts)
    order = np.argsort(found.row)
    np.testing.assert_array_equal(found.row[order], whole.row)
    np.testing.assert_array_equal(found.rank[order], whole.rank)
    np.testing.assert_allclose(found.pairs, whole.pairs)
    assert found.n_lists == 60


def test_users_are_sampled_where_all_would_be_too_many() -> None:
    user = np.repeat(np.arange(100), 3)
    assert sample_users(user, 10, 0).size == 100
    few = sample_users(user, 10, 0, most=200)
    assert few.size == 20
    assert (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few, sample_users(user, 10, 0, most=200))
    assert sample_users(np.array([4, 4, 7]), 10, 0).tolist() == [4, 7]

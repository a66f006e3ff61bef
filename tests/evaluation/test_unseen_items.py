"""Rankings of the whole catalogue, against hand-made lists and a slow second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.evaluation import unseen_items
from puidrec.evaluation.unseen_items import find_liked, unseen_values


def as_log(pairs: np.ndarray, n_users: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=n_users))]), pairs[
        :, 1
    ]


def by_hand(
    scores: np.ndarray, seen: set[tuple[int, int]], liked: np.ndarray, k: int
) -> dict[str, float]:
    """Plain loops: sort each user's unseen items, look the liked ones up."""
    recalls, gains, hits, firsts, shown = [], [], [], [], set()
    for user in np.unique(liked[:, 0]):
        order = sorted(range(scores.shape[1]), key=lambda i: (-scores[user, i], i))
        top = [i for i in order if (int(user), i) not in seen][:k]
        wanted = [int(i) for u, i in liked if u == user]
        ranks = [top.index(i) + 1 for i in wanted if i in top]
        recalls.append(len(ranks) / len(wanted))
        ideal = sum(1 / np.log2(r + 1) for r in range(1, min(len(wanted), k) + 1))
        gains.append(sum(1 / np.log2(r + 1) for r in ranks) / ideal)
        hits.append(float(bool(ranks)))
        firsts.append(1 / min(ranks) if ranks else 0.0)
        shown |= set(top)
    return {
        "recall": float(np.mean(recalls)),
        "ndcg": float(np.mean(gains)),
        "hit": float(np.mean(hits)),
        "mrr": float(np.mean(firsts)),
        "coverage": len(shown) / scores.shape[1],
    }


@given(seed=st.integers(0, 10_000), k=st.integers(1, 9))
def test_as_by_hand_whatever_the_block(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = (
        rng.integers(-2, 3, (6, 2)).astype(np.float32),
        rng.integers(-2, 3, (8, 2)).astype(np.float32),
    )
    part = rng.integers(0, 4, (6, 8))
    part[0, :2] = 0, 1
    seen, liked = np.argwhere(part == 0), np.argwhere(part == 1)
    before, unseen_items.BLOCK_PAIRS = unseen_items.BLOCK_PAIRS, 16
    try:
        found = find_liked((left, right), (liked[:, 0], liked[:, 1]), [as_log(seen, 6)], k)
    finally:
        unseen_items.BLOCK_PAIRS = before
    names = [f"unseen-{name}@{k}" for name in ("recall", "ndcg", "hit", "mrr", "coverage")]
    values = unseen_values(names, lambda depth: found)
    expected = by_hand(left @ right.T, {(int(u), int(i)) for u, i in seen}, liked, k)
    for name, value in zip(expected, values.values(), strict=True):
        assert getattr(value, "mean", value) == pytest.approx(expected[name])


def test_weights_of_liked_rows() -> None:
    """User 0 is found his popular item, user 1 her rare one: weighted by 1/popularity, hers counts
    three times."""
    left, right = np.eye(2, dtype=np.float32), np.array([[1, 0], [0, 1], [0.5, 0.5]], np.float32)
    liked = np.array([0, 0, 1]), np.array([0, 2, 1])
    log = as_log(np.array([[0, 1], [1, 0], [1, 2]]), 2)
    log = (log[0], log[1])
    found = find_liked((left, right), liked, [log], 1, propensity=np.array([0.5, 0.25, 1.0]))
    assert found.rank.tolist() == [1, 0, 1]
    assert unseen_items.recall(found, 1).mean == pytest.approx((0.5 + 1) / 2)
    assert unseen_items.recall(found, 1, "propensity").mean == pytest.approx((2 + 1) / (2 + 4 + 1))
    assert unseen_items.ndcg(found, 1, "propensity").values.tolist() == pytest.approx([0.5, 1.0])
    assert unseen_items.recall(found, 1, "popularity").mean == pytest.approx(2 / 3)
    assert unseen_items.novelty(found, 1).mean == pytest.approx(-np.log2(2 / 3))


def test_what_is_no_catalogue_metric(refusal: Any, tiny_model: Any, tiny_data: Any) -> None:
    from puidrec import evaluate

    for name in ("unseen-recall", "unseen-recall@0", "unseen-uauc@5"):
        refusal(
            lambda name=name: evaluate(tiny_model, tiny_data.test, [name]), "unknown metric", name
        )
    refusal(
        lambda: evaluate(tiny_model, tiny_data.test, ["unseen-recall-propensity@5"]),
        "need propensities",
    )
    frame = tiny_data.test.to_frame()
    metrics = ["unseen-recall@5", "unseen-novelty@5"]
    assert dict(evaluate(tiny_model, frame, metrics)) == dict(
        evaluate(tiny_model, tiny_data.test, metrics)
    )
    refusal(
        lambda: evaluate(tiny_model, frame.with_columns(user_id=10**6), ["unseen-recall@5"]),
        "other users or items",
        "1000000",
    )
    refusal(  # nothing of what it has learned can be among what is new
        lambda: evaluate(tiny_model, tiny_data.train, ["unseen-recall@5"]), "trained on", "protocol"
    )
    both = evaluate(tiny_model, tiny_data.test, ["unseen-recall@5", "uauc"])
    assert list(both) == ["unseen-recall@5", "uauc"]

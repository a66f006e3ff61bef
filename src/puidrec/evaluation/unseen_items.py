"""Ranking the whole catalogue: what of the items that users liked later is among the K best that
they had not seen.

Logs of likes (implicit feedback) have nothing else to be judged by: their test rows are all liked,
so nothing can be ranked within them. Users are taken in blocks: no array of users × items is made.
Ties fall as in `recommend`.

A later like is itself a matter of exposure: popular items are found more easily, and shown more
often. So recall and NDCG also come with liked rows weighted by 1/popularity (Steck 2011) and by
inverse propensity (self-normalised).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap
from puidrec.data.tables import pairs_by_user
from puidrec.errors import InputError
from puidrec.evaluation.ranking import dense_codes, mask_seen, top_k
from puidrec.evaluation.significance import PerUser

UNSEEN = "unseen-"
CATALOGUE = "catalogue-recall"
PAIRS_AT_ONCE = 1_000_000
"""Pairs that a model is asked for at once."""
MOST_PAIRS = 50_000_000
"""More scores than this are not computed for one `catalogue-recall@K`: it is then left out."""
BLOCK_PAIRS = 2**24
"""User-item pairs scored at once: 64 MB."""
KEYS = ("user_id", "item_id")
Seen = tuple[np.ndarray, np.ndarray]
"""Pairs to leave out, sorted by user: items of user u are items[row_start[u]:row_start[u + 1]]."""
Weighting = Literal["plain", "popularity", "propensity"]


@dataclass(frozen=True)
class Found:
    """The K best unseen items of users who liked something, and their liked rows."""

    users: np.ndarray
    """Codes of the users, sorted."""
    top: np.ndarray
    """Item codes, [users, K]; −1 where a user has fewer unseen items."""
    row_user: np.ndarray
    """Position in `users` of each liked row."""
    row_item: np.ndarray
    popularity: np.ndarray
    """Training rows of each item of the catalogue."""
    n_users: int
    """All users of training, with liked rows or not."""
    propensity: np.ndarray | None = field(default=None, repr=False)
    """Of each liked row, where it is known."""

    @cached_property
    def rank(self) -> np.ndarray:
        """Rank of each liked row, from 1; 0 where it is not among the K best. Some rows at a
        time."""
        rank = np.zeros(self.row_item.size, np.int64)
        step = max(1, BLOCK_PAIRS // max(self.top.shape[1], 1))
        for start in range(0, rank.size, step):
            rows = slice(start, start + step)
            place = self.top[self.row_user[rows]] == self.row_item[rows, None]
            rank[rows] = np.where(place.any(1), place.argmax(1) + 1, 0)
        return rank

    def weight(self, weighting: Weighting) -> np.ndarray:
        """Weight of each liked row."""
        if weighting == "plain":
            return np.ones(self.rank.size)
        if weighting == "popularity":
            return np.asarray(1.0 / np.maximum(self.popularity[self.row_item], 1.0))
        if self.propensity is None:
            raise InputError(
                "propensity-weighted metrics need propensities",
                hint="Give evaluate(…, propensity=…).",
            )
        return np.asarray(1.0 / self.propensity)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums of a value per liked row over users."""
        return np.bincount(self.row_user, weights=values, minlength=self.users.size)

    def within(self, k: int) -> np.ndarray:
        """Mask of the liked rows among the first k."""
        return (self.rank > 0) & (self.rank <= k)


def find_liked(
    factors: tuple[np.ndarray, np.ndarray],
    liked: tuple[np.ndarray, np.ndarray],
    seen: Sequence[Seen],
    k: int,
    propensity: np.ndarray | None = None,
) -> Found:
    """Rank the catalogue for every user with a liked row, in blocks of users.

    factors: of all users and all items; a score is their inner product. liked: user and item codes
    of the liked rows.
    seen: logs whose pairs are no candidates; the first is that of training, which says how popular
    items are.
    """
    (left, right), (user, item) = factors, liked
    users, row_user = dense_codes(user)
    top = best_unseen(lambda block: left[block] @ right.T, users, right.shape[0], seen, k)
    popularity = np.bincount(np.asarray(seen[0][1]), minlength=right.shape[0])
    return Found(users, top, row_user, item, popularity, left.shape[0], propensity)


def found_by_own(model: Any, liked: pl.DataFrame, left_out: pl.DataFrame | None, k: int) -> Found:
    """Where liked rows are in the lists of a model of this package."""
    sides = model.user_ids_, model.item_ids_
    user, item = (own.encode(liked[key]) for own, key in zip(sides, KEYS, strict=True))
    unknown = (user < 0) | (item < 0)
    if unknown.any():
        raise InputError(
            f"{int(unknown.sum()):,} of the rows are of other users or items than the model's",
            found=", ".join(map(str, liked.row(int(unknown.argmax()))[:2])),
            hint="Give rows of the data it was fitted on.",
        )
    factors = model.user_factors_, model.item_factors_
    seen = [model.seen_, *_pairs(left_out, *sides)]
    return find_liked(factors, (user, item), seen, k, _propensity(liked))


def found_by_others(
    model: Any,
    liked: pl.DataFrame,
    train: pl.DataFrame | None,
    items: IdMap | None,
    k: int,
) -> Found:
    """Where liked rows are in given lists, or in those of a model that only predicts (a function of
    users and items); a user without a list has found nothing. items: the catalogue, if known."""
    lists = model if isinstance(model, pl.DataFrame) else None
    parts = [part for part in (liked, train, lists) if part is not None]
    for key in KEYS:
        kinds = {str(part[key].dtype) for part in parts}
        if len(kinds) > 1:
            raise InputError(
                "ids of another type than in the rows",
                column=key,
                found=" and ".join(sorted(kinds)),
            )
    users = IdMap(liked["user_id"].unique().sort())
    if items is None:
        if lists is None:
            raise InputError(
                "a ranking of all items needs to know them",
                found="a table of rows",
                expected="a part of a Dataset, whose items are ranked",
            )
        items = IdMap(pl.concat([part["item_id"] for part in parts]).unique().sort())
    if lists is not None:
        top = _listed(lists, users, items, k)
    else:

        def scores(block: np.ndarray) -> np.ndarray:
            user = users.decode(np.repeat(block, len(items))).to_numpy()
            found = model(user, np.tile(items.ids.to_numpy(), block.size))
            return np.array(found, np.float64).reshape(block.size, -1)

        everyone, seen = np.arange(len(users)), _pairs(train, users, items)
        top = best_unseen(scores, everyone, len(items), seen, k, PAIRS_AT_ONCE)
    learned = items.encode([] if train is None else train["item_id"])
    known = [part["user_id"] for part in (liked, train) if part is not None]
    return Found(
        np.arange(len(users)),
        top,
        users.encode(liked["user_id"]),
        items.encode(liked["item_id"]),
        np.bincount(learned[learned >= 0], minlength=len(items)),
        pl.concat(known).n_unique(),
        _propensity(liked),
    )


def _listed(lists: pl.DataFrame, users: IdMap, items: IdMap, k: int) -> np.ndarray:
    """Item codes of given lists, [users, k]."""
    owner = users.encode(lists["user_id"])
    place = lists.select(pl.int_range(pl.len()).over("user_id")).to_series().to_numpy()
    shown = (owner >= 0) & (place < k)
    top = np.full((len(users), k), -1, np.int64)
    top[owner[shown], place[shown]] = items.encode(lists["item_id"])[shown]
    return top


def _pairs(rows: pl.DataFrame | None, users: IdMap, items: IdMap) -> list[Seen]:
    """The pairs of a table by user; none where there is no table."""
    if rows is None:
        return []
    codes = users.encode(rows["user_id"]), items.encode(rows["item_id"])
    return [pairs_by_user(*codes, len(users))]


def _propensity(liked: pl.DataFrame) -> np.ndarray | None:
    return liked["propensity"].to_numpy() if "propensity" in liked.columns else None


def best_unseen(
    scores: Callable[[np.ndarray], np.ndarray],
    users: np.ndarray,
    n_items: int,
    seen: Sequence[Seen],
    k: int,
    pairs: int | None = None,
) -> np.ndarray:
    """The k best items of users that they have not seen, [users, k], −1 where there are fewer.

    scores: of all items for some users, asked for so many pairs at once (or BLOCK_PAIRS).
    """
    k, step = min(k, n_items), max(1, (pairs or BLOCK_PAIRS) // max(n_items, 1))
    top = np.full((users.size, k), -1, np.int64)
    for start in range(0, users.size, step):
        block = users[start : start + step]
        of_block = scores(block)
        for row_start, items in seen:
            mask_seen(of_block, block, row_start, items)
        best, value = top_k(of_block, k)
        top[start : start + step] = np.where(np.isfinite(value), best, -1)
    return top


def recall(found: Found, k: int, weighting: Weighting = "plain") -> PerUser:
    """Share of a user's liked rows (by weight) among the first k; weighted, users count by their
    weight."""
    weight = found.weight(weighting)
    mass = found.sums(weight)
    return PerUser(
        found.users,
        found.sums(weight * found.within(k)) / mass,
        None if weighting == "plain" else mass,
    )


def ndcg(found: Found, k: int, weighting: Weighting = "plain") -> PerUser:
    """Σ weight / log2(rank + 1) over what is found, over that of the best order; weighted, users
    count by weight."""
    weight = found.weight(weighting)
    gain = np.where(found.within(k), weight / np.log2(np.maximum(found.rank, 1) + 1), 0.0)
    order, liked = np.lexsort((-weight, found.row_user)), found.sums(np.ones(weight.size))
    start = np.cumsum(liked) - liked
    ideal_rank = np.arange(order.size) - start[found.row_user[order]] + 1.0
    ideal = np.where(ideal_rank <= k, weight[order] / np.log2(ideal_rank + 1), 0.0)
    best = np.bincount(found.row_user[order], weights=ideal, minlength=found.users.size)
    return PerUser(
        found.users, found.sums(gain) / best, None if weighting == "plain" else found.sums(weight)
    )


def hit(found: Found, k: int) -> PerUser:
    """Whether anything liked is among the first k."""
    return PerUser(found.users, (found.sums(found.within(k)) > 0).astype(np.float64))


def mrr(found: Found, k: int) -> PerUser:
    """1 / rank of the first liked item; 0 where none is among the first k."""
    first = np.zeros(found.users.size)
    np.maximum.at(
        first, found.row_user, np.where(found.within(k), 1.0 / np.maximum(found.rank, 1), 0.0)
    )
    return PerUser(found.users, first)


def novelty(found: Found, k: int) -> PerUser:
    """Mean self-information −log2 of the share of users who have an item, over the first k; in
    bits."""
    top = found.top[:, :k]
    bits = -np.log2((found.popularity + 1.0) / (found.n_users + 1.0))
    there = top >= 0
    total = np.where(there, bits[np.maximum(top, 0)], 0.0).sum(1)
    return PerUser(found.users, total / np.maximum(there.sum(1), 1))


def coverage(found: Found, k: int) -> float:
    """Share of the catalogue that is among the first k of at least one user."""
    shown = np.unique(found.top[:, :k])
    return float((shown >= 0).sum() / max(found.popularity.size, 1))


_METRICS: Mapping[str, Callable[[Found, int], PerUser | float]] = {
    "recall": recall,
    "recall-popularity": lambda found, k: recall(found, k, "popularity"),
    "recall-propensity": lambda found, k: recall(found, k, "propensity"),
    "ndcg": ndcg,
    "ndcg-popularity": lambda found, k: ndcg(found, k, "popularity"),
    "ndcg-propensity": lambda found, k: ndcg(found, k, "propensity"),
    "hit": hit,
    "mrr": mrr,
    "novelty": novelty,
    "coverage": coverage,
}
UNSEEN_METRICS = tuple(f"{UNSEEN}{name}@10" for name in _METRICS)
"""What a log of likes is judged by where nobody asks for something else."""


def parse_unseen_metric(name: str) -> tuple[Callable[[Found, int], PerUser | float], int]:
    """Look up `unseen-NAME@k`."""
    base, _, tail = name.removeprefix(UNSEEN).partition("@")
    if base not in _METRICS or not (tail.isascii() and tail.isdigit() and 0 < int(tail) <= 10**6):
        expected = f"{UNSEEN}NAME@K with NAME one of {', '.join(_METRICS)}"
        raise InputError("unknown metric", found=name, expected=expected)
    return _METRICS[base], int(tail)


def unseen_values(
    names: Sequence[str], found: Callable[[int], Found]
) -> dict[str, PerUser | float]:
    """All named metrics from one ranking; every name is checked before any work. found: the ranking
    to a depth."""
    parsed = {name: parse_unseen_metric(name) for name in names}
    ranked = found(max(k for _, k in parsed.values()))
    return {name: metric(ranked, k) for name, (metric, k) in parsed.items()}


def catalogue_recall(
    predict: Callable[[Any, Any], Any],
    user: np.ndarray,
    item: np.ndarray,
    items: IdMap | None,
    k: int,
) -> PerUser:
    """Recall@k over the catalogue, from uniform rows: what share of a user's liked items would a
    list of k have shown?

    Recall@k of `metrics` ranks a user's own test rows, a few items. Here a positive row is found
    where its score is above that of the (k + 1)-th of all items; where it ties, it is not. Uniform
    rows are a fair sample of a user's liked items, so their share is a fair estimate. user, item:
    of positive rows; items: all that there are. Where there are no more than k items, all are
    found; beyond `MOST_PAIRS` scores there is no value.
    """
    if items is None:
        raise InputError(
            "a recall over the catalogue needs all items", expected="a part of a Dataset"
        )
    catalogue = items.ids.to_numpy()
    if user.size == 0 or np.unique(user).size * catalogue.size > MOST_PAIRS:
        return PerUser(user[:0], np.zeros(0))
    users, code = np.unique(user, return_inverse=True)
    if k >= catalogue.size:
        return PerUser(users, np.ones(users.size))
    own = np.asarray(predict(user, item))
    bar = np.empty(users.size, own.dtype)
    step = max(1, PAIRS_AT_ONCE // catalogue.size)
    for start in range(0, users.size, step):
        block = users[start : start + step]
        scores = np.asarray(
            predict(np.repeat(block, catalogue.size), np.tile(catalogue, block.size))
        )
        ranked = np.partition(scores.reshape(block.size, -1), catalogue.size - k - 1, axis=1)
        bar[start : start + step] = ranked[:, catalogue.size - k - 1]
    found = np.bincount(code, own > bar[code], users.size) / np.bincount(code, minlength=users.size)
    return PerUser(users, found)

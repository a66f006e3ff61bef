"""What a fitted model says: scores of pairs, the best items of users and which items may be, who
is like whom, and what carries a score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np
import polars as pl
import torch

from puidrec.data.dataset import IdMap
from puidrec.data.schema import (
    Frame,
    Origin,
    check_choice,
    clean_interactions,
    to_polars,
    with_our_names,
)
from puidrec.data.tables import pairs_by_user
from puidrec.entities import (
    SIDES,
    Entities,
    PairsByUser,
    Side,
    is_single_id,
    known_codes,
    listed_ids,
    one_id,
    paired_ids,
    pairs_of,
    require_positive,
    require_same_type,
)
from puidrec.errors import InputError
from puidrec.evaluation.ranking import mask_seen, places_of, top_k
from puidrec.evaluation.unseen_items import find_liked
from puidrec.fold_in import fold_in_users, prior_of, read_history, require_foldable
from puidrec.methods.spectrum.members import gamma_max
from puidrec.methods.spectrum.uncertainty import lower_scores, score_interval
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

if TYPE_CHECKING:
    from puidrec.model import Recommender

USERS_PER_BLOCK = 1024
SIMILARITIES = 2**24
"""Computed at once: 64 MB. No matrix of all pairs is made."""
ScoreScale = Literal["rating", "unit"]


Features = tuple[Frame | None, Frame | None]
"""Side tables of users and items that were not in training."""


class Asked(TypedDict, total=False):
    """What every form of `Recommender.predict` takes, for type checkers."""

    scale: ScoreScale
    user_features: Frame | None
    item_features: Frame | None


@dataclass(frozen=True)
class Candidates:
    """Items that may be recommended, by code; and the pairs that may, if the caller named them."""

    items: np.ndarray
    n_items: int
    pairs: PairsByUser | None = None
    """Allowed items of each user; None: all candidates."""

    @classmethod
    def of(cls, ids: IdMap, users: IdMap, items: Any, exclude: Any, pairs: Frame) -> Candidates:
        """items: the only ones; exclude: none of these; pairs: a table of the pairs that may be
        recommended, in which other users or items count for nothing."""
        allowed = np.full(len(ids), items is None)
        if items is not None:
            allowed[known_codes(ids, items, "item")] = True
        if exclude is not None:
            allowed[known_codes(ids, exclude, "item")] = False
        if not allowed.any():
            raise InputError("no item is left to recommend", expected="items beyond those excluded")
        by_user = None
        if pairs is not None:
            who, what = pairs_of(pairs, "filter")
            require_same_type(who, users, Origin("filter"))
            require_same_type(what, ids, Origin("filter"))
            by_user = pairs_by_user(users.encode(who), ids.encode(what), len(users))
        return cls(np.flatnonzero(allowed), len(ids), by_user)

    def mask(self, scores: np.ndarray, codes: np.ndarray, *seen: PairsByUser) -> None:
        """Set scores [users, candidates] to −inf where a pair is no candidate, in place."""
        columns = np.full(self.n_items, -1)
        columns[self.items] = np.arange(self.items.size)
        if self.pairs is not None:
            allowed = np.zeros(scores.shape, bool)
            allowed[places_of(codes, *self.pairs, columns)] = True
            scores[~allowed] = -np.inf
        for pairs in seen:
            mask_seen(scores, codes, *pairs, columns)


def sides_of(model: Recommender, features: Features) -> Iterator[Entities]:
    """Users and items as trained, and after them the cold-start ones of side tables."""
    for side, table in zip(SIDES, features, strict=True):
        own = Entities.of(model, side)
        yield own if table is None else own.with_cold_start(model.cold_start(), side, table)


def on_scale(model: Recommender, scores: np.ndarray, scale: ScoreScale) -> np.ndarray:
    """Inner products of factors as what they predict."""
    check_choice("scale", scale, get_args(ScoreScale))
    target = model.settings.target_scale
    values = target.of_scores(scores)
    plain = scale == "unit" or target.labels
    return values if plain else model.rating_scale_.of_unit(values)


def predict(
    model: Recommender,
    users: Any,
    items: Any,
    scale: ScoreScale,
    features: Features,
    interval: float | None,
) -> np.ndarray | pl.DataFrame:
    """Scores of pairs given by ids; with `known` where the pairs come as a table (`items` None)."""
    who, what = pairs_of(users) if items is None else paired_ids(users, items)
    left, right = sides_of(model, features)
    user, item = left.rows(who), right.rows(what)
    factors = LowRank.of(
        *(torch.from_numpy(side.with_average).to(model.device_) for side in (left, right))
    )
    scores = pair_scores(factors, user, item)
    ends = {"score": scores}
    if interval is not None:
        ends = score_interval(model.uncertainty(), scores, user, item, interval)
    found = {name: on_scale(model, values, scale) for name, values in ends.items()}
    if items is None:
        known = (user < len(left.ids)) & (item < len(right.ids))
        return pl.DataFrame({"user_id": who, "item_id": what, **found, "known": known})
    return found["score"] if interval is None else pl.DataFrame(found)


def score(model: Recommender, rows: Frame) -> float:
    """Minus the RMSE of a table of ratings; of likes the share that is among a user's 10 best."""
    origin = Origin("rows")
    table = with_our_names(to_polars(rows, origin))
    likes = "rating" not in table.columns
    frame = clean_interactions(table.with_columns(rating=1.0) if likes else table, None, origin)
    if likes:
        ids = ("user_id", model.user_ids_), ("item_id", model.item_ids_)
        user, item = (own.encode(frame[name]) for name, own in ids)
        known = (user >= 0) & (item >= 0)
        factors = model.user_factors_, model.item_factors_
        found = find_liked(factors, (user[known], item[known]), [model.seen_], 10)
        return float(found.within(10).mean()) if known.any() else 0.0
    if model.settings.target_scale.labels:
        hint = "Give scoring= a function."
        raise InputError("a model of labels has no RMSE", found="target=binary", hint=hint)
    error = model.predict(frame["user_id"], frame["item_id"]) - frame["rating"].to_numpy()
    return -float(np.sqrt(np.mean(error.astype(np.float64) ** 2)))


def recommend(
    model: Recommender,
    users: Any,
    k: int,
    exclude_seen: bool | Literal["training"],
    *,
    history: Frame | None,
    which: tuple[Any, Any, Frame | None],
    features: Features,
    stable: bool,
    cautious: bool,
    scale: ScoreScale,
) -> pl.DataFrame:
    """The k best items of each user as a table `user_id, item_id, score, rank`."""
    if exclude_seen not in (True, False, "training"):
        expected = "True, False or 'training'"
        raise InputError("exclude_seen out of range", found=exclude_seen, expected=expected)
    k = require_positive(k)
    if history is not None:
        user = listed_ids(users, "users")[0] if is_single_id(users) else None
        model = fold_in_users(model, history, alone=True, user=user)
        users = model.user_ids_ if users is None else users
    elif users is None:
        expected = "one id, several, or history=frame"
        raise InputError("users must be ids", found="NoneType", expected=expected)
    left, right = sides_of(model, features)
    codes = known_codes(left.ids, users, "user", ", or of user_features or history")
    candidates = Candidates.of(right.ids, left.ids, *which)
    items = torch.from_numpy(right.factors[candidates.items]).to(model.device_)
    seen = [model.seen_, model.held_out_][: 1 if exclude_seen == "training" else 2]
    known = [pairs for pairs in seen if pairs is not None and exclude_seen]
    path = _path(model, features) if stable else None
    posterior = model.uncertainty() if cautious else None

    def best(block: np.ndarray) -> tuple[np.ndarray, ...]:
        """The k best candidates of some users, one product, then a partial sort: their columns and
        scores, and up to which Γ they stay, if asked."""
        rows = torch.from_numpy(left.factors[block]).to(model.device_)
        scores = (rows @ items.T).cpu().numpy()
        if posterior is not None:
            scores = lower_scores(posterior, scores, block, candidates.items)
        candidates.mask(scores, block, *known)
        columns, values = top_k(scores, k)
        if path is None:
            return columns, values
        return columns, values, gamma_max(scores, block, columns, path, candidates.items)

    starts = range(0, max(codes.size, 1), USERS_PER_BLOCK)
    parts = [best(codes[start : start + USERS_PER_BLOCK]) for start in starts]
    columns, scores, *last = (np.concatenate(part) for part in zip(*parts, strict=True))
    frame = _ranked("user_id", left.ids, codes, "item_id", right.ids, candidates.items[columns])
    frame.insert_column(2, pl.Series("score", scores.ravel()))
    frame = frame.with_columns(*(pl.Series("gamma_max", one.ravel()) for one in last))
    frame = frame.filter(pl.col("score").is_finite())  # what is no candidate scores −inf
    return frame.with_columns(score=on_scale(model, frame["score"].to_numpy(), scale))


def _ranked(
    key: str, own: IdMap, codes: np.ndarray, other_key: str, other: IdMap, best: np.ndarray
) -> pl.DataFrame:
    """Who, what they are given [codes, K], and its rank."""
    size = best.shape[1]
    return pl.DataFrame(
        {
            key: own.decode(np.repeat(codes, size)),
            other_key: other.decode(best.ravel()),
            "rank": np.tile(np.arange(1, size + 1, dtype=np.int32), codes.size),
        }
    )


def _path(model: Recommender, features: Features) -> dict[str, torch.Tensor]:
    """Refuse to speak of stability where the model has no path along Γ, or for entities that are
    not on it."""
    if "path.gamma" not in model.parameters_:
        raise InputError(
            "stable recommendations need a path along Γ",
            found=model.settings.method,
            expected="a spectrum model of a log with rating levels, nothing folded in since "
            "its fit",
        )
    if any(table is not None for table in features):
        raise InputError(
            "stable recommendations are for users and items of training", found="features"
        )
    return model.parameters_


def similar(model: Recommender, side: Side, wanted: Any, k: int) -> pl.DataFrame:
    """The k nearest of each wanted entity: its id, `similar_id, similarity, rank`.

    Two items are as similar as their scores over all users are correlated, each user's mean score
    taken off; users likewise over items. That is a property of the scores, not of how they are
    factored: with factors r_i of items and S the covariance of the users' factors it is the cosine
    of (r_i − r̄) S^½.
    """
    k = require_positive(k)
    own, other = (Entities.of(model, one) for one in sorted(SIDES, key=lambda one: one != side))
    ids, codes = own.ids, known_codes(own.ids, wanted, side)
    place, value = nearest(profiles(own.factors, other.factors), codes, k)
    frame = _ranked(f"{side}_id", ids, codes, "similar_id", ids, place)
    return frame.insert_column(2, pl.Series("similarity", value.ravel()))


def profiles(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Vectors of length 1 (or 0, where there is nothing to tell apart) whose inner products are the
    similarities."""
    centred = own.astype(np.float64) - own.mean(0, dtype=np.float64)
    spread = other.astype(np.float64) - other.mean(0, dtype=np.float64)
    root = np.asarray(np.linalg.qr(spread, mode="r"))  # RᵀR is the other side's covariance
    vectors = centred @ root.T
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    # against what the factors allow: where only biases are left, lengths are rounding errors
    most = np.linalg.norm(centred, axis=1).max(initial=0.0) * np.linalg.norm(spread)
    small = length <= 1e-7 * max(float(most), 1e-300)
    return np.where(small, 0.0, vectors / np.where(small, 1.0, length)).astype(np.float32)


def nearest(vectors: np.ndarray, wanted: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and similarities of the k nearest others of each wanted row, nearest first; ties by
    position."""
    n = len(vectors)
    step = max(1, SIMILARITIES // n)
    found = []
    for start in range(0, max(wanted.size, 1), step):
        block = wanted[start : start + step]
        scores = vectors[block] @ vectors.T
        scores[np.arange(block.size), block] = -np.inf
        found.append(top_k(scores, min(k, n - 1)))
    place, value = (np.concatenate(part) for part in zip(*found, strict=True))
    return place, value


def explain_score(model: Recommender, user: Any, item: Any, history: Frame | None) -> pl.DataFrame:
    """A table `part, item_id, rating, contribution` in ratings, the largest rated items first; the
    contributions add up to the predicted rating.

    With x = Bᵀ q (see `fold_in`), a rated item j with rating r adds x_iᵀ (Σ x xᵀ + ρ I)⁻¹ x_j (r −
    ⟨m_u, q_j⟩). What is left is `rest`: 0 up to the tolerance of the solver where the users'
    factors are at that optimum (`mf`).
    """
    require_foldable(model)
    u, i = (
        int(known_codes(ids, one_id(given, what), what)[0])
        for ids, given, what in ((model.user_ids_, user, "user"), (model.item_ids_, item, "item"))
    )
    rated, rating = _rows_of(model, u, history)
    prior, scale = prior_of(model, "user"), model.rating_scale_
    q, width = model.item_factors_.astype(np.float64), scale.high - scale.low
    own, x = q[rated] @ prior.basis, q[i] @ prior.basis
    weights = np.linalg.solve(own.T @ own + prior.penalty * np.eye(x.size), x)
    by_row = (own @ weights) * (scale.unit(rating) - q[rated] @ prior.mean[u])
    average, features = q[i] @ prior.unknown, q[i] @ (prior.mean[u] - prior.unknown)
    rest = model.user_factors_[u].astype(np.float64) @ q[i] - average - features - by_row.sum()
    order = np.argsort(-np.abs(by_row), kind="stable")
    first = pl.DataFrame({"part": "average user", "contribution": average * width + scale.low})
    rows = pl.DataFrame(
        {
            "part": pl.Series(["rated item"] * order.size, dtype=pl.String),
            "item_id": model.item_ids_.decode(rated[order]),
            "rating": rating[order],
            "contribution": by_row[order] * width,
        }
    )
    last = pl.DataFrame(
        {"part": ["features of the user", "rest"], "contribution": [features * width, rest * width]}
    ).filter(pl.col("contribution").abs() > 1e-9 * width)
    return pl.concat([first, rows, last], how="diagonal").select(rows.columns)


def _rows_of(model: Recommender, user: int, history: Frame | None) -> tuple[np.ndarray, np.ndarray]:
    """Item codes and ratings of a user: as given, or of training where this process knows them."""
    if history is not None:
        frame = read_history(model, history)
        item = model.item_ids_.encode(frame["item_id"])
        return item[item >= 0], frame["rating"].to_numpy()[item >= 0]
    if model.train_rows_ is not None:
        own = slice(*model.seen_[0][user : user + 2])
        return model.train_rows_.item[own].astype(np.int64), model.train_rows_.rating[own]
    raise InputError(
        "an explanation needs the ratings of the user",
        found="a loaded model, which keeps pairs and no ratings",
        hint="Give them: explain(user, item, history=frame).",
    )

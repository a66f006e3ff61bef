"""Users by what they did: exact least-squares steps with the other side of a fitted model held
fixed.

An entity's factors are f + B z: where they stand, and coordinates with a penalty. With the rows (i,
r) of a user, q_i the item's factors and x_i = Bᵀ q_i,

    z = argmin Σ_i (r − ⟨f, q_i⟩ − ⟨z, x_i⟩)² + ρ ‖z‖² = (Σ x_i x_iᵀ + ρ I)⁻¹ Σ x_i (r − ⟨f, q_i⟩)

A user who is folded in starts at f = m_u, what is known of the user otherwise. New rows of a known
user start at the trained factors: old rows pull these nowhere, for there their slope and that of
the penalty cancel, so they count with a residual of 0 and need no ratings.

For `mf` with L2 of a known strength (`own_l2`) this is the condition that its fit ended at, so a
user who is folded in with the training rows scores as trained. Other models have no such condition
in the users' factors: there users are taken to be drawn like those of training, m_u and B Bᵀ their
mean and covariance, ρ the model's mean squared error. `spectrum` also reads which items a user saw:
there m_u is what a ridge regression on the items seen makes of the users of training, and B Bᵀ the
covariance of what it leaves (`BySeen`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch

from puidrec.data.dataset import IdMap
from puidrec.data.schema import (
    Frame,
    Origin,
    clean_interactions,
    refuse_near_rating,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.data.tables import pair_matrix, row_starts
from puidrec.entities import (
    SIDES,
    Entities,
    PairsByUser,
    Side,
    joined_ids,
    merged_pairs,
    require_same_type,
)
from puidrec.errors import InputError
from puidrec.evaluation.ranking import ranges
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

if TYPE_CHECKING:
    from puidrec.model import Recommender

CELLS, ENTITIES = 2**21, 256
"""Numbers gathered at once (16 MB), and most entities, so that they stay near the processor."""
SMALL = 1e-6
"""Directions in which trained users differ by less than this share of the largest are no
directions."""
DEFAULT_NOISE = 0.05
"""Mean squared error of ratings on 0..1 where a model does not know its own (folders of earlier
versions)."""


def by_entity(entity: np.ndarray, other: np.ndarray, n: int) -> tuple[PairsByUser, np.ndarray]:
    """The codes of the other side that each of n entities goes with, from pairs in any order; and
    the order that sorts the pairs."""
    order = np.argsort(entity, kind="stable")
    return (row_starts(entity, n), other[order]), order


RIDGES = 10.0 ** np.arange(-3.0, 3.0)
"""Penalties of the regression on items seen, times the number of users; leaving each user out
chooses."""


class BySeen(NamedTuple):
    """Users' factors by the items they saw: offset + x · weight, and how users differ beyond."""

    offset: np.ndarray
    weight: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, seen: PairsByUser) -> BySeen:
        """The ridge that predicts users best without themselves, in squared error of scores."""
        x, mean = _sums_of_seen(seen, items), users.mean(0)
        centre, size = x.mean(0), np.maximum(x.std(0), 1e-9)
        u, s, axes = np.linalg.svd((x - centre) / size, full_matrices=False)
        along, gram, n = u.T @ (users - mean), items.T @ items, len(users)
        least = np.inf
        for ridge in RIDGES * n:
            share = s**2 / (s**2 + ridge)
            own = 1.0 - 1.0 / n - u**2 @ share  # what of a user's residual is not its own doing
            left = (users - mean - (u * share) @ along) / np.maximum(own, 1e-9)[:, None]
            error = float(np.sum((left @ gram) * left))
            if error < least:
                least, best, left_out = error, ridge, left
        weight = (axes.T * (s / (s**2 + best))) @ along / size[:, None]
        return cls(mean - centre @ weight, weight, _directions(left_out))

    def mean(self, seen: PairsByUser, items: np.ndarray) -> np.ndarray:
        """Factors expected of users, before any rating."""
        return np.asarray(self.offset + _sums_of_seen(seen, items) @ self.weight)


def _sums_of_seen(seen: PairsByUser, items: np.ndarray) -> np.ndarray:
    """The items' factors summed over those seen, by the root of their number; and its logarithm."""
    n = np.diff(seen[0])
    sums = pair_matrix(*seen, np.ones(seen[1].size), len(items)) @ items
    return np.column_stack([sums / np.sqrt(n + 1.0)[:, None], np.log1p(n)])


def _directions(deviations: np.ndarray) -> np.ndarray:
    """In which rows differ, by how much: B of the covariance B Bᵀ."""
    _, strength, axes = np.linalg.svd(deviations, full_matrices=False)
    kept = strength > SMALL * max(float(strength.max(initial=0.0)), 1e-30)
    return np.asarray(axes[kept].T * strength[kept] / np.sqrt(len(deviations)))


@dataclass(frozen=True)
class Prior:
    """What factors of a side are before any row is seen: mean + basis · z, with penalty ρ ‖z‖²."""

    mean: np.ndarray
    """Of each entity of the model, [n, d]."""
    basis: np.ndarray
    """[d, coordinates]."""
    penalty: float
    by_seen: BySeen | None = None
    """For users that are folded in, where the model reads which items they saw."""

    @property
    def unknown(self) -> np.ndarray:
        """The mean of an entity that was not in training."""
        return np.asarray(self.mean.mean(0))

    def padded(self, values: np.ndarray, size: int) -> np.ndarray:
        """Rows of `values`, and after them the mean of unknown entities up to a size."""
        more = np.broadcast_to(self.unknown, (size - len(values), self.unknown.size))
        return np.concatenate([values, more])


def solve(x: np.ndarray, rows: PairsByUser, target: np.ndarray, penalty: float) -> np.ndarray:
    """z of each entity, [n, coordinates], from its rows; a batch of small positive systems at a
    time.

    x: coordinates of the other side; target: what they shall explain, row by row.
    """
    (start, other), width = rows, x.shape[1]
    ridge, counts = penalty * np.eye(width), np.diff(start)
    result, first = np.zeros((counts.size, width)), 0
    order = np.argsort(counts, kind="stable") if width and other.size else np.zeros(0, np.int64)
    while first < order.size:  # of like numbers of rows: little padding
        most = int(counts[order[min(first + ENTITIES, order.size) - 1]])
        block = order[first : first + min(max(1, CELLS // (width * (width + most))), ENTITIES)]
        first += block.size
        place = np.arange(int(counts[block].max()))
        there = place < counts[block, None]
        at = np.where(there, start[block, None] + place, 0)
        own = x[other[at]] * there[:, :, None]
        turned = own.transpose(0, 2, 1)
        slope = turned @ target[at][:, :, None]
        result[block] = np.linalg.solve(turned @ own + ridge, slope)[:, :, 0]
    return result


def scores_at(left: np.ndarray, right: np.ndarray, u: np.ndarray, i: np.ndarray) -> np.ndarray:
    """⟨left_u, right_i⟩ of pairs."""
    return pair_scores(LowRank.of(torch.from_numpy(left), torch.from_numpy(right)), u, i)


def prior_of(model: Recommender, side: Side) -> Prior:
    """What the factors of a side are pulled to, and how strongly; made once per fit."""
    factors = Entities.of(model, side).factors
    made_from, prior = model._priors.get(side, (None, None))
    if prior is None or made_from is not factors:
        prior = own_l2(model, side) or _population(model, side)
        model._priors = {**model._priors, side: (factors, prior)}
    return prior


def own_l2(model: Recommender, side: Side) -> Prior | None:
    """The L2 that `mf` was fitted with, where it is one number per side; None where the model does
    not say it.

    Read from the model: `l2_` and `dim_` (as given or chosen), the mean number of training rows per
    entity (`seen_`), the entities' own parameters (`parameters_`: towers of vector and bias), and μ
    (`phi.mean`). The loss is Σ (s − r)² + ρ ‖vector and bias‖², ρ = l2 · rows per entity.
    """
    settings, own = model.settings, model.parameters_.get(f"phi.{side}_towers.0.weight")
    l2, dim, factors = model.l2_, model.dim_, Entities.of(model, side).factors
    solved = model.report_.get("solver") == "least-squares" and settings.loss == "squared"
    if settings.method != "mf" or not solved or l2 <= 0.0 or "phi.mean" not in model.parameters_:
        return None
    if own is None or tuple(own.shape) != (len(factors), dim + 1):
        return None
    free = np.r_[np.arange(dim), dim if side == "user" else dim + 1]
    mean = factors.astype(np.float64)
    mean[:, free] -= own.numpy()
    basis = np.eye(factors.shape[1])[:, free]
    return Prior(mean, basis, l2 * model.seen_[1].size / len(factors))


def _population(model: Recommender, side: Side) -> Prior:
    """Entities drawn like those of training: their mean and the directions they differ in."""
    factors = Entities.of(model, side).factors.astype(np.float64)
    mean, by_seen = factors.mean(0), None
    noise = float(model.report_.get("training_mse", DEFAULT_NOISE))
    if side == "user" and model.settings.method == "spectrum":
        by_seen = BySeen.of(factors, model.item_factors_.astype(np.float64), model.seen_)
    every = np.broadcast_to(mean, factors.shape)
    return Prior(every, _directions(factors - mean), max(noise, 1e-6), by_seen=by_seen)


def is_foldable(model: Recommender) -> bool:
    """Whether scores are ratings: else least squares would not be the model's loss."""
    return model.settings.loss != "cross-entropy" and model.settings.target == "rating"


def require_foldable(model: Recommender) -> None:
    """Refuse models that users cannot be folded into."""
    settings = model.settings
    if not is_foldable(model):
        raise InputError(
            "users are folded in by least squares on ratings",
            found=f"loss={settings.loss}, target={settings.target}",
            expected="a model of ratings with a squared or absolute loss",
        )


def read_history(
    model: Recommender, table: Frame, what: str = "history", user: Any = None
) -> pl.DataFrame:
    """Rows `user_id, item_id, rating` of users by what they did; of a pair given twice the last row
    counts.

    Without `user_id` all rows are of one user (0, where none is named); without `rating` they are
    likes.
    """
    origin = Origin(what)
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, ("item_id",), origin)
    if "user_id" not in frame.columns:
        nobody = 0 if model.user_ids_.ids.dtype.is_integer() else "0"
        frame = frame.with_columns(user_id=pl.lit(nobody if user is None else user))
    if "rating" not in frame.columns:
        refuse_near_rating(frame.columns, origin)
        frame = frame.with_columns(rating=pl.lit(model.rating_scale_.high))
    frame = clean_interactions(frame, model.rating_scale_, origin).select(
        "user_id", "item_id", "rating"
    )
    require_same_type(frame["user_id"], model.user_ids_, origin)
    require_same_type(frame["item_id"], model.item_ids_, origin)
    return frame.unique(["user_id", "item_id"], keep="last", maintain_order=True)


def folded_factors(
    model: Recommender, codes: np.ndarray, user: np.ndarray, item: np.ndarray, rating: np.ndarray
) -> np.ndarray:
    """Factors of users from their rows. codes: of the users in the model, −1 for new ones; user:
    positions in `codes`."""
    require_foldable(model)
    prior = prior_of(model, "user")
    mean, basis = np.where(codes[:, None] >= 0, prior.mean[codes], prior.unknown), prior.basis
    rows, order = by_entity(user, item, codes.size)
    if prior.by_seen is not None:
        mean, basis = prior.by_seen.mean(rows, model.item_factors_), prior.by_seen.basis
    left = model.rating_scale_.unit(rating) - scores_at(mean, model.item_factors_, user, item)
    z = solve(model.item_factors_ @ basis, rows, left[order], prior.penalty)
    return np.asarray(mean + z @ basis.T, np.float32)


def fold_in_users(
    model: Recommender, table: Frame, *, alone: bool = False, user: Any = None
) -> Recommender:
    """A copy of the model in which the users of a table are as their rows say; `alone`: with these
    users only. user: whose rows they are, where they do not say it."""
    frame = read_history(model, table, user=user)
    users = IdMap(frame["user_id"].unique(maintain_order=True))
    known = frame.filter(pl.Series(model.item_ids_.encode(frame["item_id"]) >= 0))
    if not known.height:
        raise Origin("history").error(
            "none of these items was in training",
            column="item_id",
            found=frame["item_id"][0],
            expected=f"items of the model, such as {model.item_ids_.ids[0]}",
        )
    user, item = users.encode(known["user_id"]), model.item_ids_.encode(known["item_id"])
    codes = model.user_ids_.encode(users.ids)
    factors = folded_factors(model, codes, user, item, known["rating"].to_numpy())
    other = copy(model)
    if alone:
        none = np.zeros(1, np.int64), np.zeros(0, np.int32)
        other._cold_start, other.parameters_ = model.cold_start(), _without_the_fit(model)
        other.user_ids_, other.user_factors_, other.held_out_ = users, factors, None
        other.seen_ = merged_pairs(none, user, item, len(users))
        return other
    new = codes < 0
    place = np.where(new, len(model.user_ids_) + np.cumsum(new) - 1, codes)
    everyone = np.concatenate([model.user_factors_, factors[new]])
    everyone[place] = factors
    ids = joined_ids(model.user_ids_, users.ids), model.item_ids_
    _change(other, ids, (everyone, model.item_factors_), (place[user], item))
    return other


def _change(
    model: Recommender,
    ids: tuple[IdMap, IdMap],
    factors: tuple[np.ndarray, np.ndarray],
    pairs: tuple[np.ndarray, np.ndarray],
) -> None:
    """Give a model more users and items, other factors, and pairs that it has seen since its
    fit."""
    model._cold_start = model.cold_start()  # of the fit: it is made from parameters as they were
    exact = {side: own_l2(model, side) for side in SIDES}
    model.user_ids_, model.item_ids_ = ids
    model.user_factors_, model.item_factors_ = factors
    model.seen_ = merged_pairs(model.seen_, *pairs, len(ids[0]))
    if model.held_out_ is not None:
        model.held_out_ = merged_pairs(model.held_out_, pairs[0][:0], pairs[1][:0], len(ids[0]))
    model.parameters_, model.train_rows_ = _without_the_fit(model), None
    for (side, prior), now in zip(exact.items(), factors, strict=True):
        if prior is not None:  # the entities' own parameters, where `own_l2` reads them
            own = (now - prior.padded(prior.mean, len(now))) @ prior.basis
            weight = torch.from_numpy(own.astype(np.float32))
            model.parameters_[f"phi.{side}_towers.0.weight"] = weight


def _without_the_fit(model: Recommender) -> dict[str, torch.Tensor]:
    """Parameters without those of the fit's own users and items, as these stood then."""
    of_the_fit = ("path.", "posterior.")
    return {name: own for name, own in model.parameters_.items() if not name.startswith(of_the_fit)}


def partial_update(model: Recommender, table: Frame) -> dict[str, Any]:
    """Solve the users and items of new rows again, in place; returns a report of what was done."""
    require_foldable(model)
    frame = read_history(model, table, "new rows")
    fresh = ~model.trained_on(frame["user_id"], frame["item_id"])
    if not fresh.any():
        raise InputError(
            "these rows were all trained on", found=f"{frame.height:,} rows", expected="new rows"
        )
    new = frame.filter(pl.Series(fresh))
    users, items = (joined_ids(Entities.of(model, side).ids, new[f"{side}_id"]) for side in SIDES)
    pairs = users.encode(new["user_id"]), items.encode(new["item_id"])
    done = {
        "new_rows": new.height,
        "rows_known_before": frame.height - new.height,
        "users": new["user_id"].n_unique(),
        "items": new["item_id"].n_unique(),
        "new_users": len(users) - len(model.user_ids_),
        "new_items": len(items) - len(model.item_ids_),
        "share_of_rows_since_fit": round(new.height / (model.seen_[1].size + new.height), 4),
    }
    target = model.rating_scale_.unit(new["rating"].to_numpy()).astype(np.float64)
    factors = updated_sides(model, pairs, target, (len(users), len(items)))
    _change(model, (users, items), factors, pairs)
    return done


def updated_sides(
    model: Recommender,
    pairs: tuple[np.ndarray, np.ndarray],
    target: np.ndarray,
    sizes: tuple[int, int],
    sweeps: int = 5,
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of all users and items after new rows: those of the new rows are solved again, in
    turns.

    pairs: positions of users and items; those from the model's number on are new. Old rows meet the
    other side as it was, new ones as it is now.
    """
    priors = [prior_of(model, side) for side in SIDES]
    start = [
        prior.padded(own.astype(np.float64), size)
        for prior, own, size in zip(
            priors, (model.user_factors_, model.item_factors_), sizes, strict=True
        )
    ]
    now, items = [own.copy() for own in start], np.asarray(model.seen_[1])
    users = np.repeat(np.arange(model.seen_[0].size - 1), np.diff(model.seen_[0]))
    old = by_entity(users, items, sizes[0])[0], by_entity(items, users, sizes[1])[0]
    for k in (0, 1) * sweeps:
        touched, place = np.unique(pairs[k], return_inverse=True)
        first, last = old[k][0][touched], old[k][0][touched + 1]
        before = old[k][1][ranges(first, last)]
        entity = np.concatenate([np.repeat(np.arange(touched.size), last - first), place])
        other = np.concatenate([before, pairs[1 - k] + sizes[1 - k]])
        left = target - scores_at(start[k], now[1 - k], pairs[k], pairs[1 - k])
        rows, order = by_entity(entity, other, touched.size)
        x = np.concatenate([start[1 - k], now[1 - k]]) @ priors[k].basis
        z = solve(x, rows, np.append(np.zeros(before.size), left)[order], priors[k].penalty)
        now[k][touched] = start[k][touched] + z @ priors[k].basis.T
    return now[0].astype(np.float32), now[1].astype(np.float32)

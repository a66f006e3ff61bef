"""Users by what they did: one exact least-squares step with the other side of a fitted model held
fixed.

A user's factors are p_u = m_u + B z_u: what is known of the user otherwise, and coordinates with a
penalty. With the rows (i, r) of the user, q_i the item's factors and x_i = Bᵀ q_i,

    z_u = argmin Σ_i (r − ⟨m_u, q_i⟩ − ⟨z, x_i⟩)² + ρ ‖z‖² = (Σ x_i x_iᵀ + ρ I)⁻¹ Σ x_i (r − ⟨m_u,
    q_i⟩)

For `mf` with L2 of a known strength (`own_l2`) this is the condition that its fit ended at, so a
user who is folded in with the training rows scores as trained. Other models have no such condition
in the users' factors: there users are taken to be drawn like those of training, m_u and B Bᵀ their
mean and covariance, ρ the model's mean squared error. What `spectrum` reads from which items a user
saw is found again only as far as ratings tell it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl
import torch

from puidrec.data.dataset import IdMap, Interactions
from puidrec.data.schema import (
    Frame,
    Origin,
    clean_interactions,
    refuse_near_rating,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.model import Recommender

Side = Literal["user", "item"]
PairsByUser = tuple[np.ndarray, np.ndarray]
CELLS = 2**21
"""Numbers gathered at once: 16 MB, and 256 entities at most, so that they stay near the processor.
"""
SMALL = 1e-6
"""Directions in which trained users differ by less than this share of the largest are no
directions."""
DEFAULT_NOISE = 0.05
"""Mean squared error of ratings on 0..1 where a model does not know its own (folders of earlier
versions)."""


class Rows(NamedTuple):
    """Rows of entities 0, 1, …: `other[start[k]:start[k + 1]]` are the codes of the other side that
    k goes with."""

    start: np.ndarray
    other: np.ndarray

    @classmethod
    def of(cls, entity: np.ndarray, other: np.ndarray, n: int) -> tuple[Rows, np.ndarray]:
        """From pairs in any order; and the order that sorts them."""
        order = np.argsort(entity, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(entity, minlength=n))])
        return cls(start, other[order]), order


@dataclass(frozen=True)
class Prior:
    """What factors of one side are before any row is seen: mean + basis · z, with a penalty ρ ‖z‖²."""

    mean: np.ndarray
    """Of each entity of the model, [n, d]."""
    basis: np.ndarray
    """[d, coordinates]."""
    penalty: float
    exact: bool = False
    """Whether this is the penalty that the model was fitted with."""

    @property
    def unknown(self) -> np.ndarray:
        """The mean of an entity that was not in training."""
        average: np.ndarray = self.mean.mean(0)
        return average

    def coordinates(self, factors: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """z of given factors."""
        z: np.ndarray = np.linalg.lstsq(self.basis, (factors - mean).T, rcond=None)[0].T
        return z

    def factors(self, mean: np.ndarray, z: np.ndarray) -> np.ndarray:
        """mean + basis · z."""
        factors: np.ndarray = (mean + z @ self.basis.T).astype(np.float32)
        return factors


def solve(
    x: np.ndarray,
    rows: Rows,
    target: np.ndarray,
    penalty: float,
    before: Rows | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """z of each entity, [n, coordinates], from its rows; a batch of small positive systems at a
    time.

    x: coordinates of the other side. before, start: rows that led to coordinates `start` at their
    optimum: these rows count again, although their targets are not known, for at the optimum Σ x t
    = (Σ x xᵀ + ρ I) z.
    """
    n, width = rows.start.size - 1, x.shape[1]
    points, ridge = np.ascontiguousarray(x, np.float64), penalty * np.eye(x.shape[1])
    result = np.zeros((n, width))
    counts = np.diff(rows.start) + (0 if before is None else np.diff(before.start))
    for block in _blocks(counts, width):
        inner, outer = _products(points, rows, target, block)
        if before is not None and start is not None:
            known = _products(points, before, None, block)[0] + ridge
            outer += (known @ start[block][:, :, None])[:, :, 0]
            inner += known
        else:
            inner += ridge
        result[block] = np.linalg.solve(inner, outer[:, :, None])[:, :, 0]
    return result


def _blocks(counts: np.ndarray, width: int) -> list[np.ndarray]:
    """Entities with about as many rows each, so that little is padded; as many at once as `CELLS`
    allow."""
    order, blocks, first = np.argsort(counts, kind="stable"), [], 0
    while first < order.size:
        most = int(counts[order[min(first + 255, order.size - 1)]])
        size = min(max(1, CELLS // (width * (width + most))), 256)
        blocks.append(order[first : first + size])
        first += size
    return blocks


def _products(
    points: np.ndarray, rows: Rows, target: np.ndarray | None, block: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ x xᵀ and Σ x t over the rows of each entity of a block, rows padded with zeros."""
    first, size = rows.start[block], rows.start[block + 1] - rows.start[block]
    place = np.arange(int(size.max()))
    there = place < size[:, None]
    at = np.where(there, first[:, None] + place, 0)
    gathered = points[rows.other[at]] if rows.other.size else np.zeros((*at.shape, points.shape[1]))
    if not there.all():
        gathered *= there[:, :, None]
    turned = gathered.transpose(0, 2, 1)
    values = np.zeros(at.shape) if target is None or not target.size else target[at]
    return turned @ gathered, (turned @ values[:, :, None])[:, :, 0]


def prior_of(model: Recommender, side: Side) -> Prior:
    """What the factors of a side are pulled to, and how strongly."""
    exact = own_l2(model, side)
    return exact if exact is not None else _population(model, side)


def own_l2(model: Recommender, side: Side) -> Prior | None:
    """The L2 that `mf` was fitted with, where it is one number per side; None where the model does
    not say it.

    Read from the model: `l2_` and `dim_` (as given or chosen), the mean number of training rows per
    entity (`seen_`), the entities' own parameters (`parameters_`: towers of vector and bias), and μ
    (`phi.mean`). The loss is Σ (s − r)² + ρ ‖vector and bias‖², ρ = l2 · rows per entity.
    """
    settings, own = model.settings, model.parameters_.get(f"phi.{side}_towers.0.weight")
    l2, dim = model.l2_, model.dim_
    fits = (
        own is not None
        and tuple(own.shape) == (len(_ids(model, side)), dim + 1)
        and "phi.mean" in model.parameters_
    )
    if settings.method != "mf" or settings.loss != "squared" or not fits or own is None:
        return None
    if model.report_.get("solver") != "least-squares" or not l2 > 0.0:
        return None
    rho = l2 * model.seen_[1].size / own.shape[0]
    factors = _factors(model, side)
    free = np.r_[np.arange(dim), dim if side == "user" else dim + 1]
    mean = factors.astype(np.float64)
    mean[:, free] -= own.numpy()
    scale = np.full(dim + 1, rho**-0.5)
    basis = np.zeros((factors.shape[1], dim + 1))
    basis[free, np.arange(dim + 1)] = scale
    return Prior(mean, basis, 1.0, exact=True)


def _population(model: Recommender, side: Side) -> Prior:
    """Entities drawn like those of training: their mean, and the directions in which they differ."""
    factors = _factors(model, side).astype(np.float64)
    mean = factors.mean(0)
    _, strength, axes = np.linalg.svd(factors - mean, full_matrices=False)
    kept = strength > SMALL * max(float(strength.max(initial=0.0)), 1e-30)
    basis = axes[kept].T * strength[kept] / np.sqrt(len(factors))
    noise = float(model.report_.get("training_mse", DEFAULT_NOISE))
    return Prior(np.broadcast_to(mean, factors.shape), basis, max(noise, 1e-6))


def require_foldable(model: Recommender) -> None:
    """Refuse models whose scores are no ratings: least squares would not be their loss."""
    settings = model.settings
    if settings.loss == "cross-entropy" or settings.target != "rating":
        raise InputError(
            "users are folded in by least squares on ratings",
            found=f"loss={settings.loss}, target={settings.target}",
            expected="a model of ratings with a squared or absolute loss",
        )


def folded_users(
    model: Recommender, codes: np.ndarray, user: np.ndarray, item: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Factors of users from their rows. codes: of the users in the model, −1 for new ones; user:
    position in codes."""
    prior = prior_of(model, "user")
    q = model.item_factors_.astype(np.float64)
    mean = np.where(codes[:, None] >= 0, prior.mean[np.maximum(codes, 0)], prior.unknown)
    rows, order = Rows.of(user, item, codes.size)
    left = target - np.einsum("kd,kd->k", mean[user], q[item])
    return prior.factors(mean, solve(q @ prior.basis, rows, left[order], prior.penalty))


def updated_sides(
    model: Recommender, pairs: tuple[np.ndarray, np.ndarray], target: np.ndarray, sweeps: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of all users and items after new rows: those of the new rows are solved again, in
    turns.

    pairs: positions of users and items; those from the model's number on are new. What the old rows
    of an entity say is what its fit ended at (`solve`), with the other side as it was.
    """
    sides: tuple[Side, Side] = ("user", "item")
    priors = [prior_of(model, side) for side in sides]
    sizes = [
        max(int(own.max()) + 1, len(_ids(model, side)))
        for own, side in zip(pairs, sides, strict=True)
    ]
    means = [
        _padded(prior.mean, prior.unknown, size) for prior, size in zip(priors, sizes, strict=True)
    ]
    factors = [
        _padded(_factors(model, side).astype(np.float64), mean, size)
        for side, mean, size in zip(sides, means, sizes, strict=True)
    ]
    start = [
        prior.coordinates(own, mean)
        for prior, own, mean in zip(priors, factors, means, strict=True)
    ]
    seen_user = np.repeat(np.arange(model.seen_[0].size - 1), np.diff(model.seen_[0]))
    old = [
        Rows.of(own, other, size)[0]
        for own, other, size in (
            (seen_user, np.asarray(model.seen_[1]), sizes[0]),
            (np.asarray(model.seen_[1]), seen_user, sizes[1]),
        )
    ]
    fixed = [factors[1].copy(), factors[0].copy()]  # the other side, as the old rows met it
    for _ in range(sweeps):
        for k in (0, 1):
            touched, place = np.unique(pairs[k], return_inverse=True)
            z = _update(
                priors[k],
                means[k][touched],
                start[k][touched],
                _of(old[k], touched),
                fixed[k],
                (place, pairs[1 - k]),
                factors[1 - k],
                target,
            )
            factors[k][touched] = means[k][touched] + z @ priors[k].basis.T
    return factors[0].astype(np.float32), factors[1].astype(np.float32)


def _update(
    prior: Prior,
    mean: np.ndarray,
    start: np.ndarray,
    old: Rows,
    fixed: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    other: np.ndarray,
    target: np.ndarray,
) -> np.ndarray:
    """Coordinates of some entities from their old rows (met `fixed`) and new rows (meet `other`)."""
    place, partner = pairs
    both = (
        np.concatenate([fixed, other]) @ prior.basis
    )  # old rows point into the first half, new rows into the second
    rows, order = Rows.of(place, partner + len(fixed), mean.shape[0])
    left = target - np.einsum("kd,kd->k", mean[place], other[partner])
    return solve(both, rows, left[order], prior.penalty, old, start)


def _of(rows: Rows, wanted: np.ndarray) -> Rows:
    """The rows of some entities."""
    size = rows.start[wanted + 1] - rows.start[wanted]
    start = np.concatenate([[0], np.cumsum(size)])
    at = np.repeat(rows.start[wanted] - start[:-1], size) + np.arange(int(start[-1]))
    return Rows(start, rows.other[at])


def _padded(values: np.ndarray, rest: np.ndarray, size: int) -> np.ndarray:
    """Rows of `values`, and after them rows of `rest` (one for all, or one each) up to a size."""
    more = (
        rest[len(values) :]
        if rest.ndim == 2
        else np.broadcast_to(rest, (size - len(values), rest.size))
    )
    return np.concatenate([values, more])


def _ids(model: Recommender, side: Side) -> IdMap:
    return model.user_ids_ if side == "user" else model.item_ids_


def _factors(model: Recommender, side: Side) -> np.ndarray:
    return model.user_factors_ if side == "user" else model.item_factors_


def read_history(model: Recommender, table: Frame, what: str = "history") -> pl.DataFrame:
    """Rows `user_id, item_id, rating` of users by what they did; of a pair given twice the last row
    counts.

    Without `user_id` all rows are of one user, 0; without `rating` they are likes.
    """
    origin = Origin(what)
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, ("item_id",), origin)
    if "user_id" not in frame.columns:
        nobody = pl.lit(0) if model.user_ids_.ids.dtype.is_integer() else pl.lit("0")
        frame = frame.with_columns(user_id=nobody)
    if "rating" not in frame.columns:
        refuse_near_rating(frame.columns, origin)
        frame = frame.with_columns(rating=pl.lit(model.rating_scale_.high))
    frame = clean_interactions(frame, model.rating_scale_, origin).select(
        "user_id", "item_id", "rating"
    )
    for key, ids in (("user_id", model.user_ids_), ("item_id", model.item_ids_)):
        if frame[key].dtype != ids.ids.dtype:
            found, expected = str(frame[key].dtype), str(ids.ids.dtype)
            raise origin.error(
                "ids of another type than in training", column=key, found=found, expected=expected
            )
    return frame.unique(["user_id", "item_id"], keep="last", maintain_order=True)


def fold_in_users(model: Recommender, table: Frame, *, alone: bool = False) -> Recommender:
    """A copy of the model in which the users of a table are as their rows say; `alone`: with these
    users only."""
    require_foldable(model)
    frame = read_history(model, table)
    users = IdMap(frame["user_id"].unique(maintain_order=True))
    user, item = users.encode(frame["user_id"]), model.item_ids_.encode(frame["item_id"])
    known = item >= 0
    if not known.any():
        expected = f"items of the model, such as {model.item_ids_.ids[0]}"
        raise Origin("history").error(
            "none of these items was in training",
            column="item_id",
            found=frame["item_id"][0],
            expected=expected,
        )
    codes = model.user_ids_.encode(users.ids)
    target = model.rating_scale_.unit(frame["rating"].to_numpy()).astype(np.float64)
    factors = folded_users(model, codes, user[known], item[known], target[known])
    if alone:
        seen = merged_pairs(
            (np.zeros(1, np.int64), np.zeros(0, np.int64)), user[known], item[known], len(users)
        )
        return _with_users(model, users, factors, seen)
    new = codes < 0
    place = np.where(new, len(model.user_ids_) + np.cumsum(new) - 1, codes)
    everyone = np.concatenate([model.user_factors_, factors[new]])
    everyone[place] = factors
    seen = merged_pairs(model.seen_, place[user[known]], item[known], len(everyone))
    folded = _with_users(model, joined_ids(model.user_ids_, users.ids), everyone, seen)
    keep_own(folded, prior_of(model, "user"), "user")
    return folded


def partial_update(model: Recommender, table: Frame) -> dict[str, Any]:
    """Solve the users and items of new rows again, in place; returns what was done, for the report."""
    require_foldable(model)
    frame = read_history(model, table, "new rows")
    users = joined_ids(model.user_ids_, frame["user_id"].unique(maintain_order=True))
    items = joined_ids(model.item_ids_, frame["item_id"].unique(maintain_order=True))
    pairs = (
        users.encode(frame["user_id"]).astype(np.int64),
        items.encode(frame["item_id"]).astype(np.int64),
    )
    fresh = ~model.trained_on(frame["user_id"], frame["item_id"])
    if not fresh.any():
        raise InputError(
            "these rows were all trained on", found=f"{frame.height:,} rows", expected="new rows"
        )
    pairs = pairs[0][fresh], pairs[1][fresh]
    target = model.rating_scale_.unit(frame["rating"].to_numpy())[fresh].astype(np.float64)
    done = {
        "new_rows": int(fresh.sum()),
        "rows_known_before": int((~fresh).sum()),
        "users": int(np.unique(pairs[0]).size),
        "items": int(np.unique(pairs[1]).size),
        "new_users": len(users) - len(model.user_ids_),
        "new_items": len(items) - len(model.item_ids_),
        "share_of_rows_since_fit": round(
            int(fresh.sum()) / (model.seen_[1].size + int(fresh.sum())), 4
        ),
    }
    priors: dict[Side, Prior] = {"user": prior_of(model, "user"), "item": prior_of(model, "item")}
    sides = updated_sides(model, pairs, target)
    cold_start = model.cold_start()
    model.seen_ = merged_pairs(model.seen_, *pairs, len(users))
    if model.held_out_ is not None:
        model.held_out_ = merged_pairs(model.held_out_, *(np.zeros(0, np.int64),) * 2, len(users))
    model.user_factors_, model.item_factors_ = sides
    model.user_ids_, model.item_ids_, model._cold_start = users, items, cold_start
    for side, prior in priors.items():
        keep_own(model, prior, side)
    model.parameters_ = _without_path(model)
    return done


def keep_own(model: Recommender, prior: Prior, side: Side) -> None:
    """Keep the entities' own parameters beside changed factors, where `own_l2` reads them (models
    of IDs)."""
    name = f"phi.{side}_towers.0.weight"
    if not prior.exact:
        return
    factors, free = _factors(model, side).astype(np.float64), prior.basis.any(1)
    mean = _padded(prior.mean, prior.unknown, len(factors))
    own = torch.from_numpy((factors - mean)[:, free].astype(np.float32))
    model.parameters_ = {**model.parameters_, name: own}


def _with_users(
    model: Recommender, users: IdMap, factors: np.ndarray, seen: PairsByUser
) -> Recommender:
    """A copy of the model with other users."""
    other = copy(model)
    other._cold_start = model.cold_start()
    other.user_ids_, other.user_factors_, other.seen_, other.held_out_ = users, factors, seen, None
    other.parameters_, other.train_rows_ = _without_path(model), None
    return other


def _without_path(model: Recommender) -> dict[str, torch.Tensor]:
    """Parameters without the path along Γ, which knows the users and items of the fit only."""
    return {
        name: value for name, value in model.parameters_.items() if not name.startswith("path.")
    }


def joined_ids(known: IdMap, ids: pl.Series) -> IdMap:
    """The known ids, and after them those of a column that are new."""
    new = ids.filter(pl.Series(known.encode(ids) < 0))
    return IdMap(pl.concat([known.ids, new.alias(known.ids.name)]))


def merged_pairs(
    seen: PairsByUser, user: np.ndarray, item: np.ndarray, n_users: int
) -> PairsByUser:
    """Pairs by user with more of them, each once, for `n_users` users."""
    width = int(max(np.max(seen[1], initial=0), np.max(item, initial=0))) + 1
    before = np.repeat(np.arange(seen[0].size - 1), np.diff(seen[0])) * width + np.asarray(
        seen[1], np.int64
    )
    key = np.unique(np.concatenate([before, user.astype(np.int64) * width + item]))
    start = np.concatenate([[0], np.cumsum(np.bincount(key // width, minlength=n_users))])
    return start, (key % width).astype(np.int32)


def training_mse(model: Recommender, rows: Interactions) -> float:
    """Mean squared error on training rows, ratings on 0..1: what folding users in takes for noise."""
    total, n = 0.0, len(rows)
    for start in range(0, n, 2**13):  # vectors that stay in the cache
        some = slice(start, start + 2**13)
        scores = np.einsum(
            "kd,kd->k", model.user_factors_[rows.user[some]], model.item_factors_[rows.item[some]]
        )
        total += float(
            np.sum((scores - model.rating_scale_.unit(rows.rating[some])).astype(np.float64) ** 2)
        )
    return round(total / max(n, 1), 6)

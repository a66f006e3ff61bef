"""Up to which Γ does a recommendation stay? The final scores moved along the path: s + f_Γ −
f_prior.

f_Γ is fitted at the prior's Γ, at 3 and at ∞ (`all-rank`). Unseen ratings are put at q/Γ, so that
between these f_Γ is close to linear in 1/Γ: on Coat and in simulated worlds the scores of a user
correlate by .99 or more with those fitted at that Γ.

At the prior's Γ nothing moves. An item's `gamma_max` is the largest Γ of the path up to which it
stays among the K best of its user, at that Γ and at all before it; infinite if it stays at all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.evaluation.ranking import top_k
from puidrec.methods.spectrum.terms import Term, compress
from puidrec.scores.low_rank import LowRank

LEVELS = (1.5, 3.0, 10.0, float("inf"))
"""Γ at which it is asked whether an item stays."""
RANK = 24
"""Most columns that the moves of scores are kept as."""
SHOWN_USERS, SHOWN_K = 500, 10


class Path(NamedTuple):
    """Tensors to keep with the model, and the share of recommendations that stay at each Γ."""

    tensors: dict[str, Tensor]
    shares: dict[str, float]


def path_parameters(
    scores: LowRank, members: Mapping[str, LowRank], gammas: Mapping[str, float], prior: str
) -> Path:
    """The moves f_Γ − f_prior as factors, and how stable the ten best items of some users are."""
    if not gammas:
        return Path({}, {})
    start = gammas.get(prior, 1.0)
    points = sorted((1.0 / gamma, name) for name, gamma in gammas.items() if gamma > start)
    points.append((1.0 / start, prior))  # by rising 1/Γ
    levels = [gamma for gamma in LEVELS if gamma > start]
    tensors = {"path.gamma": torch.tensor([start, *levels])}
    for k, gamma in enumerate(levels):
        moved = _between(points, 1.0 / gamma, members)
        move = compress([*moved, Term(prior, members[prior], -1.0)], RANK).scores
        tensors |= {f"path.{k}.left": move.lefts[0], f"path.{k}.right": move.rights[0]}
    users = np.unique(np.linspace(0, scores.n_users - 1, SHOWN_USERS).astype(np.int64))
    left, right = (side.numpy() for side in (scores.lefts[0], scores.rights[0]))
    base = left[users] @ right.T
    best = top_k(base, min(SHOWN_K, scores.n_items))[0]
    last = gamma_max(base, users, best, tensors)
    return Path(tensors, {_name(g): round(float((last >= g).mean()), 4) for g in levels})


def _between(
    points: Sequence[tuple[float, str]], at: float, members: Mapping[str, LowRank]
) -> list[Term]:
    """f_Γ at 1/Γ, linear between the two fitted points around it."""
    after = next(k for k, (inverse, _) in enumerate(points) if inverse >= at)
    (high, upper), (low, lower) = points[after], points[max(after - 1, 0)]
    share = 1.0 if high == low else (at - low) / (high - low)
    return [Term(upper, members[upper], share), Term(lower, members[lower], 1.0 - share)]


def gamma_max(
    scores: np.ndarray,
    users: np.ndarray,
    best: np.ndarray,
    tensors: Mapping[str, Tensor],
    items: np.ndarray | None = None,
) -> np.ndarray:
    """Of each recommended item, [users, K], the largest Γ of the path up to which it stays.

    scores: [users, candidates], −inf where an item is no candidate. users: codes of the rows. best:
    columns of the K
    best. items: code of each column; None: the whole catalogue, in order.
    """
    gammas = tensors["path.gamma"].tolist()
    result, stays = np.full(best.shape, gammas[0]), np.ones(best.shape, bool)
    k = best.shape[1]
    for step, gamma in enumerate(gammas[1:]):
        left, right = tensors[f"path.{step}.left"].numpy(), tensors[f"path.{step}.right"].numpy()
        moved = scores + left[users] @ (right if items is None else right[items]).T
        edge = np.sort(top_k(moved, k)[1], axis=1)[:, :1]
        own = np.take_along_axis(moved, best, 1)
        stays &= (own >= edge) & np.isfinite(own)
        result[stays] = gamma
    return result


def _name(gamma: float) -> str:
    return "∞" if np.isinf(gamma) else f"{gamma:g}"

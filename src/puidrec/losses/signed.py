"""Signed methods: unseen ratings are lower than seen ones by a factor Γ, because people pick what
they like.

The mean of an unseen rating is taken to be m = q/Γ, q the expected rating where seen (or, if people
pick what they dislike, the mirror image 1 − (1 − q)/Γ). With Γ_ui = exp(s_u + s_i), m is of as low
rank as q, so its sum over all unseen pairs is exact and cheap.

A Γ rule gives the shape log Γ_ui. Where the caller does not choose Γ, its scale κ (Γ_ui^κ is what
counts) is set so that the unseen ratings have the mean that a few uniform ratings show, or so that
the mean of log Γ is that of a mild default.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.exposure.bounds import Gamma, TableGamma
from puidrec.scores.low_rank import LowRank, linear_sum

DEFAULT_GAMMA = 1.1
"""Γ where nothing is known: in the simulated worlds, where people pick what they like, it repairs
most of the confounding (`docs/truth.md`). That people do so is an assumption: where they do not, it
costs some of the error."""
MIN_UNIFORM = 50
"""Uniform ratings below which their mean says too little."""
MAX_LOG = float(np.log(20.0))


def unseen_scores(
    q: LowRank, log_users: Tensor, log_items: Tensor, *, liked: bool = True
) -> LowRank:
    """m = q/Γ with log Γ_ui = log_users + log_items; `liked=False`: 1 − (1 − q)/Γ."""
    shrink_users, shrink_items = torch.exp(-log_users), torch.exp(-log_items)
    if liked:
        return q.scaled(shrink_users, shrink_items)
    return q.complement().scaled(shrink_users, shrink_items).complement()


def additive_log_gamma(gamma: Gamma, like: Tensor) -> tuple[Tensor, Tensor]:
    """log Γ as users' part + items' part; a rule that does not split so is replaced by its additive
    fit."""
    half = 0.5 * gamma.mean_log
    users, items = gamma.additive_parts or (
        np.maximum(mean - half, 0.0) for mean in (gamma.user_mean_log(), gamma.item_mean_log())
    )
    return torch.from_numpy(np.array(users)).to(like), torch.from_numpy(np.array(items)).to(like)


def raise_to_default_gamma(gamma: Gamma) -> Gamma:
    """Multiply a rule that sees next to nothing by one factor for all pairs, so that its mean log
    is the default's.

    κ scales a shape. Scaled up fifty times, the shape of a rule near Γ = 1 is noise and its tail
    overflows; so what such a rule lacks is taken to be common to all pairs. Where it sees no
    confounding at all, it is left at that.
    """
    lack = float(np.log(DEFAULT_GAMMA)) - gamma.mean_log
    if lack <= 0.0 or gamma.mean_log <= 0.0 or not isinstance(gamma, TableGamma):
        return gamma
    return TableGamma.make(
        (gamma.user_bin, gamma.item_bin), gamma.cell + lack, (gamma.user, gamma.item), cap=gamma.cap
    )


def default_scale(mean_log: float) -> float:
    """κ that brings the mean of log Γ to that of the default; 0 where the rule sees no confounding
    at all."""
    return float(np.log(DEFAULT_GAMMA)) / mean_log if mean_log > 0 else 0.0


def calibrated_scale(
    q: LowRank, log_users: Tensor, log_items: Tensor, mean: float, *, liked: bool = True
) -> float:
    """κ at which the unseen ratings q·exp(−κ log Γ) have the given mean; 0 where they need not be
    moved that way."""
    goal, q = (mean, q) if liked else (1.0 - mean, q.complement())

    def excess(kappa: float) -> float:
        return (
            float(linear_sum(unseen_scores(q, kappa * log_users, kappa * log_items))) / q.n_pairs
            - goal
        )

    typical = float(log_users.mean() + log_items.mean())
    largest = MAX_LOG / typical if typical > 0 else 0.0
    if largest == 0.0 or excess(0.0) <= 0.0:
        return 0.0
    if excess(largest) >= 0.0:
        return largest
    from scipy.optimize import brentq  # takes long to import; other methods do without

    return float(brentq(excess, 0.0, largest, xtol=1e-6))


def unseen_mean_for_shared_model(
    seen_mean: float, population_mean: float, unseen_weight: float
) -> float:
    """Where unseen ratings must be put for a model that cannot tell seen pairs from unseen ones.

    Its predictions end between the two, at (seen + λ·unseen)/(1 + λ); that is to be the mean over
    all pairs.
    """
    share = unseen_weight / (1.0 + unseen_weight)
    return float(np.clip((population_mean - (1.0 - share) * seen_mean) / share, 0.0, 1.0))


def require_uniform(rows: int, found: str) -> None:
    """Refuse `certified` without enough uniform ratings."""
    if rows < MIN_UNIFORM:
        raise InputError(
            "gamma='certified' needs uniform ratings",
            found=f"{rows} in {found}",
            expected=f"at least {MIN_UNIFORM}",
            hint="Give uniform interactions, or a number for gamma.",
        )

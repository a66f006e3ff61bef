"""How strong the signed and sharp methods take hidden confounding to be, where the caller does not say.

A Γ rule gives the shape log Γ_ui; its strength κ is set so that the mean of q·exp(−κ log Γ_ui) over the unseen pairs is
what a few uniform ratings say it is (`certified`), or so that the mean of log Γ is that of a mild default.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from puidrec.errors import InputError
from puidrec.objective.low_rank import LowRank
from puidrec.objective.whole_space import linear_sum
from puidrec.sensitivity.fitted import Gamma, TableGamma

MILD = 1.1
"""Γ where nothing is known: in the simulated worlds it repairs most of the confounding (`docs/truth.md`), and where
there is none it costs less than one percent of the error."""
MIN_UNIFORM = 50
"""Uniform ratings below which their mean says too little."""
MAX_LOG = float(np.log(20.0))


def lifted(gamma: Gamma) -> Gamma:
    """A rule that sees next to nothing, raised by one factor for all pairs to the mild default.

    κ scales a shape. Scaled up fifty times, the shape of a rule near Γ = 1 is noise, and its tail overflows; so what
    such a rule lacks is taken to be common to all pairs. Where it sees no confounding at all, it is left at that.
    """
    lack = float(np.log(MILD)) - gamma.mean_log
    if lack <= 0.0 or gamma.mean_log <= 0.0 or not isinstance(gamma, TableGamma):
        return gamma
    return TableGamma.make((gamma.user_bin, gamma.item_bin), gamma.cell + lack, (gamma.user, gamma.item), cap=gamma.cap)


def mild_strength(mean_log: float) -> float:
    """κ that brings the mean of log Γ to that of the mild default; 0 where the rule sees no confounding at all."""
    return float(np.log(MILD)) / mean_log if mean_log > 0 else 0.0


def unseen_mean(seen_mean: float, n_seen: int, uniform_target: np.ndarray, n_pairs: int) -> float:
    """The mean of unseen ratings, which with the seen ones makes the mean of uniform ratings."""
    return (float(uniform_target.mean()) * n_pairs - seen_mean * n_seen) / max(n_pairs - n_seen, 1)


def settled_mean(seen_mean: float, uniform_target: np.ndarray, unseen_weight: float) -> float:
    """Where unseen ratings must be put for a model that cannot tell seen pairs from unseen ones.

    Its predictions settle between the two, at (seen + λ·unseen)/(1 + λ); that is to be the mean of uniform ratings.
    """
    share = unseen_weight / (1.0 + unseen_weight)
    return float(np.clip((float(uniform_target.mean()) - (1.0 - share) * seen_mean) / share, 0.0, 1.0))


def certified_strength(
    seen: LowRank, log_users: Tensor, log_items: Tensor, mean: float, *, liked: bool = True
) -> float:
    """κ at which the unseen ratings q·exp(−κ log Γ) have the given mean; 0 where they need not be moved that way."""
    n_pairs = seen.n_pairs
    goal = mean if liked else 1.0 - mean
    q = seen if liked else _mirror(seen)

    def excess(kappa: float) -> float:
        shrunk = q.scaled(torch.exp(-kappa * log_users), torch.exp(-kappa * log_items))
        return float(linear_sum(shrunk)) / n_pairs - goal

    typical = float(log_users.mean() + log_items.mean())
    largest = MAX_LOG / typical if typical > 0 else 0.0
    if largest == 0.0 or excess(0.0) <= 0.0:
        return 0.0
    return largest if excess(largest) >= 0.0 else float(brentq(excess, 0.0, largest, xtol=1e-6))


def require_uniform(rows: int, found: str) -> None:
    """Refuse `certified` without enough uniform ratings."""
    if rows < MIN_UNIFORM:
        raise InputError(
            "gamma='certified' needs uniform ratings", found=f"{rows} in {found}",
            expected=f"at least {MIN_UNIFORM}", hint="Give uniform interactions, or a number for gamma.",
        )  # fmt: skip


def _mirror(scores: LowRank) -> LowRank:
    """1 − q."""
    left, right = scores.lefts[0], scores.rights[0]
    return LowRank.of(left.new_ones(left.shape[0], 1), right.new_ones(right.shape[0], 1)).minus(scores)

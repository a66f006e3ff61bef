"""AUC: the probability that a positive row outscores a negative one, per user (UAUC) or over all
rows."""

from __future__ import annotations

import numpy as np

from puidrec.evaluation.ranking import Blocks, dense_codes, rank_lists
from puidrec.evaluation.significance import PerUser


def list_auc(positive: Blocks) -> np.ndarray:
    """AUC of each list, ties counted half, from the blocks that hold positive rows.

    A positive row of a block has (begin + end) / 2 rows above it on average over ties, half of
    itself included. Summed over positives, less the m²/2 that are positives over positives, this is
    the negatives above positives; their share of all m·(n − m) pairs is 1 − AUC. Meaningless where
    a list lacks a label.
    """
    m = positive.total
    above = positive.list_sum(positive.gain * (positive.begin.astype(np.float64) + positive.end))
    pairs = m * (positive.rows - m)
    auc: np.ndarray = 1.0 - (above - m**2) / (2.0 * np.where(pairs > 0, pairs, 1.0))
    return auc


def user_auc(
    user: np.ndarray, score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None
) -> PerUser:
    """AUC of every user who has both labels; ties count half. Their mean is UAUC."""
    users, code = dense_codes(np.asarray(user))
    lists, label = rank_lists(code, np.asarray(score), weight), np.asarray(label)
    n_positive = lists.count(label)
    both = (n_positive > 0) & (n_positive < lists.rows)
    return PerUser(users[both], list_auc(lists.blocks(label))[both])


def auc(score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> float:
    """AUC over all rows, whoever they belong to, ties counted half; NaN where only one label
    occurs."""
    score, positive = np.asarray(score), np.asarray(label) > 0
    share = None if weight is None else (weight[positive], weight[~positive])
    if positive.all() or not positive.any():
        return float("nan")
    beaten = share_below(score[positive], score[~positive], None if share is None else share[1])
    return float(np.average(beaten, weights=None if share is None else share[0]))


def share_below(
    score: np.ndarray, others: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Of each score the share (of weight) of the others that it outscores, ties counted half.

    The others are sorted, and each score is looked up among them.
    """
    if weight is None:
        others, mass = np.sort(others), np.arange(others.size + 1.0)
    else:
        order = np.argsort(others)
        others, mass = others[order], np.concatenate([[0.0], np.cumsum(weight[order])])
    below = np.searchsorted(others, score)
    tied = np.flatnonzero(others.take(below, mode="clip") == score)
    beaten = mass[below]
    beaten[tied] += (mass[np.searchsorted(others, score[tied], "right")] - beaten[tied]) / 2
    shares: np.ndarray = beaten / mass[-1]
    return shares


def placements(
    score: np.ndarray, positive: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Of each positive row the share of others it is above, of each other row the share of
    positives above it.

    Both have the mean AUC, and their variances add up to that of AUC (DeLong et al., 1988). Both
    labels must occur.
    """
    found = np.empty(score.size)
    for part, sign in ((positive, 1.0), (~positive, -1.0)):
        others = None if weight is None else weight[~part]
        found[part] = share_below(sign * score[part], sign * score[~part], others)
    return found


def auc_by_user(
    ids: np.ndarray,
    code: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray | None = None,
) -> PerUser | float:
    """AUC over all rows as the mean of one value per user, whose spread is that of AUC when users
    are drawn anew.

    A user's value is AUC plus what its rows add to it to first order: with users as clusters this
    gives the interval of DeLong et al. (1988), and paired differences of two scores. NaN where only
    one label occurs.
    """
    positive, mass = np.asarray(label) > 0, np.ones(code.size) if weight is None else weight
    if positive.all() or not positive.any():
        return float("nan")
    share = placements(score, positive, weight)
    value, added = float(np.average(share[positive], weights=mass[positive])), np.zeros(ids.size)
    for part in (positive, ~positive):
        own = mass[part] * (share[part] - value) / mass[part].sum()
        added += np.bincount(code[part], weights=own, minlength=ids.size)
    return PerUser(ids, value + ids.size * added)

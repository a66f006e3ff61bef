"""AUC: the probability that a positive row outscores a negative one, per user (UAUC) or over all rows."""

from __future__ import annotations

import numpy as np

from puidrec.evaluation.ranking import Blocks, dense_codes, rank_lists
from puidrec.evaluation.significance import PerUser


def list_auc(positive: Blocks) -> np.ndarray:
    """AUC of each list, ties counted half, from the blocks that hold positive rows.

    A positive row of a block has (begin + end) / 2 rows above it on average over ties, half of itself included.
    Summed over positives, less the m²/2 that are positives over positives, this is the negatives above positives;
    their share of all m·(n − m) pairs is 1 − AUC. Meaningless where a list lacks a label.
    """
    m = positive.total
    above = positive.list_sum(positive.gain * (positive.begin.astype(np.float64) + positive.end))
    pairs = m * (positive.rows - m)
    auc: np.ndarray = 1.0 - (above - m**2) / (2.0 * np.where(pairs > 0, pairs, 1.0))
    return auc


def user_auc(user: np.ndarray, score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> PerUser:
    """AUC of every user who has both labels; ties count half. Their mean is UAUC."""
    users, code = dense_codes(np.asarray(user))
    lists, label = rank_lists(code, np.asarray(score), weight), np.asarray(label)
    n_positive = lists.count(label)
    both = (n_positive > 0) & (n_positive < lists.rows)
    return PerUser(users[both], list_auc(lists.blocks(label))[both])


def auc(score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> float:
    """AUC over all rows, whoever they belong to, ties counted half; NaN where only one label occurs.

    Negatives are sorted, and each positive looked up among them: it outscores the weight strictly below it, and
    half of the weight that ties with it.
    """
    score, positive = np.asarray(score), np.asarray(label) > 0
    won, lost = score[positive], score[~positive]
    if not (won.size and lost.size):
        return float("nan")
    if weight is None:
        won.sort()
        lost.sort()
        share, mass = np.ones(1), np.arange(lost.size + 1.0)
    else:
        order = np.argsort(lost)
        lost, share = lost[order], weight[positive]
        mass = np.concatenate([[0.0], np.cumsum(weight[~positive][order])])
    below = np.searchsorted(lost, won)
    tied = np.flatnonzero(lost.take(below, mode="clip") == won)
    beaten = mass[below]
    beaten[tied] += (mass[np.searchsorted(lost, won[tied], "right")] - beaten[tied]) / 2
    share = np.broadcast_to(share, won.shape)
    return float(share @ beaten / (share.sum() * mass[-1]))

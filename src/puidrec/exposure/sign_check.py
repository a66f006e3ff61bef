"""Do people pick what they like? What uniform ratings, or a log alone, can say of the sign of its
selection.

The sign is an assumption wherever unseen ratings are put below seen ones. Uniform rows show it by
their means: those of seen pairs, reweighted to the unseen ones, less those of unseen pairs. Without
them, held-out logged rows can support
it: where people pick what they like, ratings rise with how much others like them were exposed to
the item, beyond what a rating model, activity and popularity say. A clear positive t licenses Γ >
1. Nothing else in a log does: where taste varies from pair to pair, t is about 0 whichever the
sign.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtr, ndtri

from puidrec.data.row_matrix import item_count
from puidrec.errors import InputError

CLEAR_T = 3.1
"""t from which the sign is taken to be shown: a false one in a thousand logs of either sign."""
FEW_USERS = 20
LIKED, DISLIKED, OPEN = (
    "people pick what they like",
    "people pick what they dislike",
    "the sign is not shown",
)


class SignCheck(NamedTuple):
    """Whether held-out ratings rise with exposure."""

    slope: float
    """Change of the rating (in [0, 1]) per standard deviation of the exposure factor."""
    t: float
    """Its t statistic, with errors that may be correlated within a user."""
    rows: int

    @property
    def liked(self) -> bool:
        """Whether the rows show clearly that people pick what they like."""
        return self.t > CLEAR_T

    @property
    def disliked(self) -> bool:
        """Whether they show clearly that people pick what they dislike."""
        return self.t < -CLEAR_T

    @property
    def finding(self) -> str:
        """What the rows say, in words."""
        return LIKED if self.liked else DISLIKED if self.disliked else OPEN


class MeanGap(NamedTuple):
    """Mean rating of seen pairs, reweighted to the unseen ones, less that of uniform rows of unseen
    pairs."""

    name: str
    side: str
    """`user` or `item` for a segment; empty for the whole."""
    seen: float
    unseen: float
    low: float
    """95 % interval of seen − unseen, with errors that may be correlated within a user."""
    high: float
    p_value: float
    n_uniform: int

    @property
    def finding(self) -> str:
        """What the two means say, in words."""
        return OPEN if self.p_value >= 0.05 else LIKED if self.seen > self.unseen else DISLIKED


def mean_gap(
    weight: np.ndarray,
    levels: np.ndarray,
    rating: np.ndarray,
    user: np.ndarray,
    *,
    name: str,
    side: str = "",
) -> MeanGap | None:
    """The gap of the means; None where fewer than `FEW_USERS` users or groups of users have
    ratings.

    weight: Σ(1/p − 1) of the seen rows, [groups of users, levels]. rating, user: of the uniform
    rows.
    """
    total, of_group = weight.sum(), weight.sum(axis=1)
    code = np.unique(user, return_inverse=True)[1]
    n_users, n_groups = int(code.max(initial=-1)) + 1, int((of_group > 0.0).sum())
    if min(n_users, n_groups) < FEW_USERS:
        return None
    seen, unseen = float(weight.sum(axis=0) @ levels / total), float(rating.mean())
    by_group, by_user = weight @ levels - seen * of_group, np.bincount(code, rating - unseen)
    variance = (by_group @ by_group) / total**2 * n_groups / (n_groups - 1)
    variance += (by_user @ by_user) / rating.size**2 * n_users / (n_users - 1)
    error, gap = float(np.sqrt(variance)), seen - unseen
    reach = float(ndtri(0.975)) * error
    p_value = float(2.0 * ndtr(-abs(gap) / error)) if error > 0.0 else float(gap == 0.0)
    return MeanGap(name, side, seen, unseen, gap - reach, gap + reach, p_value, rating.size)


def log_controls(ratings: csr_array, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Activity and popularity of pairs in a log, as `sign_check` takes them."""
    activity, popularity = np.log1p(np.diff(ratings.indptr)), np.log1p(item_count(ratings))
    return np.column_stack([activity[user], popularity[item]])


def sign_check(
    rating: np.ndarray,
    prediction: np.ndarray,
    exposure: np.ndarray,
    user: np.ndarray,
    controls: np.ndarray,
) -> SignCheck:
    """Regress held-out logged ratings on a model's predictions, controls and one exposure factor;
    user-clustered t.

    rating: in [0, 1]. prediction, exposure: made without these rows; the leading exposure factor,
    which is activity times popularity, taken off. controls: [rows, any], such as log activity and
    log popularity. user: codes.
    """
    sizes = {x.shape[0] for x in (rating, prediction, exposure, user, controls)}
    if len(sizes) != 1:
        raise InputError("one value per held-out row", found=sorted(sizes))
    n_users = np.unique(user).size
    if n_users < FEW_USERS or np.ptp(exposure) == 0.0:
        return SignCheck(0.0, 0.0, rating.size)
    x = np.column_stack(
        [np.ones(rating.size), prediction, controls, exposure / exposure.std()]
    ).astype(np.float64)
    inverse = np.linalg.pinv(x.T @ x)
    coefficient = inverse @ (x.T @ rating)
    scores = x * (rating - x @ coefficient)[:, None]
    code = np.unique(user, return_inverse=True)[1]
    sums = np.stack([np.bincount(code, column) for column in scores.T], axis=1)
    variance = (inverse @ (sums.T @ sums) @ inverse)[-1, -1] * n_users / (n_users - 1)
    slope = float(coefficient[-1])
    return SignCheck(
        slope, slope / float(np.sqrt(variance)) if variance > 0.0 else 0.0, rating.size
    )

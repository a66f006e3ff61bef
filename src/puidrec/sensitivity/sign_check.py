"""Do people pick what they like? What a log can say of the sign of its own selection.

The sign is an assumption wherever unseen ratings are put below seen ones. Held-out logged rows can support it:
where people pick what they like, ratings rise with how much others like them were exposed to the item, beyond what a
rating model, activity and popularity say. A clear positive t licenses Γ > 1. Nothing else in a log does: where taste
varies from pair to pair, t is about 0 whichever the sign.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from puidrec.errors import InputError

CLEAR_T = 4.0
"""t from which the sign is taken to be shown. In logs where nothing is hidden it stays below 3."""
FEW_USERS = 20


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


def sign_check(
    rating: np.ndarray, prediction: np.ndarray, exposure: np.ndarray, user: np.ndarray, controls: np.ndarray
) -> SignCheck:
    """Regress held-out logged ratings on a model's predictions, controls and one exposure factor; user-clustered t.

    rating: in [0, 1]. prediction, exposure: made without these rows; the leading exposure factor, which is activity
    times popularity, taken off. controls: [rows, any], such as log activity and log popularity. user: codes.
    """
    sizes = {x.shape[0] for x in (rating, prediction, exposure, user, controls)}
    if len(sizes) != 1:
        raise InputError("one value per held-out row", found=sorted(sizes))
    n_users = np.unique(user).size
    if n_users < FEW_USERS or np.ptp(exposure) == 0.0:
        return SignCheck(0.0, 0.0, rating.size)
    x = np.column_stack([np.ones(rating.size), prediction, controls, exposure / exposure.std()]).astype(np.float64)
    inverse = np.linalg.pinv(x.T @ x)
    coefficient = inverse @ (x.T @ rating)
    scores = x * (rating - x @ coefficient)[:, None]
    code = np.unique(user, return_inverse=True)[1]
    sums = np.stack([np.bincount(code, column) for column in scores.T], axis=1)
    variance = (inverse @ (sums.T @ sums) @ inverse)[-1, -1] * n_users / (n_users - 1)
    slope = float(coefficient[-1])
    return SignCheck(slope, slope / float(np.sqrt(variance)) if variance > 0.0 else 0.0, rating.size)

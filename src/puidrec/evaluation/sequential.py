"""Is a comparison settled by the random ratings so far? A test that is valid whenever one looks.

Random ratings arrive one by one; each gives a paired difference d of errors, bounded by −1 and 1.
Betting on d > 0 with a share λ of one's capital, capital after n ratings is Π(1 + λ d): if the mean
of d is not above 0 it is a fair game at best, and exceeds 1/α at *any* time with probability at
most α (Ville). Bets at many λ at once are averaged, which is as good as knowing the best λ up to a
constant (Waudby-Smith and Ramdas 2024). The same against d < 0; α is halved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from puidrec.errors import InputError

BETS = np.geomspace(0.002, 0.9, 40)
"""λ: shares of the capital that are bet; each gets the same part of it at the start."""
MOST_AHEAD = 10_000_000
"""Where more ratings than this would be needed, no number is named."""

Leader = Literal["model", "against"]


@dataclass(frozen=True)
class Settlement:
    """What the random ratings so far say, whenever one looks."""

    leader: Leader | None
    """Who is ahead beyond chance; None: not settled yet."""
    settled_after: int | None
    """Ratings after which it was settled."""
    n: int
    """Ratings so far."""
    n_units: int
    """Independent units among them: ratings, or runs of ratings of one user."""
    difference: float
    """Mean of the differences so far; above 0: the model is ahead."""
    evidence: np.ndarray
    """The larger e-value after every unit; 2/α settles it."""
    alpha: float
    more_needed: int | None
    """About how many more ratings settle it if the difference stays as it is; 0: settled, None: no
    end in sight."""

    @property
    def sentence(self) -> str:
        """What to do now."""
        return self.say("the model", "the other model")

    def say(self, model: str, against: str) -> str:
        """The sentence with the names of the two."""
        sure = f"{100 * (1 - self.alpha):g} % confidence, valid whenever one looks"
        if self.leader is not None:
            who = model if self.leader == "model" else against
            return (
                f"Settled after {self.settled_after:,} random ratings: {who} is ahead in "
                f"squared error ({sure})."
            )
        if self.more_needed is None:
            return (
                f"Not settled by {self.n:,} random ratings, and no end is in sight: hardly any "
                f"difference ({sure})."
            )
        return (
            f"Not settled by {self.n:,} random ratings; about {self.more_needed:,} more are "
            f"needed ({sure})."
        )

    def __repr__(self) -> str:
        return f"Settlement: {self.sentence}"


def settle(
    difference: np.ndarray, user: np.ndarray | None = None, *, alpha: float = 0.05
) -> Settlement:
    """Whether paired differences of errors (other − model, in [−1, 1]), in the order they came,
    settle who is ahead.

    user: neighbouring ratings of the same user count as one, their mean, since one user's ratings
    may be alike.
    """
    value = np.asarray(difference, dtype=np.float64)
    _check(value, user, alpha)
    unit, rows = _units(value, user)
    logs = np.stack([_log_capital(side) for side in (unit, -unit)])
    top = logs.max(axis=0)
    over = np.flatnonzero(top >= np.log(2.0 / alpha))
    settled = int(over[0]) if over.size else None
    leader: Leader | None = None
    if settled is not None:
        leader = "model" if logs[0, settled] > logs[1, settled] else "against"
    return Settlement(
        leader,
        int(rows[settled]) if settled is not None else None,
        value.size,
        unit.size,
        float(value.mean()),
        np.exp(np.minimum(top, 700.0)),
        alpha,
        0 if settled is not None else _more(unit, logs[:, -1], rows[-1], alpha),
    )


def _check(value: np.ndarray, user: np.ndarray | None, alpha: float) -> None:
    if value.ndim != 1 or value.size == 0:
        raise InputError(
            "a sequential test needs a vector of differences",
            found=value.shape,
            expected="at least one",
        )
    if not np.isfinite(value).all() or np.abs(value).max() > 1.0:
        raise InputError(
            "differences must lie in [−1, 1]",
            found=float(np.abs(value).max()),
            hint="Scale ratings and predictions to [0, 1], or divide by the largest possible "
            "difference.",
        )
    if user is not None and np.shape(user) != value.shape:
        raise InputError("one user per difference", found=np.shape(user), expected=f"{value.shape}")
    if not 0.0 < alpha < 1.0:
        raise InputError(
            "alpha out of range", found=alpha, expected="0 < alpha < 1", hint="Try 0.05."
        )


def _units(value: np.ndarray, user: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Means of runs of one user, and the number of rows up to the end of each."""
    if user is None:
        return value, np.arange(1, value.size + 1)
    first = np.flatnonzero(np.concatenate([[True], user[1:] != user[:-1]]))
    size = np.diff(first, append=value.size)
    return np.add.reduceat(value, first) / size, np.cumsum(size)


def _log_capital(value: np.ndarray) -> np.ndarray:
    """Log of the mean capital over all bets after every unit; some units at a time, so that memory
    stays small."""
    carried, parts = np.zeros((BETS.size, 1)), []
    for first in range(0, value.size, 65_536):
        part = carried + np.cumsum(np.log1p(BETS[:, None] * value[first : first + 65_536]), axis=1)
        carried = part[:, -1:]
        high = part.max(axis=0)
        parts.append(high + np.log(np.exp(part - high).mean(axis=0)))
    return np.concatenate(parts)


def _more(unit: np.ndarray, now: np.ndarray, rows: int, alpha: float) -> int | None:
    """Ratings still needed if units like these keep coming: log capital grows by max over λ of mean
    log(1 + λ d)."""
    side = 0 if unit.mean() >= 0 else 1
    growth = float(np.log1p(BETS[:, None] * (unit if side == 0 else -unit)).mean(axis=1).max())
    if unit.size < 2 or growth <= 0.0:
        return None
    missing = np.log(2.0 / alpha) - float(now[side])
    needed = int(np.ceil(missing / growth * rows / unit.size))
    return needed if needed <= MOST_AHEAD else None

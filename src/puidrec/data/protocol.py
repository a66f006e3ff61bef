"""Evaluation protocols: two papers' numbers are comparable only under one, so each is a named
object.

Lines are drawn in stars (1..5): `RatingScale.stars` maps any scale there, and a 0/1 label to 1 and
5, on which all protocols agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from puidrec.data.schema import RatingScale
from puidrec.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """What counts as liked, how the uniform rows are divided, and how rankings are scored.

    Users are scored on their own test items; ties are averaged in UAUC; NDCG has 0/1 gains. A new
    protocol is a row of `PROTOCOLS`.
    """

    name: str
    positive_from: float
    """Stars from which a rating is positive."""
    negative_to: float
    """Stars up to which a rating is negative; what lies between is dropped."""
    description: str
    version: int = 1
    propensity_share: float = 0.05
    validation_share: float = 0.05
    logged_validation_share: float = 0.10
    """Without uniform rows, the share of the log held out for validation."""
    logged_test_share: float = 0.10
    """And for testing."""
    users: Literal["both-labels", "any-positive", "all"] = "both-labels"
    """Whose lists count: users with both labels, with a positive (`any-positive`), or `all`: then
    NDCG is 1 for a user without a positive, as some papers have it."""
    unlogged: bool = False
    """Only pairs that were never logged are tested on, also where repeated pairs are kept
    (`overlap="keep"`)."""
    order: Literal["random", "time", "last", "dates"] = "random"
    """How rows of the log are held out: at random, the latest of all (`time`), or the last of each
    user (`last`). By time, the log is tested on even where there are uniform rows; these then
    calibrate."""
    cuts: tuple[int, int] = (0, 0)
    """Order `dates`: the times from which rows validate and test; rows before train."""
    tests_uniform: bool = False
    """Order `dates`: uniform rows validate, test and (before) calibrate; else rows of the log
    validate and test."""
    log_note: str = ""
    """What the source must say of its log (`notes["log"]`), where a protocol belongs to one form of
    a data set."""
    log_hint: str = ""

    def label(self, rating: np.ndarray, scale: RatingScale) -> np.ndarray:
        """Return 1 (positive), 0 (negative) or -1 (dropped) per rating, as int8."""
        stars = scale.stars(rating)
        return np.where(
            stars >= self.positive_from, 1, np.where(stars <= self.negative_to, 0, -1)
        ).astype(np.int8)


_JUST_ABOVE_3 = float(np.nextafter(3.0, 4.0)) + 1e-6
_FOUR_STARS, _THREE_STARS = (4.0, 4.0 - 1e-6), (3.0, 3.0 - 1e-6)
"""Positive from here on, else negative."""

_KUAIRAND = "Load it with --data kuairand (label is_click, or --set data.label=long_view)."
_DAY, _1_MAY = 86_400_000, 1_651_334_400_000
"""Milliseconds of a day, and the time at which 1 May 2022 began in China."""

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "rd",
            *_FOUR_STARS,
            "4 and 5 stars are positive, the rest negative (public RD code)",
        ),
        Protocol(
            "paper",
            _JUST_ABOVE_3,
            2.0,
            "above 3 positive, 2 and below negative, 3 dropped (as printed)",
        ),
        Protocol("ge3", *_THREE_STARS, "3 stars and above positive (what the paper's figures fit)"),
        Protocol(
            "cvib",
            *_THREE_STARS,
            "3 stars and above positive, all uniform rows are test, NDCG = 1 for users without a "
            "positive (CVIB)",
            propensity_share=0.0,
            validation_share=0.0,
            users="all",
        ),
        Protocol(
            "idcf",
            *_FOUR_STARS,
            "4 and 5 stars positive, 30 % of uniform rows validate, 70 % test (iDCF)",
            propensity_share=0.0,
            validation_share=0.3,
        ),
        Protocol(
            "unlogged",
            *_FOUR_STARS,
            "as rd, but only pairs that were never logged are ranked",
            unlogged=True,
        ),
        Protocol(
            "big-small",
            *_FOUR_STARS,
            "KuaiRec: the platform's log (big matrix) trains, the small matrix tests",
            propensity_share=0.0,
            validation_share=0.0,
            log_note="big_matrix",
            log_hint="Load KuaiRec with log='big-matrix' (--data kuairec --set "
            "data.log=big-matrix).",
        ),
        Protocol(
            "temporal",
            *_FOUR_STARS,
            "4 and 5 stars positive, the latest 10 % of the log test, the 10 % before "
            "them validate; all unseen items are ranked",
            order="time",
        ),
        Protocol(
            "leave-last-out",
            *_FOUR_STARS,
            "4 and 5 stars positive, the last row of each user tests, the one "
            "before validates; all unseen items are ranked",
            order="last",
        ),
        Protocol(
            "kuairand-random",
            *_FOUR_STARS,
            "KuaiRand: the log before 1 May trains; random rows before "
            "calibrate, of 1 to 4 May validate, of 5 to 8 May test",
            order="dates",
            cuts=(_1_MAY, _1_MAY + 4 * _DAY),
            tests_uniform=True,
            log_note="kuairand",
            log_hint=_KUAIRAND,
        ),
        Protocol(
            "kuairand-standard",
            *_FOUR_STARS,
            "KuaiRand: the log of 8 to 21 April trains, of 22 to 28 April "
            "validates, of 29 April to 8 May tests",
            order="dates",
            cuts=(_1_MAY - 9 * _DAY, _1_MAY - 2 * _DAY),
            log_note="kuairand",
            log_hint=_KUAIRAND,
        ),
    )
}


def get_protocol(protocol: str | Protocol) -> Protocol:
    """Look a protocol up by name."""
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        raise InputError(
            "unknown protocol", found=protocol, expected=f"one of {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[protocol]

"""What a log shows by itself: its own ratings beside a model and exposure factors that were made
without them.

Held-out rows of the log are judged by the fits at hand. Where they are few, the log is divided into
parts, and each part is judged by fits to the others, until there are rows enough to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from puidrec.data.dataset import Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.exposure.sign_check import SignCheck, log_controls, sign_check
from puidrec.methods.dim_and_l2 import with_chosen_l2
from puidrec.methods.prepare import Prepared
from puidrec.methods.spectrum.from_log import exposure_scores, label_free_order, looked_at
from puidrec.methods.spectrum.terms import Term
from puidrec.methods.stages import train_stages
from puidrec.scores.low_rank import LowRank

PARTS = 5
ENOUGH = 50_000
"""Rows from which no further part of the log is set aside."""
SWEEPS = 40
"""Most sweeps of a fit that only judges."""
MOST_FROM_DISK = 1_000_000
"""Rows up to which a log on disk is read into memory for this. Larger ones hold out enough rows by
themselves."""


class OutOfFold(NamedTuple):
    """Logged rows beside what was predicted for them without them."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    """Ratings in [0, 1]."""
    prediction: np.ndarray
    """Of `mf`."""
    exposure: dict[str, np.ndarray]
    """Exposure scores by name, as `ExposureScores` has them."""
    controls: np.ndarray

    @property
    def sign(self) -> SignCheck:
        """Whether ratings rise with exposure."""
        exposure = looked_at(self.exposure) if self.exposure else np.zeros(self.user.size)
        return sign_check(self.target, self.prediction, exposure, self.user, self.controls)


def out_of_fold(
    prepared: Prepared, mf: LowRank | None = None, exposure: Mapping[str, LowRank] | None = None
) -> OutOfFold | None:
    """The log's evidence; None where there is none: a log of likes, or a large one on disk without
    held-out rows.

    mf: the fit to all training rows, where held-out rows may be judged by it. exposure: the scores
    of these rows, if they are made already.
    """
    if prepared.data.positives_only:
        return None
    found = list[OutOfFold]()
    held_out = prepared.split.validation
    if mf is not None and prepared.split.selection == "logged" and len(held_out):
        found.append(_judged(prepared, mf, held_out, exposure))
    found.extend(_parts(prepared, ENOUGH - sum(one.user.size for one in found)))
    if not found:
        return None
    names = [name for name in found[0].exposure if all(name in one.exposure for one in found)]
    scores = {name: np.concatenate([one.exposure[name] for one in found]) for name in names}
    user, item, target, prediction, controls = (
        np.concatenate([getattr(one, name) for one in found])
        for name in ("user", "item", "target", "prediction", "controls")
    )
    return OutOfFold(user, item, target, prediction, scores, controls)


def _parts(prepared: Prepared, enough: int) -> Iterator[OutOfFold]:
    """Parts of the training rows, each judged by a fit to all others, until there are enough rows.

    dim and L2 are those of the whole log: to choose them once per part would cost more than the
    fits.
    """
    rows = prepared.split.train
    if enough <= 0 or (isinstance(rows, StoredInteractions) and len(rows) > MOST_FROM_DISK):
        return
    prepared, _ = with_chosen_l2(prepared)
    settings = prepared.settings
    part = np.empty(len(rows), np.int64)
    part[label_free_order(prepared.log.ratings)] = np.arange(len(rows)) % PARTS
    most = min(settings.epochs, SWEEPS)
    own = settings.replace(method="mf", gamma="auto", normalise=False, select="none", epochs=most)
    for k in range(PARTS):
        train, held = (rows.take(np.flatnonzero(which)) for which in (part != k, part == k))
        if enough <= 0 or not len(train) or not len(held):
            return
        others = Prepared.of(prepared.data, replace(prepared.split, train=train), own)
        yield _judged(others, train_stages(others, None, None, None).phi, held)
        enough -= len(held)


def _judged(
    prepared: Prepared, mf: LowRank, held: Interactions, named: Mapping[str, LowRank] | None = None
) -> OutOfFold:
    """Rows beside the predictions and exposure scores of a log that does not hold them."""
    user, item, ratings = held.user, held.item, prepared.log.ratings
    named = exposure_scores(ratings).named if named is None else named
    exposure = {name: Term(name, scores).at(user, item) for name, scores in named.items()}
    prediction = Term("mf", LowRank.of(mf.lefts[0].detach().cpu(), mf.rights[0].detach().cpu())).at(
        user, item
    )
    return OutOfFold(
        user,
        item,
        prepared.log.target(held),
        prediction,
        exposure,
        log_controls(ratings, user, item),
    )

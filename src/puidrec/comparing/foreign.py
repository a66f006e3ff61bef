"""What a comparison shows beside methods of this package: tables, models as they stand, and
whatever can be fitted anew on each split.

All of them are scored as `evaluate` scores them, on the test rows that our methods meet.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.schema import Origin, to_polars, with_our_names
from puidrec.data.sources.files import score_file
from puidrec.data.split import Split
from puidrec.evaluation.any_model import (
    ScoreTable,
    as_predictor,
    is_table,
    known_pairs,
    outcome_scale,
    recommendations,
    require_lists,
    to_unit,
    unit_scores,
)
from puidrec.evaluation.metrics import higher_is_better
from puidrec.evaluation.unseen_items import UNSEEN

ELSEWHERE = (
    "fitted elsewhere: we cannot know what it was trained on. If test rows were among it (data "
    "leakage), its figures are too good"
)
REFITTED = "another package's, fitted on the training rows of each split"


@dataclass(frozen=True)
class Foreign:
    """A row of a comparison that no method of this package stands behind."""

    name: str
    given: Any = field(repr=False)
    metrics: tuple[str, ...]
    """What it is measured by: what the table shows."""
    note: str
    """Where its scores come from, and what was left out."""
    content: str | None = None
    """The hash of a table. Results of anything else are not kept: nothing tells it from another."""
    refitted: bool = False

    @classmethod
    def of(cls, name: str, given: Any, data: Dataset, metrics: Sequence[str]) -> Foreign:
        """Refuse what is no model; look for the ids of a table in the data."""
        given = score_file(given, data) if isinstance(given, PathLike) else given
        if is_table(given):
            return cls._of_table(name, given, data, metrics)
        if not is_refitted(given):
            return cls(name, as_predictor(given), tuple(metrics), ELSEWHERE)
        return cls(name, given, tuple(metrics), REFITTED, refitted=True)

    @classmethod
    def _of_table(cls, name: str, given: Any, data: Dataset, metrics: Sequence[str]) -> Foreign:
        origin = Origin(name)
        frame = with_our_names(to_polars(given, origin))
        if recommendations(frame, name) is None:
            table: Any = ScoreTable.of(frame, name)
            frame = table.frame
        else:
            metrics = [metric for metric in metrics if metric.startswith(UNSEEN)] or metrics
            require_lists(metrics)
            table = frame = frame.select("user_id", "item_id", "rank")
        known = known_pairs(frame, data, origin)
        lost = int((~known).sum())
        words = f"; {lost:,} of its {known.size:,} rows are of users or items that the data lack"
        content = hashlib.sha256(frame.write_csv().encode()).hexdigest()
        return cls(name, table, tuple(metrics), ELSEWHERE + (words if lost else ""), content)

    def check(self, test: Interactions) -> None:
        """Refuse a table that lacks scores of test rows, before anything is trained."""
        if isinstance(self.given, ScoreTable) and not all(
            name.startswith(UNSEEN) for name in self.metrics
        ):
            _scores(self.given, test)

    def on(self, split: Split, seed: int) -> tuple[Any, tuple[str, ...]]:
        """The model by which the test rows of a split are scored, and what it can be measured by.

        Errors need scores on the scale of ratings, or on 0..1: other scores have none.
        """
        model = self._fitted(split, seed) if self.refitted else self.given
        errors = {name for name in self.metrics if not higher_is_better(name)}
        if not errors or not len(split.test):
            return model, self.metrics
        scale, score = split.test.scale, _scores(model, split.test)
        kind = outcome_scale(score, scale.unit(split.test.rating), scale)
        if kind == "rating":
            ask = model.predict
            model = as_predictor(lambda users, items: to_unit(ask(users, items), kind, scale))
        kept = [name for name in self.metrics if kind != "other" or name not in errors]
        return model, tuple(kept)

    def _fitted(self, split: Split, seed: int) -> Any:
        """A new model, trained on the training rows alone; `fit` may return it, or nothing."""
        if isinstance(self.given, type) or not hasattr(self.given, "fit"):
            named = "seed" in inspect.signature(self.given).parameters
            model = self.given(seed=seed) if named else self.given()
        else:
            model = copy.deepcopy(self.given)
        found = model.fit(split.train.to_frame())
        return found if hasattr(found, "predict") else model


def _scores(model: Any, rows: Interactions) -> np.ndarray:
    pairs = rows.users.decode(rows.user).to_numpy(), rows.items.decode(rows.item).to_numpy()
    return np.asarray(unit_scores(model, *pairs), np.float64)


def is_refitted(given: Any) -> bool:
    """Whether it is fitted anew: it has `fit`, or makes what has (a class, a function that takes
    no pair)."""
    if isinstance(given, type) or hasattr(given, "fit"):
        return True
    if hasattr(given, "predict") or not callable(given):
        return False
    try:
        inspect.signature(given).bind("users", "items")
    except TypeError:
        return True
    except ValueError:  # no signature can be told
        return False
    return False


def label_of(given: Any) -> str:
    """What it is called in tables where nobody named it."""
    if is_table(given):
        return "table"
    if isinstance(given, PathLike):
        return Path(given).stem
    name = str(getattr(given, "__name__", type(given).__name__))
    return "function" if name == "<lambda>" else name

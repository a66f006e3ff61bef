"""Any recommender as an audit asks it: an object with `predict`, a function of pairs, a table or a
file of scores.

`AuditedModel` is one of them. Where scores are on another scale than ratings, `isotonic_map` brings
them to ratings, each row by a map that was fitted on other rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.auditing.slots import Scorer
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.sources.files import score_file
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.any_model import (
    ScoreScale,
    ScoreTable,
    as_predictor,
    finite_scores,
    is_table,
)
from puidrec.evaluation.metrics import unit_labels
from puidrec.rng import generator

CHUNK = 1_000_000
"""Rows predicted at a time."""
PLAIN = (str, int, float, bool, type(None))
MAP_PARTS, MAX_MAP_ROWS = 5, 200_000


@dataclass(frozen=True)
class AuditedModel:
    """A model as an audit sees it."""

    model: Any
    params: Mapping[str, Any]
    label: str

    @classmethod
    def of(cls, model: Any, data: Dataset) -> AuditedModel:
        """Refuse what cannot be asked for scores, and a model that was trained on other users or
        items."""
        if isinstance(model, str | PathLike):
            table = ScoreTable.of(score_file(model, data), str(model))
            return cls(table.within(data), {}, Path(model).stem)
        if is_table(model):
            return cls(ScoreTable.of(model).within(data), {}, "scores")
        if isinstance(model, type):
            raise InputError("an audit needs a model", found=f"the class {model.__name__}")
        asked = as_predictor(model)
        for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
            own = getattr(model, f"{side}_ids_", None)
            if own is not None and not own.ids.equals(ids.ids):
                raise InputError(
                    f"the model was trained on other {side}s than the data set holds",
                    found=f"{len(own):,} {side}s",
                    expected=f"the {len(ids):,} of {data.name}",
                )
        ask = getattr(model, "get_params", None)
        params = ask() if callable(ask) else {}
        name = getattr(model, "__name__", type(model).__name__)
        return cls(asked, params, str(params.get("method", name)))

    @property
    def refits(self) -> bool:
        """Whether it can be trained again, with its own settings, on a part of the log: `fit(data,
        split)`."""
        fit = getattr(self.model, "fit", None)
        if not callable(fit) or not self.params:
            return False
        try:
            return "split" in inspect.signature(fit).parameters
        except ValueError:  # no signature can be told
            return False

    def refitted(self, data: Dataset, split: Split) -> AuditedModel:
        """The same model, trained on another part of the log."""
        return AuditedModel(
            type(self.model)(**self.params).fit(data, split), self.params, self.label
        )

    @property
    def target(self) -> Literal["rating", "binary"]:
        """What it predicts: ratings (also where it does not say), or labels."""
        return "binary" if self.params.get("target") == "binary" else "rating"

    @property
    def scale(self) -> ScoreScale | None:
        """The scale of its scores where it is known: a model of this package stays on that of its
        target."""
        return "unit" if "target" in self.params or self.refits else None

    @property
    def signed(self) -> bool:
        """Whether its predictions of labels run from -1 to 1; a method may say that it stays on [0,
        1]."""
        spec = getattr(getattr(self.model, "settings", None), "spec", None)
        return self.target == "binary" and getattr(spec, "target_scale", "signed") == "signed"

    def scores(self, rows: Interactions) -> np.ndarray:
        """Scores of rows as the model gives them (labels in [0, 1]), float64; one finite number
        each."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, min(start + CHUNK, len(rows)))
            pair = rows.users.decode(rows.user[part]), rows.items.decode(rows.item[part])
            found[part] = finite_scores(self.model, *pair, self.label)
        return unit_labels(found) if self.signed else found

    def trained_on(self, rows: Interactions) -> np.ndarray:
        """Which rows the fit says it has learned from; a model that cannot say: none."""
        ask = getattr(self.model, "trained_on", None)
        if not callable(ask):
            return np.zeros(len(rows), bool)
        used: np.ndarray = ask(rows.users.decode(rows.user), rows.items.decode(rows.item))
        return used

    @property
    def uses_uniform(self) -> bool:
        """Whether its training learned from uniform rows, as far as it says."""
        report = getattr(self.model, "report_", None) or {}
        return str(report.get("uniform_rows_used", "none")) != "none"

    def lacks(self, rows: Interactions) -> bool:
        """Whether some of the rows have no score: of a table only."""
        if not isinstance(self.model, ScoreTable):
            return False
        ids = {"user_id": rows.users.decode(rows.user), "item_id": rows.items.decode(rows.item)}
        return pl.DataFrame(ids).join(self.model.frame, on=[*ids], how="anti").height > 0

    def scorer(self, data: Dataset) -> Scorer | None:
        """Scores of all items for a block of users; None where only some pairs have a score."""
        if isinstance(self.model, ScoreTable) and self.model.frame.height < data.n_pairs:
            return None
        left, right = (getattr(self.model, f"{side}_factors_", None) for side in ("user", "item"))
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            return lambda users: left[users] @ right.T

        def ask(users: np.ndarray) -> np.ndarray:
            user = data.user_ids.decode(np.repeat(users, data.n_items))
            item = data.item_ids.decode(np.tile(np.arange(data.n_items), users.size))
            found = finite_scores(self.model, user, item, self.label)
            return found.reshape(users.size, data.n_items)

        return ask

    def describe(self, name: str) -> dict[str, Any]:
        """Name, method and settings, in plain values."""
        settings = {key: value for key, value in self.params.items() if isinstance(value, PLAIN)}
        report = getattr(self.model, "report_", None) or {}
        trained = {key: value for key, value in report.items() if isinstance(value, PLAIN)}
        return {"name": name, "method": self.label, "settings": settings, "training": trained}


def names_of(
    model: AuditedModel, against: AuditedModel | None, names: tuple[str, str] | None
) -> tuple[str, str]:
    """What to call the two; told apart where their methods are the same."""
    if names is not None:
        return names
    first, second = model.label, against.label if against is not None else ""
    return (
        (first, second) if first != second else (f"{first} (audited)", f"{second} (compared with)")
    )


def check_comparable(model: AuditedModel, against: AuditedModel, split_given: bool) -> None:
    """Refuse two models whose errors are on different scales, or whose held-out rows differ."""
    if model.target != against.target:
        raise InputError(
            "the two models predict different things, so their errors do not compare",
            found=f"target {model.target} and {against.target}",
            expected="one target",
        )
    for key in ("seed", "select"):
        own, other = (m.params.get(key) for m in (model, against))
        if own != other and own is not None and other is not None and not split_given:
            raise InputError(
                f"the two models were trained with different {key}s, so that one has seen what the "
                "other has not",
                found=f"{own} and {other}",
                expected="one split for both",
                hint="Train both alike, or pass the split that holds for both.",
            )


def isotonic_map(
    score: np.ndarray, outcome: np.ndarray, rng: int
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Least-squares maps from scores to outcomes that never fall: the outcomes of these rows, each
    by a map made without it, and the map that is made of all.

    Of many rows some are drawn: one map of all of them is too stiff to fit any one row.
    """
    from sklearn.isotonic import IsotonicRegression
    from sklearn.model_selection import KFold, cross_val_predict

    draw, whole = generator(rng, "isotonic"), IsotonicRegression(out_of_bounds="clip")
    if not 1 < score.size <= MAX_MAP_ROWS:
        drawn = draw.choice(score.size, min(score.size, MAX_MAP_ROWS), replace=False)
        apply = whole.fit(score[drawn], outcome[drawn]).predict
        return apply(score), apply
    parts = KFold(min(MAP_PARTS, score.size), shuffle=True, random_state=int(draw.integers(2**31)))
    own = cross_val_predict(whole, score, outcome, cv=parts)
    return own, whole.fit(score, outcome).predict

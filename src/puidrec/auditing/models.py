"""What an audit asks of a model: predictions of pairs on [0, 1], scores to rank by, and what to call it.

Anything with `predict(users, items)` can be audited; `get_params()` (as scikit-learn has it) tells target and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from puidrec.auditing.ranks import Scorer
from puidrec.data.dataset import Dataset, Interactions
from puidrec.errors import InputError

CHUNK = 1_000_000
PLAIN = (str, int, float, bool, type(None))


class Predictor(Protocol):
    """Anything that scores pairs of the caller's own ids."""

    def predict(self, users: Any, items: Any) -> Any:
        """One score per pair."""


@dataclass(frozen=True)
class Audited:
    """A model as an audit sees it."""

    model: Predictor
    params: Mapping[str, Any]

    @classmethod
    def of(cls, model: Predictor, data: Dataset) -> Audited:
        """Refuse what cannot predict, and a model that was trained on other users or items."""
        if not callable(getattr(model, "predict", None)):
            raise InputError("an audit needs a model with predict(users, items)", found=type(model).__name__)
        for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
            own = getattr(model, f"{side}_ids_", None)
            if own is not None and not own.ids.equals(ids.ids):
                raise InputError(
                    f"the model was trained on other {side}s than the data set holds",
                    found=f"{len(own):,} {side}s", expected=f"the {len(ids):,} of {data.name}",
                )  # fmt: skip
        ask = getattr(model, "get_params", None)
        return cls(model, ask() if callable(ask) else {})

    @property
    def method(self) -> str:
        """The method's name, or that of the class."""
        return str(self.params.get("method", type(self.model).__name__))

    @property
    def target(self) -> Literal["rating", "binary"]:
        """What it predicts: ratings scaled to [0, 1] (also where it does not say), or labels."""
        return "binary" if self.params.get("target") == "binary" else "rating"

    @property
    def signed(self) -> bool:
        """Whether its predictions of labels run from -1 to 1; methods that bound unseen means stay on [0, 1]."""
        spec = getattr(getattr(self.model, "settings", None), "spec", None)
        return self.target == "binary" and getattr(spec, "family", None) != "unseen"

    def unit(self, rows: Interactions) -> np.ndarray:
        """Predictions of rows on the scale of the outcome, [0, 1] for a model that never leaves it."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            pair = rows.users.decode(rows.user[part]), rows.items.decode(rows.item[part])
            found[part] = np.asarray(self.model.predict(*pair), np.float64)
        if not np.isfinite(found).all():
            raise InputError("predictions must be finite numbers", found="NaN or infinite values")
        return 0.5 * (found + 1.0) if self.signed else found

    def scorer(self, data: Dataset) -> Scorer:
        """Scores of all items for a block of users: a product of factors where the model has them."""
        left, right = (getattr(self.model, f"{side}_factors_", None) for side in ("user", "item"))
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            return lambda users: left[users] @ right.T

        def ask(users: np.ndarray) -> np.ndarray:
            user = data.user_ids.decode(np.repeat(users, data.n_items))
            item = data.item_ids.decode(np.tile(np.arange(data.n_items), users.size))
            return np.array(self.model.predict(user, item), np.float64).reshape(users.size, data.n_items)

        return ask

    def describe(self, name: str) -> dict[str, Any]:
        """Name, method and settings, in plain values."""
        settings = {key: value for key, value in self.params.items() if isinstance(value, PLAIN)}
        report = getattr(self.model, "report_", None) or {}
        trained = {key: value for key, value in report.items() if isinstance(value, PLAIN)}
        return {"name": name, "method": self.method, "settings": settings, "training": trained}


def names_of(model: Audited, against: Audited | None, names: tuple[str, str] | None) -> tuple[str, str]:
    """What to call the two; told apart where their methods are the same."""
    if names is not None:
        return names
    first, second = model.method, against.method if against is not None else ""
    return (first, second) if first != second else (f"{first} (audited)", f"{second} (compared with)")


def check_comparable(model: Audited, against: Audited, split_given: bool) -> None:
    """Refuse two models whose errors are on different scales, or whose held-out rows differ."""
    if model.target != against.target:
        raise InputError(
            "the two models predict different things, so their errors do not compare",
            found=f"target {model.target} and {against.target}", expected="one target",
        )  # fmt: skip
    for key in ("seed", "select"):
        own, other = (m.params.get(key) for m in (model, against))
        if own != other and own is not None and other is not None and not split_given:
            raise InputError(
                f"the two models were trained with different {key}s, so that one has seen what the other has not",
                found=f"{own} and {other}", expected="one split for both",
                hint="Train both alike, or pass the split that holds for both.",
            )  # fmt: skip

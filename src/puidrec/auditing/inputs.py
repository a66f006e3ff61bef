"""The inputs of an audit, from a data set, a split and one or two models: rows, predictions, propensities, Γ.

`AuditedModel` is a model as the audit asks it, `AuditInputs` all that the log says, `AuditArrays` the rows an audit
looks at, as plain arrays. Anything with `predict(users, items)` can be audited; `get_params()` (as scikit-learn has
it) tells target and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from puidrec.auditing.envelope import Pairs, sums_by_user
from puidrec.auditing.ranks import Scorer
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.evaluator import Predictor
from puidrec.evaluation.metrics import unit_labels
from puidrec.evaluation.significance import Estimate, PerUser, mean_interval
from puidrec.rng import Rng
from puidrec.sensitivity.certify import Certificate
from puidrec.sensitivity.gamma import Gamma, GammaSpec
from puidrec.sensitivity.nominal import NominalExposure, Outcome

Source = Literal["held-out", "training"]
SplitPart = Literal["test", "validation", "train"]
MAX_HIDING = 500_000
"""Rows in which features are hidden one by one: odds ratios do not depend on how many rows there are."""
CHUNK = 1_000_000
"""Rows predicted at a time."""
PLAIN = (str, int, float, bool, type(None))
ROWS_PER_STRATUM = 200
MAX_STRATA = 50


@dataclass(frozen=True)
class AuditedModel:
    """A model as an audit sees it."""

    model: Predictor
    params: Mapping[str, Any]

    @classmethod
    def of(cls, model: Predictor, data: Dataset) -> AuditedModel:
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
        """Whether its predictions of labels run from -1 to 1; a method may say that it stays on [0, 1]."""
        spec = getattr(getattr(self.model, "settings", None), "spec", None)
        return self.target == "binary" and getattr(spec, "target_scale", "signed") == "signed"

    def unit(self, rows: Interactions) -> np.ndarray:
        """Predictions of rows on the scale of the outcome, [0, 1] for a model that never leaves it."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            pair = rows.users.decode(rows.user[part]), rows.items.decode(rows.item[part])
            found[part] = np.asarray(self.model.predict(*pair), np.float64)
        if not np.isfinite(found).all():
            raise InputError("predictions must be finite numbers", found="NaN or infinite values")
        return unit_labels(found) if self.signed else found

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


def names_of(model: AuditedModel, against: AuditedModel | None, names: tuple[str, str] | None) -> tuple[str, str]:
    """What to call the two; told apart where their methods are the same."""
    if names is not None:
        return names
    first, second = model.method, against.method if against is not None else ""
    return (first, second) if first != second else (f"{first} (audited)", f"{second} (compared with)")


def check_comparable(model: AuditedModel, against: AuditedModel, split_given: bool) -> None:
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


@dataclass(frozen=True)
class AuditArrays:
    """Logged pairs with all that envelopes, tipping points and segments need of them."""

    user: np.ndarray
    item: np.ndarray
    outcome: np.ndarray
    """Ratings, or labels, in [0, 1]."""
    label: np.ndarray
    """1 where the protocol calls the rating positive, else 0."""
    model: np.ndarray
    """Predictions on the scale of the outcome."""
    against: np.ndarray | None
    propensity: np.ndarray
    log_gamma: np.ndarray
    """log Γ_ui by the Γ rule."""

    @property
    def name(self) -> str:
        """The quantity that decides: the gap of two models, or the loss of one."""
        return "model_loss" if self.against is None else "loss_gap"

    @cached_property
    def personal(self) -> bool:
        """Whether Γ_ui is above 1 anywhere."""
        return bool(self.log_gamma.max() > 1e-9)

    @cached_property
    def main(self) -> Pairs:
        """The pairs of that quantity."""
        return self.losses(self.model) if self.against is None else self.gaps

    @cached_property
    def gaps(self) -> Pairs:
        """Squared error of `against` minus that of `model`: above 0 where the model does better.

        Given the difference of the predictions the gap is linear in the rating, so that difference makes the strata.
        """
        assert self.against is not None  # noqa: S101 (asked for with two models only)
        value = (self.against - self.outcome) ** 2 - (self.model - self.outcome) ** 2
        return Pairs(value, self.propensity, strata(self.model - self.against))

    def losses(self, prediction: np.ndarray) -> Pairs:
        """Squared error of one model; strata of its predictions."""
        return Pairs((prediction - self.outcome) ** 2, self.propensity, strata(prediction))


def strata(known: np.ndarray, per_stratum: int = ROWS_PER_STRATUM, most: int = MAX_STRATA) -> np.ndarray:
    """Groups of about equal size by a number that is known of seen and unseen pairs alike; ties stay together.

    Few enough that a balance within each is estimated, not assumed: at least `per_stratum` rows on average.
    """
    n = int(np.clip(known.size // per_stratum, 1, most))
    sample = known if known.size <= 1_000_000 else known[:: known.size // 1_000_000 + 1]
    edges = np.unique(np.quantile(sample, np.arange(1, n) / n)) if n > 1 else np.zeros(0)
    codes: np.ndarray = np.searchsorted(edges, known, side="left").astype(np.uint8)
    return codes


@dataclass(frozen=True)
class AuditInputs:
    """Everything an audit needs of the log and the models; each part is made when first asked for, once."""

    data: Dataset
    split: Split
    model: AuditedModel
    against: AuditedModel | None
    propensity_name: str
    min_propensity: float | None
    rule: GammaSpec
    seed: int

    @cached_property
    def part(self) -> SplitPart:
        """The part of the split whose logged rows are audited: held-out rows where it has some, else training rows.

        Errors on training rows flatter the model that fits them more closely, so held-out rows come first: the test
        rows of a data set without uniform rows, or the validation rows under `select="observational"`.
        """
        if self.split.evaluation == "logged" and len(self.split.test):
            return "test"
        if self.split.selection == "logged" and len(self.split.validation):
            return "validation"
        return "train"

    @cached_property
    def rows(self) -> Interactions:
        """The logged rows that are audited; there must be some."""
        rows: Interactions = getattr(self.split, self.part)
        if not len(rows):
            raise InputError(
                "no logged row to audit with", found=f"protocol {self.split.protocol.name}", expected="some"
            )
        return rows

    @property
    def source(self) -> Source:
        """Whether the models were trained on the rows."""
        return "training" if self.part == "train" else "held-out"

    @cached_property
    def seen(self) -> Interactions:
        """All logged rows under the protocol: what was seen, whichever part of it trains."""
        return self.data.logged.labelled(self.split.protocol)

    @cached_property
    def nominal(self) -> NominalExposure:
        """Propensities and evidence from the whole log: they learn from exposure, not from ratings."""
        return NominalExposure(
            self.data, self.seen, self.split.propensity, self.propensity_name, self.min_propensity, self.seed,
            calibration_rows=MAX_HIDING,
        )  # fmt: skip

    @cached_property
    def gamma(self) -> Gamma:
        """Γ_ui by the rule."""
        return self.nominal.gamma(self.rule)

    @cached_property
    def arrays(self) -> AuditArrays:
        """The audited rows as arrays."""
        rows, model, against = self.rows, self.model, self.against
        return AuditArrays(
            rows.user, rows.item, self.outcome(rows), rows.label, model.unit(rows),
            against.unit(rows) if against is not None else None,
            self.nominal.seen_propensity if len(rows) == len(self.seen) else self.nominal.propensity_of(rows),
            self.gamma.log_at(rows.user, rows.item),
        )  # fmt: skip

    def outcome(self, rows: Interactions) -> np.ndarray:
        """What predictions are compared with, in [0, 1]."""
        unit = rows.label if self.model.target == "binary" else self.data.scale.unit(rows.rating)
        return unit.astype(np.float64)

    @cached_property
    def uniform(self) -> Interactions | None:
        """All uniform rows that the protocol keeps; None where there are none."""
        rows = self.data.uniform.labelled(self.split.protocol) if self.data.uniform is not None else None
        return rows if rows is not None and len(rows) else None

    def certificate(self, replicates: int, rng: Rng) -> tuple[Certificate, str] | None:
        """The smallest Γ that the uniform rows prove beyond the nominal propensity, by rating level or by label."""
        uniform = self.uniform
        if uniform is None:
            return None
        by_level = self.model.target == "rating" and self.nominal.certifies_levels(uniform)
        kind: Outcome = "rating" if by_level else "label"
        try:
            found = self.nominal.certificate(kind, uniform, rng=rng)
        except InputError:
            return None  # everything was seen: there is no unseen part to certify
        return found, "rating levels" if kind == "rating" else "labels"

    def uniform_check(self) -> dict[str, Any] | None:
        """Errors on the uniform test rows: they need no propensity and no Γ, and no model was trained on them."""
        rows = self.split.test
        if self.split.evaluation != "uniform" or not len(rows):
            return None
        outcome, user = self.outcome(rows), rows.user
        own = (self.model.unit(rows) - outcome) ** 2
        found = {"n": len(rows), "model_loss": _estimate(user, own)}
        if self.against is not None:
            other = (self.against.unit(rows) - outcome) ** 2
            found |= {"against_loss": _estimate(user, other), "loss_gap": _estimate(user, other - own)}
        return found


def _estimate(user: np.ndarray, value: np.ndarray) -> dict[str, float | None]:
    """A mean over rows with its interval over users."""
    sums = sums_by_user(user, value, np.ones(value.size))
    found: Estimate = mean_interval(PerUser(np.arange(sums.shape[0]), sums[:, 0] / sums[:, 1], sums[:, 1]))
    ends = [end if np.isfinite(end) else None for end in (found.low, found.high)]
    return {"value": found.value, "low": ends[0], "high": ends[1]}

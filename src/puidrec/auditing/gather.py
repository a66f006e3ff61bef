"""From a data set, a split and models to the arrays of an audit: rows, propensities, Γ, certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from puidrec.auditing.case import Case
from puidrec.auditing.models import Audited
from puidrec.auditing.resample import Users
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.significance import Estimate, PerUser, mean_interval
from puidrec.propensity import Exposure, Propensity, make_propensity
from puidrec.rng import Rng
from puidrec.sensitivity.certify import LEVELS_MAX, Certificate, certify
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.gamma import Gamma, GammaSpec, resolve_gamma

Source = Literal["held-out", "training"]
Part = Literal["test", "validation", "train"]
DEFAULT_LOW = 0.01
MAX_HIDING = 500_000
"""Rows in which features are hidden one by one: odds ratios do not depend on how many rows there are."""


def audit_rows(split: Split) -> tuple[Interactions, Part]:
    """The logged rows an audit speaks from: held-out ones where the split has some, else the training rows.

    Errors on training rows flatter the model that fits them more closely, so held-out rows come first: the test rows
    of a data set without uniform rows, or the validation rows under `select="observational"`.
    """
    if split.evaluation == "logged" and len(split.test):
        return split.test, "test"
    if split.selection == "logged" and len(split.validation):
        return split.validation, "validation"
    return split.train, "train"


@dataclass(frozen=True)
class Gathered:
    """Everything about the log; made when first asked for, once."""

    data: Dataset
    split: Split
    rows: Interactions
    part: Part
    propensity_name: str
    min_propensity: float | None
    rule: GammaSpec
    seed: int

    @property
    def source(self) -> Source:
        """Whether the models were trained on the rows."""
        return "training" if self.part == "train" else "held-out"

    @cached_property
    def seen(self) -> Interactions:
        """All logged rows under the protocol: what was seen, whichever part of it trains."""
        return self.data.logged.labelled(self.split.protocol)

    @cached_property
    def evidence(self) -> Evidence:
        """The whole log through bins; features are hidden in a thinner one where it is very long."""
        data, rows = self.data, self.seen
        found = Evidence.from_log(
            rows.user, rows.item, n_users=data.n_users, n_items=data.n_items, users=data.users, items=data.items
        )
        step = -(-len(rows) // MAX_HIDING)
        return found if step == 1 else replace(found, log=(rows.user[::step], rows.item[::step]))

    @cached_property
    def propensity(self) -> Propensity:
        """The nominal propensity of being seen, fitted to the whole log: it learns from exposure, not from ratings."""
        evidence = self.evidence
        exposure = Exposure.from_split(
            self.data, replace(self.split, train=self.seen), user_bins=evidence.user_bins, item_bins=evidence.item_bins
        )
        low = self.min_propensity
        chosen = low if low is not None else min(DEFAULT_LOW, 0.1 * exposure.rate)
        return make_propensity(self.propensity_name, low=chosen).fit(exposure)

    def asked(self, rows: Interactions) -> np.ndarray:
        """Propensities of rows."""
        return self.propensity.predict(rows.user, rows.item, rows.rating)

    @cached_property
    def seen_propensity(self) -> np.ndarray:
        """Propensities of all logged rows."""
        return self.asked(self.seen)

    @cached_property
    def gamma(self) -> Gamma:
        """Γ_ui by the rule."""
        return resolve_gamma(self.rule).fit(self.evidence, rng=self.seed)

    def case(self, model: Audited, against: Audited | None) -> Case:
        """The audit's rows as arrays."""
        rows = self.rows
        return Case(
            rows.user, rows.item, self.outcome(rows, model.target), rows.label, model.unit(rows),
            against.unit(rows) if against is not None else None,
            self.seen_propensity if len(rows) == len(self.seen) else self.asked(rows),
            self.gamma.log_at(rows.user, rows.item),
        )  # fmt: skip

    def outcome(self, rows: Interactions, target: str) -> np.ndarray:
        """What predictions are compared with, in [0, 1]."""
        unit = rows.label if target == "binary" else self.data.scale.unit(rows.rating)
        return unit.astype(np.float64)

    @cached_property
    def uniform(self) -> Interactions | None:
        """All uniform rows that the protocol keeps; None where there are none."""
        rows = self.data.uniform.labelled(self.split.protocol) if self.data.uniform is not None else None
        return rows if rows is not None and len(rows) else None

    def certificate(self, target: str, replicates: int, rng: Rng) -> tuple[Certificate, str] | None:
        """The smallest Γ that the uniform rows prove beyond the nominal propensity, by rating level or by label."""
        uniform, rows = self.uniform, self.seen
        if uniform is None:
            return None
        levels = np.union1d(rows.rating, uniform.rating).size
        kind = "rating" if target == "rating" and 2 < levels <= LEVELS_MAX else "label"
        values = [getattr(part, kind).astype(np.float64) for part in (rows, uniform)]
        try:
            found = certify(
                values[0], values[1], mean_propensity=self.evidence.counts.rate,
                logged_propensity=self.seen_propensity, logged_user=rows.user, uniform_user=uniform.user,
                n_bootstrap=max(replicates, 2), rng=rng,
            )  # fmt: skip
        except InputError:
            return None  # everything was seen: there is no unseen part to certify
        return found, "rating levels" if kind == "rating" else "labels"

    def uniform_check(self, model: Audited, against: Audited | None) -> dict[str, Any] | None:
        """Errors on the uniform test rows: they need no propensity and no Γ, and no model was trained on them."""
        rows = self.split.test
        if self.split.evaluation != "uniform" or not len(rows):
            return None
        outcome, users = self.outcome(rows, model.target), Users.of(rows.user)
        own = (model.unit(rows) - outcome) ** 2
        found = {"n": len(rows), "model_loss": _estimate(users, own)}
        if against is not None:
            other = (against.unit(rows) - outcome) ** 2
            found |= {"against_loss": _estimate(users, other), "loss_gap": _estimate(users, other - own)}
        return found


def _estimate(users: Users, value: np.ndarray) -> dict[str, float | None]:
    """A mean over rows with its interval over users."""
    sums = users.sums(value, np.ones(value.size))
    found: Estimate = mean_interval(PerUser(np.arange(users.n), sums[:, 0] / sums[:, 1], sums[:, 1]))
    ends = [end if np.isfinite(end) else None for end in (found.low, found.high)]
    return {"value": found.value, "low": ends[0], "high": ends[1]}

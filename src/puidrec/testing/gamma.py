"""The contract of a Γ rule: subclass, say which rule, and pytest checks what bounds and methods
rely on.

class TestMine(GammaContract):
    def make(self):
        return GammaRule(source="mine")
"""
# ruff: noqa: S101

from __future__ import annotations

import numpy as np

from puidrec.exposure.bounds import Gamma, bounds
from puidrec.exposure.gamma import GammaRule
from puidrec.testing.propensity import all_pairs, small_exposure


class GammaContract:
    """What holds for every rule. Override `make`."""

    mean_tolerance = 1e-9
    """How far means per user and item may be from a count over all pairs, in log Γ."""

    def make(self) -> GammaRule:
        """The rule."""
        raise NotImplementedError

    def fitted(self, rng: int = 0) -> tuple[Gamma, np.ndarray, np.ndarray]:
        """The rule fitted to a small log, and the codes of all its pairs."""
        data = small_exposure()
        return self.make().fit(data.counts, rng=rng), *all_pairs(data)

    def test_is_valid_for_every_pair(self) -> None:
        """1 <= Γ <= max <= cap, never NaN, and so the bounds exist whatever the propensity."""
        gamma, users, items = self.fitted()
        values = gamma.at(users, items)
        assert np.isfinite(values).all()
        assert values.min() >= 1.0
        assert values.max() <= gamma.max * (1 + 1e-12)
        assert gamma.max <= gamma.cap * (1 + 1e-12)
        for p in (1e-6, 0.3, 1.0):
            bounds(np.full(values.size, p), values)
        assert 0.0 <= gamma.share_clipped <= 1.0

    def test_pairs_do_not_depend_on_the_company_they_are_asked_in(self) -> None:
        """Γ of a pair is the same alone, in any order, and from an equal fit."""
        gamma, users, items = self.fitted()
        values = gamma.at(users, items)
        for part in (slice(None, None, -1), slice(7, 8)):
            assert np.array_equal(gamma.at(users[part], items[part]), values[part])
        assert np.array_equal(self.fitted()[0].at(users, items), values)

    def test_means_describe_all_pairs(self) -> None:
        """Means per user and per item are those of a count over D."""
        gamma, users, items = self.fitted()
        table = gamma.log_at(users, items).reshape(gamma.user_bin.size, gamma.item_bin.size)
        means = (
            (gamma.user_mean_log(), gamma.user_table()),
            (gamma.item_mean_log(), gamma.item_table()),
        )
        for side, (mean, rows) in enumerate(means):
            assert np.abs(mean - table.mean(axis=1 - side)).max() <= self.mean_tolerance
            assert rows.height == mean.size

    def test_additive_parts_add_up(self) -> None:
        """A rule that says it splits into a user and an item part is the sum of these."""
        gamma, users, items = self.fitted()
        parts = gamma.additive_parts
        if parts is not None:
            total = parts[0][users] + parts[1][items]
            assert np.abs(total - gamma.log_at(users, items)).max() < 1e-9

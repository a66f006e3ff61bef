"""The contract of a Γ rule: subclass, say which rule, and pytest checks what bounds and methods
rely on.

class TestMine(GammaContract):
    def make(self):
        return GammaRule(source="mine")
"""
# ruff: noqa: S101

from __future__ import annotations

import numpy as np

from puidrec.exposure.base import ExposureCounts
from puidrec.exposure.bounds import Gamma, bounds
from puidrec.exposure.gamma import GammaRule


def small_counts(seed: int = 0, n_users: int = 60, n_items: int = 40) -> ExposureCounts:
    """A small log in which features and hidden traits of users and items drive exposure."""
    random = np.random.default_rng(seed)
    user_bin, item_bin = (
        random.integers(0, 3, n_users, dtype=np.int32),
        random.integers(0, 4, n_items, dtype=np.int32),
    )
    traits = np.add.outer(random.normal(0.0, 0.5, n_users), random.normal(0.0, 0.5, n_items))
    logit = np.add.outer(0.4 * user_bin, -0.3 * item_bin) + traits - 1.5
    user, item = np.nonzero(random.random(logit.shape) < 1.0 / (1.0 + np.exp(-logit)))
    return ExposureCounts.from_pairs(user, item, user_bin, item_bin)


class GammaContract:
    """What holds for every rule. Override `make`."""

    mean_tolerance = 1e-9
    """How far means per user and item may be from a count over all pairs, in log Γ."""

    def make(self) -> GammaRule:
        """The rule."""
        raise NotImplementedError

    def fitted(self, rng: int = 0) -> tuple[Gamma, np.ndarray, np.ndarray]:
        """The rule fitted to a small log, and the codes of all its pairs."""
        counts = small_counts()
        users, items = np.divmod(np.arange(counts.n_users * counts.n_items), counts.n_items)
        return self.make().fit(counts, rng=rng), users, items

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
        again, _, _ = self.fitted()
        order = np.random.default_rng(0).permutation(users.size)
        values = gamma.at(users, items)
        assert np.array_equal(gamma.at(users[order], items[order]), values[order])
        assert np.array_equal(gamma.at(users[7:8], items[7:8]), values[7:8])
        assert np.array_equal(again.at(users, items), values)

    def test_means_describe_all_pairs(self) -> None:
        """Means per user and per item are those of a count over D."""
        gamma, users, items = self.fitted()
        table = gamma.log_at(users, items).reshape(gamma.user_bin.size, gamma.item_bin.size)
        assert np.abs(gamma.user_mean_log() - table.mean(axis=1)).max() <= self.mean_tolerance
        assert np.abs(gamma.item_mean_log() - table.mean(axis=0)).max() <= self.mean_tolerance
        assert gamma.user_table().height == gamma.user_bin.size
        assert gamma.item_table().height == gamma.item_bin.size

    def test_additive_parts_add_up(self) -> None:
        """A rule that says it splits into a user and an item part is the sum of these."""
        gamma, users, items = self.fitted()
        parts = gamma.additive_parts
        if parts is not None:
            total = parts[0][users] + parts[1][items]
            assert np.abs(total - gamma.log_at(users, items)).max() < 1e-9

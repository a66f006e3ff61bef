"""The contract of a propensity: subclass, say how to make one, and pytest checks what everything
else relies on.

class TestMine(PropensityContract):
    def make(self):
        return Mine(option=1)
"""
# ruff: noqa: S101

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity, Rated, one_hot


def small_exposure(seed: int = 0, n_users: int = 60, n_items: int = 40) -> Exposure:
    """A small population: bins, features, ratings, uniform rows and a propensity per log row."""
    random = np.random.default_rng(seed)
    user_bin = random.integers(0, 3, n_users, dtype=np.int32)
    item_bin = random.integers(0, 4, n_items, dtype=np.int32)
    user_bin[:3], item_bin[:4] = np.arange(3), np.arange(4)
    user_trait, item_trait = random.normal(0.0, 0.5, n_users), random.normal(0.0, 0.5, n_items)
    logit = 0.4 * user_bin[:, None] - 0.3 * item_bin + user_trait[:, None] + item_trait - 1.5
    rating = np.clip(np.round(3.0 + logit + random.normal(0.0, 1.0, logit.shape)), 1, 5)
    user, item = np.nonzero(random.random(logit.shape) < expit(logit))
    some = random.permutation(logit.size)[: logit.size // 5]
    return Exposure.from_log(
        user,
        item,
        user_bin=user_bin,
        item_bin=item_bin,
        rating=rating[user, item],
        user_features=one_hot(user_bin),
        item_features=one_hot(item_bin),
        uniform=Rated(some // n_items, some % n_items, rating.ravel()[some]),
        given=expit(logit[user, item]),
    )


def all_pairs(data: Exposure) -> tuple[np.ndarray, np.ndarray]:
    """The codes of D, for populations small enough to list."""
    n_users, n_items = data.counts.n_users, data.counts.n_items
    return np.repeat(np.arange(n_users), n_items), np.tile(np.arange(n_items), n_users)


class PropensityContract:
    """What holds for every propensity. Override `make`; `exposure` if yours needs other data."""

    estimates = True
    """False for one that is told its values: then it need not know all of D, nor be calibrated."""

    def make(self) -> FittedPropensity:
        """An unfitted propensity."""
        raise NotImplementedError

    def exposure(self) -> Exposure:
        """The data to fit."""
        return small_exposure()

    def asked(self, data: Exposure) -> tuple[np.ndarray, np.ndarray]:
        """The pairs asked for: all of D, or of the log."""
        log = data.log
        return all_pairs(data) if self.estimates or log is None else (log.user, log.item)

    def values(self, data: Exposure) -> np.ndarray:
        """What a fit to these data says of the pairs asked for."""
        return self.make().fit(data).predict(*self.asked(self.exposure()))

    def test_has_the_interface(self) -> None:
        """The attributes and methods are there."""
        assert isinstance(self.make(), FittedPropensity)

    def test_values_are_probabilities_above_zero(self) -> None:
        """In (0, 1], float64, one per pair."""
        data = self.exposure()
        p = self.values(data)
        assert p.dtype == np.float64
        assert p.shape == self.asked(data)[0].shape
        assert bool(((p > 0) & (p <= 1)).all())

    def test_is_calibrated_in_the_large(self) -> None:
        """Expects as many seen pairs as there are."""
        data = self.exposure()
        if self.estimates:
            assert self.values(data).sum() == pytest.approx(data.n_seen, rel=0.01)

    def test_is_deterministic(self) -> None:
        """Two fits on the same data agree, up to rounding."""
        data = self.exposure()
        assert np.allclose(self.values(data), self.values(data), rtol=1e-9, atol=0.0)

    def test_order_of_log_rows_does_not_matter(self) -> None:
        """A log is a set."""
        data = self.exposure()
        log = data.log
        assert log is not None
        order = np.random.default_rng(1).permutation(log.user.size)
        moved = replace(
            data,
            log=Rated(log.user[order], log.item[order], log.rating[order]),
            given=None if data.given is None else data.given[order],
        )
        assert self.same(self.values(data), self.values(moved))

    def same(self, first: np.ndarray, second: np.ndarray) -> bool:
        """Equality of two fits; a sampling propensity may relax it."""
        return np.allclose(first, second, rtol=1e-9)

    def test_a_pair_has_one_value(self) -> None:
        """Asked twice, in another order or alone, a pair gets the same answer, up to rounding."""
        data = self.exposure()
        users, items = self.asked(data)
        fitted = self.make().fit(data)
        p = fitted.predict(users, items)
        for part in (slice(None, None, -1), slice(5, 6), slice(0)):
            alone = fitted.predict(users[part], items[part])
            np.testing.assert_allclose(alone, p[part], rtol=1e-9)

    def test_predict_before_fit_is_refused(self) -> None:
        """As scikit-learn does."""
        from sklearn.exceptions import NotFittedError

        one = np.zeros(1, np.int64)
        with pytest.raises(NotFittedError):
            self.make().predict(one, one)

    def test_wrong_pairs_are_refused(self) -> None:
        """Lengths that differ, codes outside the population, codes that are not integers."""
        data = self.exposure()
        fitted = self.make().fit(data)
        users, items = self.asked(data)
        for bad in (
            (users[:3], items[:2]),
            (users[:4].reshape(2, 2), items[:4].reshape(2, 2)),
            (np.array([data.counts.n_users]), items[:1]),
            (np.array([-1]), items[:1]),
            (users[:1], np.array([data.counts.n_items])),
            (users[:2].astype(float), items[:2]),
        ):
            with pytest.raises(InputError):
                fitted.predict(*bad)

    def test_describes_itself(self) -> None:
        """Reports need the name and whether uniform rows were used."""
        import json

        fitted = self.make().fit(self.exposure())
        text = fitted.describe()
        assert text["uses_uniform"] is fitted.uses_uniform
        assert text["name"]
        json.dumps(text, allow_nan=False)

    def test_uniform_rows_are_left_alone_unless_declared(self) -> None:
        """Without `uses_uniform`, removing the uniform rows changes nothing."""
        data = self.exposure()
        if not self.make().uses_uniform:
            blind = replace(data, uniform=None)
            assert np.array_equal(self.values(data), self.values(blind))

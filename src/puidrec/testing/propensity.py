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

from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity, Rated
from puidrec.exposure.counts import one_hot


def small_exposure(seed: int = 0, n_users: int = 60, n_items: int = 40) -> Exposure:
    """A small simulated population: bins, features, ratings, uniform rows and a propensity per log
    row."""
    world = simulate("mixed", n_users, n_items, density=0.2, n_uniform=480, rng=seed)
    data, log = world.data, world.data.logged
    exposure = Exposure.from_rows(data, log, data.uniform)
    return replace(
        exposure,
        user_features=one_hot(exposure.counts.user_bin),
        item_features=one_hot(exposure.counts.item_bin),
        given=world.truth.true_propensity(log.user, log.item),
        given_pairs=None,
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

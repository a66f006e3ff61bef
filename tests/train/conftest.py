"""Small simulated worlds, and a slow dense oracle for the losses of the grid."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.exposure.bounds import bounds
from puidrec.methods.prepare import Prepared
from puidrec.settings import Settings


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Every test here trains."""


@pytest.fixture(autouse=True)
def _all_checkpoints(monkeypatch):
    """These fits take less than the second that lies between checkpoints."""
    monkeypatch.setattr("puidrec.model.CHECKPOINT_SECONDS", 0.0)


@cache
def _world(seed: int, n_users: int, n_items: int):
    return simulate("mixed", n_users, n_items, density=0.2, rng=seed).data


@pytest.fixture(scope="session")
def world():
    """A small log with hidden confounding, features and uniform rows."""

    def make(seed=0, n_users=40, n_items=25):
        return _world(seed, n_users, n_items)

    return make


@pytest.fixture(scope="session")
def prepare(world):
    """A world seen through a method's settings."""

    def make(method, seed=0, data=None, **given):
        settings = Settings.of(method, **{"dim": 3, "epochs": 12, "propensity": "cells", "seed": seed, **given})
        data = data or world(seed)
        return Prepared.of(data, data.split("rd", seed, select=settings.select), settings)

    return make


@pytest.fixture(scope="session")
def many_uniform():
    """A log with uniform rows enough to train on."""
    return simulate("mixed", 60, 40, density=0.2, n_uniform=2_000, rng=3).data


def dense(factors) -> np.ndarray:
    """All scores as a float64 matrix."""
    parts = zip(factors.lefts, factors.rights, strict=True)
    return sum(left.detach().double().numpy() @ right.detach().double().numpy().T for left, right in parts)


class Dense:
    """Losses of the grid by visiting every pair, in float64 NumPy; shares no code with the engine but Γ and p."""

    def __init__(self, prepared) -> None:
        self.prepared = prepared
        rows, spec = prepared.rows, prepared.settings.spec
        self.at = (rows.user, rows.item)
        self.target = prepared.log.target(rows).astype(np.float64)
        if spec.estimator == "naive":
            self.a = self.b = np.ones(len(rows))
        else:
            box = bounds(prepared.log.nominal.propensity_of(rows), prepared.gamma.at(*self.at))
            self.a, self.b = (x.astype(np.float32).astype(np.float64) for x in (box.a, box.b))

    def error(self, prediction, target):
        """Errors as the textbook writes them."""
        loss, signed = self.prepared.settings.loss, self.prepared.log.scale.signed
        if loss == "squared":
            return (prediction - target) ** 2
        if loss == "absolute":
            return np.abs(prediction - target)
        chance, y = 1 / (1 + np.exp(-prediction)), (target + 1) / 2 if signed else target
        return -y * np.log(chance) - (1 - y) * np.log(1 - chance)

    def label(self, output):
        """What a pseudo-label's score means."""
        if self.prepared.settings.loss != "cross-entropy":
            return output
        chance = 1 / (1 + np.exp(-output))
        return 2 * chance - 1 if self.prepared.log.scale.signed else chance

    def terms(self, phi, theta):
        """Σ_D base and coef on O."""
        prediction = dense(phi)
        error = self.error(prediction[self.at], self.target)
        if theta is None:
            return 0.0, error
        imputed = self.error(prediction, self.label(dense(theta)))
        return imputed.sum(), error - imputed[self.at]

    def prediction_loss(self, phi, theta=None, base=None):
        """`eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`, `eq:bpuid-dr` and their limits."""
        total, coef = self.terms(phi, theta)
        if base is not None:
            total0, coef0 = self.terms(*base)
            total, coef = total - total0, coef - coef0
        data = self.prepared.data
        pairs = coef.size if self.prepared.settings.spec.estimator == "naive" else data.n_users * data.n_items
        return (total + np.maximum(coef * self.a, coef * self.b).sum()) / pairs

    def imputation_loss(self, theta):
        """`eq:puid-dr-imp` for pseudo-labels, with weights that average 1."""
        mismatch = (self.label(dense(theta))[self.at] - self.target) ** 2
        return (mismatch * self.b).sum() / self.b.sum()


@pytest.fixture(scope="session")
def oracle():
    """Dense(prepared): losses by brute force."""
    return Dense


@pytest.fixture(scope="session")
def dense_scores():
    """All scores of factors as a float64 matrix."""
    return dense

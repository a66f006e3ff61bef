"""A confounded log with known truth, and models that cost nothing to train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import Simulation, simulate


class Table:
    """A model that looks its predictions up; parameters as scikit-learn's models show them."""

    def __init__(self, data: Dataset, scores: np.ndarray, **params: Any) -> None:
        self.data, self.scores = data, scores
        self.params = {
            "method": "table",
            "seed": 0,
            "select": "uniform",
            "target": "rating",
            **params,
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return self.params

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return self.scores[self.data.user_ids.encode(users), self.data.item_ids.encode(items)]


@pytest.fixture(scope="session")
def simulation() -> Simulation:
    return simulate("mixed", 80, 60, rng=3, density=0.15, n_uniform=1_500)


@pytest.fixture(scope="session")
def good(simulation: Simulation) -> Table:
    """What a features-only model should predict."""
    return Table(
        simulation.data, (simulation.truth.matrix("expected_rating") - 1.0) / 4.0, method="good"
    )


@pytest.fixture(scope="session")
def poor(simulation: Simulation, good: Table) -> Table:
    """The same with noise."""
    noise = np.random.default_rng(0).normal(0, 0.25, good.scores.shape)
    return Table(simulation.data, good.scores + noise, method="poor")

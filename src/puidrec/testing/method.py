"""The contract of a method: subclass, say which row, and pytest checks what every other module
relies on.

class TestMine(MethodContract):
    spec = MINE
"""
# ruff: noqa: S101 (asserting is what a contract test does)

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods import MethodSpec, get_method
from puidrec.model import Recommender
from puidrec.settings import Settings


class MethodContract:
    """What holds for every method. Override `spec`; it must be registered under its name."""

    spec: MethodSpec
    settings: dict[str, Any] = {"dim": 3, "l2": 0.1, "epochs": 8}  # noqa: RUF012 (meant to be overridden)
    """Settings with which a fit on a small log takes a moment."""
    _models: ClassVar[dict[tuple[type, str], Recommender]] = {}

    def data(self) -> Dataset:
        """60 users and 25 items with features, a confounded log and uniform rows."""
        return simulate("mixed", 60, 25, density=0.2, n_uniform=1_400, rng=0).data

    def fit(self, data: Dataset | None = None, **settings: Any) -> Recommender:
        """The method on a small log."""
        return Recommender(self.spec.name, rng=0, **{**self.settings, **settings}).fit(
            data or self.data()
        )

    def model(self) -> Recommender:
        """`fit()`, once for all checks of a method."""
        key = type(self), self.spec.name
        if key not in self._models:
            self._models[key] = self.fit()
        return self._models[key]

    def scores(self, model: Recommender) -> np.ndarray:
        """Scores of all pairs."""
        users, items = np.meshgrid(
            model.user_ids_.ids.to_numpy(), model.item_ids_.ids.to_numpy(), indexing="ij"
        )
        return model.predict(users.ravel(), items.ravel(), scale="unit")

    def test_is_found_by_its_name(self) -> None:
        """`get_method`, `Settings` and with them every command know the row."""
        assert get_method(self.spec.name) == self.spec
        assert Settings.of(self.spec.name).spec == self.spec
        assert self.spec.description
        assert self.spec.needs

    def test_searches_settings_that_exist(self) -> None:
        """A search space names settings; a method without training has none."""
        own = self.spec.own_params
        known = {*Settings.model_fields, *(() if own is None else own.model_fields)}
        assert set(self.spec.search_space) <= known
        assert self.spec.trains or not self.spec.search_space

    def test_gives_finite_scores_that_the_seed_decides(self) -> None:
        """One seed, one model."""
        first, again = self.scores(self.model()), self.scores(self.fit())
        assert np.isfinite(first).all()
        assert np.ptp(first) > 0.0
        assert np.array_equal(first, again)

    def test_is_the_same_after_saving(self) -> None:
        """Scores and recommendations of a loaded model are those of the model."""
        model = self.model()
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            loaded = Recommender.load(Path(folder) / "model")
        assert np.allclose(self.scores(loaded), self.scores(model), rtol=0.0, atol=1e-6)
        users = model.user_ids_.ids[:3]
        assert loaded.recommend(users, 4)["item_id"].equals(model.recommend(users, 4)["item_id"])

    def test_says_if_uniform_rows_decide_anything(self) -> None:
        """Other uniform ratings, none of which choose the epoch, change scores where a method says
        so, only there."""
        data = self.data()
        assert data.uniform is not None
        flipped = data.uniform.frame.with_columns(
            rating=(data.scale.low + data.scale.high) - pl.col("rating")
        )
        other = replace(data, uniform=replace(data.uniform, frame=flipped))
        first, second = (self.scores(self.fit(d, select="none")) for d in (data, other))
        assert np.array_equal(first, second) is not bool(self.spec.uses_uniform)

    def test_reports_its_training(self) -> None:
        """Epochs, seconds and how uniform rows were used; without training there are no epochs."""
        report = self.model().report_
        assert {"epochs", "seconds", "uniform_rows_used"} <= set(report)
        assert (report["epochs"] > 0) is self.spec.trains

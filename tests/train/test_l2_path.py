"""Validation rows choose the strength of L2: the choice is the one of fits made apart, and holds for all stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from puidrec.backbones.low_rank import LowRank
from puidrec.data.synthetic import simulate
from puidrec.model import Recommender
from puidrec.settings import Settings
from puidrec.train.least_squares import L2_PATH, PATH_ROWS
from puidrec.train.prepare import Prepared

OPTIONS = {"dim": 8, "backbone": "mf"}
SAME = 2e-3
"""Share of the squared error by which points of the path may differ that rough fits take for alike."""


@pytest.fixture(scope="module")
def logs():
    """Logs by the factor that their validation rows choose: taste in few directions, in many, and next to none."""
    worlds = {"trait-genre": 0, "mixed": 1, "no-confounding": 3}
    return {
        world: simulate(world, 200, 120, density=0.25, n_uniform=16_000, rng=seed).data
        for world, seed in worlds.items()
    }


def prepared_of(data, method="mf", **given) -> Prepared:
    settings = Settings.of(method, **{**OPTIONS, **given})
    return Prepared.of(data, data.split("rd", settings.seed), settings)


def scores(model) -> np.ndarray:
    return model.user_factors_ @ model.item_factors_.T


def factors_of(model) -> LowRank:
    return LowRank.of(torch.from_numpy(model.user_factors_), torch.from_numpy(model.item_factors_))


def at_factor(data, factor, method="mf") -> Recommender:
    """A fit with the L2 of the noise of the log times a factor, given as a number."""
    ids = prepared_of(data, method).penalty_factors.ids
    return Recommender(method, rng=0, **OPTIONS, l2_vectors=factor * ids).fit(data)


def test_the_choice_is_that_of_fits_made_apart(logs) -> None:
    chosen = []
    for data in logs.values():
        validator = prepared_of(data).validator()
        assert validator.user.size >= PATH_ROWS
        apart = {factor: at_factor(data, factor) for factor in L2_PATH}
        errors = [validator.squared_error(factors_of(model)) for model in apart.values()]
        first = next((k for k in range(len(L2_PATH) - 1) if errors[k + 1] > errors[k]), len(L2_PATH) - 1)
        model = Recommender("mf", rng=0, **OPTIONS).fit(data)
        found = model.report_["l2_factor"]
        assert errors[L2_PATH.index(found)] <= errors[first] * (1.0 + SAME), "fits are compared before they converge"
        np.testing.assert_allclose(scores(model), scores(apart[found]), atol=5e-4)
        objective = [row["loss_phi"] for row in model.history_]
        assert objective == sorted(objective, reverse=True), "fits that are compared only are not in the history"
        chosen.append(found)
    assert len(set(chosen)) > 1, "a path that always ends at one place would prove nothing"


@pytest.mark.parametrize("method", ["signed-rd", "spectrum"])
def test_later_stages_have_the_factor_of_the_first(method, logs, monkeypatch) -> None:
    data, used = logs["no-confounding"], []
    backbone = Prepared.backbone
    monkeypatch.setattr(
        Prepared, "backbone", lambda self, *a, **k: (used.append(self.l2_factor), backbone(self, *a, **k))[1]
    )
    model = Recommender(method, rng=0, **OPTIONS).fit(data)
    factor = model.report_["l2_factor"]
    assert factor > 1.0
    assert used[0] == 1.0
    assert set(used[1:]) == {factor}
    prepared = prepared_of(data, method)
    once, more = (replace(prepared, l2_factor=f).factors_for(1.0).ids for f in (1.0, factor))
    assert more == pytest.approx(factor * once)


def test_few_validation_rows_a_given_number_or_likes_leave_l2_to_the_noise(logs, world) -> None:
    few = Recommender("mf", rng=0, **OPTIONS).fit(world(0))
    given = Recommender("mf", rng=0, **OPTIONS, l2_vectors=0.5).fit(logs["mixed"])
    closed = Recommender("mf", rng=0, **OPTIONS, select="none").fit(logs["mixed"])
    assert all("l2_factor" not in model.report_ for model in (few, given, closed))
    assert "strength of L2" not in few.report_["uniform_rows_used"]


def test_the_report_says_which_rows_chose_it(logs) -> None:
    uniform, logged = (
        Recommender("mf", rng=0, **OPTIONS, select=s).fit(logs["mixed"]) for s in ("uniform", "observational")
    )
    assert uniform.report_["uniform_rows_used"] == "strength of L2"
    assert logged.report_["uniform_rows_used"] == "none"
    assert "l2_factor" in logged.report_

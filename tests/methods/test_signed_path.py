"""Where many uniform rows choose Γ and λ of the signed methods."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.evaluation.metrics import auc, placements
from puidrec.methods.prepare import Prepared
from puidrec.methods.unseen import POINTS, stages
from puidrec.model import Recommender
from puidrec.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")


def test_placements_have_the_mean_auc() -> None:
    rng = np.random.default_rng(0)
    score, liked = rng.integers(6, size=40).astype(float), rng.random(40) < 0.4
    above = np.sign(score[liked][:, None] - score[~liked][None, :]) / 2 + 0.5
    found = placements(score, liked)
    np.testing.assert_allclose(found[liked], above.mean(1))
    np.testing.assert_allclose(found[~liked], above.mean(0))
    assert found[liked].mean() == pytest.approx(float(auc(score, liked.astype(np.int8))))


@pytest.fixture(scope="module")
def world():
    return simulate(
        "trait-genre", 200, 60, density=0.15, n_uniform=8_000, exposure_strength=3.0, rng=0
    )


def names(data, **given):
    prepared = Prepared.of(data, data.split("rd", 0), Settings.of("signed-rd", dim=3, **given))
    return [stage.name for stage in stages(prepared)]


def test_few_rows_and_the_callers_word_leave_no_choice(world) -> None:
    few = simulate("trait-genre", 200, 60, density=0.15, n_uniform=2_000, rng=0).data
    assert names(few) == ["seen", "main"]
    for given in (
        {"gamma": 2.0},
        {"unseen_weight": 2.0},
        {"solver": "adam"},
        {"gamma": "certified"},
    ):
        assert names(world.data, **given) == ["seen", "main"]
    assert len(names(world.data)) == 3 + len(POINTS)


@pytest.mark.parametrize("method", ["signed-rd", "signed-puid"])
def test_what_is_chosen_ranks_uniform_rows_no_worse_than_the_gamma_of_the_mean(
    method, world
) -> None:
    data = world.data
    model = Recommender(method, dim=3, l2=0.1, epochs=30, rng=0).fit(data)
    assert "along a path" in model.report_["gamma_set_by"]
    prepared = Prepared.of(data, data.split("rd", 0), Settings.of(method, dim=3, l2=0.1, epochs=30))
    rows = prepared.calibration_rows()
    assert model.report_["uniform_parts"] == {"calibration": len(data.uniform)}
    plain = Recommender(method, dim=3, l2=0.1, epochs=30, gamma="certified", rng=0).fit(data)
    scores = [(m.user_factors_ @ m.item_factors_.T)[rows.user, rows.item] for m in (model, plain)]
    chosen, mean = (float(auc(score, rows.liked.astype(np.int8))) for score in scores)
    assert chosen >= mean - 1e-3
    assert model.report_["gamma"]["median"] > 1.0

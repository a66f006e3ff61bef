from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods.prepare import Prepared
from puidrec.methods.spectrum import from_log as module
from puidrec.methods.spectrum.from_log import LogNoise, out_of_fold
from puidrec.methods.stages import train_stages
from puidrec.model import Recommender
from puidrec.optimise.stopping import pair_scores
from puidrec.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = Settings(method="mf", backbone="mf", dim=4, epochs=30, select="none", seed=0)


def log_alone(world: str):
    """A simulation, its split without any uniform or held-out row, and the true ratings."""
    simulation = simulate(world, 250, 150, density=0.12, n_uniform=500, rng=0)
    split = simulation.data.split("rd", 0)
    nothing = split.validation.take(np.zeros(len(split.validation), bool))
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))
    return simulation.data, replace(split, validation=nothing, propensity=None), truth


def true_error(method: str, data, split, truth) -> tuple[float, Recommender]:
    model = Recommender(method, dim=8, select="none", rng=0).fit(data, split)
    return float(np.mean((model.user_factors_ @ model.item_factors_.T - truth) ** 2)), model


def test_no_row_has_a_part_in_what_is_predicted_for_it(monkeypatch) -> None:
    data, split, _ = log_alone("mixed")
    before = out_of_fold(Prepared.of(data, split, SETTINGS))
    order = module.label_free_order(Prepared.of(data, split, SETTINGS).log.ratings)
    first = np.sort(order[:: module.PARTS])
    monkeypatch.setattr(
        module, "label_free_order", lambda ratings: order
    )  # else other ratings are other parts
    frame = split.train.frame
    column = frame["rating"].to_numpy().copy()
    column[first] = column[first][::-1]
    changed = replace(split.train, frame=frame.with_columns(rating=column))
    after = out_of_fold(Prepared.of(data, replace(split, train=changed), SETTINGS))
    own = slice(first.size)
    assert not np.array_equal(before.target[own], after.target[own])
    np.testing.assert_array_equal(before.prediction[own], after.prediction[own])
    for name, values in before.exposure.items():
        np.testing.assert_array_equal(values[own], after.exposure[name][own])
    assert not np.array_equal(before.prediction[first.size :], after.prediction[first.size :])


def test_every_row_once_and_no_more_parts_than_needed(monkeypatch) -> None:
    data, split, _ = log_alone("mixed")
    prepared = Prepared.of(data, split, SETTINGS)
    shown = out_of_fold(prepared)
    pairs = sorted(zip(shown.user.tolist(), shown.item.tolist(), strict=True))
    assert pairs == sorted(zip(split.train.user.tolist(), split.train.item.tolist(), strict=True))
    monkeypatch.setattr(module, "ENOUGH", len(split.train) // 4)
    assert out_of_fold(prepared).user.size == pytest.approx(
        2 * len(split.train) / module.PARTS, abs=2
    )


def test_held_out_rows_are_judged_by_the_fit_at_hand(monkeypatch) -> None:
    monkeypatch.setattr(module, "ENOUGH", 1)
    simulation = simulate("mixed", 80, 40, density=0.15, n_uniform=500, rng=0)
    split = replace(simulation.data.split("rd", 0, select="observational"), propensity=None)
    prepared = Prepared.of(simulation.data, split, SETTINGS)
    fit = module.train_stages(prepared, None, None, None).phi
    shown = out_of_fold(prepared, fit)
    scores = (fit.lefts[0] @ fit.rights[0].T).numpy()
    assert shown.user.size == len(split.validation)
    np.testing.assert_allclose(shown.prediction, scores[shown.user, shown.item], atol=1e-6)


def test_where_exposure_shows_taste_the_log_alone_pays() -> None:
    data, split, truth = log_alone("trait-genre")
    (plain, _), (own, model) = (
        true_error(method, data, split, truth) for method in ("mf", "spectrum")
    )
    notes = model.report_["spectrum"]
    assert notes["prior"] == "mild"
    assert notes["weights"]
    assert own < 0.95 * plain


@pytest.mark.parametrize("world", ["no-confounding", "reversed"])
def test_where_it_does_not_the_log_alone_changes_nothing(world) -> None:
    data, split, truth = log_alone(world)
    (plain, _), (own, model) = (
        true_error(method, data, split, truth) for method in ("mf", "spectrum")
    )
    assert model.report_["spectrum"]["prior"] == "mf"
    assert own == pytest.approx(plain, rel=0.01)


def test_a_log_without_exposure_factors_shows_no_sign() -> None:
    """Two items have no second singular direction: there is nothing to look at, and that is no
    error."""
    log = pl.DataFrame(
        {"user_id": range(40), "item_id": [0, 1] * 20, "rating": [1.0, 5.0, 5.0, 1.0] * 10}
    )
    data = Dataset.from_frame(log, scale=(1, 5))
    shown = out_of_fold(Prepared.of(data, data.split("rd", 0), SETTINGS))
    assert (shown.exposure, shown.sign.t) == ({}, 0.0)
    assert (
        Recommender("spectrum", dim=2, epochs=5, rng=0).fit(data).report_["spectrum"]["prior"]
        == "mf"
    )


def test_noise_varies_with_the_level_as_far_as_rows_agree() -> None:
    """Labels 0 and 1 have the variance q(1 − q), ratings of the same noise everywhere have not."""
    rng = np.random.default_rng(0)
    q = rng.uniform(0.02, 0.6, 4_000)
    binary, known = q * (1.0 - q), LogNoise(0.1, 0.0, 1.0)
    found = known.relative(q, (rng.random(q.size) < q) - q)
    np.testing.assert_allclose(found, binary / binary.mean(), atol=0.2)
    np.testing.assert_allclose(known.relative(q, rng.normal(0.0, 0.2, q.size)), 1.0, atol=0.02)


def test_the_noise_of_a_log_is_that_of_its_residuals() -> None:
    data, split, _ = log_alone("mixed")
    prepared = Prepared.of(data, split, SETTINGS)
    mf = train_stages(prepared).phi
    found = LogNoise.of(prepared, mf)
    assert min(found.constant, found.by_level) >= 0.0
    rows = prepared.log.rows
    squares = (prepared.log.target(rows) - pair_scores(mf, rows.user, rows.item)) ** 2
    assert found.mean == pytest.approx(squares.mean(), rel=1e-5)

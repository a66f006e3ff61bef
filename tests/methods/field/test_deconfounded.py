"""`dcf` against dense regressions, `idcf` by its columns; both where exposure says nothing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender
from puidrec.scores.low_rank import LowRank

OPTIONS = {"dim": 3, "epochs": 30, "rng": 0}


@pytest.fixture(scope="module")
def grouped() -> Dataset:
    """Two groups of users who see, and like, their own half of the items."""
    rng = np.random.default_rng(0)
    side, half = rng.choice((-1.0, 1.0), 60), np.where(np.arange(30) < 15, -1.0, 1.0)
    agree = np.multiply.outer(side, half)

    def rows(chance: np.ndarray) -> pl.DataFrame:
        user, item = np.nonzero(rng.random((60, 30)) < chance)
        rating = np.clip(np.rint(3.0 + agree[user, item] + rng.normal(0, 0.7, user.size)), 1, 5)
        return pl.DataFrame({"user_id": user, "item_id": item, "rating": rating})

    return Dataset.from_frame(rows(0.25 + 0.15 * agree), rows(np.full((60, 30), 0.5)), scale=(1.0, 5.0))


def build(prepared):
    return stages_of(prepared)[-1].build({})


def test_the_loss_is_that_of_one_ridge_regression_per_user(prepare, grouped, dense_scores) -> None:
    prepared = prepare("dcf", data=grouped)
    problem, rows = build(prepared), prepared.rows
    scores, exposure = dense_scores(problem.phi.factors()), dense_scores(problem.exposure)
    target, l2 = prepared.log.target(rows).astype(float), prepared.settings.l2
    total, n = 0.0, len(rows)
    for user in range(60):
        own = rows.user == user
        x, y = exposure[user, rows.item[own]], target[own] - scores[user, rows.item[own]]
        stacked = np.append(x, np.sqrt(l2 * n / 60))  # the penalty as one more row
        gamma = np.linalg.lstsq(stacked[:, None], np.append(y, 0.0), rcond=None)[0][0]
        total += np.sum((y - gamma * x) ** 2) / n + l2 * gamma**2 / 60
        made = dense_scores(problem.factors())[user] - scores[user]
        assert made == pytest.approx(gamma * exposure[user], abs=1e-5)
    assert float(problem.loss(0, 60).detach()) == pytest.approx(total, rel=1e-5)
    halves = [float(problem.loss(a, b).detach()) * (b - a) / 60 for a, b in ((0, 25), (25, 60))]
    assert sum(halves) == pytest.approx(total, rel=1e-5)


def test_the_reconstruction_has_mean_square_one_on_the_log(prepare, grouped, dense_scores) -> None:
    prepared = prepare("dcf", data=grouped)
    on_log = dense_scores(build(prepared).exposure)[prepared.rows.user, prepared.rows.item]
    assert np.mean(on_log**2) == pytest.approx(1.0, rel=1e-5)


def test_without_reconstructed_exposure_it_is_matrix_factorisation(prepare, grouped) -> None:
    problem, plain = build(prepare("dcf", data=grouped)), build(prepare("mf", data=grouped))
    problem.exposure = LowRank.of(*(torch.zeros(n, 1, dtype=torch.float64) for n in (60, 30)))
    assert float(problem.loss(0, 60).detach()) == pytest.approx(float(plain.prediction_loss(0, 60).detach()), rel=1e-6)


def test_both_solvers_agree(grouped) -> None:
    models = [
        Recommender("dcf", **OPTIONS | {"epochs": 400, "patience": 0, "select": "none"}, solver=solver).fit(grouped)
        for solver in ("adam", "least-squares")
    ]
    users, items = np.divmod(np.arange(1_800), 30)
    first, second = (model.predict(users, items) for model in models)
    assert first == pytest.approx(second, abs=0.02)


@pytest.mark.parametrize("method", ["dcf", "idcf"])
def test_exposure_that_tells_taste_helps(method, grouped) -> None:
    """Where L2 on IDs is strong, taste is easier to read off what was seen than off what was rated."""
    uniform = grouped.split("rd", 0).test
    error = []
    for name in ("mf", method):
        model = Recommender(name, dim=2, l2=0.6, l2_features=0.02, rng=0, select="none", solver="least-squares").fit(
            grouped
        )
        error.append(
            np.mean((model.predict(uniform.user, uniform.item, scale="unit") - grouped.scale.unit(uniform.rating)) ** 2)
        )
    assert error[1] < error[0]


def test_idcf_adds_the_factors_to_the_features_of_users(prepare, grouped) -> None:
    prepared = prepare("idcf", data=grouped)
    assert [column.name for column in prepared.log.encoders["user_id"].columns] == ["exposure factor 1"]
    z = prepared.log.side_tables["user_id"]["exposure factor 1"].to_numpy()
    expected = prepared.log.exposure_factors.given_features(None)[:, 0]
    assert z == pytest.approx(expected)


def test_without_factors_idcf_is_matrix_factorisation() -> None:
    """Everybody saw everything: there is nothing to tell users apart by."""
    user, item = np.divmod(np.arange(600), 20)
    rows = pl.DataFrame({"user_id": user, "item_id": item, "rating": np.random.default_rng(3).integers(1, 6, 600)})
    data = Dataset.from_frame(rows, rows, scale=(1.0, 5.0), overlap="keep")
    one, other = (Recommender(name, **OPTIONS).fit(data) for name in ("idcf", "mf"))
    assert not one.encoders_.get("user_id")
    assert np.array_equal(one.user_factors_, other.user_factors_)


@pytest.mark.parametrize("method", ["dcf", "idcf"])
def test_cold_start_users_are_known_by_their_features(method, world) -> None:
    data = world()
    model = Recommender(method, **OPTIONS).fit(data)
    table = data.users.head(2).with_columns(user_id=pl.Series(["new a", "new b"]))
    items = model.item_ids_.ids
    scores = (
        model.predict("new a", items.to_list(), user_features=table) if table["user_id"].dtype == items.dtype else None
    )
    if scores is None:  # ids of the world are numbers
        table = data.users.head(2).with_columns(user_id=pl.Series([10_001, 10_002], dtype=data.users["user_id"].dtype))
        scores = model.predict(10_001, items.to_list(), user_features=table)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0.0


def test_a_backbone_that_reads_no_features_is_refused(refusal, world) -> None:
    refusal(lambda: Recommender("idcf", backbone="mf").fit(world()), "backbone mf", "mf-linear")

"""`dcf` against dense regressions, `idcf` by its columns; both where exposure says nothing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.methods.field import deconfounded
from puidrec.methods.problem import backbone_penalty
from puidrec.methods.robust import robust_problem
from puidrec.methods.stages import train_stages
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

    return Dataset.from_frame(
        rows(0.25 + 0.15 * agree), rows(np.full((60, 30), 0.5)), scale=(1.0, 5.0)
    )


@pytest.fixture
def exact(prepare, grouped):
    """`dcf` at its optimum: what was prepared, â and the fit."""
    prepared = prepare("dcf", data=grouped)
    return prepared, deconfounded._exposure(prepared), train_stages(prepared)


def test_every_gamma_is_a_ridge_regression_of_what_vectors_leave(exact, dense_scores) -> None:
    prepared, reconstruction, fitted = exact
    rows, exposure, width = (
        prepared.rows,
        dense_scores(reconstruction),
        reconstruction.lefts[0].shape[1],
    )
    scores = dense_scores(
        LowRank.of(fitted.phi.lefts[0][:, width:], fitted.phi.rights[0][:, width:])
    )
    made = dense_scores(fitted.phi) - scores
    target, l2 = prepared.log.target(rows).astype(float), prepared.settings.l2
    found = []
    for user in range(60):
        own = rows.user == user
        x, y = exposure[user, rows.item[own]], target[own] - scores[user, rows.item[own]]
        stacked = np.append(x, np.sqrt(l2 * len(rows) / 60))  # the penalty as one more row
        gamma = np.linalg.lstsq(stacked[:, None], np.append(y, 0.0), rcond=None)[0][0]
        assert made[user] == pytest.approx(gamma * exposure[user], abs=1e-4)
        found.append(gamma)
    assert np.ptp(found) > 0.01


def test_no_other_vectors_near_by_have_a_lower_loss(exact, dense_scores) -> None:
    """mean_O (s + γ_u â − r)² + L2, at the γ found: γ and the vectors are at an optimum
    together."""
    prepared, reconstruction, fitted = exact
    rows, width = prepared.rows, reconstruction.lefts[0].shape[1]
    added = dense_scores(
        LowRank.of(fitted.phi.lefts[0][:, :width], fitted.phi.rights[0][:, :width])
    )
    rest = (prepared.log.target(rows) - added[rows.user, rows.item]).astype(float)
    backbone = robust_problem(prepared, "main").phi

    def loss(noise: float, random: torch.Generator) -> float:
        moved = {
            name.removeprefix("phi."): value + noise * torch.randn(value.shape, generator=random)
            for name, value in fitted.parameters.items()
        }
        backbone.load_state_dict(moved)
        score = dense_scores(backbone.factors())[rows.user, rows.item]
        return float(np.mean((score - rest) ** 2)) + float(
            backbone_penalty(backbone, prepared.settings).detach()
        )

    random = torch.Generator().manual_seed(0)
    best = loss(0.0, random)
    assert min(loss(noise, random) for noise in (1e-1, 1e-2, 1e-3) for _ in range(20)) > best


def test_the_reconstruction_has_mean_square_one_on_the_log(exact, dense_scores) -> None:
    prepared, reconstruction, _ = exact
    on_log = dense_scores(reconstruction)[prepared.rows.user, prepared.rows.item]
    assert np.mean(on_log**2) == pytest.approx(1.0, rel=1e-5)


def test_without_reconstructed_exposure_it_is_matrix_factorisation(
    prepare, grouped, dense_scores, monkeypatch
) -> None:
    nothing = LowRank.of(*(torch.zeros(n, 1, dtype=torch.float64) for n in (60, 30)))
    monkeypatch.setattr(deconfounded, "_exposure", lambda prepared: nothing)
    one, other = (train_stages(prepare(name, data=grouped, epochs=300)) for name in ("dcf", "mf"))
    assert dense_scores(one.phi) == pytest.approx(dense_scores(other.phi), abs=1e-4)


def test_adam_is_refused(grouped, refusal) -> None:
    refusal(
        lambda: Recommender("dcf", **OPTIONS, solver="adam").fit(grouped),
        "dcf is solved by least squares",
    )


@pytest.mark.parametrize("method", ["dcf", "idcf"])
def test_exposure_that_tells_taste_helps(method, grouped) -> None:
    """Where L2 on IDs is strong, taste is easier to read off what was seen than off what was
    rated."""
    uniform = grouped.split("rd", 0).test
    error = []
    for name in ("mf", method):
        model = Recommender(
            name, dim=2, l2=0.6, l2_features=0.02, rng=0, select="none", solver="least-squares"
        ).fit(grouped)
        error.append(
            np.mean(
                (
                    model.predict(uniform.user, uniform.item, scale="unit")
                    - grouped.scale.unit(uniform.rating)
                )
                ** 2
            )
        )
    assert error[1] < error[0]


def test_idcf_adds_the_factors_to_the_features_of_users(prepare, grouped) -> None:
    prepared = prepare("idcf", data=grouped)
    assert [column.name for column in prepared.log.encoders["user_id"].columns] == [
        "exposure factor 1"
    ]
    z = prepared.log.side_tables["user_id"]["exposure factor 1"].to_numpy()
    expected = deconfounded.exposure_factors(prepared.log).given_features(None)[:, 0]
    assert z == pytest.approx(expected)


def test_without_factors_idcf_is_matrix_factorisation() -> None:
    """Everybody saw everything: there is nothing to tell users apart by."""
    user, item = np.divmod(np.arange(600), 20)
    rows = pl.DataFrame(
        {"user_id": user, "item_id": item, "rating": np.random.default_rng(3).integers(1, 6, 600)}
    )
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
        model.predict("new a", items.to_list(), user_features=table)
        if table["user_id"].dtype == items.dtype
        else None
    )
    if scores is None:  # ids of the world are numbers
        table = data.users.head(2).with_columns(
            user_id=pl.Series([10_001, 10_002], dtype=data.users["user_id"].dtype)
        )
        scores = model.predict(10_001, items.to_list(), user_features=table)
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0.0


def test_a_backbone_that_reads_no_features_is_refused(refusal, world) -> None:
    refusal(lambda: Recommender("idcf", backbone="mf").fit(world()), "backbone mf", "mf-linear")

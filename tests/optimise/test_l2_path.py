"""The strength of L2: columns above the noise are found, noise is kept out, validation rows have the last word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from puidrec.train import least_squares
from puidrec.train.least_squares import PATH_ROWS
from puidrec.train.regularisation import SHARE

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods.prepare import Prepared
from puidrec.model import Recommender
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings

OPTIONS = {"dim": 8, "backbone": "mf"}


@pytest.fixture(scope="module")
def logs():
    """Logs whose taste lies in few directions, in many, and next to none."""
    worlds = {"trait-genre": 0, "mixed": 1, "no-confounding": 3}
    return {
        world: simulate(world, 200, 120, density=0.25, n_uniform=16_000, rng=seed).data
        for world, seed in worlds.items()
    }


def skewed(columns: int, seed: int = 0, strength: float = 0.25) -> tuple[Dataset, np.ndarray]:
    """A log with busy users and popular items, tastes in so many directions, and the expected ratings of all pairs."""
    rng, shape = np.random.default_rng(seed), (500, 250)
    chance = np.minimum(0.08 * np.multiply.outer(rng.lognormal(0, 0.8, shape[0]), rng.lognormal(0, 0.8, shape[1])), 0.9)
    user, item = np.nonzero(rng.random(shape) < chance)
    left, right = (rng.standard_normal((n, columns)) for n in shape)
    taste = left @ right.T / np.sqrt(max(columns, 1))
    truth = 0.5 + strength * taste + 0.05 * np.add.outer(*(rng.standard_normal(n) for n in shape))
    rating = truth[user, item] + rng.normal(0.0, 0.2, user.size)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating})
    low, high = float(rating.min()), float(rating.max())
    ids = [np.unique(codes) for codes in (user, item)]
    unit = (truth[np.ix_(*ids)] - low) / (high - low)
    return Dataset.from_frame(frame, scale=(low, high)), unit


def scores(model) -> np.ndarray:
    return model.user_factors_ @ model.item_factors_.T


def columns_of(model) -> int:
    return int((np.abs(model.user_factors_[:, :-2]).max(0) > 1e-5).sum())


def prepared_of(data, method="mf", **given) -> Prepared:
    settings = Settings.of(method, **{**OPTIONS, **given})
    return Prepared.of(data, data.split("rd", settings.seed), settings)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("method", ["mf", "ips", "dr"])
def test_columns_of_taste_are_found_and_none_of_noise_beside_them(columns, method) -> None:
    for seed in range(2):
        model = Recommender(method, rng=0, **OPTIONS, select="none").fit(skewed(columns, seed)[0])
        assert columns_of(model) == columns
        assert model.report_["l2_factor"] < SHARE


def test_noise_makes_a_column_rarely_and_then_a_weak_one() -> None:
    models = [Recommender("mf", rng=0, **OPTIONS, select="none").fit(skewed(0, seed)[0]) for seed in range(6)]
    assert sum(columns_of(model) > 0 for model in models) <= 1
    assert min(model.report_["l2_factor"] for model in models) > 0.9 - least_squares.NEAR


@pytest.mark.parametrize("method", ["mf", "signed-rd"])
def test_what_is_taken_off_the_columns_of_taste_is_little(method) -> None:
    """The true error is far below that of one L2 at the edge of noise, or at the share of it that knows no columns."""
    data, truth = skewed(3)
    model = Recommender(method, rng=0, **OPTIONS, select="none").fit(data)
    edge = prepared_of(data).log.noise.edge / 0.1
    others = [Recommender(method, rng=0, **OPTIONS, select="none", l2_vectors=s * edge).fit(data) for s in (1.0, SHARE)]
    error, *worse = (float(np.mean((scores(one) - truth) ** 2)) for one in (model, *others))
    assert error < 0.7 * min(worse)


def test_validation_rows_have_the_last_word(logs, monkeypatch) -> None:
    shares = []
    for data in logs.values():
        validator = prepared_of(data).validator()
        assert validator.user.size >= PATH_ROWS
        model = Recommender("mf", rng=0, **OPTIONS).fit(data)
        with monkeypatch.context() as patch:
            patch.setattr(least_squares, "MOST_STEPS", 0)
            rule = Recommender("mf", rng=0, **OPTIONS).fit(data)
        mine, ruled = (
            validator.squared_error(
                LowRank.of(torch.from_numpy(one.user_factors_), torch.from_numpy(one.item_factors_))
            )
            for one in (model, rule)
        )
        share, start = model.report_["l2_factor"], rule.report_["l2_factor"]
        steps = np.log(start / share) / np.log(least_squares.STEP)
        assert share == 1.0 or steps == pytest.approx(round(steps), abs=1e-2)
        assert mine < ruled if share != start else mine == pytest.approx(ruled)
        objective = [row["loss_phi"] for row in model.history_]
        assert objective == sorted(objective, reverse=True), "fits that are compared only are not in the history"
        shares.append((share, start))
    assert any(share != start for share, start in shares), "a path that nobody walks would prove nothing"


@pytest.mark.parametrize("method", ["ips", "dr", "brd-dr"])
def test_weighted_losses_go_from_the_unweighted_fit_where_ratings_are_clear(method, monkeypatch) -> None:
    """The stronger their L2, the nearer the vectors to those of `mf`; biases and the mean follow the weights."""
    data, truth = skewed(3, 2, strength=0.1)
    options = {"rng": 0, **OPTIONS, "select": "none"}
    unweighted = Recommender("mf", **options).fit(data)
    fits = {}
    for strength in (1.0, least_squares.WEIGHTED, 1e6):
        monkeypatch.setattr(least_squares, "WEIGHTED", strength)
        fits[strength] = Recommender(method, **options).fit(data)

    def interactions(model) -> np.ndarray:
        return model.user_factors_[:, :-2] @ model.item_factors_[:, :-2].T

    gaps = [np.abs(interactions(model) - interactions(unweighted)).max() for model in fits.values()]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.02, "else weights say nothing and prove nothing"
    assert gaps[-1] < 1e-4
    assert np.abs(scores(fits[1e6]) - scores(unweighted)).max() > 1e-3
    errors = [float(np.mean((scores(model) - truth) ** 2)) for model in fits.values()]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("method", ["signed-rd", "spectrum"])
def test_later_stages_have_the_strength_of_the_first(method, logs, monkeypatch) -> None:
    data, used = logs["trait-genre"], []
    backbone = Prepared.backbone
    monkeypatch.setattr(
        Prepared, "backbone", lambda self, *a, **k: (used.append(self.edge_share), backbone(self, *a, **k))[1]
    )
    model = Recommender(method, rng=0, **OPTIONS).fit(data)
    share = model.report_["l2_factor"]
    assert share < SHARE
    assert used[0] == SHARE
    assert used[1:] == pytest.approx([share] * (len(used) - 1), abs=1e-4)
    prepared = prepared_of(data, method)
    one, half = (replace(prepared, edge_share=s).factors_for(1.0).ids for s in (0.8, 0.4))
    assert half == pytest.approx(0.5 * one)


def test_few_validation_rows_leave_it_to_the_noise_and_a_given_number_to_the_caller(logs, world) -> None:
    few = Recommender("mf", rng=0, **OPTIONS).fit(world(0))
    given = Recommender("mf", rng=0, **OPTIONS, l2_vectors=0.5).fit(logs["mixed"])
    assert "l2_factor" in few.report_
    assert "l2_factor" not in given.report_
    assert "strength of L2" not in few.report_["uniform_rows_used"]


def test_the_report_says_which_rows_chose_it(logs) -> None:
    uniform, logged = (
        Recommender("mf", rng=0, **OPTIONS, select=s).fit(logs["mixed"]) for s in ("uniform", "observational")
    )
    assert uniform.report_["uniform_rows_used"] == "strength of L2"
    assert logged.report_["uniform_rows_used"] == "none"
    assert "l2_factor" in logged.report_

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.objective.low_rank import LowRank
from puidrec.settings import Settings
from puidrec.train import validate
from puidrec.train.validate import Scale, Validator, pair_scores

SCORES = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.4]])
FACTORS = LowRank.of(SCORES, torch.eye(3))


@pytest.fixture
def rows():
    """User 0 rated 5, 1, 3; user 1 rated 2, 4, 5."""
    table = pl.DataFrame({"user_id": [0, 0, 0, 1, 1, 1], "item_id": [0, 1, 2, 0, 1, 2], "rating": [5.0, 1, 3, 2, 4, 5]})
    data = Dataset.from_frame(table, scale=(1, 5))
    return data.logged.labelled(data.split("rd", 0).protocol)


def test_scores_of_pairs_are_the_products(monkeypatch) -> None:
    monkeypatch.setattr(validate, "CHUNK", 2)
    user, item = np.array([0, 1, 0, 1, 1]), np.array([2, 1, 0, 0, 2])
    np.testing.assert_array_equal(pair_scores(FACTORS, user, item), SCORES.numpy()[user, item])
    double = FACTORS.plus(FACTORS)
    np.testing.assert_array_equal(pair_scores(double, user, item), 2 * SCORES.numpy()[user, item])


def test_auc_by_hand(rows) -> None:
    # positives .9 .8 .4, negatives .1 .5 .2: of nine pairs only (.4, .5) is wrong
    assert Validator.from_rows(rows, "auc").score(FACTORS) == pytest.approx(8 / 9)


def test_uauc_by_hand(rows) -> None:
    # user 0: .9 over .1 and .5 → 1; user 1: .8 and .4 over .2 → 1; with user 1 reversed → 0
    assert Validator.from_rows(rows, "uauc").score(FACTORS) == 1.0
    reversed_user = LowRank.of(SCORES * torch.tensor([[1.0], [-1.0]]), torch.eye(3))
    assert Validator.from_rows(rows, "uauc").score(reversed_user) == 0.5


def test_mse_by_hand_on_every_scale(rows) -> None:
    prediction = SCORES.numpy().ravel().astype(np.float64)
    unit, label = np.array([1.0, 0, 0.5, 0.25, 0.75, 1]), np.array([1.0, 0, 0, 0, 1, 1])
    cases = {
        Scale(): unit - prediction,
        Scale(labels=True): label - prediction,
        Scale(labels=True, signed=True): 2 * label - 1 - prediction,
        Scale(log_odds=True): unit - 1 / (1 + np.exp(-prediction)),
        Scale(True, True, True): 2 * label - 1 - (2 / (1 + np.exp(-prediction)) - 1),
    }
    for scale, residual in cases.items():
        score = Validator.from_rows(rows, "mse", scale=scale).score(FACTORS)
        assert score == pytest.approx(-np.mean(residual**2), rel=1e-6)


def test_weights_of_self_selected_rows(rows) -> None:
    weight = np.array([1.0, 2, 3, 4, 5, 6])
    won, lost = np.array([1.0, 5, 6]), np.array([2.0, 3, 4])  # weights of positives, negatives
    wrong = 6 * 3  # (.4 of weight 6) below (.5 of weight 3)
    expected = 1 - wrong / (won.sum() * lost.sum())
    assert Validator.from_rows(rows, "auc", weight).score(FACTORS) == pytest.approx(expected)
    residual = SCORES.numpy().ravel() - np.array([1.0, 0, 0.5, 0.25, 0.75, 1])
    mse = -np.average(residual**2, weights=weight)
    assert Validator.from_rows(rows, "mse", weight).score(FACTORS) == pytest.approx(mse, rel=1e-6)


def test_auto_ranks_within_users_where_they_have_rows_enough(rows, monkeypatch) -> None:
    assert Validator.from_rows(rows, "auto").metric == "auc"
    monkeypatch.setattr(validate, "ROWS_PER_USER", 3)
    assert Validator.from_rows(rows, "auto").metric == "uauc"
    one_label_each = rows.take(np.array([1, 2, 4, 5]))  # user 0 dislikes all, user 1 likes all
    monkeypatch.setattr(validate, "ROWS_PER_USER", 1)
    assert Validator.from_rows(one_label_each, "auto").metric == "auc"


def test_rows_that_cannot_tell_models_apart_give_no_validator(rows) -> None:
    assert Validator.from_rows(rows.take(np.array([], dtype=int)), "auto") is None
    assert Validator.from_rows(rows.take(np.array([0, 4])), "auc") is None
    assert Validator.from_rows(rows.take(np.array([1, 2, 4, 5])), "uauc") is None
    assert Validator.from_rows(rows.take(np.array([0, 4])), "mse") is not None


def test_an_unknown_metric_is_refused(rows, refusal) -> None:
    refusal(lambda: Validator.from_rows(rows, "recall"), "validation metric", "recall", "uauc")


@pytest.mark.parametrize(
    ("method", "given", "scale"),
    [
        ("ips", {}, Scale()),
        ("dr", {"target": "binary"}, Scale(True, True)),
        ("dr", {"target": "binary", "loss": "cross-entropy"}, Scale(True, True, True)),
        ("signed-rd", {"target": "binary"}, Scale(True, False)),
        ("bias", {"loss": "cross-entropy"}, Scale()),
    ],
)
def test_the_scale_of_a_method(method, given, scale) -> None:
    assert Scale.of(Settings.of(method, **given)) == scale


@pytest.mark.parametrize("signed", [False, True])
def test_log_odds_map_to_means_and_back(signed) -> None:
    scale, logit = Scale(True, signed, True), np.linspace(-8, 8, 33)
    mean = scale.of_scores(logit)
    chance = (mean + 1) / 2 if signed else mean
    np.testing.assert_allclose(np.log(chance / (1 - chance)), logit, atol=1e-9)
    np.testing.assert_array_equal(scale.of_labels(np.array([0, 1])), [-1, 1] if signed else [0, 1])

"""Every metric keeps the contract, names are parsed strictly, and values equal scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error

from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.metrics import (
    METRICS,
    WHOLE_LIST,
    Scored,
    compute_metrics,
    parse_metric,
    signed_labels,
    unit_labels,
)
from puidrec.evaluation.significance import mean_interval
from puidrec.testing.metric import MetricContract

NAMES = [
    "uauc",
    "auc",
    "ndcg@5",
    "ndcg",
    "ndcg-graded@3",
    "recall@2",
    "precision@4",
    "map",
    "mse",
    "rmse",
    "mae",
    "logloss",
]


def _contract(metric: str) -> type[MetricContract]:
    return type(f"Test{metric}", (MetricContract,), {"name": metric, "weighted": metric != "map"})


for _name in NAMES:
    globals()[f"Test_{_name.replace('@', '_at_').replace('-', '_')}"] = _contract(_name)


def test_the_contract_covers_the_table() -> None:
    assert {name.partition("@")[0] for name in NAMES} == set(METRICS)


def test_cutoffs_are_parsed() -> None:
    assert parse_metric("ndcg@50")[1] == 50
    assert parse_metric("ndcg")[1] == WHOLE_LIST


@pytest.mark.parametrize(
    "name",
    ["", "NDCG@5", "ndcg@", "ndcg@0", "ndcg@-1", "ndcg@1.5", "ndcg@²", "recall", "uauc@5", "hit"],
)
def test_wrong_names_are_refused(name, refusal) -> None:
    refusal(lambda: parse_metric(name), "metric")


def test_errors_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    user, label, score = rng.integers(0, 9, 300), rng.integers(0, 2, 300), rng.random(300)
    score[:4], label[:4] = [0.0, 1.0, 0.0, 1.0], [0, 1, 1, 0]
    rating = rng.random(300)
    weight = rng.random(300) + 0.1
    for w in (None, weight):
        ours = evaluate_scores(
            user, score, label, rating, metrics=["mse", "mae", "logloss"], weight=w
        )
        assert ours["mse"] == pytest.approx(
            mean_squared_error(rating, score, sample_weight=w), abs=1e-12
        )
        assert ours["mae"] == pytest.approx(
            mean_absolute_error(rating, score, sample_weight=w), abs=1e-12
        )
        assert ours["logloss"] == pytest.approx(log_loss(label, score, sample_weight=w), abs=1e-12)


def test_logloss_refuses_what_is_no_probability(refusal) -> None:
    refusal(
        lambda: evaluate_scores([0, 0], [0.2, 1.5], [0, 1], metrics=["logloss"]), "logloss", "1.5"
    )


def test_uauc_counts_users_with_both_labels_whatever_the_rule() -> None:
    rows = ([0, 0, 1, 1], [0.1, 0.9, 0.5, 0.6], [0, 1, 1, 1])
    result = evaluate_scores(*rows, metrics=["uauc", "ndcg@1"], users="any-positive")
    assert result.per_user["uauc"].users.tolist() == [0]
    assert result["uauc"] == 1.0
    assert result.per_user["ndcg@1"].users.tolist() == [0, 1]
    assert result.n_users == 2


def test_signed_labels_keep_their_type_and_have_an_inverse() -> None:
    label = np.array([0, 1, 1], np.float32)
    signed = signed_labels(label)
    assert (signed.tolist(), signed.dtype) == ([-1.0, 1.0, 1.0], np.float32)
    assert np.array_equal(unit_labels(signed), label)
    assert signed_labels(np.array([0, 1], np.int8)).tolist() == [-1, 1]


def test_root_mean_square_error_has_an_interval_over_users() -> None:
    rng = np.random.default_rng(1)
    code, error = (
        np.sort(rng.integers(80, size=2_000)),
        rng.standard_normal(2_000) + rng.standard_normal(80).repeat(25),
    )
    rows = Scored(
        np.arange(80),
        code,
        error,
        np.zeros(2_000, np.int8),
        np.zeros(2_000),
        np.zeros(2_000),
        width=4.0,
    )
    found = compute_metrics(rows, ["rmse"])["rmse"]
    root = 4.0 * np.sqrt(np.mean(error**2))
    assert found.mean == pytest.approx(root)
    without = [4.0 * np.sqrt(np.mean(error[code != user] ** 2)) for user in range(80)]
    jackknife = np.sqrt(79 / 80 * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert mean_interval(found).standard_error == pytest.approx(jackknife, rel=0.05)

"""The demo's figures: they add up, and they show what they claim to."""

from __future__ import annotations

import pytest

from puidrec.data.synthetic import simulate
from puidrec.experiments import demo


@pytest.fixture(scope="module")
def facts() -> dict:
    return demo.run_demo("mixed", 0)


def test_the_true_propensity_and_uniform_ratings_agree_with_the_truth_and_the_log_does_not(facts: dict) -> None:
    rows = {row["name"]: row for row in facts["estimates"]}
    assert abs(rows["the log as it is"]["error"]) > 5 * rows["the log as it is"]["half_width"]
    for name in ("weighted by the true propensity", "uniform ratings"):
        assert abs(rows[name]["error"]) < 2 * rows[name]["half_width"]


def test_what_looks_best_on_the_log_is_not_best_on_all_pairs(facts: dict) -> None:
    rows = {row["method"]: row for row in facts["methods"]}
    assert rows["mf"]["naive_mse"] < rows["signed-rd"]["naive_mse"]
    assert rows["mf"]["true_mse"] > rows["signed-rd"]["true_mse"]
    assert rows["signed-rd"]["repaired"] > 0.6
    assert rows[demo.ORACLE]["repaired"] == 1.0
    assert rows["mf"]["repaired"] == 0.0


def test_the_oracle_gets_the_true_propensity() -> None:
    simulation = simulate("pair", n_users=40, n_items=30, rng=1)
    log = demo.with_true_propensity(simulation).logged
    assert log.propensity is not None
    assert log.propensity == pytest.approx(simulation.truth.true_propensity(log.user, log.item))

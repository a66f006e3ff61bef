"""Yardsticks for Γ: features and groups, scenarios by arithmetic, replaced ratings by brute
force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from puidrec.auditing.audit import audit
from puidrec.auditing.verdict import (
    TIMES,
    Scenario,
    Yardstick,
    benchmarks,
    deciding,
    replaced,
    scenarios,
    times_as_strong,
)
from puidrec.exposure.evidence import Calibration, FeatureShift

INF = float("inf")
AGE = Calibration(
    (FeatureShift("age", "user", 2.0, 3.0, 0.1), FeatureShift("kind", "item", 1.2, 1.5, 0.1))
)


def test_how_many_hidden_features_reach_a_gamma() -> None:
    assert times_as_strong(8.0, 2.0) == pytest.approx(3.0)  # log odds add up
    assert times_as_strong(1.0, 2.0) == 0.0
    assert times_as_strong(INF, 2.0) is None
    assert times_as_strong(2.0, 1.0) is None
    rows = benchmarks(AGE, 8.0)
    assert [row["feature"] for row in rows] == ["age", "kind"]
    assert rows[1]["times_hidden"] == pytest.approx(np.log(8) / np.log(1.2))
    assert benchmarks(AGE, None)[0]["times_hidden"] is None
    assert benchmarks(None, 2.0) == []


def test_a_scenario_worked_by_hand() -> None:
    """A fifth of users sees twice as much: of 12 %, others see 10 % and they 20 %; odds 1/4 against
    3/22."""
    assert Scenario(0.2, 2.0).gamma(0.12) == pytest.approx((0.2 / 0.8) / (0.12 / 0.88))
    assert Scenario(0.2, 2.0).gamma(1e-5) == pytest.approx(2 / 1.2, rel=1e-4)
    assert Scenario(0.9, 2.0).gamma(1e-5) == pytest.approx(
        1.9, rel=1e-4
    )  # those without it differ most
    assert Scenario(0.5, 1.0).gamma(0.3) == pytest.approx(1.0)
    assert np.isfinite(Scenario(0.2, 2.0).gamma(1.0))


def test_a_trait_that_needs_more_exposure_than_there_is_is_not_shown() -> None:
    """Of 34 % seen, tripled exposure of one in twenty would be 0.34 × 3 / 1.1 = 93 %; of 37 %, more
    than all."""
    assert [row["factor"] for row in scenarios(0.34, 2.0)] == [2.0, 3.0, 1.5]
    dense = scenarios(0.37, 2.0)
    assert [row["factor"] for row in dense] == [2.0, 1.5]
    assert all(row["gamma"] < 10.0 for row in dense)


def test_a_simulated_trait_has_the_gamma_of_its_scenario() -> None:
    """Users drawn with the trait or without: the likelihood ratio of unseen to seen, against that
    of all."""
    rng = np.random.default_rng(0)
    trait = rng.random(200_000) < 0.2
    seen = rng.random(trait.size) < np.where(trait, 0.2, 0.1)
    odds = [seen[own].mean() / (1 - seen[own].mean()) for own in (trait, ~trait, trait | True)]
    found = max(max(o / odds[2], odds[2] / o) for o in odds[:2])
    assert Scenario(0.2, 2.0).gamma(float(seen.mean())) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_replaced_ratings_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, weight = rng.normal(0.3, 1.0, 8), rng.uniform(1, 5, 8)
    worst = value - rng.uniform(0, 2, 8)
    found = replaced(value, worst, weight)
    if weight @ value <= 0:
        assert found is None
        return
    ends = [
        n
        for n in range(1, 9)
        for rows in combinations(range(8), n)
        if weight @ np.where(np.isin(np.arange(8), rows), worst, value) <= 0
    ]
    assert found == (min(ends) if ends else None)


def test_groups_of_features_are_yardsticks(simulation, good, poor) -> None:
    columns = [name for name in simulation.data.users.columns if name != "user_id"][:2]
    found = audit(
        good, simulation.data, poor, unseen=True, replicates=0, groups={"both": columns}
    ).to_dict()
    names = {row["feature"]: row["gamma"] for row in found["groups"]}
    assert "both" in names
    alone = [row["gamma"] for row in found["benchmarks"] if row["feature"] in columns]
    assert names["both"] > 1.0
    assert max(alone) > 1.0


def test_what_decides_is_what_is_known_of_gamma() -> None:
    """Nothing known: nothing decides. Your word takes the place of the features, and uniform rows
    stand beside it."""
    assert deciding(None, None, None) is None
    assert deciding(1.5, None, AGE) == Yardstick("what you believe to be the most", 1.5)
    assert deciding(None, None, AGE).gamma == pytest.approx(2.0**TIMES)
    assert "age" in deciding(None, None, AGE).words
    proved = Yardstick("what uniform ratings prove", 1.8)
    assert deciding(1.5, proved, AGE) == proved
    assert deciding(2.5, proved, None).gamma == 2.5
    flat = Calibration((FeatureShift("colour", "item", 1.0, 1.0, 0.0),))
    assert deciding(None, None, flat) is None  # a feature that moves nothing is no yardstick


@pytest.mark.parametrize("believe", [0.9, INF, float("nan")])
def test_a_belief_that_is_no_gamma_is_refused(refusal, believe: float) -> None:
    refusal(lambda: deciding(believe, None, None), "believe", "1 or more")


def test_scenarios_never_decide(simulation, good, poor) -> None:
    bare = replace(simulation.data, uniform=None, users=None, items=None)
    found = audit(
        type(good)(bare, good.scores),
        bare,
        type(poor)(bare, poor.scores),
        unseen=True,
        replicates=0,
    )
    assert found.to_dict()["reference"] is None
    assert found.to_dict()["scenarios"]
    assert found.verdict == "undecided"

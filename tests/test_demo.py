"""The demo's figures: they add up, and they show what they claim to."""

from __future__ import annotations

import re

import pytest

from puidrec import demo
from puidrec.auditing.result import Audit
from puidrec.data.synthetic import simulate
from puidrec.report.audit import demo_html


@pytest.fixture(scope="module")
def found() -> tuple[dict, Audit]:
    return demo.run_demo("pair", 0, lambda _: None)


@pytest.fixture(scope="module")
def facts(found: tuple[dict, Audit]) -> dict:
    return found[0]


def test_the_true_propensity_and_uniform_ratings_agree_with_the_truth_and_the_log_does_not(
    facts: dict,
) -> None:
    rows = {row["name"]: row for row in facts["estimates"]}
    assert abs(rows["the log as it is"]["error"]) > 5 * rows["the log as it is"]["half_width"]
    for name in ("weighted by the true propensity", "uniform ratings"):
        assert abs(rows[name]["error"]) < 2 * rows[name]["half_width"]


def test_what_looks_best_on_the_log_is_not_best_on_all_pairs(facts: dict) -> None:
    rows = {row["method"]: row for row in facts["methods"]}
    assert rows[demo.NAIVE]["naive_mse"] < rows[demo.ROBUST]["naive_mse"]
    assert rows[demo.NAIVE]["true_mse"] > rows[demo.ROBUST]["true_mse"]
    assert rows[demo.ROBUST]["repaired"] > 0.6
    assert rows[demo.ORACLE]["repaired"] == 1.0
    assert rows[demo.NAIVE]["repaired"] == 0.0


def test_the_audit_sees_without_the_truth_that_the_lead_in_the_log_proves_nothing(
    found: tuple[dict, Audit],
) -> None:
    values = found[1].to_dict()
    assert values["rows"]["source"] == "held-out"
    assert values["tipping"]["low"] > 1.0
    assert found[1].tipping_point < values["certificate"]["low"]
    assert found[1].verdict == "fragile"


def test_the_page_shows_every_method_and_the_audit(found: tuple[dict, Audit]) -> None:
    text = demo_html(found[0], found[1].to_dict())
    assert all(method in text for method in (*demo.METHODS, demo.ORACLE))
    assert found[1].to_dict()["sentence"] in text
    ids = re.findall(r'<section id="([a-z-]+)"', text)
    assert ids[:3] == ["world", "truth", "estimates"]
    assert "envelope" in ids
    assert [f'<li><a href="#{name}">' in text for name in ids] == [True] * len(ids)


def test_the_oracle_gets_the_true_propensity() -> None:
    simulation = simulate("pair", n_users=40, n_items=30, rng=1)
    log = demo.with_true_propensity(simulation).logged
    assert log.propensity is not None
    assert log.propensity == pytest.approx(simulation.truth.true_propensity(log.user, log.item))

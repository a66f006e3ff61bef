"""Verdicts at their thresholds, and sentences that say them."""

from __future__ import annotations

import pytest

from puidrec.auditing.tipping import Limits, Tipping
from puidrec.auditing.verdict import FLOOR, Lead, Yardstick, Yardsticks, judge, sentence, single_sentence

INF = float("inf")
AGE = Yardsticks((Yardstick("hiding the feature age", 2.0, "age"), Yardstick("hiding the feature kind", 1.2, "kind")))
UNIFORM = {"ahead": Limits(0.1, 0.05, 0.15), "behind": Limits(-0.1, -0.15, -0.05), "open": Limits(-0.1, -0.15, 0.05)}


def lead(
    gamma: float, low: float, high: float, uniform: str = "", leak: str = "", metric: str = "squared error"
) -> Lead:
    """A lead of that tipping point; the lead in the log is beyond chance if the interval of Γ* is above 1."""
    found = Limits(0.1, 0.05, 0.15) if low > 1 else Limits(0.1, -0.05, 0.25) if gamma > 1 else Limits(-0.1, -0.2, -0.05)
    return Lead(metric, Tipping(gamma, low, high, found, gamma), UNIFORM.get(uniform), 400, leak)


@pytest.mark.parametrize(
    ("found", "yardsticks", "expected"),
    [
        (lead(1.0, 1.0, 1.0), Yardsticks(), "undecided"),
        (lead(1.2, 1.0, 1.4), Yardsticks(), "undecided"),
        (lead(1.2, 1.1, 1.4), Yardsticks(), "fragile"),
        (lead(2.0, FLOOR + 0.01, 3.0), Yardsticks(), "robust"),
        (lead(2.0, FLOOR - 0.01, 3.0), Yardsticks(), "fragile"),
        (lead(2.2, 1.9, 3.0), AGE, "fragile"),
        (lead(2.2, 2.1, 3.0), AGE, "robust"),
        (lead(2.2, 2.1, 3.0), Yardsticks(AGE.rows, 2.15), "fragile"),  # the certificate's lower limit is a bar
        (lead(2.2, 2.1, 3.0), Yardsticks(AGE.rows, 2.05), "robust"),
        (lead(2.2, 2.1, 3.0, "ahead"), Yardsticks(AGE.rows, 3.0), "fragile"),
        (lead(2.2, 2.1, 3.0, "behind"), Yardsticks(), "refuted"),
        (lead(1.0, 1.0, 1.0, "behind"), Yardsticks(), "refuted"),
        (lead(2.2, 2.1, 3.0, "open"), Yardsticks(), "robust"),
        (lead(1.2, 1.0, 3.0, "ahead"), Yardsticks(), "undecided"),
        (lead(INF, INF, INF), Yardsticks(AGE.rows, 3.0), "robust"),
        (lead(INF, 1.0, INF), Yardsticks(), "undecided"),
        (lead(INF, INF, INF, leak="scores of a (97 %)"), Yardsticks(), "undecided"),
    ],
)
def test_thresholds(found: Lead, yardsticks: Yardsticks, expected: str) -> None:
    assert judge(found, yardsticks) == expected


@pytest.mark.parametrize(
    ("found", "yardsticks", "parts"),
    [
        (lead(1.0, 1.0, 1.0), Yardsticks(), ("undecided", "the log shows b ahead, not a")),
        (lead(1.2, 1.0, 1.4), Yardsticks(), ("undecided", "shows a ahead, but not beyond chance", "-0.0500 to 0.2500")),
        (lead(1.2, 1.0, 1.4, "ahead"), Yardsticks(), ("undecided", "400 uniform ratings do show a ahead")),
        (lead(1.2, 1.0, 1.4, "behind"), Yardsticks(), ("refuted", "does not even show it ahead", "show b ahead")),
        (lead(2.2, 1.9, INF), AGE, ("fragile", "2.20", "1.90 to ∞", "1.1 × as strong as hiding the feature age")),
        (lead(4.2, 3.9, 5.0), AGE, ("robust", "4.20", "more than every yardstick", "feature age, Γ = 2.00")),
        (lead(2.2, 2.1, 3.0), Yardsticks(AGE.rows, 3.0), ("fragile", "at least 3.00", "missed by the propensity")),
        (lead(2.2, 2.1, 3.0, "ahead"), AGE, ("the uniform ratings confirm it",)),
        (lead(1.3, 1.1, 3.0, "ahead"), AGE, ("fragile", "the uniform ratings confirm the lead, which needs no Γ")),
        (lead(2.2, 2.1, 3.0, "behind"), Yardsticks(), ("refuted", "the log shows a ahead, and 400 uniform")),
        (lead(INF, INF, INF), AGE, ("robust", "no finite Γ overturns it", "on any of these rows")),
        (lead(9.0, 8.0, INF, leak="leakage, scores of a (97 %)"), AGE, ("undecided", "show nothing: leakage", "97 %")),
    ],
)
def test_one_plain_sentence(found: Lead, yardsticks: Yardsticks, parts: tuple[str, ...]) -> None:
    text = sentence(("a", "b"), found, (), yardsticks)
    assert text.endswith(".")
    assert text.count(". ") == 0
    assert "\n" not in text
    assert "inf" not in text
    for part in parts:
        assert part in text


def test_models_that_do_not_differ_are_level() -> None:
    level = Lead("squared error", Tipping(1.0, 1.0, 1.0, Limits(0.0, 0.0, 0.0), 1.0))
    assert judge(level, Yardsticks()) == "undecided"
    assert "do not tell them apart" in sentence(("a", "b"), level, (), Yardsticks())


def test_error_and_ranking_stand_side_by_side_and_a_disagreement_is_said() -> None:
    ranked = lead(1.0, 1.0, 1.0, metric="DCG@10")
    text = sentence(("a", "b"), lead(4.2, 3.9, 5.0), (ranked,), AGE)
    assert "in squared error is robust" in text
    assert "DCG@10 disagrees, by it the lead is undecided: the log shows b ahead, not a" in text
    same = sentence(("a", "b"), lead(4.2, 3.9, 5.0), (lead(3.2, 3.0, 4.0, metric="DCG@10"),), AGE)
    assert "by DCG@10 it is robust too: Γ* = 3.20, 95 % 3.00 to 4.00." in same
    assert "disagrees" not in same


def test_features_that_move_nothing_are_no_yardstick() -> None:
    flat = Yardsticks((Yardstick("hiding the feature colour", 1.0, "colour"),))
    assert flat.strongest_feature is None
    assert flat.largest.gamma == FLOOR


def test_one_model_alone() -> None:
    text = single_sentence("mf", 0.05, 0.03, 0.08, 1.5)
    assert "0.0500" in text
    assert "between 0.0300 and 0.0800" in text

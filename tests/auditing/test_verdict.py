"""Verdicts at their thresholds, and sentences that say them."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing.tipping import Tipping
from puidrec.auditing.verdict import FLOOR, Yardsticks, benchmarks, judge, sentence, single_sentence, times_as_strong
from puidrec.sensitivity.calibrate import Calibration, FeatureShift
from puidrec.sensitivity.certify import Certificate

INF = float("inf")


def tips(gamma: float, low: float, high: float, sharp: float | None = None) -> Tipping:
    return Tipping(gamma, low, high, gamma if sharp is None else sharp, 1.0, 1.0, 1.0)


def proves(gamma: float, lower: float) -> Certificate:
    return Certificate(gamma, lower, True, 0.95, ())


AGE = Calibration((FeatureShift("age", "user", 2.0, 3.0, 0.1), FeatureShift("kind", "item", 1.2, 1.5, 0.1)))


@pytest.mark.parametrize(
    ("tipping", "yardsticks", "expected"),
    [
        (tips(0.9, 0.8, 1.1), Yardsticks(), "overturned"),
        (tips(1.2, 0.99, 1.4), Yardsticks(), "overturned"),
        (tips(1.2, 1.1, 1.4), Yardsticks(), "fragile"),
        (tips(2.0, FLOOR + 0.01, 3.0), Yardsticks(), "robust"),
        (tips(2.0, FLOOR - 0.01, 3.0), Yardsticks(), "fragile"),
        (tips(2.2, 1.9, 3.0), Yardsticks(AGE), "fragile"),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE), "robust"),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE, proves(2.15, 1.3)), "fragile"),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE, proves(4.0, 3.0)), "overturned"),
        (tips(2.2, 2.1, 3.0, sharp=3.5), Yardsticks(AGE, proves(4.0, 3.0)), "fragile"),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE, proves(4.0, 3.0), (0.1, 0.05, 0.15)), "fragile"),
        (tips(2.2, 2.1, 3.0), Yardsticks(None, None, (-0.1, -0.15, -0.05)), "overturned"),
        (tips(2.2, 2.1, 3.0), Yardsticks(None, None, (-0.1, -0.15, 0.05)), "robust"),
        (tips(INF, INF, INF), Yardsticks(AGE, proves(4.0, 3.0)), "robust"),
        (tips(1.3, 1.2, 1.4, sharp=1.0), Yardsticks(None, proves(1.0, 1.0)), "fragile"),
    ],
)
def test_thresholds(tipping: Tipping, yardsticks: Yardsticks, expected: str) -> None:
    assert judge(tipping, yardsticks) == expected


@pytest.mark.parametrize(
    ("tipping", "yardsticks", "parts"),
    [
        (tips(0.9, 0.8, 1.1), Yardsticks(), ("does not show a ahead of b", "behind b")),
        (tips(1.2, 0.99, 1.4), Yardsticks(), ("beyond chance", "1.20", "0.99 to 1.40")),
        (tips(1.2, 0.9, 1.4), Yardsticks(None, None, (0.1, 0.05, 0.15)), ("beyond chance", "ratings do show it ahead")),
        (tips(1.2, 0.9, 1.4), Yardsticks(None, None, (-0.1, -0.15, -0.05)), ("beyond chance", "show it behind")),
        (tips(2.2, 1.9, INF), Yardsticks(AGE), ("fragile", "2.20", "1.90 to ∞", "age", "1.1 × as strong as hiding")),
        (tips(4.2, 3.9, 5.0), Yardsticks(AGE), ("robust", "4.20")),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE, proves(4.0, 3.0)), ("proves nothing", "at least 3.00")),
        (tips(2.2, 2.1, 3.0), Yardsticks(AGE, None, (0.1, 0.05, 0.2)), ("the uniform ratings confirm the lead",)),
        (tips(2.2, 2.1, 3.0), Yardsticks(None, None, (-0.1, -0.2, -0.05)), ("uniform ratings show it behind",)),
        (tips(INF, INF, INF), Yardsticks(AGE), ("on every logged pair",)),
    ],
)
def test_one_plain_sentence(tipping: Tipping, yardsticks: Yardsticks, parts: tuple[str, ...]) -> None:
    text = sentence(("a", "b"), tipping, yardsticks, -0.1 if tipping.gamma < 1 else 0.1)
    assert text.endswith(".")
    assert "\n" not in text
    assert "inf" not in text
    for part in parts:
        assert part in text


def test_equal_models_are_not_called_behind() -> None:
    assert "no better than b" in sentence(("a", "b"), tips(1.0, 1.0, 1.0), Yardsticks(), 0.0)


def test_hidden_times_over() -> None:
    assert times_as_strong(8.0, 2.0) == pytest.approx(3.0)  # log odds add up
    assert times_as_strong(0.9, 2.0) == 0.0
    assert times_as_strong(INF, 2.0) is None
    assert times_as_strong(2.0, 1.0) is None
    rows = benchmarks(AGE, 8.0)
    assert [row["feature"] for row in rows] == ["age", "kind"]
    assert rows[1]["times_hidden"] == pytest.approx(np.log(8) / np.log(1.2))
    assert benchmarks(AGE, None)[0]["times_hidden"] is None
    assert benchmarks(None, 2.0) == []


def test_features_that_move_nothing_are_no_yardstick() -> None:
    flat = Calibration((FeatureShift("colour", "item", 1.0, 1.0, 0.0),))
    assert Yardsticks(flat).strongest is None
    assert Yardsticks(flat).reference == FLOOR


def test_one_model_alone() -> None:
    text = single_sentence("mf", 0.05, 0.03, 0.08, 1.5)
    assert "0.0500" in text
    assert "between 0.0300 and 0.0800" in text

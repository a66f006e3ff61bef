"""Yardsticks: said only if the data say it, sorted by strength, labelled so that a reader knows what is what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from puidrec.report.audit_strength import gamma_map, strength
from puidrec.report.blocks import Block, Callout, Facts, HeatMap, Table

Values = Callable[..., dict[str, Any]]


def parts(values: dict[str, Any]) -> list[Block]:
    section = strength(values)
    return [] if section is None else list(section.blocks)


def box(values: dict[str, Any], title: str) -> Callout | None:
    return next((block for block in parts(values) if isinstance(block, Callout) and title in block.title), None)


@pytest.mark.parametrize(
    ("low", "high", "tone", "words"),
    [
        (0.01, 0.05, "good", "confirm the lead"),
        (-0.05, -0.01, "bad", "show the other model ahead"),
        (-0.05, 0.01, "info", "leave open which one is ahead"),
        (None, None, "info", "leave open which one is ahead"),
    ],
)
def test_uniform_rows_say_what_their_interval_says(
    audit_values: Values, low: float | None, high: float | None, tone: str, words: str
) -> None:
    found = box(audit_values(uniform={"n": 4176, "loss_gap": {"value": 0.02, "low": low, "high": high}}), "show")
    assert found is not None
    assert found.tone == tone
    assert words in found.text
    assert ("95 %" in found.text) == (low is not None)
    assert "4,176 ratings" in found.text


@pytest.mark.parametrize("uniform", [None, {}, {"n": 3, "model_loss": {"value": 0.1}}])
def test_without_uniform_rows_nothing_is_said_of_them(audit_values: Values, uniform: Any) -> None:
    assert box(audit_values(uniform=uniform), "show") is None


def test_what_uniform_ratings_prove_is_said_only_if_they_do(audit_values: Values) -> None:
    proved = box(audit_values(certificate={"gamma_min": 1.71, "low": 1.52}), "prove")
    not_proved = box(audit_values(certificate={"gamma_min": 1.71, "low": 1.0}), "prove")
    assert proved is not None
    assert not_proved is not None
    assert "refute every Γ below **1.52**" in proved.text
    assert "prove no hidden confounding" in not_proved.text
    assert box(audit_values(certificate=None), "prove") is None


def test_benchmarks_are_sorted_by_strength(audit_values: Values) -> None:
    (table,) = (block for block in parts(audit_values()) if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["genre", "price", "shelf", "age", "gender", "brand"]
    assert [column.name for column, _ in table.head] == ["feature", "of", "Γ", "times hidden"]


def test_the_rule_for_gamma_is_summarised(audit_values: Values) -> None:
    (facts,) = (block for block in parts(audit_values()) if isinstance(block, Facts))
    assert dict(facts.items) == {
        "median pair": "1.42", "one pair in twenty is above": "2.71", "largest": "3.10", "rule": "exposure-gap",
    }  # fmt: skip


def test_without_any_yardstick_there_is_no_section() -> None:
    assert strength({}) is None


def test_groups_are_labelled_by_what_differs(audit_values: Values) -> None:
    section = gamma_map(audit_values())
    assert section is not None
    (chart,) = section.blocks
    assert isinstance(chart, HeatMap)
    assert (list(chart.rows), chart.row_title) == (["20", "30", "<40"], "users, by age")
    assert (list(chart.columns), chart.column_title) == (["coats", "parkas", "jackets", "<b>"], "items")

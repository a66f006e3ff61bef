"""The tables of an audit: every row and value of the file is there, known ones in words, unknown ones as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from puidrec.report.audit_detail import diagnostics, methods, segments
from puidrec.report.audit_envelope import Names
from puidrec.report.blocks import Block, Details, Facts, Paragraph, Section, Table

Values = Callable[..., dict[str, Any]]
PAIR = Names("puid-dr", "mf")


def flat(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from flat(block.blocks) if isinstance(block, Details) else [block]


def tables(section: Section | None) -> dict[str, Table]:
    assert section is not None
    return {block.caption.split(".")[0]: block for block in flat(section.blocks) if isinstance(block, Table)}


def facts(section: Section | None) -> dict[str, Any]:
    assert section is not None
    return {label: value for block in flat(section.blocks) if isinstance(block, Facts) for label, value in block.items}


def heads(table: Table) -> list[str]:
    return [column.name for column, _ in table.head]


def texts(table: Table, row: int) -> list[str]:
    return [cell.text for cell in table.body[row]]


def test_groups_are_named_by_column_and_segment(audit_values: Values) -> None:
    found = tables(segments(audit_values(), PAIR))
    users = next(table for caption, table in found.items() if caption.startswith("Groups of users"))
    assert heads(users) == ["group of users", "logged pairs", "mean Γ", "Γ, 95 %", "width"]
    assert texts(users, 1) == ["age: 20 to 30", "12,000", "10.40", "12.60", "0.110"]
    assert len(found) == 3


def test_ranges_are_of_the_lead_or_of_the_error(audit_values: Values) -> None:
    rows = {"users": [{"column": "age", "segment": "old", "low": -0.1, "high": 0.2, "new_thing": 3}]}
    pair = tables(segments(audit_values(segments=rows), PAIR)).popitem()[1]
    alone = tables(segments(audit_values(segments=rows), Names("mf", None))).popitem()[1]
    assert heads(pair) == ["group of users", "lead from", "lead to", "new thing"]
    assert heads(alone) == ["group of users", "error from", "error to", "new thing"]
    assert texts(pair, 0) == ["age: old", "−0.100", "0.200", "3"]


def test_a_column_is_explained_once(audit_values: Values) -> None:
    section = segments(audit_values(), PAIR)
    assert section is not None
    shown = [column.name for table in tables(section).values() for column, _ in table.head if column.help]
    assert sorted(shown) == sorted(set(shown))
    assert "logged pairs" in shown


def test_the_strength_of_ranges_is_said(audit_values: Values) -> None:
    section = segments(audit_values(), PAIR)
    assert section is not None
    assert section.blocks[0] == Paragraph("Ranges are the sharp ones at Γ per user and item.")


def test_headline_figures_have_words_and_units(audit_values: Values) -> None:
    found = facts(diagnostics(audit_values()))
    assert found["effective sample size"] == "812"
    assert found["propensities clipped"] == "0.4%"
    assert found["propensity model"] == "two-way"
    assert found["weight on the heaviest 1 %"] == "0.087"


def test_calibration_shows_what_was_seen_against_what_was_predicted(audit_values: Values) -> None:
    table = tables(diagnostics(audit_values()))[
        "Are propensities right? Pairs by tenths of their propensity: how many were seen"
    ]
    last = table.body[-1]
    assert [cell.text for cell in last] == ["10", "8,700", "850", "10.0%", "9.8%"]
    assert (last[4].bar, last[4].tick) == (0.98, 1.0)


def test_quantiles_stand_in_one_table(audit_values: Values) -> None:
    table = tables(diagnostics(audit_values()))["How propensities and weights spread"]
    assert [texts(table, k)[:2] for k in range(2)] == [
        ["propensities of logged pairs", "0.008"],
        ["weights of audited pairs", "1.9"],
    ]


def test_a_tenth_without_rows_has_no_bar(audit_values: Values) -> None:
    table = tables(diagnostics(audit_values()))["Where is the log thin? Items by popularity, the most seen tenth first"]
    assert [row[4].bar for row in table.body] == [0.5527, None]


def test_diagnostics_that_are_new_are_shown_as_they_are(audit_values: Values) -> None:
    table = tables(diagnostics(audit_values()))["Something new"]
    assert texts(table, 1) == ["0.9", "30"]
    assert facts(diagnostics({"diagnostics": {"brand_new": 4}})) == {"brand new": 4}


def test_settings_that_differ_are_stressed(audit_values: Values) -> None:
    table = tables(methods(audit_values(), PAIR))["Settings; those that differ are stressed"]
    assert [row[0] for row in table.rows] == ["dim", "lr", "alpha"]
    assert list(table.emphasised) == [2]
    assert texts(table, 2) == ["alpha", "2", "–"]


def test_data_and_rows_are_stated(audit_values: Values) -> None:
    found = facts(methods(audit_values(), PAIR))
    assert found["positive rate"] == "35.2%"
    assert found["SHA-256 begins with"] == "0f" * 8
    assert found["S₋"] == "410.6"
    assert found["source"] == "held-out"


def test_one_model_alone_has_one_column(audit_values: Values) -> None:
    table = tables(methods(audit_values(against=None), Names("puid-dr", None)))["Settings"]
    assert heads(table) == ["", "puid-dr"]
    assert list(table.emphasised) == []

"""Plain values as blocks: everything that fits is shown, nothing is invented, nothing breaks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.report.blocks import Facts, Paragraph, Table
from puidrec.report.html import Page, Section, render
from puidrec.report.plain import MAX_ROWS, blocks, facts, records

LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3), max_leaves=8
)


def test_single_values_become_facts_in_words() -> None:
    shown = facts({"n_users": 3, "rule": "cells", "deep": {"x": 1}, "list": [1, 2], "none": []}, {"n_users": "users"})
    assert list(shown.items) == [("users", 3), ("rule", "cells"), ("list", "1, 2"), ("none", None)]


def test_records_become_a_table_with_the_union_of_their_keys() -> None:
    table = records([{"a": 1, "b": 2.0}, {"c": "x", "a": 3}], "Caption.", {"a": "first"}, {"b": ".2f"})
    assert [column.name for column, _ in table.head] == ["first", "b", "c"]
    assert [[cell.text for cell in row] for row in table.body] == [["1", "2.00", "–"], ["3", "–", "x"]]


def test_very_many_records_are_cut_and_it_is_said() -> None:
    table = records([{"a": k} for k in range(MAX_ROWS + 5)], "Caption.", {})
    assert len(table.rows) == MAX_ROWS
    assert table.caption == f"Caption. The first {MAX_ROWS} of {MAX_ROWS + 5} rows."


def test_lists_side_by_side_become_the_columns_of_a_table() -> None:
    heading, single, table = blocks("weight_tails", {"share": 0.1, "level": [0.5, 0.9], "value": [1.0, 7.0]}, {})
    assert heading == Paragraph("**Weight tails.**")
    assert isinstance(single, Facts)
    assert isinstance(table, Table)
    assert [list(row) for row in table.rows] == [[0.5, 1.0], [0.9, 7.0]]


def test_deeper_values_keep_the_way_to_them_in_their_title() -> None:
    (table,) = blocks("overlap", {"by_decile": [{"decile": 1, "ess": 5.0}]}, {})
    assert isinstance(table, Table)
    assert table.caption == "Overlap: by decile."


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_any_file_can_be_shown(values: dict[str, Any]) -> None:
    shown = [facts(values, {}), *(block for key, value in values.items() for block in blocks(key, value, {}))]
    text = render(Page("t", "", [Section("a", "A", shown)]))
    for key, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and key.isalpha():
            assert f"{value:,}".replace("-", "−") in text, json.dumps(value)

"""Tables: what reads as a number, what sorts by it, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from puidrec.report.page import Cell, Column, Table


def test_cells_show_text_and_keep_the_number_to_sort_by() -> None:
    table = Table(
        ["name", Column("x", ".2f")], [["a", 1.234], ["b", Cell(0.5, "½", "good")], ["c", None]], ""
    )
    assert table.body == [
        [(None, "a", None, None, None), (1.234, "1.23", None, None, None)],
        [(None, "b", None, None, None), (0.5, "½", "good", None, None)],
        [(None, "c", None, None, None), (None, "–", None, None, None)],
    ]


def test_bars_stay_between_nothing_and_full() -> None:
    cells = [
        Cell(1, bar=0.25, tick=0.5),
        Cell(2, bar=-3.0, tick=7.0),
        Cell(3, bar=math.nan, tick=math.inf),
    ]
    (row,) = Table(["a", "b", "c"], [cells], "").body
    assert [(cell.bar, cell.tick) for cell in row] == [(0.25, 0.5), (0.0, 1.0), (None, None)]


def test_columns_of_numbers_are_known() -> None:
    rows = [["a", 1, None, 1.0, True, math.nan], ["b", np.float32(2), None, "x", False, math.inf]]
    assert [numeric for _, numeric in Table(list("abcdef"), rows, "").head] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_an_empty_table_has_a_head_and_no_body() -> None:
    table = Table(["a"], [], "")
    assert table.head == [(Column("a"), False)]
    assert table.body == []


def test_a_column_without_a_value_is_left_out() -> None:
    rows = [{"a": 1, "b": None, "c": "–"}, {"a": None, "d": 2, "e": 0}]
    table = Table.of(rows, {"a": "A", "b": "B", "c": "C", "d": ("D", ".1f"), "e": "E"}, "")
    assert [column.name for column, _ in table.head] == ["A", "D", "E"]
    assert [[cell.text for cell in row] for row in table.body] == [
        ["1", "–", "–"],
        ["–", "2.0", "0"],
    ]


def test_a_column_of_one_value_is_said_in_the_caption() -> None:
    table = Table(["x", "n", "k"], [["a", 1, 2], ["b", 1, 3]], "Rows.").without_constants()
    assert table.caption == "Rows. In all rows: n: 1."
    assert [column.name for column, _ in table.head] == ["x", "k"]


def test_facts_read_as_text(blocks_page: Any, read: Any) -> None:
    facts = [("n", 12345), ("x", 0.25), ("none", None)]
    page = read(blocks_page("{{ blocks.facts(items) }}", items=facts))
    assert page.facts() == {"n": "12,345", "x": "0.25", "none": "–"}

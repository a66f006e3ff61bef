"""Tables: what reads as a number, what sorts by it, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from puidrec.report.blocks import Cell, Column, Facts, Table


def test_cells_show_text_and_keep_the_number_to_sort_by() -> None:
    table = Table(
        ["name", Column("x", ".2f")], [["a", 1.234], ["b", Cell(0.5, "½", "good")], ["c", None]], ""
    )
    assert table.body == [
        [("a", None, None, None, None), ("1.23", 1.234, None, None, None)],
        [("b", None, None, None, None), ("½", 0.5, "good", None, None)],
        [("c", None, None, None, None), ("–", None, None, None, None)],
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


def test_a_row_of_another_length_is_refused(refusal: Any) -> None:
    refusal(lambda: Table(["a", "b"], [["x", 1], ["y"]], ""), "row 1", "found 1", "2 cells")


def test_an_empty_table_has_a_head_and_no_body() -> None:
    table = Table(["a"], [], "")
    assert table.head == [(Column("a"), False)]
    assert table.body == []


def test_facts_read_as_text() -> None:
    assert Facts([("n", 12345), ("x", 0.25), ("none", None)]).shown == [
        ("n", "12,345"),
        ("x", "0.25"),
        ("none", "–"),
    ]

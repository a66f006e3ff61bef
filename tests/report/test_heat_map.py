"""Shades follow the values by ratio, and the legend says the same as the cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.page import SHADES, HeatMap


def shades(values: list[list[float | None]]) -> list[list[int | None]]:
    chart = HeatMap(values, ["r"] * len(values), ["c"] * len(values[0]), "")
    return [[shade for _, shade in cells] for _, cells in chart.body]


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=8))
def test_shades_are_monotone_and_use_the_whole_scale(values: list[float]) -> None:
    found = [shade for shade in shades([values])[0] if shade is not None]
    order = np.argsort(values)
    assert (np.diff(np.array(found)[order]) >= 0).all()
    if max(values) > min(values) * 1.001:
        assert (min(found), max(found)) == (0, SHADES - 1)


def test_ratios_are_even_on_a_logarithmic_scale() -> None:
    assert shades([[1.0, 10.0, 100.0]]) == [[0, 4, 7]]


def test_missing_and_infinite_values_are_blank() -> None:
    assert shades([[1.0, None, math.nan, math.inf, 2.0]]) == [[0, None, None, None, 7]]
    assert [text for text, _ in HeatMap([[None]], ["r"], ["c"], "").body[0][1]] == ["–"]


def test_all_equal_values_have_one_shade_in_the_legend() -> None:
    chart = HeatMap([[2.0, 2.0]], ["r"], ["a", "b"], "")
    assert chart.legend == [("2.00", SHADES // 2)]
    assert chart.body[0][1][0] == ("2.00", SHADES // 2)


def test_the_legend_agrees_with_the_cells() -> None:
    chart = HeatMap([[1.0, 4.0, 16.0]], ["r"], ["a", "b", "c"], "")
    assert len(chart.legend) == SHADES
    assert chart.legend[4] == ("4.00", 4)
    assert chart.body[0][1][1] == ("4.00", 4)
    assert chart.top == "16.00"


def test_nothing_to_colour_has_no_legend() -> None:
    assert HeatMap([[None]], ["r"], ["c"], "").legend == []
    assert HeatMap([], [], [], "").body == []


@pytest.mark.parametrize("values", [[[1.0]], [[1.0, 2.0], [3.0]]])
def test_values_that_do_not_fit_their_labels_are_refused(
    values: list[list[float]], refusal: Any
) -> None:
    refusal(lambda: HeatMap(values, ["a", "b"], ["c", "d"], ""), "do not fit")

"""Words of marks never overlap, stay inside, and stand beside their line."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.mark_lanes import place

MARKS = st.lists(st.tuples(st.floats(60, 740), st.floats(10, 300)), max_size=8)


@given(MARKS)
def test_no_two_words_overlap_and_all_are_inside(marks: list[tuple[float, float]]) -> None:
    placed = place([x for x, _ in marks], [w for _, w in marks], 2.0, 758.0)
    assert [mark.x for mark in placed] == [x for x, _ in marks]
    for one, two in combinations(placed, 2):
        assert one.lane != two.lane or one.right < two.left or two.right < one.left
    for mark in placed:
        assert mark.left >= 2.0 - 1e-9
        assert mark.right <= 758.0 + 1e-9


@given(MARKS)
def test_lanes_are_used_from_the_top(marks: list[tuple[float, float]]) -> None:
    lanes = {mark.lane for mark in place([x for x, _ in marks], [w for _, w in marks], 2.0, 758.0)}
    assert lanes == set(range(len(lanes)))


def test_far_marks_share_a_lane_and_near_ones_step_down() -> None:
    assert [mark.lane for mark in place([100, 400], [80, 80], 0, 760)] == [0, 0]
    assert [mark.lane for mark in place([100, 120], [80, 80], 0, 760)] == [0, 1]


def test_words_at_the_right_edge_turn_to_the_left() -> None:
    assert [mark.anchor for mark in place([100, 700], [80, 80], 0, 760)] == ["start", "end"]


def test_words_that_turn_left_stand_above_the_lines_they_reach_over() -> None:
    near, edge = place([650, 700], [20, 100], 0, 760)
    assert (edge.lane, near.lane) == (0, 1)


def test_words_go_to_the_side_where_no_line_runs_through_them() -> None:
    first, edge = place([600, 690], [90, 90], 0, 760)
    assert (first.anchor, edge.anchor) == ("end", "end")
    assert not (first.left < edge.x < first.right)


def test_a_line_does_not_run_through_the_words_below_it() -> None:
    first, second = place([100, 120], [80, 20], 0, 760)
    assert second.lane > first.lane
    assert not (second.left < first.x < second.right)

"""The chart's data: sentences filled without ever searching in names, and only what fits the grid."""

from __future__ import annotations

from typing import Any

from puidrec.report.envelope import Band, Envelope, Panel, Slot


def panel(name: str = "A", **changes: Any) -> Panel:
    band = Band("Sharp", [0.5, -0.25], [0.5, 1.0], ["ahead", "open"])
    values: dict[str, Any] = {
        "label": "gap", "group": "one", "grid": [1.0, 2.0], "symbol": "Γ", "x_label": "x", "y_label": "y",
        "bands": [band], "format": ".2f",
        "sentences": {"ahead": [f"{name} is ahead by ", Slot.LOW], "open": [Slot.X, ": ", Slot.LOW, " to ", Slot.HIGH]},
    }  # fmt: skip
    return Panel(**(values | changes))


def said(chart: Panel, at: int) -> str:
    return "".join(text for text, _ in chart.words(chart.bands[0], at))


def test_the_sentence_belongs_to_the_point_of_the_grid() -> None:
    assert [said(panel(), at) for at in (0, 1)] == ["A is ahead by 0.50", "2.00: −0.25 to 1.00"]


def test_slots_are_never_looked_for_in_names(nasty: str) -> None:
    assert said(panel(nasty), 0) == f"{nasty} is ahead by 0.50"
    assert said(panel("{x} {low}"), 0) == "{x} {low} is ahead by 0.50"


def test_the_range_with_sampling_error_can_be_quoted_where_it_is_known() -> None:
    band = Band("Sharp", [0.5, 0.5], [0.5, 1.0], ["s", "s"], outer_low=[0.1, 0.2], outer_high=[0.9, None])
    chart = panel(bands=[band], sentences={"s": [Slot.OUTER_LOW, " to ", Slot.OUTER_HIGH]})
    assert [said(chart, at) for at in (0, 1)] == ["0.10 to 0.90", "0.20 to –"]
    assert Envelope([chart], "").data()["panels"][0]["bands"][0]["outer_high"] == ["0.90", "–"]


def test_what_is_not_known_is_said_with_a_dash() -> None:
    band = Band("Sharp", [None, None], [1.0, 1.0], ["open", "open"])
    assert said(panel(bands=[band]), 1) == "2.00: – to 1.00"


def test_a_band_that_does_not_fit_the_grid_is_refused(refusal: Any) -> None:
    band = Band("Sharp", [0.5], [0.5, 1.0], ["ahead", "open"])
    refusal(lambda: panel(bands=[band]), "'Sharp'", "expected 2 each")


def test_a_start_outside_the_grid_no_band_and_no_panel_are_refused(refusal: Any) -> None:
    refusal(lambda: panel(start=2), "start on its grid")
    refusal(lambda: panel(bands=[]), "needs a band")
    refusal(lambda: Envelope([], "caption"), "needs a panel")


def test_the_reader_chooses_among_what_there_is_once_each() -> None:
    chart = Envelope([panel(), panel(label="dcg"), panel(group="two")], "caption")
    assert chart.data()["choices"] == {"quantity": ["gap", "dcg"], "band": ["Sharp"], "group": ["one", "two"]}


def test_the_script_gets_the_same_words_as_the_server_writes() -> None:
    chart = panel()
    data = Envelope([chart], "caption").data()["panels"][0]
    band = data["bands"][0]
    for at in (0, 1):
        values = {"x": data["x"][at], "low": band["low"][at], "high": band["high"][at]}
        pieces = data["sentences"][band["says"][at]]
        assert "".join(p if isinstance(p, str) else values[p["slot"]] for p in pieces) == said(chart, at)

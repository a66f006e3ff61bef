"""What the chart of an audit says at each Γ is what its numbers say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.audit import ModelNames, Panel, crossing, envelopes_of

Values = Callable[..., dict[str, Any]]
PAIR = ModelNames("puid-dr", "mf")


def chart(values: dict[str, Any], names: ModelNames = PAIR) -> list[Panel]:
    return envelopes_of(values, names)


def said(panel: Panel, band: int, at: int) -> str:
    return panel.bands[band].says[at]


def tip(panel: Panel, band: int) -> float | None:
    mark = panel.bands[band].tip
    return None if mark is None else mark.at


def test_all_quantities_and_shapes_are_there_and_the_deciding_one_is_first(
    audit_values: Values,
) -> None:
    assert [panel.label for panel in chart(audit_values())] == [
        "Difference in error",
        "Difference in DCG",
    ]
    ranked = chart(audit_values(metric="ranking"))
    assert [panel.label for panel in ranked] == ["Difference in DCG", "Difference in error"]


def test_the_sentence_follows_the_range(audit_values: Values) -> None:
    panel = chart(audit_values())[0]
    last = len(panel.grid) - 1
    assert said(panel, 0, 0) == (
        "If nothing is hidden (Γ = 1), puid-dr is ahead of mf: the difference in error is 0.0270; "
        "with sampling error, between 0.0240 and 0.0300."
    )
    assert "puid-dr would still be ahead of mf" in said(panel, 0, 1)
    assert "either puid-dr or mf could be ahead" in said(panel, 0, last)
    assert "up to Γ = 8.00" in said(panel, 0, last)


def test_in_every_band_the_words_agree_with_the_signs(audit_values: Values) -> None:
    for panel in chart(audit_values()):
        for k, band in enumerate(panel.bands):
            for at, (low, high) in enumerate(zip(band.low, band.high, strict=True)):
                assert low <= high
                text = said(panel, k, at)
                assert ("still be ahead" in text or "is ahead" in text) == (panel.gap and low > 0)
                assert ("either" in text) == (panel.gap and low <= 0 <= high and at > 0)


def test_the_exact_tipping_point_is_taken_where_it_holds_and_found_elsewhere(
    audit_values: Values,
) -> None:
    values = audit_values()
    gap, dcg = chart(values)
    assert [band.label for band in gap.bands] == ["Normalised", "Sharp"]
    assert tip(gap, 0) == math.exp(0.9)
    assert tip(gap, 1) == math.exp(1.5)
    del values["tipping"]["sharp"]
    assert tip(chart(values)[0], 1) == pytest.approx(math.exp(0.027 / (0.6 * 0.03)), rel=1e-9)
    assert tip(dcg, 0) == 1.3  # each difference has the tipping point of its own metric
    values["ranking"] = None
    assert tip(chart(values)[1], 0) == pytest.approx(math.exp(0.4 / 0.9), rel=1e-9)


def test_without_sampling_error_the_sentence_ends_before_it(audit_values: Values) -> None:
    values = audit_values()
    gap = values["envelopes"]["loss_gap"]
    for kind in ("box", "normalised", "sharp"):
        gap[kind]["band"] = None
    gap["band"] = None
    panel = chart(values)[0]
    assert said(panel, 0, 0).endswith("the difference in error is 0.0270.")
    assert np.isnan(panel.bands[0].outer_low).all()


def test_slots_without_a_row_leave_a_range_even_where_nothing_is_hidden(
    audit_values: Values,
) -> None:
    values = audit_values()
    ranked = values["envelopes"]["dcg_gap"]["normalised"]
    ranked["low"] = [v - 0.7 for v in ranked["low"]]
    panel = chart(values)[1]
    assert said(panel, 0, 0).startswith(
        "If hidden factors changed the odds of being seen by up to Γ = 1.00, either"
    )
    assert "lies between −0.3" in said(panel, 0, 0)


def test_one_model_alone_has_no_tipping_point(audit_values: Values) -> None:
    panels = chart(audit_values(against=None), ModelNames("puid-dr", None))
    assert [panel.label for panel in panels] == ["Error"]
    assert tip(panels[0], 0) is None
    assert "the error of puid-dr would lie between" in said(panels[0], 0, 3)


def test_the_other_model_ahead_is_said_the_other_way_round(audit_values: Values) -> None:
    values = audit_values()
    for kind in ("box", "normalised", "sharp"):
        curve = values["envelopes"]["loss_gap"][kind]
        curve["low"], curve["high"] = [-v for v in curve["high"]], [-v for v in curve["low"]]
    panel = chart(values | {"tipping": {"gamma": 1.0, "sharp": 1.0, "no_lead": True}})[0]
    assert said(panel, 0, 0).startswith("If nothing is hidden (Γ = 1), mf is ahead of puid-dr")
    assert "mf would be ahead of puid-dr" in said(panel, 0, 1)
    assert tip(panel, 0) == pytest.approx(math.exp(0.9), rel=1e-9)


def test_only_the_strongest_features_are_marked_and_the_certificate(audit_values: Values) -> None:
    labels = [mark.label for mark in chart(audit_values())[0].marks]
    names = ["as genre (items)", "as price (items)", "as shelf (items)", "as age (users)"]
    assert labels == [*names, "uniform ratings prove Γ ≥ 1.52"]


def test_nothing_proved_is_not_marked(audit_values: Values) -> None:
    for certificate in (None, {"low": 1.0, "gamma_min": 1.1}, {"low": None}):
        panel = chart(audit_values(certificate=certificate, benchmarks=[]))[0]
        assert list(panel.marks) == []


def test_the_slider_starts_where_the_conclusion_still_holds(audit_values: Values) -> None:
    panel = chart(audit_values())[0]
    assert panel.grid[panel.start] < math.exp(0.9) < panel.grid[panel.start + 1]


def test_missing_and_infinite_ends_are_not_drawn_and_said(audit_values: Values) -> None:
    values = audit_values()
    values["envelopes"]["loss_gap"]["normalised"]["low"][-1] = None
    values["envelopes"]["loss_gap"]["normalised"]["high"][-2] = math.inf
    panel = chart(values)[0]
    for at in (-1, -2):
        assert said(panel, 0, len(panel.grid) + at).endswith("the range is not known.")


def test_two_long_names_that_begin_alike_are_told_apart(audit_values: Values) -> None:
    panel = chart(audit_values(), ModelNames("x" * 90 + "a", "x" * 90 + "b"))[0]
    words = "error of the other model minus the audited model; above 0, the audited model is better"
    assert panel.y_label == words


def test_without_envelopes_there_is_no_chart(audit_values: Values) -> None:
    assert envelopes_of(audit_values(envelopes={}), PAIR) == []


@given(st.floats(0.01, 5.0), st.floats(0.05, 3.0))
def test_a_straight_line_crosses_where_it_should(start: float, slope: float) -> None:
    grid = [math.exp(k / 5) for k in range(41)]
    found = crossing(grid, [start - slope * math.log(g) for g in grid])
    if start / slope < 7.99:
        assert found == pytest.approx(math.exp(start / slope), rel=1e-6)
    elif start / slope > 8.01:
        assert found is None

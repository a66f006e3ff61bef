"""The page of an audit: verdict first, every part that the file has, nothing that it lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from puidrec.report.audit import audit_page, names_of
from puidrec.report.blocks import Details, Facts, Page, Table
from puidrec.report.html import render

Values = Callable[..., dict[str, Any]]
PARTS = ["envelope", "strength", "map", "segments", "diagnostics", "limits", "methods"]


def ids(page: Page) -> list[str]:
    return [section.id for section in page.sections]


def test_every_part_is_there_in_order(audit_values: Values) -> None:
    assert ids(audit_page(audit_values())) == PARTS


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("envelopes", "envelope"),
        ("gamma_map", "map"),
        ("segments", "segments"),
        ("diagnostics", "diagnostics"),
        ("limits", "limits"),
    ],
)
def test_a_part_that_the_file_lacks_is_left_out(audit_values: Values, key: str, part: str) -> None:
    values = audit_values(personal=None)
    for empty in (None, type(values[key])()):
        assert ids(audit_page(values | {key: empty})) == [name for name in PARTS if name != part]
    del values[key]
    assert part not in ids(audit_page(values))


def test_a_file_of_nothing_is_still_a_page() -> None:
    assert ids(audit_page({})) == ["methods"]
    assert render(audit_page({}))


@pytest.mark.parametrize(
    ("verdict", "tone", "words"),
    [
        ("robust", "good", "Robust"),
        ("fragile", "warn", "Fragile"),
        ("overturned", "bad", "Already overturned"),
        ("single", "info", "One model alone"),
        ("new kind", "info", "new kind"),
    ],
)
def test_the_verdict_has_a_tone_and_words(audit_values: Values, verdict: str, tone: str, words: str) -> None:
    found = audit_page(audit_values(verdict=verdict)).verdict
    assert found is not None
    assert (found.tone, found.label) == (tone, words)
    assert found.sentence == audit_values()["sentence"]


def test_headline_figures(audit_values: Values) -> None:
    found = audit_page(audit_values()).verdict
    assert found is not None
    assert list(found.facts) == [
        ("tipping point Γ* (95 %: 1.90 to ∞)", "2.46"),
        ("Γ of the strongest feature, genre", "1.62"),
        ("Γ proved by uniform ratings", "≥ 1.52"),
        ("Γ of the median pair, by rule", "1.42"),
    ]


def test_a_conclusion_that_nothing_overturns_has_an_infinite_tipping_point(audit_values: Values) -> None:
    found = audit_page(
        audit_values(tipping={"gamma": None, "gamma_infinite": True, "low": 5.0, "high": None, "high_infinite": True})
    ).verdict
    assert found is not None
    assert found.facts[0] == ("tipping point Γ* (95 %: 5.00 to ∞)", "∞")


def test_without_resampling_there_is_no_interval(audit_values: Values) -> None:
    found = audit_page(audit_values(tipping={"gamma": 2.0, "low": None, "high": None})).verdict
    assert found is not None
    assert found.facts[0] == ("tipping point Γ*", "2.00")


@pytest.mark.parametrize(
    "changes", [{"tipping": {"gamma": 1.0, "overturned": True}}, {"against": None, "tipping": None}]
)
def test_no_tipping_point_is_claimed_where_there_is_none(audit_values: Values, changes: dict[str, Any]) -> None:
    found = audit_page(audit_values(**changes)).verdict
    assert found is not None
    assert "tipping" not in str(found.facts)


def test_the_title_names_both_models_and_the_data(audit_values: Values) -> None:
    assert audit_page(audit_values()).title == "puid-dr against mf on coat"
    assert audit_page(audit_values(against=None)).title == "puid-dr on coat"
    assert "1,392 held-out logged pairs" in audit_page(audit_values()).lead
    assert "1,392 training pairs" in audit_page(audit_values(rows={"source": "training", "n": 1392})).lead


def test_models_called_alike_are_told_apart() -> None:
    names = names_of({"model": {"method": "mf"}, "against": {"name": "mf"}})
    assert (names.model, names.other) == ("mf (audited)", "mf (compared with)")


def test_where_the_lead_ends_is_listed_by_each_way(audit_values: Values) -> None:
    blocks = next(part.blocks for part in audit_page(audit_values()).sections if part.id == "envelope")
    (facts,) = (block for block in blocks if isinstance(block, Facts))
    assert dict(facts.items) == {
        "Γ* (95 %: 1.90 to ∞)": "2.46",
        "Γ* of the sharp range": "4.48",
        "κ* (95 %: 1.10 to 2.40)": "1.80",
        "mean Γ at κ*": "2.20",
    }


def test_the_figures_behind_the_chart_run_from_1_to_the_limit(audit_values: Values) -> None:
    blocks = next(part.blocks for part in audit_page(audit_values()).sections if part.id == "envelope")
    table = next(block.blocks[0] for block in blocks if isinstance(block, Details))
    assert isinstance(table, Table)
    assert [row[0].text for row in table.body][:: len(table.rows) - 1] == ["1.00", "8.00"]


def test_all_limits_are_shown(audit_values: Values) -> None:
    text = render(audit_page(audit_values()))
    assert all(point in text for point in audit_values()["limits"])


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes |= {name for name, _ in attrs}


def renamed(value: Any, name: str) -> Any:
    """The same audit with every text replaced."""
    if isinstance(value, dict):
        return {key: renamed(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner, name) for inner in value]
    return name if isinstance(value, str) else value


def test_any_name_anywhere_is_text(audit_values: Values, nasty: str) -> None:
    tags = Tags(render(audit_page(renamed(audit_values(), nasty))))
    assert tags.found.count("script") == 2
    assert "img" not in tags.found
    assert not [name for name in tags.attributes if name.startswith("on") or name == "style"]


def test_numbers_that_are_none_break_nothing(audit_values: Values) -> None:
    def spoilt(value: Any, by: float | None) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(inner, by) for key, inner in value.items() if key not in ("gamma_grid", "kappa_grid")}
        if isinstance(value, list):
            return [spoilt(inner, by) for inner in value]
        return by if isinstance(value, float) else value

    values = audit_values()
    for by in (None, math.nan, math.inf, -math.inf, 0.0, 1e300):
        bad = spoilt(values, by) | {"gamma_grid": values["gamma_grid"]}
        assert "Methods and settings" in render(audit_page(bad))


def test_equal_audits_are_equal_bytes_also_after_a_round_trip_through_json(audit_values: Values) -> None:
    text = render(audit_page(audit_values()))
    assert text == render(audit_page(audit_values()))
    assert text == render(audit_page(json.loads(json.dumps(audit_values()))))

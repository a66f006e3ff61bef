"""The page of an audit: verdict first, every part that the file has, nothing that it lacks;
yardsticks and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest

from puidrec.report.audit import audit_page, leads, names_of, yardsticks
from puidrec.report.audit_details import diagnostics, gamma_map, methods, segments
from puidrec.report.audit_envelope import ModelNames
from puidrec.report.blocks import (
    Block,
    Callout,
    Details,
    Facts,
    HeatMap,
    Page,
    Paragraph,
    Section,
    Table,
)
from puidrec.report.html import render

Values = Callable[..., dict[str, Any]]
PAIR = ModelNames("puid-dr", "mf")
PARTS = [
    "leads",
    "envelope",
    "strength",
    "map",
    "segments",
    "diagnostics",
    "not-claimed",
    "limits",
    "methods",
]


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
        ("not_claimed", "not-claimed"),
    ],
)
def test_a_part_that_the_file_lacks_is_left_out(audit_values: Values, key: str, part: str) -> None:
    values = audit_values()
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
        ("confirmed", "good", "Confirmed"),
        ("robust", "good", "Robust"),
        ("fragile", "warn", "Fragile"),
        ("undecided", "info", "Undecided"),
        ("refuted", "bad", "Refuted"),
        ("single", "info", "One model alone"),
        ("new kind", "info", "new kind"),
    ],
)
def test_the_verdict_has_a_tone_and_words(
    audit_values: Values, verdict: str, tone: str, words: str
) -> None:
    found = audit_page(audit_values(verdict=verdict)).verdict
    assert found is not None
    assert (found.tone, found.label) == (tone, words)
    assert found.sentence == audit_values()["sentence"]


def test_headline_figures(audit_values: Values) -> None:
    found = audit_page(audit_values()).verdict
    assert found is not None
    assert list(found.facts) == [
        ("Γ* by squared error (95 %: 1.90 to ∞)", "2.46"),
        ("Γ* by DCG@10 (95 %: 1.00 to 2.00)", "1.30"),
        ("Γ that decides: hiding the feature genre", "1.62"),
        ("Γ proved by uniform ratings", "≥ 1.52"),
    ]


def test_a_conclusion_that_nothing_overturns_has_an_infinite_tipping_point(
    audit_values: Values,
) -> None:
    found = audit_page(
        audit_values(
            tipping={
                "gamma": None,
                "gamma_infinite": True,
                "low": 5.0,
                "high": None,
                "high_infinite": True,
            }
        )
    ).verdict
    assert found is not None
    assert found.facts[0] == ("Γ* by squared error (95 %: 5.00 to ∞)", "∞")


def test_without_resampling_there_is_no_interval(audit_values: Values) -> None:
    found = audit_page(audit_values(tipping={"gamma": 2.0, "low": None, "high": None})).verdict
    assert found is not None
    assert found.facts[0] == ("Γ* by squared error", "2.00")


@pytest.mark.parametrize(
    "changes", [{"tipping": {"gamma": 1.0, "no_lead": True}}, {"against": None, "tipping": None}]
)
def test_no_tipping_point_is_listed_where_there_is_none(
    audit_values: Values, changes: dict[str, Any]
) -> None:
    page = audit_page(audit_values(**changes))
    blocks = next(part.blocks for part in page.sections if part.id == "envelope")
    assert not [block for block in blocks if isinstance(block, Facts)]
    assert ("leads" in ids(page)) == (changes.get("against", 1) is not None)


def test_error_and_ranking_stand_in_one_table_the_metric_asked_for_first(
    audit_values: Values,
) -> None:
    for asked, order in (
        ("ranking", ["DCG@10", "squared error"]),
        ("error", ["squared error", "DCG@10"]),
    ):
        table = tables(leads(audit_values(metric=asked)))["By error and by ranking"]
        assert [texts(table, k)[0] for k in range(2)] == order
    assert texts(table, 0)[1:7] == [
        "robust",
        "0.0270 (0.0100 to 0.0400)",
        "2.46",
        "1.90",  # Γ* of the confidence limit stands beside that of the estimate
        "0.0363 (0.0314 to 0.0413)",
        "0.0301 (0.0214 to 0.0404)",
    ]
    assert [texts(table, k)[-2:] for k in range(2)] == [["–", "18"], ["3", "–"]]
    assert texts(table, 2)[:5] == ["NDCG@10", "confirmed", "–", "–", "–"]


def test_the_control_is_printed_under_the_verdicts(audit_values: Values) -> None:
    section = leads(audit_values())
    assert section is not None
    assert [block.text for block in section.blocks if isinstance(block, Paragraph)] == [
        audit_values()["control"]["words"]
    ]


def test_the_title_names_both_models_and_the_data(audit_values: Values) -> None:
    assert audit_page(audit_values()).title == "puid-dr against mf on coat"
    assert audit_page(audit_values(against=None)).title == "puid-dr on coat"
    assert "1,392 held-out logged pairs" in audit_page(audit_values()).lead
    assert (
        "1,392 cross-fitted logged pairs"
        in audit_page(audit_values(rows={"source": "cross-fitted", "n": 1392})).lead
    )


def test_models_called_alike_are_told_apart() -> None:
    names = names_of({"model": {"method": "mf"}, "against": {"name": "mf"}})
    assert (names.model, names.other) == ("mf (audited)", "mf (compared with)")


def test_where_the_lead_ends_is_listed_by_each_way(audit_values: Values) -> None:
    blocks = next(
        part.blocks for part in audit_page(audit_values()).sections if part.id == "envelope"
    )
    (facts,) = (block for block in blocks if isinstance(block, Facts))
    assert dict(facts.items) == {
        "Γ* (95 %: 1.90 to ∞)": "2.46",
        "Γ* of the sharp range": "4.48",
    }


def test_the_figures_behind_the_chart_run_from_1_to_the_limit(audit_values: Values) -> None:
    blocks = next(
        part.blocks for part in audit_page(audit_values()).sections if part.id == "envelope"
    )
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
            return {key: spoilt(inner, by) for key, inner in value.items() if key != "gamma_grid"}
        if isinstance(value, list):
            return [spoilt(inner, by) for inner in value]
        return by if isinstance(value, float) else value

    values = audit_values()
    for by in (None, math.nan, math.inf, -math.inf, 0.0, 1e300):
        bad = spoilt(values, by) | {"gamma_grid": values["gamma_grid"]}
        assert "Methods and settings" in render(audit_page(bad))


def test_equal_audits_are_equal_bytes_also_after_a_round_trip_through_json(
    audit_values: Values,
) -> None:
    text = render(audit_page(audit_values()))
    assert text == render(audit_page(audit_values()))
    assert text == render(audit_page(json.loads(json.dumps(audit_values()))))


def parts(values: dict[str, Any]) -> list[Block]:
    section = yardsticks(values)
    return [] if section is None else list(section.blocks)


def box(values: dict[str, Any], title: str) -> Callout | None:
    return next(
        (block for block in parts(values) if isinstance(block, Callout) and title in block.title),
        None,
    )


@pytest.mark.parametrize(
    ("low", "high", "tone", "words"),
    [
        (0.01, 0.05, "good", "show the audited model ahead"),
        (-0.05, -0.01, "bad", "show the other model ahead"),
        (-0.05, 0.01, "info", "leave open which one is ahead"),
        (None, None, "info", "leave open which one is ahead"),
    ],
)
def test_uniform_rows_say_what_their_interval_says(
    audit_values: Values, low: float | None, high: float | None, tone: str, words: str
) -> None:
    lead = audit_values()["error"] | {
        "uniform": {"value": 0.02, "low": low, "high": high, "n": 4176}
    }
    found = box(audit_values(error=lead), "measure")
    assert found is not None
    assert found.tone == tone
    assert words in found.text
    assert (" to " in found.text) == (low is not None)
    assert "4,176 ratings" in found.text


def test_uniform_rows_and_the_adjusted_log_speak_together_where_they_agree(
    audit_values: Values,
) -> None:
    both = {"value": 0.01, "low": -0.01, "high": 0.03}
    found = box(audit_values(error=audit_values()["error"] | {"combined": both}), "measure")
    assert found is not None
    assert "and the log adjusted by them" in found.text
    assert "leave open" in found.text  # though uniform rows alone do not


def test_without_uniform_rows_nothing_is_said_of_them(audit_values: Values) -> None:
    lead = audit_values()["error"] | {"uniform": None}
    assert box(audit_values(error=lead, ndcg=None), "measure") is None


def test_the_measured_tilt_is_shown(audit_values: Values) -> None:
    assert box(audit_values(), "points").text == "Measured tilt: a factor of 1.80."
    assert box(audit_values(tilt=None), "points") is None


def test_what_uniform_ratings_prove_is_said_only_if_they_do(audit_values: Values) -> None:
    proved = box(audit_values(certificate={"gamma_min": 1.71, "low": 1.52}), "prove")
    not_proved = box(audit_values(certificate={"gamma_min": 1.71, "low": 1.0}), "prove")
    assert proved is not None
    assert not_proved is not None
    assert "refute every Γ below **1.52**" in proved.text
    assert "prove no hidden confounding" in not_proved.text
    assert box(audit_values(certificate=None), "prove") is None


def test_benchmarks_are_sorted_by_strength(audit_values: Values) -> None:
    table, scenarios = (block for block in parts(audit_values()) if isinstance(block, Table))
    assert texts(scenarios, 0) == ["a hidden trait", "1.67", "yes"]
    assert [row[0] for row in table.rows] == ["genre", "price", "shelf", "age", "gender", "brand"]
    assert [column.name for column, _ in table.head] == ["feature", "of", "Γ", "Γ* in features"]


def test_the_rule_for_gamma_is_summarised(audit_values: Values) -> None:
    (facts,) = (block for block in parts(audit_values()) if isinstance(block, Facts))
    assert dict(facts.items) == {
        "median pair": "1.42",
        "one pair in twenty is above": "2.71",
        "largest": "3.10",
        "rule": "exposure-gap",
    }


def test_without_any_yardstick_there_is_no_section() -> None:
    assert yardsticks({}) is None


def test_groups_are_labelled_by_what_differs(audit_values: Values) -> None:
    section = gamma_map(audit_values())
    assert section is not None
    (chart,) = section.blocks
    assert isinstance(chart, HeatMap)
    assert (list(chart.rows), chart.row_title) == (["20", "30", "<40"], "users, by age")
    assert (list(chart.columns), chart.column_title) == (
        ["coats", "parkas", "jackets", "<b>"],
        "items",
    )


def flat(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from flat(block.blocks) if isinstance(block, Details) else [block]


def tables(section: Section | None) -> dict[str, Table]:
    assert section is not None
    return {
        block.caption.split(".")[0]: block
        for block in flat(section.blocks)
        if isinstance(block, Table)
    }


def facts(section: Section | None) -> dict[str, Any]:
    assert section is not None
    return {
        label: value
        for block in flat(section.blocks)
        if isinstance(block, Facts)
        for label, value in block.items
    }


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
    rows = {
        "users": [{"column": "age", "segment": "old", "low": -0.1, "high": 0.2, "new_thing": 3}]
    }
    pair = tables(segments(audit_values(segments=rows), PAIR)).popitem()[1]
    alone = tables(segments(audit_values(segments=rows), ModelNames("mf", None))).popitem()[1]
    assert heads(pair) == ["group of users", "lead from", "lead to", "new thing"]
    assert heads(alone) == ["group of users", "error from", "error to", "new thing"]
    assert texts(pair, 0) == ["age: old", "−0.100", "0.200", "3"]


def test_a_column_is_explained_once(audit_values: Values) -> None:
    section = segments(audit_values(), PAIR)
    assert section is not None
    shown = [
        column.name for table in tables(section).values() for column, _ in table.head if column.help
    ]
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
    table = tables(diagnostics(audit_values()))[
        "Where is the log thin? Items by popularity, the most seen tenth first"
    ]
    assert [row[4].bar for row in table.body] == [0.5527, None]


def test_diagnostics_that_are_new_are_shown_as_they_are() -> None:
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
    table = tables(methods(audit_values(against=None), ModelNames("puid-dr", None)))["Settings"]
    assert heads(table) == ["", "puid-dr"]
    assert list(table.emphasised) == []

"""The page of an audit: verdict first, every part that the file has, nothing that it lacks;
yardsticks and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from puidrec.report.audit import audit_html, names_of

Values = Callable[..., dict[str, Any]]
Open = Callable[..., Any]
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


@pytest.fixture
def page(read: Callable[[str], Any], audit_values: Values) -> Open:
    """Reads the page of an audit; keyword arguments replace its parts."""
    return lambda **changes: read(audit_html(audit_values(**changes)))


def ids(page: Any) -> list[str]:
    return [node.attributes["id"] for node in page.all("section") if "id" in node.attributes]


def test_every_part_is_there_in_order(page: Open) -> None:
    assert ids(page()) == PARTS


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
def test_a_part_that_the_file_lacks_is_left_out(
    page: Open, read: Callable[[str], Any], audit_values: Values, key: str, part: str
) -> None:
    values = audit_values()
    for empty in (None, type(values[key])()):
        assert ids(page(**{key: empty})) == [name for name in PARTS if name != part]
    del values[key]
    assert part not in ids(read(audit_html(values)))


def test_a_file_of_nothing_is_still_a_page(read: Callable[[str], Any]) -> None:
    assert ids(read(audit_html({}))) == ["methods"]


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
    page: Open, audit_values: Values, verdict: str, tone: str, words: str
) -> None:
    found = page(verdict=verdict).first(".verdict")
    assert (found.tone(), found.first(".verdict-label").text) == (tone, words)
    assert found.first(".verdict-sentence").text == audit_values()["sentence"]


def test_headline_figures(page: Open) -> None:
    assert list(page().first(".verdict").facts().items()) == [
        ("Γ* by squared error (95 %: 1.90 to ∞)", "2.46"),
        ("Γ* by DCG@10 (95 %: 1.00 to 2.00)", "1.30"),
        ("Γ that decides: hiding the feature genre", "1.62"),
        ("Γ proved by uniform ratings", "≥ 1.52"),
    ]


@pytest.mark.parametrize(
    ("tipping", "fact"),
    [
        (
            {
                "gamma": None,
                "gamma_infinite": True,
                "low": 5.0,
                "high": None,
                "high_infinite": True,
            },
            ("Γ* by squared error (95 %: 5.00 to ∞)", "∞"),
        ),
        ({"gamma": 2.0, "low": None, "high": None}, ("Γ* by squared error", "2.00")),
    ],
    ids=["nothing overturns it", "without resampling there is no interval"],
)
def test_tipping_points_without_ends(
    page: Open, tipping: dict[str, Any], fact: tuple[str, str]
) -> None:
    assert next(iter(page(tipping=tipping).first(".verdict").facts().items())) == fact


@pytest.mark.parametrize(
    "changes", [{"tipping": {"gamma": 1.0, "no_lead": True}}, {"against": None, "tipping": None}]
)
def test_no_tipping_point_is_listed_where_there_is_none(
    page: Open, changes: dict[str, Any]
) -> None:
    found = page(**changes)
    assert found.first("#envelope").facts() == {}
    assert ("leads" in ids(found)) == (changes.get("against", 1) is not None)


def test_error_and_ranking_stand_in_one_table_the_metric_asked_for_first(page: Open) -> None:
    for asked, order in (
        ("ranking", ["DCG@10", "squared error"]),
        ("error", ["squared error", "DCG@10"]),
    ):
        rows = page(metric=asked).first("#leads").tables()["By error and by ranking"].rows()
        assert [row[0] for row in rows[:2]] == order
    assert rows[0][1:7] == [
        "robust",
        "0.0270 (0.0100 to 0.0400)",
        "2.46",
        "1.90",  # Γ* of the confidence limit stands beside that of the estimate
        "0.0363 (0.0314 to 0.0413)",
        "0.0301 (0.0214 to 0.0404)",
    ]
    assert [row[-2:] for row in rows[:2]] == [["–", "18"], ["3", "–"]]
    assert rows[2][:5] == ["NDCG@10", "confirmed", "–", "–", "–"]


def test_no_scenario_overturns_what_uniform_ratings_have_decided(page: Open) -> None:
    for verdict, heads in (
        ("robust", ["scenario", "Γ", "below Γ*"]),
        ("confirmed", ["scenario", "Γ"]),
    ):
        tables = page(verdict=verdict).first("#strength").tables()
        shown = next(table for name, table in tables.items() if name.startswith("Scenarios"))
        assert shown.heads() == heads


def test_the_control_is_printed_under_the_verdicts(page: Open, audit_values: Values) -> None:
    words = page().first("#leads").all("p")[-1].text
    assert words == audit_values()["control"]["words"]


def test_the_title_names_both_models_and_the_data(page: Open) -> None:
    assert page().first("h1").text == "puid-dr against mf on coat"
    assert page(against=None).first("h1").text == "puid-dr on coat"
    assert "1,392 held-out logged pairs" in page().first(".lead").text
    crossed = page(rows={"source": "cross-fitted", "n": 1392})
    assert "1,392 cross-fitted logged pairs" in crossed.first(".lead").text


def test_models_called_alike_are_told_apart() -> None:
    names = names_of({"model": {"method": "mf"}, "against": {"name": "mf"}})
    assert (names.model, names.other) == ("mf (audited)", "mf (compared with)")


def test_where_the_lead_ends_is_listed_by_each_way(page: Open) -> None:
    assert page().first("#envelope").facts() == {
        "Γ* (95 %: 1.90 to ∞)": "2.46",
        "Γ* of the sharp range": "4.48",
    }


def test_the_figures_behind_the_chart_run_from_1_to_the_limit(page: Open) -> None:
    rows = page().first("#envelope").first("details").rows()
    assert [rows[0][0], rows[-1][0]] == ["1.00", "8.00"]


def test_all_limits_are_shown(page: Open, audit_values: Values) -> None:
    text = page().first("#limits").text
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
    tags = Tags(audit_html(renamed(audit_values(), nasty)))
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
        assert "Methods and settings" in audit_html(bad)


def test_equal_audits_are_equal_bytes_also_after_a_round_trip_through_json(
    audit_values: Values,
) -> None:
    text = audit_html(audit_values())
    assert text == audit_html(audit_values())
    assert text == audit_html(json.loads(json.dumps(audit_values())))


def box(found: Any, title: str) -> Any:
    """The box of this title among the yardsticks, or None."""
    boxes = [box for part in found.all("#strength") for box in part.all("aside")]
    return next((box for box in boxes if title in box.first(".callout-title").text), None)


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
    page: Open,
    audit_values: Values,
    low: float | None,
    high: float | None,
    tone: str,
    words: str,
) -> None:
    lead = audit_values()["error"] | {
        "uniform": {"value": 0.02, "low": low, "high": high, "n": 4176}
    }
    found = box(page(error=lead), "measure")
    assert found.tone() == tone
    assert words in found.text
    assert (" to " in found.text) == (low is not None)
    assert "4,176 ratings" in found.text


def test_uniform_rows_and_the_adjusted_log_speak_together_where_they_agree(
    page: Open, audit_values: Values
) -> None:
    both = {"value": 0.01, "low": -0.01, "high": 0.03}
    found = box(page(error=audit_values()["error"] | {"combined": both}), "measure")
    assert "and the log adjusted by them" in found.text
    assert "leave open" in found.text  # though uniform rows alone do not


def test_without_uniform_rows_nothing_is_said_of_them(page: Open, audit_values: Values) -> None:
    lead = audit_values()["error"] | {"uniform": None}
    assert box(page(error=lead, ndcg=None), "measure") is None


def test_the_measured_tilt_is_shown(page: Open) -> None:
    assert "Measured tilt: a factor of 1.80." in box(page(), "points").text
    assert box(page(tilt=None), "points") is None


def test_what_uniform_ratings_prove_is_said_only_if_they_do(page: Open) -> None:
    proved = box(page(certificate={"gamma_min": 1.71, "low": 1.52}), "prove")
    assert "refute every Γ below 1.52" in proved.text
    not_proved = box(page(certificate={"gamma_min": 1.71, "low": 1.0}), "prove")
    assert "prove no hidden confounding" in not_proved.text
    assert box(page(certificate=None), "prove") is None


def test_benchmarks_are_sorted_by_strength(page: Open) -> None:
    tables = page().first("#strength").tables()
    assert tables["Scenarios as a yardstick for Γ"].rows()[0] == ["a hidden trait", "1.67", "yes"]
    features = tables["Features as a yardstick for Γ"]
    names = ["genre", "price", "shelf", "age", "gender", "brand"]
    assert [row[0] for row in features.rows()] == names
    assert features.heads() == ["feature", "of", "Γ", "Γ* in features"]


def test_the_rule_for_gamma_is_summarised(page: Open) -> None:
    assert page().first("#strength").facts() == {
        "median pair": "1.42",
        "one pair in twenty is above": "2.71",
        "largest": "3.10",
        "rule": "exposure-gap",
    }


def test_pairs_of_groups_with_the_largest_gamma_come_first(page: Open) -> None:
    table = page().first("#map").first("table")
    assert table.heads() == ["Γ", "users", "items"]
    rows = table.rows()
    assert rows[0] == ["3.10", "gender=f, age=<40", "<b>"]
    assert rows[-1] == ["–", "gender=f, age=<40", "jackets"]
    assert [len(rows), rows[1][0]] == [12, "2.60"]


def test_groups_are_named_by_column_and_segment(page: Open) -> None:
    found = page().first("#segments").tables()
    users = next(table for caption, table in found.items() if caption.startswith("Groups of users"))
    assert users.heads() == ["group of users", "logged pairs", "mean Γ", "Γ, 95 %", "width"]
    assert users.rows()[1] == ["age: 20 to 30", "12,000", "10.40", "12.60", "0.110"]
    assert len(found) == 2


def test_ranges_are_of_the_lead_or_of_the_error(page: Open) -> None:
    rows = {
        "users": [{"column": "age", "segment": "old", "low": -0.1, "high": 0.2, "new_thing": 3}]
    }
    for against, word in (({"name": "mf"}, "lead"), (None, "error")):
        table = page(segments=rows, against=against).first("#segments")
        assert table.heads() == ["group of users", f"{word} from", f"{word} to", "new thing"]
        assert table.rows()[0] == ["age: old", "−0.100", "0.200", "3"]


def test_a_column_is_explained_once(page: Open) -> None:
    shown = [node.text for key in page().first("#segments").all(".key") for node in key.all("dt")]
    assert sorted(shown) == sorted(set(shown))
    assert "logged pairs" in shown


def test_the_strength_of_ranges_is_said(page: Open) -> None:
    words = page().first("#segments").first("p").text
    assert words == "Ranges are the sharp ones at Γ per user and item."


def test_headline_figures_have_words_and_units(page: Open) -> None:
    found = page().first("#diagnostics").facts()
    assert found["effective sample size"] == "812"
    assert found["propensities clipped"] == "0.4%"
    assert found["propensity model"] == "two-way"
    assert found["weight on the heaviest 1 %"] == "0.087"


def bars(row: Any, name: str = "meter-fill") -> list[float]:
    side = "x" if name == "meter-tick" else "width"
    return [round(float(node.attributes[side]), 6) for node in row.all(f".{name}")]


def test_calibration_shows_what_was_seen_against_what_was_predicted(page: Open) -> None:
    table = (
        page()
        .first("#diagnostics")
        .tables()["Are propensities right? Pairs by tenths of their propensity: how many were seen"]
    )
    assert table.rows()[-1] == ["10", "8,700", "850", "10.0%", "9.8%"]
    last = table.first("tbody").all("tr")[-1]
    assert (bars(last), bars(last, "meter-tick")) == ([98.0], [98.0])  # a tick at the very end


def test_quantiles_stand_in_one_table(page: Open) -> None:
    table = page().first("#diagnostics").tables()["How propensities and weights spread"]
    assert [row[:2] for row in table.rows()] == [
        ["propensities of logged pairs", "0.008"],
        ["weights of audited pairs", "1.9"],
    ]


def test_a_tenth_without_rows_has_no_bar(page: Open) -> None:
    caption = "Where is the log thin? Items by popularity, the most seen tenth first"
    table = page().first("#diagnostics").tables()[caption]
    assert [bars(row) for row in table.first("tbody").all("tr")] == [[55.27], []]


def test_diagnostics_that_are_new_are_shown_as_they_are(read: Callable[[str], Any]) -> None:
    found = read(audit_html({"diagnostics": {"brand_new": 4}}))
    assert found.first("#diagnostics").facts() == {"brand new": "4"}


def test_settings_that_differ_are_stressed(page: Open) -> None:
    table = page().first("#methods").tables()["Settings; those that differ are stressed"]
    assert [row[0] for row in table.rows()] == ["dim", "lr", "alpha"]
    stressed = [row.cells()[0].text for row in table.all(".emphasised")]
    assert stressed == ["alpha"]
    assert table.rows()[2] == ["alpha", "2", "–"]


def test_data_and_rows_are_stated(page: Open) -> None:
    found = page().first("#methods").facts()
    assert found["positive rate"] == "35.2%"
    assert found["SHA-256 begins with"] == "0f" * 8
    assert found["S₋"] == "410.6"
    assert found["source"] == "held-out"


def test_one_model_alone_has_one_column(page: Open) -> None:
    table = page(against=None).first("#methods").tables()["Settings"]
    assert table.heads() == ["", "puid-dr"]
    assert table.all(".emphasised") == []

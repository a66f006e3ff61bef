"""The page of an audit in a real browser, from a file, with the network off: what a reader sees and
does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from puidrec.report.audit import audit_html
from puidrec.report.charts import DARK, canvas

pytestmark = pytest.mark.timeout(120)
Open = Callable[..., "Seen"]
PHONE, DESK = 390, 1280


@dataclass
class Seen:
    """A page in the browser, and everything it complained of or asked the network for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def column(self, section: str, k: int) -> list[str]:
        """The texts of a column of a section's first table."""
        rows = self.page.locator(f"#{section} table").first.locator("tbody tr")
        return [str(row.locator("> *").nth(k).inner_text()) for row in rows.all()]

    def head(self, section: str, words: str) -> Any:
        """The button by which a section's first table sorts: the column whose name begins so."""
        name = re.compile(rf"^\s*{re.escape(words)}")
        return self.page.locator(f"#{section} table").first.locator("th button", has_text=name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Path]:
    """Writes the page of an audit; equal audits once."""
    pages: dict[str, Path] = {}

    def write(values: dict[str, Any]) -> Path:
        key = json.dumps(values, sort_keys=True)
        if key not in pages:
            pages[key] = tmp_path_factory.mktemp("page") / "report.html"
            pages[key].write_text(audit_html(values))
        return pages[key]

    return write


@pytest.fixture
def opened(
    browser: Any,
    written: Callable[[dict[str, Any]], Path],
    audit_values: Callable[..., dict[str, Any]],
) -> Iterator[Open]:
    """Opens the page of an audit; afterwards, nothing may have been fetched or complained of."""
    contexts = []
    pages: list[Seen] = []

    def open_page(width: int = DESK, values: dict[str, Any] | None = None, **options: Any) -> Seen:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        context.set_default_timeout(15_000)
        path = written(values or audit_values())
        seen = Seen(context.new_page())
        seen.page.on(
            "console",
            lambda m: seen.problems.append(m.text) if m.type in ("error", "warning") else None,
        )
        seen.page.on("pageerror", lambda error: seen.problems.append(str(error)))
        seen.page.on(
            "dialog", lambda dialog: (seen.problems.append("a dialog opened"), dialog.dismiss())
        )
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(path.as_uri())
        pages.append(seen)
        return seen

    yield open_page
    for seen in pages:
        assert seen.problems == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []
    for context in contexts:
        context.close()


def test_the_page_loads_from_a_file_without_network_or_complaint(opened: Open) -> None:
    seen = opened()
    assert len(seen.requests) == 1
    assert seen.page.title() == "puid-dr against mf on coat"
    assert "Robust" in seen.text(".verdict")
    assert seen.page.locator("main section").count() == 10


def test_the_script_says_at_first_what_the_server_wrote(opened: Open) -> None:
    with_script, without = opened(), opened(java_script_enabled=False)
    assert with_script.text(".says") == without.text(".says")


def cursor(seen: Seen) -> tuple[float, float, float]:
    line = seen.page.locator(".drawing:visible svg.chart:visible .cursor-range")
    return tuple(float(line.get_attribute(name)) for name in ("x1", "y1", "y2"))  # type: ignore[return-value]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_slider_moves_the_chart_and_the_sentence(opened: Open, width: int) -> None:
    seen = opened(width)
    slider = seen.page.locator("input[type=range]")
    slider.fill("0")
    assert seen.text(".says").startswith("If nothing is hidden (Γ = 1), puid-dr is ahead of mf")
    x, low, high = cursor(seen)
    assert low == high
    slider.fill("40")
    assert "Γ = 8.00, either puid-dr or mf could be ahead" in seen.text(".says")
    assert cursor(seen)[0] > x + 200
    assert cursor(seen)[1] > low
    assert cursor(seen)[2] < high
    assert slider.get_attribute("aria-valuetext") == "Γ = 8.00"


def test_the_slider_obeys_the_keyboard(opened: Open) -> None:
    seen = opened()
    slider = seen.page.locator("input[type=range]")
    before, said = cursor(seen), seen.text(".says")
    slider.focus()
    seen.page.keyboard.press("ArrowRight")
    assert cursor(seen)[0] > before[0]
    assert seen.text(".says") != said
    seen.page.keyboard.press("Home")
    assert "nothing is hidden" in seen.text(".says")


def test_dragging_on_the_chart_moves_the_slider(opened: Open) -> None:
    seen = opened()
    chart = seen.page.locator("svg.chart:visible")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    seen.page.mouse.down()
    left = int(seen.page.locator("input[type=range]").input_value())
    seen.page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2)
    seen.page.mouse.up()
    assert int(seen.page.locator("input[type=range]").input_value()) > left + 10


def test_choices_change_chart_sentence_and_slider(opened: Open) -> None:
    seen = opened()
    seen.page.get_by_role("radio", name="Sharp").check()
    assert "Sharp" in seen.text(".drawing:visible figcaption")
    assert seen.page.locator(".drawing:visible").count() == 1
    seen.page.get_by_role("radio", name="Difference in DCG").check()
    assert "the difference in DCG" in seen.text(".says")


BOXES = """all => all.map((one) => one.getBBox()).map((box) =>
  ({ left: box.x, right: box.x + box.width, top: box.y, foot: box.y + box.height }))"""


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("near", [True, False])
def test_marks_are_labelled_and_labels_do_not_overlap(
    opened: Open, audit_values: Callable[..., dict[str, Any]], width: int, near: bool
) -> None:
    spread = zip(("genre", "price", "shelf", "age"), (1.15, 1.45, 1.85, 2.4), strict=True)
    apart = [
        {"feature": name, "side": "item", "gamma": gamma, "times_hidden": 1.0}
        for name, gamma in spread
    ]
    seen = opened(width, audit_values() if near else audit_values(benchmarks=apart))
    words = seen.page.locator(".drawing:visible svg.chart:visible .mark-words")
    texts = words.all_text_contents()
    assert any("Γ* = 2.46" in text for text in texts)
    assert any("Γ ≥ 1.52" in text for text in texts)
    assert any("as genre" in text for text in texts)
    boxes = words.evaluate_all(BOXES)
    for a, b in combinations(boxes, 2):
        assert (
            a["right"] <= b["left"]
            or b["right"] <= a["left"]
            or a["foot"] <= b["top"]
            or b["foot"] <= a["top"]
        )
    room = words.first.evaluate("one => one.ownerSVGElement.viewBox.baseVal.width")
    assert all(box["left"] >= 0 and box["right"] <= room for box in boxes)


def test_tables_sort_numbers_as_numbers_and_say_so(opened: Open) -> None:
    seen = opened()
    head = seen.head("segments", "mean Γ")
    head.click()
    assert seen.column("segments", 2) == ["10.40", "2.70", "1.20"]
    assert head.locator("xpath=..").get_attribute("aria-sort") == "descending"
    head.focus()
    seen.page.keyboard.press("Enter")
    assert seen.column("segments", 2) == ["1.20", "2.70", "10.40"]
    assert head.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    seen.head("segments", "logged pairs").click()
    assert seen.column("segments", 1) == ["12,000", "900", "85"]
    assert head.locator("xpath=..").get_attribute("aria-sort") == "none"


def test_missing_values_sort_last_both_ways(opened: Open) -> None:
    seen = opened()
    for expected in (["12.60", "2.20", "–"], ["2.20", "12.60", "–"]):
        seen.head("segments", "Γ, 95 %").click()
        assert seen.column("segments", 3) == expected


def test_text_columns_sort_as_text(opened: Open) -> None:
    seen = opened()
    seen.head("strength", "feature").click()
    assert seen.column("strength", 0) == ["age", "brand", "gender", "genre", "price", "shelf"]


def test_names_show_as_text_and_nothing_runs(
    opened: Open, audit_values: Callable[..., dict[str, Any]]
) -> None:
    name = "<script>alert(1)</script>"
    values = audit_values(model={"name": name}, data={"name": '"><img src=x onerror=alert(1)>'})
    values["benchmarks"][0]["feature"] = "<svg onload=alert(1)>"
    values["benchmarks"][0]["gamma"] = 1.7
    seen = opened(values=values)
    assert seen.page.get_by_text(name).first.is_visible()
    assert f"{name} would still be ahead" in seen.text(".says")
    assert "<svg onload=alert" in " ".join(
        seen.page.locator(".chart:visible .mark-words").all_text_contents()
    )
    assert seen.page.locator("img").count() == 0


@pytest.mark.parametrize("script", [True, False])
def test_a_phone_does_not_scroll_sideways(opened: Open, script: bool) -> None:
    seen = opened(PHONE, java_script_enabled=script)
    width = seen.page.locator("html").bounding_box()["width"]
    assert width <= PHONE
    if script:
        assert seen.page.evaluate("document.scrollingElement.scrollWidth") <= PHONE
        for one in ("Difference in DCG", "Sharp"):
            seen.page.get_by_role("radio", name=one).check()
            assert seen.page.evaluate("document.scrollingElement.scrollWidth") <= PHONE


SCROLLED = """async (one) => {
  for (let frame = 0; frame < 300 && one.scrollLeft === 0; frame += 1) {
    await new Promise((done) => requestAnimationFrame(done));
  }
  return one.scrollLeft;
}"""
"""Waits for the first step of a scroll; `wait_for_function` would, but by `eval`, which the page's
policy forbids."""


def test_wide_tables_scroll_in_their_own_region_by_keyboard(opened: Open) -> None:
    seen = opened(PHONE)
    region = seen.page.locator("#segments .scroll").first
    assert region.get_attribute("tabindex") == "0"
    region.focus()
    seen.page.keyboard.press("ArrowRight")
    assert region.evaluate(SCROLLED) > 0


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_axe_finds_no_serious_violation(opened: Open, scheme: str, width: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    seen = opened(width, color_scheme=scheme)
    seen.page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    found = axe.Axe().run(seen.page).response
    bad = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    assert [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in bad] == []
    assert any(rule["id"] == "color-contrast" for rule in found["passes"])


def test_the_theme_button_overrides_what_the_system_says(opened: Open) -> None:
    seen = opened(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(ground)
    button = seen.page.get_by_role("button", name="Theme")
    button.click()
    assert (button.inner_text(), seen.page.evaluate(ground)) == ("Theme: light", light)
    button.click()
    assert button.inner_text() == "Theme: dark"
    assert seen.page.evaluate(ground) != light


@pytest.mark.parametrize(
    ("scheme", "clicks", "shown"),
    [("light", 0, "light"), ("dark", 0, "dark"), ("light", 2, "dark")],
)
def test_charts_follow_the_theme_and_print_is_light(
    browser: Any,
    blocks_page: Callable[..., str],
    tmp_path: Path,
    scheme: str,
    clicks: int,
    shown: str,
) -> None:
    drawing, axes = canvas(4, 3, "Title", "caption")
    axes.plot([0, 1], color=DARK, label="line")
    axes.legend()
    body = '{{ blocks.figure(drawing, "a line") }}'
    (tmp_path / "page.html").write_text(blocks_page(body, drawing=drawing))
    with browser.new_context(color_scheme=scheme, offline=True) as context:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        for _ in range(clicks):
            page.get_by_role("button", name="Theme").click()
        turned = "img => getComputedStyle(img).filter.startsWith('invert')"
        assert page.locator("figure img").evaluate(turned) is (shown == "dark")
        page.emulate_media(media="print")
        assert page.locator("figure img").evaluate(turned) is False


def test_without_a_script_everything_can_be_read(opened: Open) -> None:
    seen = opened(java_script_enabled=False)
    assert "Robust" in seen.text(".verdict")
    assert seen.page.locator("svg.chart:visible").count() == 1
    assert "Γ = 2.42, puid-dr would still be ahead of mf" in seen.text(".says")
    assert seen.page.locator("#segments .block > .scroll > table:visible").count() == 2
    assert (
        seen.page.locator("input[type=range]:visible, .theme:visible, fieldset:visible").count()
        == 0
    )
    assert "What this audit does not say" in seen.text("#not-claimed")


def test_the_first_stop_of_the_keyboard_skips_to_the_report(opened: Open) -> None:
    seen = opened()
    seen.page.keyboard.press("Tab")
    skip = seen.page.get_by_role("link", name="Skip to the report")
    assert skip.bounding_box()["x"] >= 0
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("verdict", ["fragile", "undecided", "refuted", "single"])
def test_other_verdicts_load_as_well(
    opened: Open, audit_values: Callable[..., dict[str, Any]], verdict: str
) -> None:
    changes: dict[str, Any] = {"against": None, "tipping": None} if verdict == "single" else {}
    seen = opened(values=audit_values(verdict=verdict, **changes))
    assert seen.page.locator(".verdict .icon").is_visible()
    seen.page.locator("input[type=range]").fill("30")
    assert "Γ = " in seen.text(".says")

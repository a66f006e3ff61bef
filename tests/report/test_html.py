"""The frame: what is written is what is read, nothing in a name is markup, equal pages are equal
bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure as Drawing

from puidrec.report.blocks import (
    Callout,
    Cell,
    Column,
    Details,
    Facts,
    Figure,
    HeatMap,
    Page,
    Paragraph,
    Section,
    Table,
    VerdictBox,
)
from puidrec.report.envelope import Band, Envelope, Mark, Panel, Slot
from puidrec.report.html import inline, json_for_script, render, write_page

VOID = {"meta", "input", "img", "br", "link"}


class Reader(HTMLParser):
    """Elements, attributes, text, and whether every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def everything(name: str) -> Page:
    """Every block, with `name` wherever a name can stand."""
    band = Band(name, [0.1, -0.1], [0.2, 0.3], ["a", "b"], name)
    sentences = {"a": [name, Slot.X, name], "b": [Slot.LOW, name, Slot.HIGH]}
    marks = [Mark(1.5, name, "benchmark"), Mark(1.6, name, "tipping")]
    panel = Panel(name, name, [1.0, 2.0], name, name, name, [band], sentences, 0.15, marks)
    table = Table(
        [name, Column(name, ".2f", name)], [[name, 1.0], [Cell(name, name, "bad"), None]], name
    )
    blocks = [
        Paragraph(name),
        table,
        table,
        Figure(f"<svg>{name}</svg>", name, name),
        Figure(b"\x89PNG", name),
        Facts([(name, name)]),
        Facts([]),
        Callout("warn", name, name, [name]),
        HeatMap([[1.0]], [name], [name], name, name, name, name),
        Details(name, [Details(name, [Paragraph(name)])]),
        Envelope([panel], name, name),
    ]
    verdict = VerdictBox("good", name, name, [(name, name)])
    return Page(name, name, [Section("a", name, blocks, name), Section("b", name)], verdict, name)


@pytest.fixture(scope="module")
def plain() -> Reader:
    return Reader(render(everything("name")))


def shape(reader: Reader) -> tuple[list[str], list[tuple[str, str]]]:
    return reader.tags, [(tag, name) for tag, name, _ in reader.attributes]


def test_nothing_in_a_name_is_markup(plain: Reader, nasty: str) -> None:
    reader = Reader(render(everything(nasty)))
    spans = {"code", "strong"}
    tags = [tag for tag in reader.tags if tag not in spans]
    assert tags == [tag for tag in plain.tags if tag not in spans]
    assert [pair for pair in shape(reader)[1] if pair[0] not in spans] == [
        p for p in shape(plain)[1] if p[0] not in spans
    ]
    shown = nasty.replace("`", "").replace("**", "").translate({0: "\ufffd", 27: "\ufffd"})
    assert shown in reader.text


@settings(max_examples=30)
@given(st.text(max_size=30))
def test_no_text_becomes_markup(text: str) -> None:
    page = Page(
        "t", text, [Section("a", text, [Table([text], [[text]], text), Facts([(text, text)])])]
    )
    reader = Reader(render(page))
    assert reader.tags.count("script") == 1
    assert not {
        tag for tag in reader.tags if tag in ("img", "iframe", "object", "link", "base", "form")
    }
    assert not [
        name for _, name, _ in reader.attributes if name.startswith("on") or name == "style"
    ]


def test_lone_surrogates_do_not_stop_a_report() -> None:
    assert "a?b" in render(Page("a\ud800b", "", []))


def test_every_element_of_a_page_is_closed_and_ids_are_unique(plain: Reader) -> None:
    ids = [value for _, name, value in plain.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 3
    named = {
        w
        for _, n, value in plain.attributes
        if n in ("aria-labelledby", "for")
        for w in (value or "").split()
    }
    assert named <= set(ids)


def test_equal_pages_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_page(tmp_path / f"{name}.html", everything("x"))
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]


def test_the_policy_names_the_hashes_of_what_is_inside_and_nothing_else() -> None:
    text = render(everything("x"))
    policy = next(
        v
        for t, n, v in Reader(text).attributes
        if t == "meta" and n == "content" and "default-src" in str(v)
    )
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert "unsafe" not in str(policy)


def test_nothing_is_fetched(plain: Reader) -> None:
    addresses = [
        value
        for _, name, value in plain.attributes
        if name in ("src", "href", "action", "data", "srcset")
    ]
    assert addresses
    assert all(str(address).startswith(("data:", "#")) for address in addresses)
    assert "url(" not in render(everything("x"))
    assert "@import" not in render(everything("x"))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a `b` c", "a <code>b</code> c"),
        ("**b** <i>", "<strong>b</strong> &lt;i&gt;"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("a ` b", "a ` b"),
        ("**", "**"),
    ],
)
def test_spans(text: str, html: str) -> None:
    assert str(inline(text)) == html


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_data_for_the_script_is_read_back_and_cannot_end_it(value: Any) -> None:
    text = str(json_for_script(value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_not_a_number_cannot_reach_the_script() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        json_for_script([math.nan])


def test_a_drawing_becomes_a_picture_of_equal_bytes() -> None:
    def picture() -> Figure:
        drawing = Drawing(figsize=(1, 1))
        drawing.add_subplot().plot([0, 1], [1, 0])
        return Figure.of(drawing, "a falling line")

    assert picture() == picture()
    assert picture().uri.startswith("data:image/png;base64,iVBOR")
    assert (
        Figure("<svg/>", "x").uri
        == "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()
    )


def test_sections_with_one_id_are_refused(refusal: Any) -> None:
    refusal(lambda: Page("t", "", [Section("a", "A"), Section("a", "B")]), "same id", "a")


@pytest.mark.parametrize("name", ["", "A b", "1a", '"x', "ä"])
def test_section_ids_are_plain(name: str, refusal: Any) -> None:
    refusal(lambda: Section(name, "A"), "plain id")


def test_a_page_of_nothing_is_a_page() -> None:
    reader = Reader(render(Page("Title", "", [])))
    assert "Title" in reader.text
    assert "nav" not in reader.tags

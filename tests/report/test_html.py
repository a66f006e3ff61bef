"""The frame: what is written is what is read, nothing in a name is markup, equal pages are equal
bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from matplotlib.figure import Figure as Drawing

from puidrec.report.audit import Band, Mark, Panel
from puidrec.report.charts import to_svg
from puidrec.report.page import Cell, Column, Table, _environment, inline

Make = Callable[..., str]
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


EVERYTHING = """
{{ blocks.verdict("good", name, name, [(name, name)], [name]) }}
{% call blocks.section("a", name, name) %}
<p>{{ name|inline }}</p>
{{ blocks.table(table) }}
{{ blocks.table(table) }}
{{ blocks.figure(drawing, name) }}
{{ blocks.facts([(name, name)]) }}
{{ blocks.facts([]) }}
{% call blocks.callout("warn", name) %}{{ blocks.points([name]) }}{% endcall %}
{% call blocks.details(name) %}{% call blocks.details(name) %}{{ name }}{% endcall %}{% endcall %}
{{ drawn.envelope(panels) }}
{% endcall %}
{% call blocks.section("b", name) %}{% endcall %}
"""


@pytest.fixture(scope="session")
def everything(blocks_page: Make) -> Callable[[str], str]:
    """A page of every block, with `name` wherever a name can stand."""
    drawing = Drawing(figsize=(1, 1))

    def make(name: str) -> str:
        low, high = np.array([0.1, -0.1]), np.array([0.2, 0.3])
        tip = Mark(1.6, name, "tipping")
        band = Band(name, name, low, high, low, high, [name, name], tip)
        marks = [Mark(1.5, name, "benchmark")]
        panel = Panel(name, name, [1.0, 2.0], [band], point=0.15, marks=marks)
        heads = [name, Column(name, ".2f", name)]
        table = Table(heads, [[name, 1.0], [Cell(name, name, "bad"), None]], name)
        values = {"name": name, "table": table, "drawing": drawing, "panels": [panel]}
        return blocks_page(EVERYTHING, kind=name, title=name, lead=name, **values)

    return make


@pytest.fixture(scope="module")
def plain(everything: Callable[[str], str]) -> Reader:
    return Reader(everything("name"))


def shape(reader: Reader) -> tuple[list[str], list[tuple[str, str]]]:
    return reader.tags, [(tag, name) for tag, name, _ in reader.attributes]


def test_nothing_in_a_name_is_markup(
    everything: Callable[[str], str], plain: Reader, nasty: str
) -> None:
    reader = Reader(everything(nasty))
    spans = {"code", "strong"}
    tags = [tag for tag in reader.tags if tag not in spans]
    assert tags == [tag for tag in plain.tags if tag not in spans]
    assert [pair for pair in shape(reader)[1] if pair[0] not in spans] == [
        p for p in shape(plain)[1] if p[0] not in spans
    ]
    shown = nasty.replace("`", "").replace("**", "").translate({0: "\ufffd", 27: "\ufffd"})
    assert shown in reader.text


@settings(max_examples=30)
@given(text=st.text(max_size=30))
def test_no_text_becomes_markup(blocks_page: Make, text: str) -> None:
    body = (
        '{% call blocks.section("a", text) %}{{ blocks.table(table) }}{{ blocks.facts([(text, '
        "text)]) }}{% endcall %}"
    )
    reader = Reader(
        blocks_page(body, title="t", lead=text, text=text, table=Table([text], [[text]], text))
    )
    assert reader.tags.count("script") == 1
    assert not {
        tag for tag in reader.tags if tag in ("img", "iframe", "object", "link", "base", "form")
    }
    assert not [
        name for _, name, _ in reader.attributes if name.startswith("on") or name == "style"
    ]


def test_lone_surrogates_do_not_stop_a_report(blocks_page: Make) -> None:
    assert "a?b" in blocks_page("", title="a\ud800b")


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


def test_equal_pages_are_equal_bytes(everything: Callable[[str], str]) -> None:
    assert everything("x") == everything("x")


def test_the_policy_names_the_hashes_of_what_is_inside_and_nothing_else(
    everything: Callable[[str], str],
) -> None:
    text = everything("x")
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


def test_nothing_is_fetched(everything: Callable[[str], str], plain: Reader) -> None:
    addresses = [
        value
        for _, name, value in plain.attributes
        if name in ("src", "href", "action", "data", "srcset")
    ]
    assert addresses
    assert all(str(address).startswith(("data:", "#")) for address in addresses)
    assert "url(" not in everything("x")
    assert "@import" not in everything("x")


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
    text = _environment().from_string("{{ value|tojson }}").render(value=value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_not_a_number_cannot_reach_the_script() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        _environment().from_string("{{ [value]|tojson }}").render(value=math.nan)


def test_a_drawing_becomes_a_picture(blocks_page: Make) -> None:
    drawing = Drawing(figsize=(1, 1))
    drawing.add_subplot().plot([0, 1], [1, 0])
    text = blocks_page('{{ blocks.figure(drawing, "a falling line") }}', drawing=drawing)
    light = base64.b64encode(to_svg(drawing).encode()).decode()
    assert f'src="data:image/svg+xml;base64,{light}" alt="a falling line">' in text
    assert text.count("<img ") == 1


def test_a_page_of_nothing_is_a_page(blocks_page: Make) -> None:
    reader = Reader(blocks_page(""))
    assert "Title" in reader.text
    assert "nav" not in reader.tags


def test_what_the_values_lack_is_an_error_unless_a_page_is_lenient(blocks_page: Make) -> None:
    with pytest.raises(UndefinedError):
        blocks_page("{{ unknown.name }}")

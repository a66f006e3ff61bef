"""One self-contained HTML file per report: no network, no fonts, no frameworks; readable without a
script.

The file carries a content security policy that allows its own style sheet and script by their hash
and pictures by `data:`, and nothing else: even if something in a name were taken for markup, it
could not run or call out.
Equal pages give equal bytes: nothing in them says when or where they were made.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from functools import cache
from os import PathLike
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from puidrec.atomic import write_text
from puidrec.report.blocks import Page
from puidrec.report.envelope import draw
from puidrec.report.formatting import show

CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
SPAN = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")


def write_page(
    path: str | PathLike[str], page: Page, template: str = "page", **values: Any
) -> None:
    """Write a page atomically."""
    write_text(path, render(page, template, **values))


def render(page: Page, template: str = "page", **values: Any) -> str:
    """The page as one HTML file, by `templates/TEMPLATE.html.j2`, which sees `page` and `values`.

    Every value is escaped; control characters and broken Unicode are shown as marks.
    """
    style, script = _asset("style.css"), _asset("script.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    numbers, outline = itertools.count(1), list[tuple[str, str]]()

    def listed(name: str, title: str) -> str:
        """Put a section into the contents."""
        outline.append((name, title))
        return ""

    text = (
        _environment()
        .get_template(f"{template}.html.j2")
        .render(
            page=page,
            policy=policy,
            style=Markup(style),  # noqa: S704 - the package's own files
            script=Markup(script),  # noqa: S704 - the package's own files
            unique=lambda name: f"{name}-{next(numbers)}",
            outline=outline,
            listed=listed,
            **values,
        )
    )
    return text.translate(CONTROLS).encode("utf-8", "replace").decode()


def markdown_page(template: str, **values: Any) -> str:
    """A page of Markdown, by `templates/TEMPLATE.md.j2`."""
    text = _markdown().get_template(f"{template}.md.j2").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def inline(text: str) -> Markup:
    """Text with `` `code` `` and `**strong**`; everything else is escaped."""
    parts, end = [], 0
    for found in SPAN.finditer(text):
        tag = "code" if found[1] is not None else "strong"
        span = Markup("<{0}>{1}</{0}>").format(Markup(tag), found[1] or found[2])  # noqa: S704 - one of two words
        parts += [escape(text[end : found.start()]), span]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def json_for_script(value: Any) -> Markup:
    """JSON that can stand inside a script element: no character that could end it, ASCII only, NaN
    refused."""
    text = json.dumps(
        value, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - made safe above


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("puidrec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": inline, "json_for_script": json_for_script, "show": show}
    environment.globals |= {"draw": draw, "ICONS": ICONS}
    return environment


@cache
def _markdown() -> Environment:
    """Markdown is read as text: nothing in it is escaped for HTML."""
    return _environment().overlay(autoescape=False)


@cache
def _asset(name: str) -> str:
    loader = _environment().loader
    assert loader is not None  # noqa: S101 - set three lines above
    return loader.get_source(_environment(), name)[0]


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


ICONS = {
    "good": ("M5 12.5l4.5 4.5L19 7.5", "Good"),
    "warn": ("M12 7v6.5M12 17v.5", "Take care"),
    "bad": ("M7 7l10 10M17 7L7 17", "Bad"),
    "info": ("M12 11v6M12 7v.5", "Note"),
}
"""Per tone: strokes of a 24 × 24 icon, and its name for those who hear the page."""

"""One self-contained HTML file per report: no network, no fonts, no frameworks; readable without a
script. Templates hold the words and the layout; Python hands them results, tables and charts.

The file carries a content security policy that allows its own style sheet and script by their hash
and pictures by `data:`, and nothing else: even if something in a name were taken for markup, it
could not run or call out. Equal results give equal bytes: nothing says when or where they were
made."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jinja2 import ChainableUndefined, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from puidrec.atomic import write_text
from puidrec.errors import one_line
from puidrec.methods.table import SIGNED, MethodSpec

if TYPE_CHECKING:
    from puidrec.auditing.result import Audit
    from puidrec.data.dataset import Dataset
    from puidrec.data.split import Split
    from puidrec.evaluation import Evaluation
    from puidrec.model import Recommender

Tone = Literal["good", "warn", "bad", "info"]
"""good: it holds; warn: with care; bad: it does not hold; info: neither. Boxes show it by icon and
word, not by colour alone."""
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
SPAN = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")


class Column(NamedTuple):
    """A column of a table: its name, how its numbers read (`.3f`, `+.3f`, `.1%`, `,d`), and what it
    means, shown once below the table."""

    name: str
    format: str = ""
    help: str = ""


class Cell(NamedTuple):
    """A cell that needs more than a value: other words than its number, a tone, or a small bar with
    a tick (both from 0 to 1). It sorts by `value`."""

    value: Value
    text: str | None = None
    tone: Tone | None = None
    bar: float | None = None
    tick: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of values, columns of numbers set right. Wide tables scroll inside their own region;
    with a script, columns sort by a click. `emphasised` are indices of rows to stress."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Value | Cell]]
    caption: str
    sortable: bool = True
    emphasised: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        records: Iterable[Mapping[str, Any]],
        columns: Mapping[str, Column | str],
        caption: str,
        **options: Any,
    ) -> Table:
        """Records by key; a column for which no record has a value is left out."""
        rows = list(records)
        kept = [
            key for key in columns if any(row.get(key) not in (None, "", MISSING) for row in rows)
        ]
        cells = [[row.get(key) for key in kept] for row in rows]
        return cls([columns[key] for key in kept], cells, caption, **options)

    def without_constants(self) -> Table:
        """The same without columns in which all rows agree (but the first), which the caption says
        instead."""
        if len(self.rows) < 2:
            return self
        texts = [{row[k].text for row in self.body} for k in range(len(self.columns))]
        kept = [k for k, found in enumerate(texts) if k == 0 or len(found) > 1]
        said = [
            f"{self.head[k][0].name}: {text}"
            for k in set(range(len(texts))) - {*kept}
            for text in texts[k] - {MISSING}
        ]
        return replace(
            self,
            columns=[self.columns[k] for k in kept],
            rows=[[row[k] for k in kept] for row in self.rows],
            caption=f"{self.caption} In all rows: {'; '.join(said)}." if said else self.caption,
        )

    @property
    def head(self) -> list[tuple[Column, bool]]:
        """Columns, each with whether it holds numbers."""
        columns = [Column(c) if isinstance(c, str) else Column(*c) for c in self.columns]
        return [(column, self._numeric(k)) for k, column in enumerate(columns)]

    @property
    def body(self) -> list[list[Cell]]:
        """Per row and cell: the number to sort by, the text, tone, bar and tick."""
        heads = [column for column, _ in self.head]
        return [[_shown(*pair) for pair in zip(row, heads, strict=True)] for row in self.rows]

    def _numeric(self, k: int) -> bool:
        cells = [row[k] for row in self.rows]
        values = [cell.value if isinstance(cell, Cell) else cell for cell in cells]
        present = [value for value in values if value is not None]
        return bool(present) and all(not isinstance(v, str | bool) for v in present)


def _shown(cell: Value | Cell, column: Column) -> Cell:
    full = cell if isinstance(cell, Cell) else Cell(cell)
    text = show(full.value, column.format) if full.text is None else full.text
    bar, tick = (
        None if v is None else round(min(max(v, 0.0), 1.0), 4)
        for v in map(finite, (full.bar, full.tick))
    )
    return Cell(as_number(full.value), text, full.tone, bar, tick)


def render(template: str | Template, *, lenient: bool = False, **values: Any) -> str:
    """One HTML file by `templates/TEMPLATE.html.j2`, which extends `base.html.j2`.

    Every value is escaped; control characters and broken Unicode are shown as marks. `lenient`:
    what the values lack is empty, not an error: a file of an earlier version has fewer parts.
    """
    environment = _lenient() if lenient else _environment()
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
    numbers = itertools.count(1)

    name = template if isinstance(template, Template) else f"{template}.html.j2"
    text = environment.get_template(name).render(
        policy=policy,
        style=Markup(style),  # noqa: S704 - the package's own files
        script=Markup(script),  # noqa: S704 - the package's own files
        unique=lambda name: f"{name}-{next(numbers)}",
        outline={},
        **values,
    )
    return text.translate(CONTROLS).encode("utf-8", "replace").decode()


def write_page(path: str | PathLike[str], template: str, **values: Any) -> None:
    """Write a page atomically."""
    write_text(path, render(template, **values))


def fragment(template: str, **values: Any) -> str:
    """A piece of HTML for a notebook, by `templates/TEMPLATE.html.j2`."""
    return _environment().get_template(f"{template}.html.j2").render(**values)


def markdown_page(template: str, **values: Any) -> str:
    """A page of Markdown, by `templates/TEMPLATE.md.j2`."""
    text = _markdown().get_template(f"{template}.md.j2").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def sentence_of(template: str, **values: Any) -> str:
    """The words of a template on one line."""
    return " ".join(markdown_page(template, **values).split())


def inline(text: object) -> Markup:
    """Text with `` `code` `` and `**strong**`; everything else is escaped."""
    parts, end, text = [], 0, str(text)
    for found in SPAN.finditer(text):
        tag = "code" if found[1] is not None else "strong"
        span = Markup("<{0}>{1}</{0}>").format(Markup(tag), found[1] or found[2])  # noqa: S704 - one of two words
        parts += [escape(text[end : found.start()]), span]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def scalar(value: object) -> bool:
    """Whether a value fits in one cell."""
    return value is None or isinstance(value, str | bool | Real)


def named(
    values: Mapping[str, Any],
    words: Mapping[str, str],
    formats: Mapping[str, str] | None = None,
    default: str = "",
) -> list[tuple[str, str]]:
    """What fits in one cell, as labels with text: each by its words, else by its key."""
    return [
        (words.get(key, key.replace("_", " ")), show(value, (formats or {}).get(key, default)))
        for key, value in values.items()
        if scalar(value)
    ]


def _picture(drawing: Any) -> str:
    """The address of a chart."""
    from puidrec.report.charts import to_svg

    return f"data:image/svg+xml;base64,{base64.b64encode(to_svg(drawing).encode()).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("puidrec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "inline": inline,
        "show": show,
        "finite": finite,
        "named": named,
        "picture": _picture,
    }
    # JSON inside a script element (`tojson`): ASCII, no character that could end it, NaN refused
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    environment.tests["scalar"] = scalar
    environment.globals |= {
        "Table": Table,
        "Cell": Cell,
        "ICONS": ICONS,
    }
    return environment


@cache
def _lenient() -> Environment:
    return _environment().overlay(undefined=ChainableUndefined)


@cache
def _markdown() -> Environment:
    """Markdown is read as text: nothing in it is escaped for HTML."""
    return _environment().overlay(autoescape=False)


@cache
def _asset(name: str) -> str:
    loader = _environment().loader
    assert loader is not None  # noqa: S101 - set above
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


# How values and labels read: a true minus sign, a dash for what is missing

Value = str | int | float | bool | None
"""What a cell or a fact may hold; NumPy scalars are taken as well."""
MISSING = "–"


def show(value: object, spec: str = "") -> str:
    """A value as text. `spec` is a format of Python (`.3f`, `+.3f`, `.1%`, `,d`), or `p` for a
    p-value; text is left as it is."""
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    number = as_number(value)
    if number is None:
        return MISSING if isinstance(value, Real) else str(value) or MISSING
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if spec == "p":
        return "< 0.001" if number < 0.001 else format(number, ".3f")
    whole = isinstance(value, Integral) or spec.endswith("d")
    text = (
        format(int(number), spec or ",d")
        if whole and not spec.endswith(("f", "%", "g", "e"))
        else None
    )
    text = text if text is not None else format(number, spec or ".4g")
    return _signed(text)


def as_number(value: object) -> float | None:
    """The number to sort and colour by: None for text, booleans, missing values and NaN; infinities
    stay."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return None
    number = float(value)
    return None if math.isnan(number) else number


def finite(value: object) -> float | None:
    """A number that can be drawn, or None."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None


def _signed(text: str) -> str:
    """A true minus, and none before a zero: −0.000 would claim a sign that is not shown."""
    if text.startswith("-") and not any(c in "123456789" for c in text.split("e", maxsplit=1)[0]):
        text = text[1:]
    head, _, exponent = text.partition("e")
    head = head.replace("-", "−")
    return f"{head}e{exponent}" if exponent else head


def clip_text(text: str, width: int) -> str:
    """Text of at most `width` characters; an ellipsis says where something is missing."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip(" ·,") + "…"


# A model card


def model_card(
    model: Recommender,
    data: Dataset | None,
    split: Split | None,
    evaluation: Evaluation | None,
    audit: Audit | None,
) -> str:
    """The card as Markdown; parts that nothing is known of say so."""
    spec, settings = model.settings.spec, model.settings
    return markdown_page(
        "card",
        model=model,
        data=data,
        split=split,
        evaluation=evaluation,
        audit=audit,
        users=len(model.user_ids_),
        items=len(model.item_ids_),
        rows=model.seen_[1].size,
        given=settings.given("seed"),
        assumptions=assumptions(spec, settings.adjusts),
        plain=plain,
    )


def assumptions(spec: MethodSpec, adjusts: bool = False) -> str:
    """What must hold for the method to do what it promises, read from its row of the table."""
    weighs = adjusts if spec.uses_propensity == "without ids" else spec.uses_propensity
    signed = spec.build == SIGNED
    return markdown_page("assumptions", spec=spec, weighs=weighs, signed=signed).strip()


def plain(text: Any) -> str:
    """Text of one line that Markdown shows as it is."""
    return one_line(str(text)).replace("<", "&lt;").replace("|", "\\|")

"""Plain nested values (from a JSON file) as blocks: numbers become facts, lists of records become tables.

Nothing here knows what the values mean, so a report shows what its file holds, also when the file has grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from puidrec.report.blocks import Block, Column, Facts, Paragraph, Table
from puidrec.report.formatting import Value

Names = Mapping[str, str]
"""Words for keys; a key without an entry is shown with spaces for underscores."""
MAX_ROWS = 200


def words(key: str, names: Names) -> str:
    """How a key reads."""
    return names.get(key, key.replace("_", " "))


def scalar(value: object) -> bool:
    """Whether a value fits in one cell."""
    return value is None or isinstance(value, str | bool | Real)


def facts(values: Mapping[str, Any], names: Names) -> Facts:
    """The single values of a mapping; lists of single values are joined, anything deeper is left out."""
    items: list[tuple[str, Value]] = []
    for key, value in values.items():
        if scalar(value):
            items.append((words(key, names), value))
        elif isinstance(value, Sequence) and len(value) <= 12 and all(map(scalar, value)):
            items.append((words(key, names), ", ".join(str(v) for v in value) or None))
    return Facts(items)


def records(rows: Sequence[Mapping[str, Any]], caption: str, names: Names, formats: Names | None = None) -> Table:
    """Records as a table; columns in the order in which they first occur, only the first rows of very many."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if scalar(value)))
    columns = [Column(words(key, names), (formats or {}).get(key, "")) for key in keys]
    cut = rows[:MAX_ROWS]
    more = f" The first {MAX_ROWS} of {len(rows):,} rows." if len(rows) > MAX_ROWS else ""
    return Table(columns, [[row.get(key) for key in keys] for row in cut], caption + more)


def blocks(key: str, value: Any, names: Names) -> list[Block]:
    """Whatever a key of a file holds, as blocks."""
    title = words(key, names)
    if isinstance(value, Mapping):
        return _mapping(title, value, names)
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and value
        and all(isinstance(v, Mapping) for v in value)
    ):
        return [records(value, _sentence(title), names)]
    return []


def _mapping(title: str, value: Mapping[str, Any], names: Names) -> list[Block]:
    lists = {k: v for k, v in value.items() if isinstance(v, Sequence) and not isinstance(v, str)}
    flat = {k: v for k, v in lists.items() if v and all(map(scalar, v))}
    found: list[Block] = []
    single = facts({k: v for k, v in value.items() if scalar(v)}, names)
    if single.items:
        found += [Paragraph(f"**{_sentence(title)}**"), single]
    if flat and len({len(v) for v in flat.values()}) == 1:
        rows = [dict(zip(flat, row, strict=True)) for row in zip(*flat.values(), strict=True)]
        found.append(records(rows, _sentence(title), names))
        lists = {k: v for k, v in lists.items() if k not in flat}
    deeper = {**lists, **{k: v for k, v in value.items() if isinstance(v, Mapping)}}
    return found + [
        block for k, v in deeper.items() for block in blocks(k, v, {**names, k: f"{title}: {words(k, names)}"})
    ]


def _sentence(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}."

"""Small tables of HTML for notebooks: one way to show a result, without colours of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup


def view(label: str, words: str, tables: Markup) -> str:
    """A label, a sentence and tables; everything that is not markup is escaped."""
    return str(Markup("<div><p><strong>{}</strong> {}</p>{}</div>").format(label, words, tables))


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table without colours, so that it follows the notebook's theme; nothing where it has no
    row."""
    cells = [Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row) for row in rows]
    head = Markup("").join(Markup("<th scope='col'>{}</th>").format(name) for name in heads)
    body = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in cells)
    whole = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
    return whole.format(head, body) if cells else Markup("")

"""Labels that fit on an axis or in a table: what all groups share goes to the title, what differs stays."""

from __future__ import annotations

import re
from collections.abc import Sequence


def clip_text(text: str, width: int) -> str:
    """Text of at most `width` characters; an ellipsis says where something is missing."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip(" ·,") + "…"


def bin_values(label: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The values of a bin label `gender=f, age=20 to 30`, in the order of its columns; names may hold anything."""
    pattern = ", ".join(f"{re.escape(name)}=(.*)" for name in columns)
    found = re.fullmatch(pattern, label, re.DOTALL)
    return tuple(found.groups()) if found else (label,)


def short_labels(labels: Sequence[str], columns: Sequence[str], width: int = 30) -> tuple[list[str], list[str]]:
    """Short, distinct labels of bins, and the names of the columns whose values they show.

    Columns in which all bins agree are left out. Labels that become equal when cut get their number, so that no two
    rows of a chart can be taken for one another.
    """
    rows = [bin_values(label, columns) for label in labels]
    if not columns or any(len(row) != len(columns) for row in rows):
        return _distinct([clip_text(label, width) for label in labels], width), []
    varying = [k for k in range(len(columns)) if len({row[k] for row in rows}) > 1] or [0]
    joined = [" · ".join(row[k] for k in varying) for row in rows]
    return _distinct([clip_text(text, width) for text in joined], width), [columns[k] for k in varying]


def _distinct(labels: list[str], width: int) -> list[str]:
    return [
        f"{clip_text(label, width - 5)} #{k + 1}" if labels.count(label) > 1 else label
        for k, label in enumerate(labels)
    ]

"""How values and labels read on a page: a true minus sign, a dash for what is missing, labels that
fit on an axis."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

Value = str | int | float | bool | None
"""What a cell or a fact may hold; NumPy scalars are taken as well."""
MISSING = "–"


def show(value: object, spec: str = "") -> str:
    """A value as text. `spec` is a format of Python (`.3f`, `+.3f`, `.1%`, `,d`); text is left as
    it is."""
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    number = as_number(value)
    if number is None:
        return MISSING if isinstance(value, Real) else str(value) or MISSING
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
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


def bin_values(label: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The values of a bin label `gender=f, age=20 to 30`, in the order of its columns; names may
    hold anything."""
    pattern = ", ".join(f"{re.escape(name)}=(.*)" for name in columns)
    found = re.fullmatch(pattern, label, re.DOTALL)
    return tuple(found.groups()) if found else (label,)


def short_labels(
    labels: Sequence[str], columns: Sequence[str], width: int = 30
) -> tuple[list[str], list[str]]:
    """Short, distinct labels of bins, and the names of the columns whose values they show.

    Columns in which all bins agree are left out. Labels that become equal when cut get their
    number, so that no two rows of a chart can be taken for one another.
    """
    rows = [bin_values(label, columns) for label in labels]
    if not columns or any(len(row) != len(columns) for row in rows):
        return _distinct([clip_text(label, width) for label in labels], width), []
    varying = [k for k in range(len(columns)) if len({row[k] for row in rows}) > 1] or [0]
    joined = [" · ".join(row[k] for k in varying) for row in rows]
    return _distinct([clip_text(text, width) for text in joined], width), [
        columns[k] for k in varying
    ]


def _distinct(labels: list[str], width: int) -> list[str]:
    return [
        f"{clip_text(label, width - 5)} #{k + 1}" if labels.count(label) > 1 else label
        for k, label in enumerate(labels)
    ]

"""How values read on a page: figures with a true minus sign, a dash for what is missing, ∞ for what has no end."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np

Value = str | int | float | bool | None
"""What a cell or a fact may hold; NumPy scalars are taken as well."""
MISSING = "–"


def show(value: object, spec: str = "") -> str:
    """A value as text. `spec` is a format of Python (`.3f`, `+.3f`, `.1%`, `,d`); text is left as it is."""
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    number = as_number(value)
    if number is None:
        return MISSING if isinstance(value, Real) else str(value)
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    whole = isinstance(value, Integral) or spec.endswith("d")
    text = format(int(number), spec or ",d") if whole and not spec.endswith(("f", "%", "g", "e")) else None
    text = text if text is not None else format(number, spec or ".4g")
    return _signed(text)


def as_number(value: object) -> float | None:
    """The number to sort and colour by: None for text, booleans, missing values and NaN; infinities stay."""
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

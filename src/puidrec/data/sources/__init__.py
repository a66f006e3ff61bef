"""Sources: one file per data set, one line in this table."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from os import PathLike
from typing import Any, Literal, get_args, get_origin, get_type_hints

from puidrec.data.dataset import Dataset
from puidrec.data.schema import check_choice
from puidrec.data.tables import OverlapRule, check_overlap
from puidrec.errors import InputError
from puidrec.plugins import Registry, named

Load = Callable[..., Dataset]
_BUILT_IN: dict[str, str | Load] = {
    "coat": "puidrec.data.sources.coat:load",
    "yahoo-r3": "puidrec.data.sources.yahoo_r3:load",
    "kuairec": "puidrec.data.sources.kuairec:load",
    "kuairand": "puidrec.data.sources.kuairand:load",
    "ml-100k": "puidrec.data.sources.ml_100k:load",
    "files": "puidrec.data.sources.files:load",
    "recbole": "puidrec.data.sources.files:load_recbole",
    "simulated": "puidrec.data.synthetic:load",
}
SOURCES = Registry(
    "puidrec.sources",
    _BUILT_IN,
    lambda _, load: load if callable(load) else None,
    "a function load(path)",
)
"""Name → `module:function` with `load(path, **options) -> Dataset`, or that function (plug-ins)."""


def load_dataset(
    name: str,
    path: str | PathLike[str] | None = None,
    *,
    overlap: OverlapRule = "drop",
    **options: Any,
) -> Dataset:
    """Load a data set by name: `load_dataset("coat", folder)`; options are those of the source's
    `load`.

    overlap: whether uniform rows whose pair is in the log are dropped, or kept for comparison with
    print.
    """
    if name not in SOURCES:
        raise InputError("unknown data set", found=name, expected=f"one of {SOURCES.names()}")
    check_overlap(overlap)
    load: Load = named(SOURCES[name])
    # a source that does not take the rule has it applied to what it returns
    told = {"overlap": overlap} if "overlap" in signature(load).parameters else {}
    for option, choices in _choices(load).items():
        if option in options:
            check_choice(option, options[option], choices)
    try:
        data = load(path, **told, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword", "multiple values")):
            raise
        raise InputError(
            f"{name}: {str(error).split('() ')[-1]}", hint="See the source's options."
        ) from error
    return data if data.overlap.rule == overlap else data.with_overlap(overlap)


def _choices(load: Load) -> dict[str, tuple[Any, ...]]:
    """The values of options that are declared as one of several (`Literal`)."""
    try:
        hints = get_type_hints(load)
    except (NameError, TypeError):  # a plug-in whose types are there for type checkers only
        return {}
    return {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}

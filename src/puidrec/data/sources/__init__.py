"""Sources: one file per data set, one line in this table."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from os import PathLike
from typing import Any

from puidrec.data.dataset import Dataset
from puidrec.data.tables import OverlapRule, check_overlap
from puidrec.errors import InputError
from puidrec.plugins import Registry

Load = Callable[..., Dataset]
_BUILT_IN: dict[str, str | Load] = {
    "coat": "puidrec.data.sources.coat",
    "yahoo-r3": "puidrec.data.sources.yahoo_r3",
    "kuairec": "puidrec.data.sources.kuairec",
    "kuairand": "puidrec.data.sources.kuairand",
    "ml-100k": "puidrec.data.sources.ml_100k",
    "files": "puidrec.data.sources.files",
    "recbole": "puidrec.data.sources.formats",
    "simulated": "puidrec.data.synthetic",
}
SOURCES = Registry(
    "puidrec.sources",
    _BUILT_IN,
    lambda _, load: load if callable(load) else None,
    "a function load(path)",
)
"""Name → module with `load(path, **options) -> Dataset`, or that function itself (plug-ins)."""


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
    row = SOURCES[name]
    load: Load = row if callable(row) else import_module(row).load
    told = {"overlap": overlap} if _takes_overlap(load) else {}
    try:
        data = load(path, **told, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword", "multiple values")):
            raise
        raise InputError(
            f"{name}: {str(error).split('() ')[-1]}", hint="See the source's options."
        ) from error
    return data if data.overlap.rule == overlap else data.with_overlap(overlap)


def _takes_overlap(load: Load) -> bool:
    """Whether a source applies the rule itself: one that does not has it applied to what it
    returns."""
    parameter = signature(load).parameters.get("overlap")
    return parameter is not None and parameter.kind in (
        Parameter.KEYWORD_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    )

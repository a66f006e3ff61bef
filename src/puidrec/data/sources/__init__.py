"""Sources: one file per data set, one line in this table."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os import PathLike
from typing import Any

from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.plugins import Registry

Load = Callable[..., Dataset]
_BUILT_IN: dict[str, str | Load] = {
    "coat": "puidrec.data.sources.coat",
    "yahoo-r3": "puidrec.data.sources.yahoo_r3",
    "kuairec": "puidrec.data.sources.kuairec",
    "ml-100k": "puidrec.data.sources.ml_100k",
    "files": "puidrec.data.sources.files",
    "recbole": "puidrec.data.sources.recbole",
    "simulated": "puidrec.data.synthetic",
}
SOURCES = Registry(
    "puidrec.sources", _BUILT_IN, lambda _, load: load if callable(load) else None, "a function load(path)"
)
"""Name → module with `load(path, **options) -> Dataset`, or that function itself (plug-ins)."""


def load_dataset(name: str, path: str | PathLike[str] | None = None, **options: Any) -> Dataset:
    """Load a data set by name: `load_dataset("coat", folder)`; options are those of the source's `load`."""
    if name not in SOURCES:
        raise InputError("unknown data set", found=name, expected=f"one of {SOURCES.names()}")
    row = SOURCES[name]
    load: Load = row if callable(row) else import_module(row).load
    try:
        return load(path, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword", "multiple values")):
            raise
        raise InputError(f"{name}: {str(error).split('() ')[-1]}", hint="See the source's options.") from error

"""Parts of a page that are run once: by processes, each result a file, until the time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import joblib

from puidrec.atomic import write_json

Part = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module and its arguments; it returns plain values."""


def run_parts(
    parts: Mapping[str, Part], folder: Path, workers: int, end: float
) -> tuple[dict[str, Any], int]:
    """Results by name, in the order of the parts, and how many are not finished.

    end: when no further part begins, by `time.monotonic`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = {name: part for name, part in parts.items() if not (folder / f"{name}.json").exists()}

    def calls() -> Iterator[Any]:
        for name, part in waiting.items():
            if time.monotonic() > end:
                return  # what is under way ends; nothing else begins
            yield joblib.delayed(_one)(name, *part)

    pool = joblib.Parallel(
        n_jobs=workers, return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1
    )
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        for count, (name, found) in enumerate(pool(calls()), 1):
            write_json(folder / f"{name}.json", found)
            print(f"{folder.name} {count}/{len(waiting)} {name}", flush=True)
    files = {name: folder / f"{name}.json" for name in parts}
    results = {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.exists()
    }
    return results, len(parts) - len(results)


def _one(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    return name, function(*arguments)

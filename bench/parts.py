"""Parts of a page that are run once: by processes, each result a file, until the time is up.

costs.json beside them has the processor seconds of each part: what `bench/pages.py plan` tells.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import joblib

from puidrec.atomic import write_json

COSTS = "costs.json"
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
        for count, (name, found, seconds) in enumerate(pool(calls()), 1):
            write_json(folder / f"{name}.json", found)
            write_json(folder / COSTS, {**costs_of(folder), name: round(seconds, 2)})
            print(f"{folder.name} {count}/{len(waiting)} {name} {seconds:.1f} s", flush=True)
    files = {name: folder / f"{name}.json" for name in parts}
    results = {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in files.items()
        if file.exists()
    }
    return results, len(parts) - len(results)


def costs_of(folder: Path) -> dict[str, float]:
    """Processor seconds by part, of the parts that were run here."""
    file = folder / COSTS
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def summed_costs(folder: Path, kinds: Mapping[str, str]) -> dict[str, list[float]]:
    """By kind of part: how many there are, and their processor seconds; kinds: by part."""
    known, summed = costs_of(folder), {}
    for name, kind in kinds.items():
        count, seconds = summed.get(kind, (0, 0.0))
        summed[kind] = [count + 1, round(seconds + known.get(name, 0.0), 1)]
    return summed


def _one(name: str, function: Callable[..., Any], arguments: Any) -> tuple[str, Any, float]:
    began = time.process_time()
    return name, function(*arguments), time.process_time() - began

"""How far do scores depend on the machine? The same fits under other kernels, threads and starts.

    python bench/portable.py [--data FOLDER of coat] [--logs simulated,coat,shape] [--methods
    mf,dr,…] [--out FILE]

Every method of the table is fitted on a simulated log (and on Coat, where its folder is given;
`shape` is a log of Yahoo!R3's shape, in single precision) as it is, with torch's and MKL's plainest
kernels, on one thread and on two, and from a start moved by 1e-7, in processes of their own. The
table shows the largest change of a score against the first fit, over all pairs (of the first 2,000
users); ratings span 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ONE = {"OMP_NUM_THREADS": "1"}
AS_IT_IS = "as it is"
SETTINGS = {
    AS_IT_IS: ONE,
    "again": ONE,
    "plain kernels of torch": {**ONE, "ATEN_CPU_CAPABILITY": "default"},
    "plain kernels of MKL": {**ONE, "MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},  # spinning slows both
    "start moved by 1e-7": {**ONE, "PORTABLE_SHIFT": "1e-7"},
}
SIZES = {"simulated": {}, "small": {"n_users": 80, "n_items": 50}}
"""Simulated logs; the small one is for the test suite."""
GIVEN = {"small": {"dim": 8, "l2": 0.05}}
"""Settings of all methods there but the first, which chooses what the log gives to any method."""
SHOWN = 2_000
"""Users whose scores are compared."""


def move_starts(shift: float) -> None:
    """Add a number to all parameters before training, of either solver."""
    import torch

    from puidrec.methods import stages
    from puidrec.optimise.adam import Trainer

    start, init = stages.spectral_start, Trainer.__post_init__

    def moved(self: Trainer) -> None:
        with torch.no_grad():
            for parameter in (p for step in self.steps for p in step.module.parameters()):
                parameter.add_(shift)
        init(self)

    stages.spectral_start = lambda *given: {k: v + shift for k, v in start(*given).items()}
    Trainer.__post_init__ = moved  # type: ignore[method-assign]


def data_of(log: str, folder: str | None) -> Any:
    """A data set by its name here."""
    import puidrec as pr

    if log == "coat":
        return pr.load_dataset("coat", folder)
    if log in SIZES:
        return pr.load_dataset("simulated", world="mixed", seed=0, **SIZES[log])
    import polars as pl

    import engine

    n_users, n_items, _ = engine.SHAPE
    user, item = engine.shape_log()
    rating = engine.rated(user, item, n_users, n_items)
    return pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "rating": rating}))


def fit_all(methods: Sequence[str], logs: Sequence[str], folder: str | None, out: Path) -> None:
    """Fit every method on every log in this process; write all scores. A method that a log cannot
    train is left out."""
    import torch

    import puidrec as pr
    from puidrec import world

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    world.SMALL = 0  # else small fits take one thread whatever is asked
    if shift := float(os.environ.get("PORTABLE_SHIFT", "0")):
        move_starts(shift)
    scores: dict[str, np.ndarray] = {}
    for log in logs:
        data = data_of(log, folder)
        for number, method in enumerate(methods):
            try:
                given = GIVEN.get(log, {}) if number else {}
                model = pr.Recommender(method, rng=0, **given).fit(data)
            except pr.InputError as error:
                print(f"{log}/{method}: {error}", file=sys.stderr)
                continue
            found = model.user_factors_[:SHOWN] @ model.item_factors_.T
            if model.settings.loss == "cross-entropy":
                found = 1.0 / (1.0 + np.exp(-found))
            scores[f"{log}/{method} ({model.report_['solver']})"] = found
    np.savez(out, **scores)


def changes(
    methods: Sequence[str],
    logs: Sequence[str],
    folder: str | None = None,
    settings: Mapping[str, Mapping[str, str]] = SETTINGS,
) -> dict[str, dict[str, float]]:
    """The largest change of a score against the first setting, by setting and fit."""
    with tempfile.TemporaryDirectory() as kept:
        targets = {name: Path(kept) / f"{k}.npz" for k, name in enumerate(settings)}
        for name, target in targets.items():
            command = [sys.executable, __file__, "--worker", str(target)]
            command += ["--methods", ",".join(methods), "--logs", ",".join(logs)]
            command += ["--data", folder] if folder else []
            subprocess.run(command, env={**os.environ, **settings[name]}, check=True)
        found = {name: dict(np.load(target)) for name, target in targets.items()}
    first = next(iter(found.values()))
    return {
        name: {fit: float(np.abs(scores[fit] - first[fit]).max()) for fit in scores}
        for name, scores in found.items()
    }


def main() -> None:
    from puidrec.methods import METHODS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of Coat")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--logs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    methods = given.methods.split(",")
    logs = given.logs.split(",") if given.logs else ["simulated", *(["coat"] if given.data else [])]
    if given.worker is not None:
        fit_all(methods, logs, given.data, given.worker)
        return
    found = changes(methods, logs, given.data)
    names = list(SETTINGS)[1:]
    print("| fit | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for fit in found[AS_IT_IS]:
        print(f"| {fit} | " + " | ".join(f"{found[name][fit]:.0e}" for name in names) + " |")
    print(f"largest: {max(max(row.values()) for row in found.values()):.1e}")
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

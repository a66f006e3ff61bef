"""How far do scores depend on the machine? The same fits under other kernels, threads and starts.

    python bench/portable.py [--data FOLDER of coat] [--methods mf,dr,…] [--out portable.json]

Every method of the table is fitted on a simulated log (and on Coat, where its folder is given) as it is, with torch's
and MKL's plainest kernels, on one thread and on two, and from a start moved by 1e-7 (least squares), in processes of
their own. The table shows the largest change of a score over all pairs against the first fit; ratings span 0 to 1.
Methods that Adam trains take 20 epochs, which is enough to see rounding grow and spares hours.
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

import numpy as np

ONE = {"OMP_NUM_THREADS": "1"}
AS_IT_IS = "as it is"
SETTINGS = {
    AS_IT_IS: ONE,
    "again": ONE,
    "plain kernels of torch": {**ONE, "ATEN_CPU_CAPABILITY": "default"},
    "plain kernels of MKL": {**ONE, "MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "start moved by 1e-7": {**ONE, "PORTABLE_SHIFT": "1e-7"},
}
SIZES = {"simulated": {}, "small": {"n_users": 80, "n_items": 50}}
"""Simulated logs; the small one is for the test suite."""
ADAM, ADAM_EPOCHS = ("multi-ips", "multi-dr", "cvib", "auto-debias"), 20


def fit_all(methods: Sequence[str], logs: Sequence[str], folder: str | None, out: Path) -> None:
    """Fit every method on every log in this process; write all scores. A method that a log cannot train is left out."""
    import torch

    import puidrec as pr
    from puidrec.train import devices
    from puidrec.train.solver import Model

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    devices.SMALL = 0  # else small fits take one thread whatever is asked
    shift, start = float(os.environ.get("PORTABLE_SHIFT", "0")), Model.start
    if shift:
        Model.start = lambda *given: {k: v + shift for k, v in start(*given).items()}  # type: ignore[method-assign]
    scores: dict[str, np.ndarray] = {}
    for log in logs:
        data = (
            pr.load_dataset("coat", folder)
            if log == "coat"
            else pr.load_dataset("simulated", world="mixed", seed=0, **SIZES[log])
        )
        for method in methods:
            few = {"epochs": ADAM_EPOCHS} if method in ADAM else {}
            try:
                model = pr.Recommender(method, rng=0, **few).fit(data)
            except pr.InputError as error:
                print(f"{log}/{method}: {error}", file=sys.stderr)
                continue
            scores[f"{log}/{method} ({model.report_['solver']})"] = model.user_factors_ @ model.item_factors_.T
    np.savez(out, **scores)


def changes(
    methods: Sequence[str],
    logs: Sequence[str],
    folder: str | None = None,
    settings: Mapping[str, Mapping[str, str]] = SETTINGS,
    *,
    at_once: int = 1,
) -> dict[str, dict[str, float]]:
    """The largest change of a score against the first setting, by setting and fit; `at_once` processes at a time."""
    with tempfile.TemporaryDirectory() as kept:
        targets = {name: Path(kept) / f"{k}.npz" for k, name in enumerate(settings)}
        for start in range(0, len(settings), at_once):
            running = []
            for name in list(settings)[start : start + at_once]:
                command = [sys.executable, __file__, "--worker", str(targets[name]), "--methods", ",".join(methods)]
                command += ["--logs", ",".join(logs), *(["--data", folder] if folder else [])]
                running.append(subprocess.Popen(command, env={**os.environ, **settings[name]}))
            codes = [process.wait() for process in running]
            if any(codes):
                raise RuntimeError(f"a fit failed: exit codes {codes}")
        found = {name: dict(np.load(target)) for name, target in targets.items()}
    first = next(iter(found.values()))
    return {
        name: {fit: float(np.abs(scores[fit] - first[fit]).max()) for fit in scores} for name, scores in found.items()
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

"""How far do scores depend on the machine? The same fits under other kernels, threads and starts.

    python bench/portable.py [--data FOLDER of coat] [--methods mf,dr,…] [--solver least-squares] [--out portable.json]

Every method is fitted on a simulated log (and on Coat, where its folder is given) as it is, with torch's and MKL's
plainest kernels, on one thread and on two, and (least squares) from a start moved by 1e-7, in processes of their own.
The table shows the largest change of a score over all pairs against the first fit; ratings span 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SETTINGS = {
    "as it is": {"OMP_NUM_THREADS": "1"},
    "again": {"OMP_NUM_THREADS": "1"},
    "plain kernels of torch": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
    "plain kernels of MKL": {"OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "start moved by 1e-7": {"OMP_NUM_THREADS": "1", "PORTABLE_SHIFT": "1e-7"},
}
METHODS = "mf,ips,dr,rd-ips,rd-dr,brd-ips,brd-dr,puid-ips,puid-dr,bpuid-ips,bpuid-dr,signed-rd,signed-puid"


def fit_all(methods: list[str], solver: str, folder: str | None, out: Path) -> None:
    """Fit every method in this process; write all scores."""
    import torch

    import puidrec as pr
    from puidrec.train import devices
    from puidrec.train.solver import Model

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    devices.SMALL = 0  # else small fits take one thread whatever is asked
    shift, start = float(os.environ.get("PORTABLE_SHIFT", "0")), Model.start
    if shift:
        Model.start = lambda *given: {k: v + shift for k, v in start(*given).items()}  # type: ignore[method-assign]
    data = {"simulated": pr.load_dataset("simulated", world="mixed", seed=0)}
    if folder is not None:
        data["coat"] = pr.load_dataset("coat", folder)
    scores = {}
    for name, rows in data.items():
        for method in methods:
            model = pr.Recommender(method, rng=0, solver=solver).fit(rows)
            scores[f"{name}/{method}"] = model.user_factors_ @ model.item_factors_.T
    np.savez(out, **scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--solver", default="least-squares")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    methods = given.methods.split(",")
    if given.worker is not None:
        fit_all(methods, given.solver, given.data, given.worker)
        return
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        first = None
        for k, (name, variables) in enumerate(SETTINGS.items()):
            target = Path(folder) / f"{k}.npz"
            command = [sys.executable, __file__, "--worker", str(target), "--methods", given.methods]
            command += ["--solver", given.solver, *(["--data", given.data] if given.data else [])]
            subprocess.run(command, env={**os.environ, **variables}, check=True)
            scores = dict(np.load(target))
            first = scores if first is None else first
            found[name] = {fit: float(np.abs(scores[fit] - first[fit]).max()) for fit in scores}
    names = list(SETTINGS)[1:]
    print(f"| {given.solver} | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for fit in found["as it is"]:
        print(f"| {fit} | " + " | ".join(f"{found[name][fit]:.0e}" for name in names) + " |")
    print(f"largest: {max(max(row.values()) for row in found.values()):.1e}")
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

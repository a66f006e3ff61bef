"""What benches over simulated logs share: simulate a log once and keep it; measure in a process of
its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from puidrec.data.synthetic import simulate_to_parquet


def simulated(folder: Path, n_users: int, n_items: int, rows: int) -> Path:
    """A simulated log in a folder, made where it is not there yet."""
    if not (folder / "truth.json").exists():
        simulate_to_parquet(folder, "mixed", n_users, n_items, rows, rng=0)
    return folder


def measured(script: str, folder: Path) -> dict[str, Any]:
    """What `script --measure FOLDER` prints as JSON: a fresh process, so that the peak memory is
    that size's."""
    done = subprocess.run(
        [sys.executable, script, "--measure", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result

"""The long forms of the fault tests: the same tests as in tests/faults, repeated more often.

Usage: python bench/faults.py [kill] [commands] [models] [data] [tables] [disk] [soak]     (all of them without a name)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
LONG = {
    "kill": ("faults/test_kill.py", 50),
    "commands": ("faults/test_kill_commands.py", 3),
    "models": ("faults/test_model_files.py", 10_000),
    "data": ("faults/test_random_data.py", 1_000),
    "tables": ("data/sources/test_malformed_input.py", 5_000),
    "disk": ("faults/test_disk.py", 8),
    "soak": ("serve/test_soak.py", 30),
}
"""Kills of a training; kills of other commands; mutated model files; seeds of odd data sets, each
through every method; malformed tables; disks with more and more room; minutes of mixed and hostile
traffic on a server."""


def main() -> int:
    names = sys.argv[1:] or list(LONG)
    unknown = [name for name in names if name not in LONG]
    if unknown:
        print(f"unknown: {unknown[0]}; expected one of {', '.join(LONG)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        file, repeats = LONG[name]
        began = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", str(TESTS / file)]
        code = subprocess.run(
            command,
            check=False,
            env={**os.environ, "PUIDREC_FAULTS": str(repeats), "OMP_NUM_THREADS": "1"},
        ).returncode
        print(
            f"{name}: {'passed' if code == 0 else 'FAILED'}, {repeats} repeats, {time.perf_counter() - began:.0f} s"
        )
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

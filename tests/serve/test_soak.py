"""The short form of `bench/soak.py`: mixed traffic, hostile clients and new models, for some
seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs /proc, SIGHUP and a second loopback address"
)
def test_a_server_under_mixed_traffic_refuses_only_what_it_should() -> None:
    """PUIDREC_FAULTS (`bench/faults.py soak`): minutes."""
    minutes = os.environ.get("PUIDREC_FAULTS", "0.25")
    done = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", minutes, "--items", "2000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Scores do not depend on the machine: plain kernels, another number of threads and a moved start
give the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench" / "portable.py"
METHODS = ("mf", "dr", "rd-dr", "signed-rd", "all-rank", "spectrum")


@pytest.fixture(scope="module")
def portable():
    """bench/portable.py, which measures the same for all methods and larger logs."""
    spec = importlib.util.spec_from_file_location("portable", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_scores_do_not_depend_on_kernels_threads_or_a_moved_start(portable) -> None:
    given = portable.SETTINGS
    plain = given["plain kernels of torch"] | given["plain kernels of MKL"]
    settings = {
        portable.AS_IT_IS: given[portable.AS_IT_IS],
        "plain kernels": plain,
        "two threads": given["two threads"],
        "moved": given["start moved by 1e-7"],
    }
    found = portable.changes(METHODS, ["small"], settings=settings, at_once=2)
    for name in list(settings)[1:]:
        assert set(found[name]) == {f"small/{method} (least-squares)" for method in METHODS}
        assert max(found[name].values()) <= 1e-4, found[name]
    assert np.isfinite(list(found["moved"].values())).all()

"""Scores do not depend on the machine: plain kernels, another number of threads and a moved start
give the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "portable.py"
METHODS = ("spectrum", "mf", "dr", "rd-dr", "signed-rd", "all-rank")
"""The first chooses dim and L2."""


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
    """All at once: what one of them changes, the others do not undo to 1e-4."""
    as_it_is, _, *others = portable.SETTINGS.values()
    together = {
        key: value for one in others for key, value in one.items() if one[key] != as_it_is.get(key)
    }
    assert len(together) == 5
    settings = {portable.AS_IT_IS: as_it_is, "another machine": together}
    found = portable.changes(METHODS, ["small"], settings=settings)["another machine"]
    assert set(found) == {f"small/{method} (least-squares)" for method in METHODS}
    assert 0.0 < max(found.values()) <= 1e-4, found

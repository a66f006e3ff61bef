"""Scores change only on purpose: `python tests/golden/write.py`, and a line in CHANGELOG.md."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from puidrec.methods import METHODS

FOLDER = Path(__file__).parent
TOLERANCE = 1e-3
"""Sums are made in another order by other processors, numbers of threads and versions of torch:
solved scores move by 1e-4 at most then, those of Adam by a few of these; a change of a method moves
them by more than this."""
LOGS = ("features", "plain")


@cache
def writer():
    spec = importlib.util.spec_from_file_location("golden_write", FOLDER / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def data(log: str):
    return writer().logs()[log]


@cache
def golden(log: str) -> dict[str, list[float]]:
    return json.loads((FOLDER / f"{log}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("method", list(METHODS))
def test_scores_are_the_golden_ones(method: str, log: str, one_thread) -> None:
    assert (
        np.abs(np.array(writer().scores(method, data(log))) - golden(log)[method]).max() < TOLERANCE
    )


@pytest.mark.parametrize("log", LOGS)
def test_every_method_is_there_and_they_differ(log: str) -> None:
    """A file of a method that is gone, or the same scores for all, would prove nothing."""
    assert list(golden(log)) == list(METHODS)
    assert len({tuple(values) for values in golden(log).values()}) > 0.7 * len(METHODS)
    assert all(len(values) == 30 and np.ptp(values) > 0.01 for values in golden(log).values())

"""No `robust` for a worse model: few logs of another family than the simulator's, with nothing hidden.

`python bench/audit_guarantees.py` counts many.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def guarantees() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        import audit_guarantees
    finally:
        sys.path.remove(str(BENCH))
    return audit_guarantees


@pytest.mark.parametrize("kind", ["noisy", "memoriser", "fitted"])
def test_a_worse_model_is_never_robust(guarantees: ModuleType, kind: str) -> None:
    for verdicts in guarantees.count(kind, "nothing", 3).values():
        assert verdicts["robust"] == 0
        assert verdicts["undecided"] >= 2


def test_a_model_that_overfits_is_never_robust_against_means(guarantees: ModuleType) -> None:
    found = guarantees.verdicts("overfit", "nothing", 0)
    assert found["error"] == "undecided"
    assert "robust" not in found.values()

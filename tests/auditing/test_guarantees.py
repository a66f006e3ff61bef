"""No `robust` or `confirmed` for a worse model: few logs of another family than the simulator's.

`python bench/guarantees.py` counts many; these are worlds where popularity, activity and quality go
together.
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


@pytest.mark.parametrize("world", ["quality", "quality-pair"])
def test_verdicts_agree_with_the_truth(guarantees: ModuleType, world: str) -> None:
    """Ten pairs of models by three metrics with 1,000 uniform rows: at most one wrong, many
    decided, all in range."""
    found = list(guarantees.outcomes(world, 0, [1_000]))
    shares = guarantees.shares(found)
    assert shares["wrong"] <= 1
    assert shares["wrong_robust"] == 0
    assert shares["decided"] >= 0.6 * shares["large"]
    assert shares["large"] >= 10
    assert shares["inside"] == shares["n"]


@pytest.mark.parametrize("world", ["quality", "reversed"])
def test_a_model_that_is_worse_for_sure_is_never_robust(guarantees: ModuleType, world: str) -> None:
    """By heart, reversed, constant; by error and by ranking, from the log alone."""
    for seed in range(2):
        for verdicts in guarantees.impostors(world, seed).values():
            assert set(verdicts.values()) <= {"undecided", "fragile"}
            assert verdicts["error"] == "undecided"

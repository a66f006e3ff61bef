"""Small fits: one thread, and a checkpoint whenever one could be written."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Every test here trains."""


@pytest.fixture(autouse=True)
def _all_checkpoints(monkeypatch):
    """These fits take less than the second that lies between checkpoints."""
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SHARE", float("inf"))  # however long one takes

"""Tiny tensors: every test here runs on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """See the fixture."""

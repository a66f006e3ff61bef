"""Threads: small problems are faster on one, since handing out the work costs more than the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

SMALL = 2_000_000
"""Observed pairs × dimensions up to which one thread is faster."""


@contextlib.contextmanager
def threads_for(pairs: int, dim: int) -> Iterator[None]:
    """Use one thread for a small problem, and leave the setting as it was. The choice depends on sizes alone, so
    that equal runs are equal to the last bit."""
    before = torch.get_num_threads()
    try:
        if pairs * dim <= SMALL:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)

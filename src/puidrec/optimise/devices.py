"""Where to compute. Threads: small problems are faster on one, since handing out the work costs
more than the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from puidrec.errors import InputError

SMALL = 2_000_000
"""Observed pairs × dimensions up to which one thread is faster."""


def require_device(name: str) -> None:
    """Refuse a device that is not there, before any work is spent."""
    try:
        torch.zeros(1, device=name).add_(1.0).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = [kind for kind in ("cuda", "mps", "xpu") if getattr(torch, kind).is_available()]
        raise InputError(
            "no such device here",
            found=name,
            expected=f"one of {', '.join(['cpu', *found])}",
            hint="Leave device (--device) out to use the CPU.",
        ) from error


@contextlib.contextmanager
def threads_for(pairs: int, dim: int, small: int | None = None) -> Iterator[None]:
    """Use one thread for a small problem, and leave the setting as it was. The choice depends on
    sizes alone, so that equal runs are equal to the last bit."""
    before = torch.get_num_threads()
    try:
        if pairs * dim <= (SMALL if small is None else small):
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)

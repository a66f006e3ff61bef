"""Which rows of a side a process holds: a few ranges, in order. Rows go by their numbers among all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

Span = tuple[int, int]
"""Rows start..stop−1."""
DRAWN = 65_536
"""Rows drawn at once before those of others are dropped."""


@dataclass(frozen=True)
class Share:
    """Rows of `spans`, of `n_rows` in all."""

    spans: tuple[Span, ...]
    n_rows: int

    def __len__(self) -> int:
        return self._offsets[-1]

    @cached_property
    def _offsets(self) -> list[int]:
        return list(accumulate((b - a for a, b in self.spans), initial=0))

    def locate(self, rows: slice) -> slice:
        """Where rows start..stop−1, all of one span, are among our own."""
        start, stop, _ = rows.indices(self.n_rows)
        for (a, b), offset in zip(self.spans, self._offsets, strict=False):
            if a <= start and stop <= b:
                return slice(offset + start - a, offset + stop - a)
        raise IndexError(f"rows {start} to {stop} belong to another process")

    def cut(self, everyone: Tensor, axis: int = 0) -> Tensor:
        """Our own rows of everyone's."""
        return torch.cat([everyone.narrow(axis, a, b - a) for a, b in self.spans], axis)

    def draw(self, width: int, spread: float, generator: torch.Generator) -> Tensor:
        """Our own rows of the N(0, spread²) that one process would draw for all: in the same order, some at a time.

        Torch's generator cannot skip ahead, so the others' rows are drawn and dropped.
        """
        own = torch.zeros(len(self), width)
        start = 0
        while start < self.n_rows:
            stop = min(start + DRAWN, self.n_rows)
            stop += stop + 1 == self.n_rows  # torch draws a single row in another order
            block = torch.empty(stop - start, width + 1)[:, :width].normal_(0.0, spread, generator=generator)
            for (a, b), offset in zip(self.spans, self._offsets, strict=False):
                low, high = max(a, start), min(b, stop)
                if low < high:
                    own[offset + low - a : offset + high - a] = block[low - start : high - start]
            start = stop
        return own

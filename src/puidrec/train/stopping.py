"""When to stop: the best smoothed validation score, because a few hundred validation rows are noisy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

WARM_UP = 20
"""Epochs before the first candidate: early scores of a random start are luck."""


@dataclass
class Stopping:
    """Exponentially smoothed score, higher is better; remembers the best epoch and when patience runs out."""

    patience: int
    """Epochs without a better smoothed score before stopping; 0 runs all epochs and keeps the last."""
    smoothing: float = 0.9
    warm_up: int = WARM_UP
    epoch: int = -1
    smoothed: float | None = None
    best: float | None = None
    best_epoch: int = -1

    def update(self, score: float, admissible: bool = True) -> bool:
        """Take the next epoch's score; returns whether this epoch is the best so far (and may be chosen)."""
        self.epoch += 1
        self.smoothed = (
            score if self.smoothed is None else self.smoothing * self.smoothed + (1 - self.smoothing) * score
        )
        ready = self.patience == 0 or self.epoch >= self.warm_up
        better = self.patience == 0 or self.best is None or self.smoothed > self.best
        if admissible and ready and better:
            self.best, self.best_epoch = self.smoothed, self.epoch
            return True
        return False

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return 0 < self.patience <= self.epoch - max(self.best_epoch, self.warm_up)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on later."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on where `state` left off."""
        return cls(**state)

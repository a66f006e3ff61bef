"""How much one client may ask for: every bound in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from puidrec.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds of a request; a request beyond one is refused before any work."""

    k: int = 1000
    """Items per user."""
    users: int = 1000
    results: int = 100_000
    """Users × items per user of one answer."""
    items: int = 20_000
    """Items of a filter, and of new items."""
    pairs: int = 10_000
    body: int = 4 * 2**20
    """Bytes."""
    read_seconds: float = 10.0
    """For the body of a request to arrive."""
    seconds: float = 30.0
    """For an answer, waiting included."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise InputError(f"limit {name} must be positive", found=value)

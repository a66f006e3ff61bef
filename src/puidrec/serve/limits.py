"""How much one client may ask for: every bound in one place."""

from __future__ import annotations

from contextvars import ContextVar
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


CURRENT: ContextVar[Limits] = ContextVar("limits")
"""The limits of the server that is answering: lists are counted before anything looks at what is in them."""


class TooMany(Exception):  # noqa: N818 (it reads as what happens: raise TooMany)
    """More of something than a request may hold."""

    def __init__(self, field: str, found: int, limit: int, what: str | None = None) -> None:
        super().__init__(f"{what or field}: found {found:,}; expected at most {limit:,}")
        self.field = field


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        raise TooMany(field, found, limit, what)

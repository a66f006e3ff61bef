"""Plug-ins: registries whose unknown names are looked up among the entry points of installed
packages.

A package registers, for instance, `[project.entry-points."puidrec.metrics"] mine =
"my_package.metrics:MINE"`, and from then on `mine` is a metric like any other. Entry points are
read only when a name is not a built-in one, and only the plug-in of that name is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from puidrec.errors import InputError, one_line

GROUPS = (
    "puidrec.methods",
    "puidrec.backbones",
    "puidrec.propensities",
    "puidrec.gamma_rules",
    "puidrec.sources",
    "puidrec.metrics",
)
T = TypeVar("T")


def named(place: Any) -> Any:
    """What a row names as `module:name`, imported when asked for; all else is what is meant."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


Adapt = Callable[[str, Any], T]
"""From a plug-in's name and object to a row of the registry; returns None where the object is of
the wrong kind."""


class Registry(Mapping[str, T]):
    """Built-in rows by name; names that are not among them are looked up in the installed packages.

    A mapping rather than a dict, so that `in`, `[]` and `get` all find plug-ins. Iterating gives
    the built-in
    names only: it must not depend on what else is installed.
    """

    def __init__(
        self, group: str, rows: Mapping[str, T], adapt: Adapt[T | None], expected: str
    ) -> None:
        if group not in GROUPS:
            raise InputError("unknown group of plug-ins", found=group, expected=", ".join(GROUPS))
        self.group, self._rows, self._adapt, self._expected = group, dict(rows), adapt, expected
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._rows:
            return self._rows[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a row; a plug-in of that name that cannot be loaded is an error,
        not an absence."""
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def names(self) -> str:
        """All names, for the message about an unknown one: built-in rows, then plug-ins."""
        return ", ".join(
            [*self._rows, *sorted(set(entry_points(group=self.group).names) - set(self._rows))]
        )

    def _load(self, name: str) -> T:
        points = entry_points(group=self.group)
        stolen = next((point for point in points if point.name in self._rows), None)
        if stolen is not None:
            raise InputError(
                f"a plug-in of {_owner(stolen)} has the name of a built-in",
                found=stolen.name,
                expected=f"another name in the group {self.group}",
                hint="Rename it, or remove the package.",
            )
        own = {(point.value, _owner(point)): point for point in points if point.name == name}
        if not own:
            raise KeyError(name)
        if len(own) > 1:
            raise InputError(
                f"two plug-ins share the name in {self.group}",
                found=name,
                expected="one",
                hint="Remove one of "
                f"{' and '.join(f'{value} ({owner})' for value, owner in sorted(own))}.",
            )
        return self._adapted(next(iter(own.values())))

    def _adapted(self, point: EntryPoint) -> T:
        try:
            loaded = point.load()
        except Exception as error:  # whatever the plug-in raises on import: say whose it is
            reason = one_line(f"{type(error).__name__}: {error}")[:200]
            raise InputError(
                f"plug-in {point.name} of {_owner(point)} cannot be imported from {point.value} "
                f"({reason})",
                hint="Reinstall or remove the package.",
            ) from error
        row = self._adapt(point.name, loaded)
        if row is None:
            raise InputError(
                f"plug-in {point.name} of {_owner(point)} is of the wrong kind",
                found=type(loaded).__name__,
                expected=self._expected,
            )
        return row


def _owner(point: EntryPoint) -> str:
    """The distribution an entry point belongs to."""
    return f"package {point.dist.name}" if point.dist is not None else "an unnamed package"

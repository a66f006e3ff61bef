"""The cells of a study: one data set, method, seed and setting each, and what came out of it.

A cell is plain values, so that it can be named by a hash, sent to another process or machine, and found again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from puidrec.data.dataset import Dataset
from puidrec.data.protocol import get_protocol
from puidrec.data.sources import load_dataset
from puidrec.data.split import MaskKind
from puidrec.errors import InputError
from puidrec.evaluation.significance import PerUser
from puidrec.experiments.run import METRICS
from puidrec.settings import Settings

RESULTS_VERSION = 1
"""Raised when the same cell would give other figures than before, so that old results are not taken for new ones."""


@dataclass(frozen=True)
class DataSpec:
    """Which data: a source, its folder and options, and the share of the log to hide, drawn with a cell's seed."""

    name: str
    folder: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    mask: tuple[MaskKind, float] | None = None
    label: str | None = None
    """Name in tables, where two sets of options of one source must be told apart; the source's name by default."""

    @property
    def title(self) -> str:
        """The name in tables, with the mask."""
        name = self.label or self.name
        if self.mask is None:
            return name
        kind, ratio = self.mask
        return f"{name}, {ratio:.0%} of {'positive rows' if kind == 'positives' else 'rows'} masked"

    @property
    def identity(self) -> str:
        """What is loaded, whatever is masked afterwards and whatever it is called."""
        return _canonical({**self.to_plain(), "mask": None, "label": None})

    def load(self) -> Dataset:
        """The data set without the mask; the last few stay in the memory of the process."""
        return _load(self.identity)

    def to_plain(self) -> dict[str, Any]:
        """Plain values, from which `from_plain` makes an equal one."""
        folder = None if self.folder is None else str(Path(self.folder).resolve())
        options = {key: _plain(key, value) for key, value in self.options.items()}
        mask = None if self.mask is None else list(self.mask)
        return {"name": self.name, "folder": folder, "options": options, "mask": mask, "label": self.label}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `to_plain`."""
        folder = None if plain["folder"] is None else Path(plain["folder"])
        mask = None if plain["mask"] is None else (plain["mask"][0], float(plain["mask"][1]))
        return cls(plain["name"], folder, plain["options"], mask, plain["label"])


@dataclass(frozen=True)
class Cell:
    """One figure of a table before it is averaged: a method on a data set under one seed."""

    data: DataSpec
    method: str
    seed: int = 0
    protocol: str = "rd"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that depart from the method's defaults; a search leaves them alone."""
    label: str | None = None
    """Name in tables; the method by default."""
    preset: str = "own"
    budget: int = 1
    """Settings tried: the given ones, and budget − 1 drawn at random; the validation rows choose."""
    measured: bool = True
    """Whether the test rows are looked at; a trial of a search is not measured."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.label or self.method

    def names(self) -> dict[str, Any]:
        """What tells the cell from the others of its study, for rows of files."""
        mask = self.data.mask
        return {
            "data": self.data.label or self.data.name, "mask": None if mask is None else list(mask),
            "method": self.method, "label": self.name, "preset": self.preset, "protocol": self.protocol,
            "seed": self.seed,
        }  # fmt: skip

    @cached_property
    def resolved(self) -> Settings:
        """All settings, checked."""
        if "seed" in self.settings or "method" in self.settings:
            raise InputError("seed and method belong to the cell", found="a setting", hint="Give them by themselves.")
        return Settings.of(self.method, **self.settings, seed=self.seed)

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the result. Names in tables do not: the same cell is run once."""
        protocol = get_protocol(self.protocol)
        content = {
            "version": RESULTS_VERSION,
            "data": {**self.data.to_plain(), "label": None},
            "settings": self.resolved.model_dump(),
            "protocol": [protocol.name, protocol.version],
            "fixed": sorted(self.settings) if self.budget > 1 else [],
            "budget": self.budget,
            "metrics": list(METRICS) if self.measured else [],
        }
        return hashlib.sha256(_canonical(content).encode()).hexdigest()[:24]

    def check(self) -> Self:
        """Refuse what could not be run, before anything runs."""
        if not isinstance(self.budget, int) or self.budget < 1:
            raise InputError("a budget is at least one setting", found=self.budget, expected="a whole number from 1")
        if self.data.mask is not None and not 0.0 <= self.data.mask[1] < 1.0:
            raise InputError("mask ratio out of range", found=self.data.mask[1], expected="0 <= ratio < 1")
        _ = self.key
        return self

    def load(self) -> Dataset:
        """The cell's data, with the cell's own mask."""
        data = self.data.load()
        if self.data.mask is None:
            return data
        kind, ratio = self.data.mask
        return data.masked(ratio, kind, rng=self.seed, protocol=self.protocol)

    def to_plain(self) -> dict[str, Any]:
        """Plain values, from which `from_plain` makes an equal one."""
        return {
            "data": self.data.to_plain(), "method": self.method, "seed": self.seed, "protocol": self.protocol,
            "settings": {key: _plain(key, value) for key, value in self.settings.items()}, "label": self.label,
            "preset": self.preset, "budget": self.budget, "measured": self.measured,
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `to_plain`."""
        return cls(**{**plain, "data": DataSpec.from_plain(plain["data"])})


@dataclass(frozen=True)
class Result:
    """What came out of a cell."""

    cell: Cell
    metrics: dict[str, float]
    """On the test rows; empty for a trial of a search."""
    context: dict[str, Any]
    """What the metrics stand under: protocol, positive rate, test rows, what uniform rows were used for, …"""
    validation: float | None
    """Smoothed validation score of the chosen epoch and setting; None where nothing was validated."""
    settings: dict[str, Any]
    """The settings chosen, all of them."""
    per_user: Mapping[str, PerUser] = field(repr=False)
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """The row of `results.json`: no clock in it, so that equal seeds give equal bytes."""
        chosen = {"budget": self.cell.budget, "validation": self.validation, "settings": self.settings}
        return {**self.context, **chosen, **self.metrics, **self.cell.names()}


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=2)
def _load(canonical: str) -> Dataset:
    spec = DataSpec.from_plain(json.loads(canonical))
    return load_dataset(spec.name, spec.folder, **spec.options)


def _plain(key: str, value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Path):
        return str(value.resolve())
    if isinstance(value, list | tuple):
        return [_plain(key, part) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(f"option {key} is no plain value", found=value, expected="text, a number, true, false or a list")

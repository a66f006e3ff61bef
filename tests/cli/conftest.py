"""The command line, called as a user calls it: arguments in, exit code and two streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.cli import command as output
from puidrec.cli.main import run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def refused(self, *parts: str, code: int = 2) -> str:
        """The one line that a refusal must be."""
        assert self.code == code, self
        assert self.out == ""
        assert self.err.endswith("\n")
        line = self.err[:-1]
        assert line.splitlines() == [line]
        assert line.startswith("puid: ")
        assert "Traceback" not in line
        for part in parts:
            assert part in line, f"{part!r} not in {line!r}"
        return line


Puid = Callable[..., Outcome]


@pytest.fixture
def puid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Puid:
    """Run `puid ARGS` in this process, through the entry that maps errors to exit codes."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(output.console, "width", 100)  # it reads COLUMNS once
    monkeypatch.setattr(
        output, "FIRST_LINE", 3600.0
    )  # no output that depends on how busy the machine is
    monkeypatch.delenv("PUID_DEBUG", raising=False)

    def call(*args: object) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["puid", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            run()
        streams = capsys.readouterr()
        code = left.value.code
        return Outcome(code if isinstance(code, int) else 0, streams.out, streams.err)

    return call


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of the user's own files: 60 users of text ids, 40 items, a log, uniform rows,
    features."""
    folder = tmp_path / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    old, good = rng.random(60) < 0.5, rng.random(40)
    user, item = (axis.ravel() for axis in np.meshgrid(np.arange(60), np.arange(40), indexing="ij"))
    rating = np.clip(np.round(1 + 4 * good[item] + rng.normal(0, 0.7, user.size)), 1, 5).astype(int)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating}).with_columns(
        pl.format("u{}", pl.col("user_id")).alias("user_id")
    )
    chosen = rng.random(user.size) < np.where(old[user], 0.08, 0.3) * (0.4 + rating / 5)
    frame.filter(chosen).write_csv(folder / "logged.csv")
    frame.filter(rng.random(user.size) < 0.15).write_csv(folder / "uniform.csv")
    ages = pl.DataFrame(
        {"user_id": [f"u{k}" for k in range(60)], "age": np.where(old, "old", "young")}
    )
    ages.write_csv(folder / "users.csv")
    pl.DataFrame({"item_id": range(40), "kind": np.where(good > 0.5, "book", "film")}).write_csv(
        folder / "items.csv"
    )
    return folder

"""`--overlap`: uniform rows that are logged pairs, in every command that reads data."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

QUIET = ("--data", "files", "--scale", "1,5")


@pytest.fixture
def repeated(files: Path) -> tuple[int, int]:
    """Uniform rows of the files, and how many of them are logged pairs."""
    logged, uniform = (pl.read_csv(files / f"{name}.csv") for name in ("logged", "uniform"))
    return uniform.height, uniform.join(logged, on=["user_id", "item_id"], how="semi").height


def test_every_command_drops_and_counts_them_unless_told(
    puid, files: Path, tmp_path: Path, repeated
) -> None:
    rows, in_log = repeated
    assert in_log > 20
    data = (*QUIET, "--data-dir", files)
    words = f"{in_log:,} of {rows:,} uniform rows are logged pairs"
    described = json.loads(puid("data", "describe", *data, "--json").out)
    assert described["overlap"] == {
        "overlap": "drop",
        "uniform_rows": rows,
        "uniform_rows_in_log": in_log,
    }
    assert described["regimes"]["uniform"]["rows"] == rows - in_log
    kept = json.loads(puid("data", "describe", *data, "--overlap", "keep", "--json").out)
    assert kept["regimes"]["uniform"]["rows"] == rows
    trained = puid(
        "train", *data, "--protocol", "rd", "--method", "bias", "--out", tmp_path / "run"
    )
    assert f"{words} (dropped)" in " ".join(trained.out.split())
    measured = json.loads(puid("evaluate", tmp_path / "run", "--json").out)
    with_them = json.loads(puid("evaluate", tmp_path / "run", "--overlap", "keep", "--json").out)
    assert (measured["overlap"], with_them["overlap"]) == ("drop", "keep")
    assert with_them["test_rows"] > measured["test_rows"]


def test_a_comparison_says_so_in_every_table(puid, files: Path, tmp_path: Path, repeated) -> None:
    rows, in_log = repeated
    words = f"{in_log:,} of {rows:,} uniform rows are logged pairs"
    config = tmp_path / "compare.toml"
    config.write_text('overlap = "keep"\n')
    for name, given, done in (("drop", (), "dropped"), ("keep", ("-c", config), "kept")):
        out = tmp_path / name
        command = (
            "compare",
            *QUIET,
            "--data-dir",
            files,
            "--methods",
            "bias",
            "--seeds",
            1,
            "--engine",
            "inline",
            *("--set", "dim=2", "--set", "l2=0.1"),
        )
        outcome = puid(*command, *given, "--out", out)
        assert outcome.code == 0, outcome
        assert f"{words} ({done})" in " ".join(outcome.out.split())
        assert f"{words} ({done})" in (out / "table.md").read_text()
        assert f"{words} ({done})" in (out / "report.html").read_text()
        assert {
            row["uniform_rows_in_log"] for row in json.loads((out / "results.json").read_text())
        } == {in_log}


def test_a_uniform_file_taken_from_the_log_is_one_line(puid, files: Path, tmp_path: Path) -> None:
    pl.read_csv(files / "logged.csv").sample(150, seed=0).write_csv(files / "uniform.csv")
    data = (*QUIET, "--data-dir", files, "--set", "data.unknown_ids=keep")
    for command in (
        ("train", "--method", "bias", "--out", tmp_path / "run"),
        ("data", "describe"),
        ("gamma",),
    ):
        puid(*command, *data).refused(
            "uniform.csv", "mostly pairs of the log", "150 of 150", "--overlap keep"
        )
    assert not (tmp_path / "run").exists()
    assert puid("data", "describe", *data, "--overlap", "keep").code == 0
    puid("data", "describe", *data, "--overlap", "maybe").refused("overlap", "maybe", "drop")
    puid("data", "describe", *data, "--overlap", "keep", "--set", "data.overlap=drop").refused(
        "given twice"
    )

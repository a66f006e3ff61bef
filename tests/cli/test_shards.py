"""`--shards DIR`: train and gamma on a log that stays on disk, called as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest


@pytest.fixture
def options(files: Path) -> list[str]:
    """The user's files, the log as Parquet."""
    pl.read_csv(files / "logged.csv").write_parquet(files / "log.parquet")
    side = [f"--{key}={files / key}.csv" for key in ("uniform", "users", "items")]
    return [
        "--data",
        "files",
        "--logged",
        str(files / "log.parquet"),
        *side,
        "--scale",
        "1,5",
        "--json",
    ]


def test_train_from_disk_gives_the_figures_of_memory(puid, options, tmp_path: Path) -> None:
    train = ["train", *options, "--protocol", "rd", "--method", "puid-dr"]
    train += ["--set", "epochs=6", "--set", "dim=3", "--set", "l2=0.1"]
    memory = puid(*train)
    disk = puid(*train, "--shards", tmp_path / "shards", "--out", tmp_path / "run")
    assert disk.code == memory.code == 0, disk
    one, other = json.loads(memory.out), json.loads(disk.out)
    for name in ("uauc", "mse", "epochs", "best_epoch"):
        assert other[name] == pytest.approx(one[name], abs=1e-6)
    top = json.loads(puid("recommend", tmp_path / "run", "--users", "u3", "--k", 2, "--json").out)
    assert [row["rank"] for row in top] == [1, 2]
    assert (
        json.loads(puid("evaluate", tmp_path / "run", "--json").out)["uauc"] == other["uauc"]
    )  # the run's own shards
    puid(*train, "--shards", tmp_path / "shards", "--set", "propensity=given").refused(
        "in memory", "given"
    )


def test_a_log_alone_is_enough(puid, options, tmp_path: Path) -> None:
    alone = [
        option for option in options if not option.startswith(("--uniform", "--users", "--items"))
    ]
    train = [
        "train",
        *alone,
        "--method",
        "signed-rd",
        "--protocol",
        "paper",
        "--set",
        "epochs=6",
        "--set",
        "dim=3",
        "--set",
        "l2=0.1",
    ]
    memory, disk = puid(*train), puid(*train, "--shards", tmp_path / "shards")
    assert disk.code == 0, disk
    one, other = json.loads(memory.out), json.loads(disk.out)
    assert other["evaluated_on"] == one["evaluated_on"] == "logged"
    for name in ("uauc", "mse", "test_rows", "best_epoch"):
        assert other[name] == pytest.approx(one[name], abs=1e-5)
    gamma = puid("gamma", *alone, "--shards", tmp_path / "shards")
    assert gamma.code == 0, gamma


def test_gamma_from_disk_says_what_it_says_of_memory(puid, options, tmp_path: Path) -> None:
    memory, disk = puid("gamma", *options), puid("gamma", *options, "--shards", tmp_path / "shards")
    assert disk.code == 0, disk
    assert json.loads(disk.out)["gamma"] == pytest.approx(json.loads(memory.out)["gamma"])


def test_shards_are_for_files_and_parquet(puid, files: Path, tmp_path: Path) -> None:
    puid("train", "--data", "simulated", "--shards", tmp_path / "s").refused(
        "--shards", "--data files"
    )
    logged, uniform = files / "logged.csv", files / "uniform.csv"
    given = [
        "--data",
        "files",
        "--logged",
        logged,
        "--uniform",
        uniform,
        "--shards",
        tmp_path / "s",
    ]
    puid("train", *given).refused("logged.csv", "Parquet")
    assert not (tmp_path / "s").exists()

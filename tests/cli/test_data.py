from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset


def test_describe_counts_what_is_there(puid: Any, files: Path) -> None:
    done = puid("data", "describe", "--data", "files", "--data-dir", files, "--json")
    facts = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    logged, uniform = pl.read_csv(files / "logged.csv"), pl.read_csv(files / "uniform.csv")
    assert (facts["n_users"], facts["n_items"]) == (60, 40)
    for name, frame in (("logged", logged), ("uniform", uniform)):
        part = facts["regimes"][name]
        assert part["rows"] == frame.height
        assert part["mean_rating"] == pytest.approx(frame["rating"].mean())
        assert part["positive_rate"] == pytest.approx((frame["rating"] >= 4).mean())
        assert part["density"] == pytest.approx(frame.height / 2400)
    assert facts["features"] == {"users": ["age"], "items": ["kind"]}
    assert facts["sha256"] == load_dataset("files", files).sha256


def test_describe_for_people(puid: Any, files: Path) -> None:
    done = puid("data", "describe", "--data", "files", "--data-dir", files, "--protocol", "ge3")
    assert done.code == 0
    for words in ("60 users × 40 items", "logged", "uniform", "features of users: age", "the log is not a fair sample"):
        assert words in " ".join(done.out.split())


def test_single_files_and_settings_reach_the_loader(puid: Any, files: Path) -> None:
    renamed = files / "mine.csv"
    pl.read_csv(files / "logged.csv").rename({"rating": "stars"}).write_csv(renamed)
    done = puid(
        "data", "describe", "--data", "files", "--logged", renamed, "--set", "data.columns={rating = 'stars'}",
        "--scale", "0,10", "--json",
    )  # fmt: skip
    assert json.loads(done.out)["scale"] == [0.0, 10.0]
    puid("data", "describe", "--data", "files", "--logged", renamed, "--set", "date.x=1").refused("unknown setting")
    puid("data", "describe", "--data", "files", "--logged", renamed, "--set", "data.x=1").refused("'x'")


@pytest.mark.real_data
def test_describe_coat(puid: Any, data_root: Path) -> None:
    facts = json.loads(puid("data", "describe", "--data", "coat", "--data-dir", data_root / "coat", "--json").out)
    assert (facts["n_users"], facts["n_items"]) == (290, 300)
    assert [facts["regimes"][name]["rows"] for name in ("logged", "uniform")] == [6960, 4640]


def test_what_simulate_writes_describe_reads(puid: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sim"
    size = ("--users", 120, "--items", 80, "--rows", 900, "--uniform-rows", 300, "--seed", 3)
    done = puid("data", "simulate", "--world", "pair", *size, "--out", folder, "--json")
    written = json.loads(done.out)
    assert (written["users"], written["items"], written["uniform_rows"]) == (120, 80, 300)
    assert abs(written["rows"] - 900) < 6 * 900**0.5
    read = json.loads(puid("data", "describe", "--data", "simulated", "--data-dir", folder, "--json").out)
    assert [read["regimes"][name]["rows"] for name in ("logged", "uniform")] == [written["rows"], 300]
    again = puid("data", "simulate", "--world", "pair", *size, "--out", tmp_path / "twin")
    assert "next: puid data describe" in again.out
    twin = json.loads(puid("data", "describe", "--data", "simulated", "--data-dir", tmp_path / "twin", "--json").out)
    assert twin["sha256"] == read["sha256"]


def test_simulate_without_uniform_rows(puid: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sim"
    arguments = ("--users", 60, "--items", 50, "--uniform-rows", 0)
    assert json.loads(puid("data", "simulate", *arguments, "--out", folder, "--json").out)["uniform_rows"] == 0
    assert not (folder / "uniform.parquet").exists()


def test_simulate_refuses_an_unknown_world_and_strange_folders(puid: Any, tmp_path: Path) -> None:
    puid("data", "simulate", "--world", "flat", "--out", tmp_path / "sim").refused("flat", "entity")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "letter.txt").write_text("keep me")
    assert puid("data", "simulate", "--users", 20, "--items", 20, "--out", tmp_path).code == 2
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_convert_kuairec(puid: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "original", tmp_path / "compact"
    source.mkdir()
    rng = np.random.default_rng(0)
    user, video = (axis.ravel() for axis in np.meshgrid(range(12), range(20), indexing="ij"))
    watched = {"user_id": user, "video_id": video, "watch_ratio": rng.choice([0.5, 3.0], user.size)}
    pl.DataFrame(watched).write_csv(source / "small_matrix.csv")
    facts = json.loads(puid("data", "convert", "kuairec", source, target, "--json").out)
    assert (facts["users"], facts["videos"], facts["observed"]) == (12, 20, 240)
    assert facts["positives"] == int((watched["watch_ratio"] > 2).sum())
    assert facts["bytes"] == {file.name: file.stat().st_size for file in target.iterdir()}
    said = puid("data", "convert", "kuairec", source, tmp_path / "second").out
    assert "12 users, 20 videos, 240 observed" in " ".join(said.split())


def test_convert_refuses(puid: Any, tmp_path: Path) -> None:
    puid("data", "convert", "coat", tmp_path, tmp_path / "x").refused("'coat'", "expected kuairec")
    puid("data", "convert", "kuairec", tmp_path / "nowhere", tmp_path / "x").refused("nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    puid("data", "convert", "kuairec", empty, tmp_path / "x").refused("small_matrix.csv")
    assert [file.name for file in tmp_path.rglob("*")] == ["empty"]

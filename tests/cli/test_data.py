from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset


def test_describe_counts_what_is_there(puid: Any, files: Path) -> None:
    done = puid(
        "data", "describe", "--data", "files", "--data-dir", files, "--overlap", "keep", "--json"
    )
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
    for words in (
        "60 users × 40 items",
        "logged",
        "uniform",
        "features of users: age",
        "the log is not a fair sample",
    ):
        assert words in " ".join(done.out.split())


def test_single_files_and_settings_reach_the_loader(puid: Any, files: Path) -> None:
    renamed = files / "mine.csv"
    pl.read_csv(files / "logged.csv").rename({"rating": "stars"}).write_csv(renamed)
    done = puid(
        "data",
        "describe",
        "--data",
        "files",
        "--logged",
        renamed,
        "--set",
        "data.columns={rating = 'stars'}",
        "--scale",
        "0,10",
        "--json",
    )
    assert json.loads(done.out)["scale"] == [0.0, 10.0]
    puid("data", "describe", "--data", "files", "--logged", renamed, "--set", "date.x=1").refused(
        "unknown setting"
    )
    puid("data", "describe", "--data", "files", "--logged", renamed, "--set", "data.x=1").refused(
        "'x'"
    )


@pytest.mark.real_data
def test_describe_coat(puid: Any, data_root: Path) -> None:
    facts = json.loads(
        puid("data", "describe", "--data", "coat", "--data-dir", data_root / "coat", "--json").out
    )
    assert (facts["n_users"], facts["n_items"]) == (290, 300)
    assert [facts["regimes"][name]["rows"] for name in ("logged", "uniform")] == [6960, 4274]
    assert facts["overlap"] == {"overlap": "drop", "uniform_rows": 4640, "uniform_rows_in_log": 366}


def test_what_simulate_writes_describe_reads(puid: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sim"
    size = ("--users", 120, "--items", 80, "--rows", 900, "--uniform-rows", 300, "--seed", 3)
    done = puid("data", "simulate", "--world", "pair", *size, "--out", folder, "--json")
    written = json.loads(done.out)
    assert (written["users"], written["items"], written["uniform_rows"]) == (120, 80, 300)
    assert abs(written["rows"] - 900) < 6 * 900**0.5
    read = json.loads(
        puid("data", "describe", "--data", "simulated", "--data-dir", folder, "--json").out
    )
    assert (read["regimes"]["logged"]["rows"], read["overlap"]["uniform_rows"]) == (
        written["rows"],
        300,
    )
    again = puid("data", "simulate", "--world", "pair", *size, "--out", tmp_path / "twin")
    assert "next: puid data describe" in again.out
    twin = json.loads(
        puid(
            "data", "describe", "--data", "simulated", "--data-dir", tmp_path / "twin", "--json"
        ).out
    )
    assert twin["sha256"] == read["sha256"]


def test_simulate_without_uniform_rows(puid: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sim"
    arguments = ("--users", 60, "--items", 50, "--uniform-rows", 0)
    assert (
        json.loads(puid("data", "simulate", *arguments, "--out", folder, "--json").out)[
            "uniform_rows"
        ]
        == 0
    )
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


def test_a_log_without_header_goes_out_as_recbole_and_comes_in_again(
    puid: Any, files: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "ratings.dat"
    log = pl.read_csv(files / "logged.csv").select("user_id", "item_id", "rating")
    bare.write_text("".join("::".join(map(str, row)) + "\n" for row in log.rows()))
    told = ("--data", "files", "--logged", bare, "--columns", "user_id,item_id,rating")
    expected = json.loads(puid("data", "describe", *told, "--json").out)["sha256"]
    assert expected == load_dataset("files", logged=files / "logged.csv").sha256
    done = puid("data", "export", *told, "--format", "recbole", "--out", tmp_path / "out")
    assert done.code == 0, done
    again = puid("data", "describe", "--data", "recbole", "--data-dir", tmp_path / "out", "--json")
    assert json.loads(again.out)["sha256"] == expected
    puid("data", "export", *told, "--format", "csr", "--out", tmp_path / "out").refused(
        "holds other files"
    )


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ("user_id,item_id", ("3 fields", "expected 2")),
        ("user_id,item_id,stars", ("unknown name of a column", "stars")),
        ("user_id,,rating", ("not names of columns", "user_id=uid")),
        ("user_id=a,rating", ("not names of columns",)),
        (None, ("no header line", "--columns user_id,item_id,rating,timestamp")),
    ],
)
def test_wrong_columns_write_nothing(
    puid: Any, tmp_path: Path, columns: str | None, parts: tuple[str, ...]
) -> None:
    log, out = tmp_path / "u.data", tmp_path / "out"
    log.write_text("1\t2\t3\n2\t3\t4\n")
    told = () if columns is None else ("--columns", columns)
    puid("train", "--data", "files", "--logged", log, *told, "--out", out).refused(*parts)
    puid(
        "data", "export", "--data", "files", "--logged", log, *told, "--format", "csr", "--out", out
    ).refused(*parts)
    assert not out.exists()


def test_a_renaming_on_the_command_line(puid: Any, files: Path, tmp_path: Path) -> None:
    pl.read_csv(files / "logged.csv").rename({"user_id": "uid", "rating": "stars"}).write_csv(
        tmp_path / "log.csv"
    )
    told = (
        "--data",
        "files",
        "--logged",
        tmp_path / "log.csv",
        "--columns",
        "user_id=uid,rating=stars",
    )
    found = json.loads(puid("data", "describe", *told, "--json").out)["sha256"]
    assert found == load_dataset("files", logged=files / "logged.csv").sha256

"""`puid compare`, `tune`, `reproduce` and `demo`, called as a user calls them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec import atomic, demo
from puidrec.comparing.comparison import BASELINES
from puidrec.data.sources.ml_100k import GENRES
from puidrec.methods import METHODS
from puidrec.report import audit as page

SIZES = ("--set", "data.n_users=60", "--set", "data.n_items=40")
QUICK = (*SIZES, "--set", "epochs=4", "--set", "dim=4", "--set", "l2=0.1", "--engine", "inline")


def test_compare_prints_tables_and_writes_the_files(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("compare", "--methods", "mf,rd-ips", "--seeds", 2, *QUICK, "--out", out)
    outcome = puid(*command)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    for word in (
        "rd-ips",
        "item-rate",
        "bias",
        "reference",
        "± seeds",
        "95 % interval",
        "protocol rd",
        str(out),
    ):
        assert word in outcome.out
    files = {path.name for path in out.iterdir()}
    assert files == {
        "cells",
        "results.json",
        "summary.json",
        "table.md",
        "timings.json",
        "report.html",
        "chart-uauc.png",
        "chart-ndcg-5.png",
    }
    rows = json.loads((out / "results.json").read_text())
    assert len(rows) == 2 * (2 + len(BASELINES))
    assert {row["label"] for row in rows} == {"mf", "rd-ips", *BASELINES}
    assert {row["settings"]["epochs"] for row in rows} == {4}
    unfinished = next(
        (f"{row['label']} ({row['not_converged']})" for row in rows if "not_converged" in row), None
    )
    assert unfinished is not None
    assert f"Not converged: {unfinished}" in " ".join(outcome.out.split())
    before = {path: path.read_bytes() for path in out.glob("*.*") if path.name != "timings.json"}
    again = puid(*command, "--json")
    assert json.loads(again.out)["reference"] == "mf"
    assert len(json.loads(again.out)["rows"]) == 2 * (2 + len(BASELINES))
    assert all(path.read_bytes() == content for path, content in before.items())


def test_results_that_puid_did_not_write_are_not_replaced(puid, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("mine")
    puid("compare", "--methods", "mf", *QUICK, "--out", tmp_path).refused(
        "results.json", "would be replaced"
    )
    puid("tune", "--method", "mf", *QUICK, "--out", tmp_path).refused(
        "results.json", "would be replaced"
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"results.json": "mine"}


def test_studies_take_renamed_columns(puid, files: Path, tmp_path: Path) -> None:
    for name in ("logged", "uniform"):
        table = pl.read_csv(files / f"{name}.csv").rename({"user_id": "uid", "rating": "stars"})
        table.write_csv(files / f"{name}.csv")
    columns = 'data.columns={user_id="uid", rating="stars"}'
    data = (
        "--data",
        "files",
        "--logged",
        files / "logged.csv",
        "--uniform",
        files / "uniform.csv",
        "--set",
        columns,
    )
    quick = (
        "--set",
        "epochs=2",
        "--set",
        "dim=2",
        "--set",
        "l2=0.1",
        "--engine",
        "inline",
        "--json",
    )
    compared = puid(
        "compare", *data, "--methods", "mf", "--seeds", 1, *quick, "--out", tmp_path / "out"
    )
    assert compared.code == 0, compared
    tuned = puid("tune", *data, "--method", "mf", "--budget", 2, *quick)
    assert len(json.loads(tuned.out)) == 2


def test_scores_of_another_package_stand_beside_ours(puid, files: Path, tmp_path: Path) -> None:
    rows = pl.read_csv(files / "uniform.csv").select("user_id", "item_id", score="rating")
    rows.write_csv(tmp_path / "cheat.csv")
    rows.with_columns(score=pl.lit(3.0)).write_parquet(tmp_path / "flat.parquet")
    log = ("--logged", files / "logged.csv", "--uniform", files / "uniform.csv")
    command = ("compare", "--data", "files", *log, "--methods", "mf", "--seeds", 2)
    command += ("--set", "dim=2", "--set", "l2=0.1", "--engine", "inline")
    cheat, flat = (f"--scores={tmp_path / name}" for name in ("cheat.csv", "flat.parquet"))
    outcome = puid(*command, cheat, flat, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome
    assert "cheat, flat: fitted elsewhere" in " ".join(outcome.out.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    uauc = {row["label"]: row for row in summary["rows"] if row["metric"] == "uauc"}
    assert (uauc["cheat"]["mean"], uauc["flat"]["mean"]) == (pytest.approx(1.0), 0.5)
    assert uauc["cheat"]["difference"] > 0
    assert any("data leakage" in line for line in summary["notes"])
    kept = len(list((tmp_path / "out" / "cells").iterdir()))
    assert kept == 2 * (3 + len(BASELINES))
    rows.head(5).write_csv(tmp_path / "few.csv")
    few = f"--scores=few={tmp_path / 'few.csv'}"
    puid(*command, few).refused("few: no score for", "rows; found 'user")
    puid(*command, "--scores", "=x.csv").refused("NAME=FILE")
    puid(*command, "--scores", "x=nowhere.csv").refused("no such file", "nowhere.csv")


def test_all_methods_and_settings_only_where_they_mean_something(puid) -> None:
    given = (
        "--set",
        "gamma=residual",
        "--set",
        "alpha=2",
        "--set",
        "epochs=1",
        "--metrics",
        "ndcg@5",
    )
    outcome = puid("compare", "--seeds", 1, *QUICK, *given, "--json")
    assert outcome.code == 0, outcome
    rows = json.loads(outcome.out)["rows"]
    assert {row["label"] for row in rows} == {
        name for name, spec in METHODS.items() if not spec.needs_uniform
    }
    assert {row["metric"] for row in rows} == {"ndcg@5"}


def test_files_and_a_search_and_observational_choice(puid, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = (
        "--data",
        "files",
        "--logged",
        files / "logged.csv",
        "--uniform",
        files / "uniform.csv",
        "--scale",
        "1,5",
    )
    more = (
        "--budget",
        2,
        "--select",
        "observational",
        "--methods",
        "mf",
        "--seed",
        5,
        "--seeds",
        1,
    )
    more += ("--reference", "bias")
    quick = ("--set", "epochs=3", "--set", "dim=2", "--set", "l2=0.1", "--engine", "inline")
    outcome = puid("compare", *data, *more, *quick, "--out", out)
    assert outcome.code == 0, outcome
    mf, *_ = json.loads((out / "results.json").read_text())
    assert (mf["seed"], mf["trials"], mf["settings"]["select"]) == (5, 2, "observational")
    assert mf["uniform_rows_used"] == "none"


def test_a_config_file_holds_options_and_settings(puid, tmp_path: Path) -> None:
    config = tmp_path / "study.toml"
    config.write_text(
        'methods = "mf"\nseeds = 1\nengine = "inline"\nepochs = 3\nl2 = 0.1\n'
        'settings = ["data.n_users=60", "data.n_items=40"]\n'
    )
    outcome = puid("compare", "-c", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome
    assert json.loads((tmp_path / "out" / "results.json").read_text())[0]["settings"]["epochs"] == 3


def test_a_failed_job_is_named_and_the_rest_is_there(puid, tmp_path: Path) -> None:
    outcome = puid(
        "compare",
        "--methods",
        "mf,item-rate",
        "--seeds",
        1,
        *QUICK,
        "--set",
        "solver=adam",
        "--set",
        "lr=1e30",
        "--out",
        tmp_path,
    )
    assert outcome.code == 1
    assert "2 of 6 jobs failed: mf on simulated, seed 0: training diverged" in outcome.err
    assert (
        "; all-rank on simulated, seed 0: training diverged" in outcome.err
    )  # always shown, and trained
    assert len(outcome.err.splitlines()) == 1
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["label"] for row in rows] == ["item-rate", "bias", "pure-svd", "ease"]
    assert "item-rate" in outcome.out


def test_mistakes_in_compare_are_one_line_and_write_nothing(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = (*QUICK, "--out", out)
    puid("compare", "--methods", "nope", *to).refused("unknown method", "nope")
    puid("compare", "--methods", "mf,mf", *to).refused("twice", "mf")
    puid("compare", "--methods", ",", *to).refused("no method given")
    puid("compare", "--methods", "mf", "--reference", "dr", *to).refused("reference", "dr", "mf")
    puid("compare", "--methods", "mf", "--seeds", 0, *to).refused("seed")
    puid("compare", "--methods", "mf", "--budget", 0, *to).refused("budget")
    puid("compare", "--methods", "mf", "--workers", 0, *to).refused("worker")
    puid("compare", "--methods", "mf", "--metrics", "nope", *to).refused("unknown metric", "ndcg@5")
    puid("compare", "--methods", "mf", "--protocol", "nope", *to).refused("unknown protocol")
    puid("compare", "--methods", "mf", *to, "--engine", "nope").refused("unknown engine", "local")
    puid("compare", "--methods", "mf", *to, "--set", "epoch=3").refused(
        "unknown setting", "Did you mean epochs?"
    )
    puid("compare", "--methods", "mf", *to, "--set", "data.nope=3").refused("nope")
    puid("compare", "--methods", "mf", *to, "--set", "seed=3").refused("seed")
    puid("compare", "--methods", "mf", *to, "--select", "x").refused("select")
    puid("compare", "--data", "coat", "--data-dir", tmp_path / "none", "--out", out).refused("none")
    puid("compare", "--logged", "x.csv", *to).refused("--data files")
    assert not out.exists()
    out.write_text("x")
    puid("compare", "--methods", "mf", *to).refused("need a folder")
    assert out.read_text() == "x"


def test_the_help_says_that_baselines_are_always_shown(puid) -> None:
    text = " ".join(puid("compare", "--help").out.replace("│", " ").split())
    assert "all-rank and ease are always shown" in text
    assert "Example:" in text


def test_the_best_trial_trains_as_it_is(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = puid("tune", "--method", "rd-ips", "--budget", 4, *QUICK, "--out", out)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    for word in ("default", "score", "l2", "gamma", "best.toml", "next: puid train -c"):
        assert word in outcome.out
    trials = json.loads((out / "trials.json").read_text())
    assert len(trials) == 4
    assert ("Not converged: trial" in " ".join(outcome.out.split())) == any(
        "not_converged" in row for row in trials
    )
    trained = puid("train", "-c", out / "best.toml", "--data", "simulated", *SIZES, "--json")
    assert trained.code == 0, trained
    facts = json.loads(trained.out)
    assert facts["method"] == "rd-ips"
    assert (
        facts["validation"] == trials[0]["validation"]
    )  # the same model: seed 0, the same settings
    shown = puid("tune", "--method", "rd-ips", "--budget", 4, *QUICK, "--out", out, "--json")
    assert json.loads(shown.out) == trials


def test_several_seeds_and_many_trials(puid, tmp_path: Path) -> None:
    small = (*SIZES, "--set", "epochs=1", "--set", "dim=4", "--set", "l2=0.1", "--engine", "inline")
    outcome = puid(
        "tune", "--method", "mf", "--budget", 12, "--seeds", 2, *small, "--out", tmp_path
    )
    assert outcome.code == 0, outcome
    assert "2 more trials" in outcome.out
    assert set(json.loads((tmp_path / "trials.json").read_text())[0]["seeds"]) == {"0", "1"}


def test_a_method_without_settings_says_so(puid) -> None:
    outcome = puid("tune", "--method", "item-rate", *QUICK)
    assert outcome.code == 0, outcome
    assert "no settings to search: one trial" in outcome.out


def test_mistakes_in_tune_are_one_line_and_write_nothing(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = (*QUICK, "--out", out)
    puid("tune", "--method", "nope", *to).refused("unknown method")
    puid("tune", "--method", "mf", "--budget", 0, *to).refused("budget")
    puid("tune", "--method", "mf", "--seeds", 0, *to).refused("seed")
    puid("tune", "--method", "mf", *to, "--set", "nope=1").refused("unknown setting")
    puid(
        "tune", "--method", "mf", "--data", "coat", "--data-dir", tmp_path / "none", "--out", out
    ).refused("none")
    assert not out.exists()
    assert (
        puid(
            "tune",
            "--method",
            "mf",
            *QUICK,
            "--set",
            "solver=adam",
            "--set",
            "lr=1e30",
            "--budget",
            1,
            "--out",
            out,
        ).code
        == 1
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with twenty films and users in the shape of MovieLens, and nothing else."""
    folder = tmp_path / "data" / "ml-100k"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((20, 20)) < 0.4) + 1
    (folder / "u.data").write_text(
        "".join(f"{u}\t{i}\t{rng.integers(1, 6)}\t1\n" for u, i in pairs)
    )
    (folder / "u.user").write_text(
        "".join(f"{u}|{20 + u % 7}|{'MF'[u % 2]}|writer|{u % 10}5711\n" for u in range(1, 21))
    )
    flags = (rng.random((20, len(GENRES))) < 0.3).astype(int)
    films = [
        f"{i + 1}|Film|01-Jan-19{60 + i % 9}||http://x|{'|'.join(map(str, flags[i]))}\n"
        for i in range(20)
    ]
    (folder / "u.item").write_text("".join(films))
    return folder.parent


def test_a_question_is_answered_in_files(puid, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = puid("reproduce", "rq4", "--data-root", root, "--quick", "--workers", 1, "--out", out)
    assert said.code == 0, said
    assert "hidden user features (RQ4)" in said.out
    assert {path.name for path in out.iterdir()} >= {"results.json", "summary.json", "paper.md"}
    text = (out / "paper.md").read_text()
    assert "puid reproduce rq4 --data-root DIR --seeds 1 --quick --out DIR" in text
    assert str(root) not in text
    before = (out / "paper.md").read_bytes()
    again = puid(
        "reproduce", "rq4", "--data-root", root, "--quick", "--workers", 1, "--out", out, "--json"
    )
    assert json.loads(again.out)["questions"] == ["rq4"]
    assert (out / "paper.md").read_bytes() == before


def test_absent_data_sets_are_named_on_one_line_each(puid, root: Path, tmp_path: Path) -> None:
    said = puid(
        "reproduce",
        "rq1",
        "rq4",
        "--data-root",
        root,
        "--quick",
        "--workers",
        1,
        "--out",
        tmp_path / "out",
    )
    assert said.code == 0, said
    lines = said.err.splitlines()
    assert [line.split()[1] for line in lines] == ["coat", "yahoo-r3", "kuairec"]
    assert all("To get it" in line for line in lines)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("rq9",), ("rq9", "unknown question")),
        (("rq1",), ("none of the data sets", "coat")),
        (("rq4", "--seeds", "0"), ("--seeds",)),
        (("rq4", "--workers", "0"), ("worker",)),
        (("rq4", "--engine", "abacus"), ("abacus",)),
    ],
)
def test_mistakes_in_reproduce_are_told_before_any_work(
    args, parts, puid, root: Path, tmp_path: Path
) -> None:
    puid("reproduce", *args, "--data-root", root, "--out", tmp_path / "out").refused(*parts)
    assert not (tmp_path / "out").exists()


def test_reproduce_does_not_replace_a_file(puid, root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    puid("reproduce", "rq4", "--data-root", root, "--out", tmp_path / "out").refused(
        "folder", "out"
    )
    assert (tmp_path / "out").read_text() == "mine"


def test_a_disk_that_is_full_leaves_what_was_there(
    puid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo.json").write_text("old")
    (tmp_path / "own.txt").write_text("kept")
    found = SimpleNamespace(to_dict=dict)
    monkeypatch.setattr(demo, "run_demo", lambda *_: ({}, found))
    monkeypatch.setattr(page, "demo_html", lambda *_: "page")
    really = atomic.write_text

    def full(path: Path, content: str) -> None:
        if path.name == "report.html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write_text", full)
        puid("demo", "--out", tmp_path).refused("No space", str(tmp_path), code=1)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "demo.json": "old",
        "own.txt": "kept",
    }
    assert puid("demo", "--out", tmp_path, "--json").code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "demo.json",
        "own.txt",
        "report.html",
    ]


def test_a_page_that_puid_did_not_write_is_not_replaced(puid: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    puid("demo", "--out", tmp_path).refused("report.html", "would be replaced")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"report.html": "mine"}

"""`puid compare`, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

from puidrec.cli.studies import BASELINES
from puidrec.methods import METHODS

SMALL = ("--set", "data.n_users=60", "--set", "data.n_items=40", "--set", "epochs=4", "--set", "dim=4")
QUICK = (*SMALL, "--engine", "inline")


def test_it_prints_tables_and_writes_the_files(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("compare", "--methods", "mf,rd-ips", "--seeds", 2, *QUICK, "--out", out)
    outcome = puid(*command)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    for word in ("rd-ips", "item-rate", "bias", "reference", "± seeds", "95 % over users", "protocol rd", str(out)):
        assert word in outcome.out
    files = {path.name for path in out.iterdir()}
    assert files == {
        "cells", "results.json", "summary.json", "table.md", "timings.json", "report.html", "chart-uauc.png",
        "chart-ndcg-5.png",
    }  # fmt: skip
    rows = json.loads((out / "results.json").read_text())
    assert len(rows) == 8
    assert {row["label"] for row in rows} == {"mf", "rd-ips", *BASELINES}
    assert {row["settings"]["epochs"] for row in rows} == {4}
    before = {path: path.read_bytes() for path in out.glob("*.*") if path.name != "timings.json"}
    again = puid(*command, "--json")
    assert json.loads(again.out)["reference"] == "mf"
    assert len(json.loads(again.out)["rows"]) == 4 * 2
    assert all(path.read_bytes() == content for path, content in before.items())


def test_results_of_others_are_not_replaced(puid, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("mine")
    puid("compare", "--methods", "mf", *QUICK, "--out", tmp_path).refused("results.json", "would be replaced")
    puid("tune", "--method", "mf", *QUICK, "--out", tmp_path).refused("results.json", "would be replaced")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"results.json": "mine"}


def test_all_methods_and_settings_only_where_they_mean_something(puid) -> None:
    given = ("--set", "gamma=residual", "--set", "alpha=2", "--set", "epochs=1", "--metrics", "ndcg@5")
    outcome = puid("compare", "--seeds", 1, *QUICK, *given, "--json")
    assert outcome.code == 0, outcome
    rows = json.loads(outcome.out)["rows"]
    assert {row["label"] for row in rows} == set(METHODS)
    assert {row["metric"] for row in rows} == {"ndcg@5"}


def test_files_and_a_search_and_observational_choice(puid, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = ("--data", "files", "--logged", files / "logged.csv", "--uniform", files / "uniform.csv", "--scale", "1,5")
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
        "--reference",
        "bias",
    )
    outcome = puid("compare", *data, *more, "--set", "epochs=3", "--engine", "inline", "--out", out)
    assert outcome.code == 0, outcome
    mf, *_ = json.loads((out / "results.json").read_text())
    assert (mf["seed"], mf["trials"], mf["settings"]["select"]) == (5, 2, "observational")
    assert mf["uniform_rows_used"] == "none"


def test_a_config_file_holds_options_and_settings(puid, tmp_path: Path) -> None:
    config = tmp_path / "study.toml"
    config.write_text(
        'methods = "mf"\nseeds = 1\nengine = "inline"\nepochs = 3\nsettings = ["data.n_users=60", "data.n_items=40"]\n'
    )
    outcome = puid("compare", "-c", config, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome
    assert json.loads((tmp_path / "out" / "results.json").read_text())[0]["settings"]["epochs"] == 3


def test_a_failure_is_named_and_the_rest_is_there(puid, tmp_path: Path) -> None:
    outcome = puid("compare", "--methods", "mf,item-rate", "--seeds", 1, *QUICK, "--set", "lr=1e30", "--out", tmp_path)
    assert outcome.code == 1
    assert "1 of 3 jobs failed: mf on simulated, seed 0: training of mf diverged" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2
    assert "item-rate" in outcome.out


def test_mistakes_are_one_line_and_write_nothing(puid, tmp_path: Path) -> None:
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
    puid("compare", "--methods", "mf", *to, "--set", "epoch=3").refused("unknown setting", "Did you mean epochs?")
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
    assert "item-rate and bias are always shown" in text
    assert "Example:" in text

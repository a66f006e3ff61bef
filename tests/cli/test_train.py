"""`puid train`, `evaluate` and `recommend`, called as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

SMALL = ("--set", "data.n_users=60", "--set", "data.n_items=40", "--set", "epochs=5", "--set", "dim=4")


def test_train_writes_a_run(puid, run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    outcome = puid("train", "--method", "rd-ips", *SMALL, "--seed", 1, "--out", folder)
    assert outcome.code == 0, outcome
    assert "uauc" in outcome.out
    assert (folder / "model" / "model.safetensors").exists()
    trained, shared = (json.loads((path / "metrics.json").read_text()) for path in (folder, run_folder))
    assert trained["method"] == "rd-ips"
    assert trained["uauc"] == shared["uauc"]  # the run of the other tests is the one that the command writes


def test_evaluate_repeats_the_figures_of_the_run(puid, run_folder: Path) -> None:
    trained = json.loads((run_folder / "metrics.json").read_text())
    data = ("--set", "data.n_users=60", "--set", "data.n_items=40")
    outcome = puid("evaluate", run_folder, *data, "--metrics", "uauc,mse", "--json")
    assert outcome.code == 0, outcome
    assert json.loads(outcome.out)["uauc"] == trained["uauc"]
    shown = puid("evaluate", run_folder, *data)
    assert "95 % over users" in shown.out


def test_evaluate_takes_no_setting_of_the_model(puid, run_folder: Path) -> None:
    puid("evaluate", run_folder, "--set", "dim=3").refused("unknown setting", "dim", "data.KEY")


def test_recommend_prints_json_and_writes_files(puid, run_folder: Path, tmp_path: Path) -> None:
    rows = json.loads(puid("recommend", run_folder, "--users", "3,5", "--k", 4, "--json").out)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 2
    assert {row["user_id"] for row in rows} == {3, 5}
    for name, read in (("top.csv", pl.read_csv), ("top.parquet", pl.read_parquet)):
        assert puid("recommend", run_folder, "--k", 2, "--out", tmp_path / name).code == 0
        assert read(tmp_path / name).height == 120


def test_a_config_file_holds_options_and_settings_and_the_command_line_wins(puid, tmp_path: Path) -> None:
    settings = '["data.n_users=60", "data.n_items=40"]'
    config = tmp_path / "run.toml"
    config.write_text(f'method = "mf"\nepochs = 3\ndim = 4\nseed = 7\nsettings = {settings}\n')
    facts = json.loads(puid("train", "-c", config, "--json").out)
    assert (facts["method"], facts["seed"], facts["epochs"]) == ("mf", 7, 3)
    facts = json.loads(puid("train", "-c", config, "--method", "bias", "--json").out)
    assert facts["method"] == "bias"


def test_mistakes_are_one_line_and_write_nothing(puid, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    puid("train", "--method", "nope", "--out", out).refused("unknown method", "nope", "puid-dr")
    puid("train", "--set", "epoch=3", "--out", out).refused("unknown setting", "epoch", "Did you mean epochs?")
    puid("train", "--set", "lr=-1", "--out", out).refused("lr")
    puid("train", "--method", "rd-dr", "--set", "gamma=0.5", "--out", out).refused("Γ")
    puid("train", "--set", "epochs", "--out", out).refused("KEY=VALUE")
    puid("train", "--data", "coat", "--data-dir", tmp_path / "none", "--out", out).refused("none")
    puid("train", "-c", tmp_path / "none.toml").refused("none.toml")
    assert not out.exists()
    puid("train", *SMALL, "--out", run_folder).refused("finished run")
    puid("recommend", tmp_path).refused("not a run folder")
    puid("recommend", run_folder, "--users", "x").refused("integers")
    puid("recommend", run_folder, "--users", "9999").refused("unknown user")
    puid("recommend", run_folder, "--out", tmp_path / "top.xyz").refused(".csv or .parquet")
    puid("evaluate", run_folder, "--metrics", "nope").refused("unknown metric")


def test_a_broken_config_is_one_line(puid, tmp_path: Path) -> None:
    config = tmp_path / "broken.toml"
    config.write_text("method = ")
    puid("train", "-c", config).refused("not TOML", "broken.toml")
    config.write_text("nonsense = 1")
    puid("gamma", "--data", "simulated", "-c", config).refused("unknown key", "nonsense")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (500, "Γ was set by the mild default 1.1: only 25 uniform ratings were set apart for it, and it takes 50."),
        (1000, "Γ was set by 50 uniform ratings set apart for it."),
    ],
)
def test_what_set_gamma_is_said(puid, tmp_path: Path, rows: int, words: str) -> None:
    sizes = ("--set", "data.n_users=60", "--set", "data.n_items=40", "--set", f"data.n_uniform={rows}")
    outcome = puid("train", "--method", "signed-rd", *sizes, "--set", "epochs=2", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome
    assert words in " ".join(outcome.out.split())
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["gamma_set_by"] in words
    assert ("strength of Γ" in facts["uniform_rows_used"]) == (rows == 1000)
    told = puid("train", "--method", "signed-rd", *sizes, "--set", "epochs=2", "--set", "gamma=1.3", "--json")
    assert "gamma_set_by" not in json.loads(told.out)

"""`puid train`, `evaluate`, `recommend` and `export`, called as a user calls them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.cli import command as output
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.model import Recommender
from puidrec.settings import Settings

SMALL = (
    "--set",
    "data.n_users=60",
    "--set",
    "data.n_items=40",
    "--set",
    "epochs=5",
    "--set",
    "dim=4",
)


def test_train_writes_a_run(puid, run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    outcome = puid(
        "train", "--protocol", "rd", "--method", "rd-ips", *SMALL, "--seed", 1, "--out", folder
    )
    assert outcome.code == 0, outcome
    assert "uauc" in outcome.out
    assert (folder / "model" / "model.safetensors").exists()
    trained, shared = (
        json.loads((path / "metrics.json").read_text()) for path in (folder, run_folder)
    )
    assert trained["method"] == "rd-ips"
    assert (
        trained["uauc"] == shared["uauc"]
    )  # the run of the other tests is the one that the command writes


def test_without_a_protocol_every_uniform_row_calibrates(puid, tmp_path: Path) -> None:
    """The model of `Recommender().fit(data)`; the run says that it has no test rows, and how to get
    them."""
    outcome = puid("train", *SMALL, "--out", tmp_path / "run")
    said = " ".join(outcome.out.split())
    assert "no test rows" in said
    assert "--protocol rd" in said
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["test_rows"] == 0
    assert not {"uauc", "positive_rate"} & facts.keys()
    data = load_dataset("simulated", n_users=60, n_items=40)
    alone = Recommender(epochs=5, dim=4).fit(data)
    assert facts["uniform_rows_used"] == alone.report_["uniform_rows_used"]
    saved = Recommender.load(tmp_path / "run" / "model")
    np.testing.assert_allclose(saved.user_factors_, alone.user_factors_, atol=1e-5)
    puid("evaluate", tmp_path / "run").refused("trained on")


def test_a_model_that_stopped_before_its_optimum_is_told(puid) -> None:
    few = " ".join(puid("train", "--method", "mf", *SMALL, "--set", "epochs=2").out.split())
    assert (
        "Not converged: phi of stage main stopped after 2 sweeps before the optimum; raise epochs "
        "or l2." in few
    )
    assert "--set epochs=NUMBER" in few
    assert "Not converged" not in puid("train", "--method", "mf", *SMALL, "--set", "epochs=300").out


def test_evaluate_repeats_the_figures_of_the_run(puid, run_folder: Path) -> None:
    trained = json.loads((run_folder / "metrics.json").read_text())
    data = ("--set", "data.n_users=60", "--set", "data.n_items=40")
    outcome = puid("evaluate", run_folder, *data, "--metrics", "uauc,mse", "--json")
    assert outcome.code == 0, outcome
    assert json.loads(outcome.out)["uauc"] == trained["uauc"]
    shown = puid("evaluate", run_folder, *data)
    assert "95 % over users" in shown.out


def test_a_run_remembers_its_data(puid, run_folder: Path) -> None:
    trained = json.loads((run_folder / "metrics.json").read_text())
    alone = json.loads(puid("evaluate", run_folder, "--json").out)
    assert {name: alone[name] for name in ("uauc", "mse", "test_rows")} == {
        name: trained[name] for name in ("uauc", "mse", "test_rows")
    }


def test_other_data_are_refused_unless_told(puid, run_folder: Path) -> None:
    for other in (("--data", "simulated"), ("--set", "data.n_items=41")):
        puid("evaluate", run_folder, *other).refused("not the data", "run", "--other-data")
        outcome = puid("evaluate", run_folder, *other, "--other-data", "--json")
        assert outcome.code == 0, outcome
    assert json.loads(outcome.out)["test_rows"] > 0


def test_a_run_finds_its_files_from_any_folder(
    puid, files: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(files.parent)
    (files / "logged.csv").rename(files / "log.csv")
    named = ("--logged", "mine/log.csv", "--set", "data.uniform=mine/uniform.csv", "--scale", "1,5")
    small = ("--method", "bias", "--protocol", "ge3", "--out", "run")
    assert puid("train", "--data", "files", *named, *small).code == 0
    trained = json.loads((tmp_path / "run" / "metrics.json").read_text())
    monkeypatch.chdir(files)
    found = json.loads(puid("evaluate", "../run", "--json").out)
    assert (found["uauc"], found["protocol"]) == (trained["uauc"], "ge3")
    files.rename(tmp_path / "moved")
    puid("evaluate", tmp_path / "run").refused("log.csv")
    moved = [
        word
        for name in ("logged", "uniform")
        for word in (f"--{name}", tmp_path / "moved" / f"{name}.csv")
    ]
    moved[1] = tmp_path / "moved" / "log.csv"
    assert puid("evaluate", tmp_path / "run", *moved).code == 0


def test_a_run_that_does_not_say_where_its_data_are_needs_them_named(
    puid, run_folder: Path
) -> None:
    path = run_folder / "environment.json"
    facts = json.loads(path.read_text())
    source = facts.pop("data_source")
    assert source == {
        "name": "simulated",
        "folder": None,
        "options": {"n_users": 60, "n_items": 40},
    }
    path.write_text(json.dumps(facts))
    puid("evaluate", run_folder).refused("does not say where its data are", "--data")
    sizes = ("--set", "data.n_users=60", "--set", "data.n_items=40")
    assert puid("evaluate", run_folder, "--data", "simulated", *sizes).code == 0
    for damaged in ([1], {"name": 3}, {"name": "coat", "folder": 1, "options": {}}):
        path.write_text(json.dumps({**facts, "data_source": damaged}))
        puid("evaluate", run_folder).refused("not written by puid train", "data_source")


def test_evaluate_takes_no_setting_of_the_model(puid, run_folder: Path) -> None:
    puid("evaluate", run_folder, "--set", "dim=3").refused("unknown setting", "dim", "data.KEY")


def test_what_is_in_the_log_is_not_recommended_unless_told(
    puid, files: Path, tmp_path: Path
) -> None:
    """Rows that were held out to test the model used to be recommended again."""
    log, out = pl.read_csv(files / "logged.csv"), tmp_path / "run"
    data = ("--data", "files", "--logged", files / "logged.csv", "--scale", "1,5")
    assert puid("train", "--method", "bias", *data, "--out", out).code == 0
    logged = set(log.select("user_id", "item_id").iter_rows())
    trained, n_pairs = (
        log.height - 2 * round(0.1 * log.height),
        log["user_id"].n_unique() * log["item_id"].n_unique(),
    )
    for options, left in (
        ((), 0),
        (("--include-held-out",), log.height - trained),
        (("--include-seen",), log.height),
    ):
        rows = json.loads(puid("recommend", out, "--k", 40, *options, "--json").out)
        assert len({(row["user_id"], row["item_id"]) for row in rows} & logged) == left
        assert len(rows) == n_pairs - log.height + left


def test_recommend_prints_json_and_writes_files(puid, run_folder: Path, tmp_path: Path) -> None:
    rows = json.loads(puid("recommend", run_folder, "--users", "3,5", "--k", 4, "--json").out)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 2
    assert {row["user_id"] for row in rows} == {3, 5}
    for name, read in (("top.csv", pl.read_csv), ("top.parquet", pl.read_parquet)):
        assert puid("recommend", run_folder, "--k", 2, "--out", tmp_path / name).code == 0
        assert read(tmp_path / name).height == 120


def test_without_a_method_the_default_is_trained_and_tells_what_is_stable(
    puid, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shown = puid(
        "train",
        "--set",
        "data.n_users=60",
        "--set",
        "data.n_items=40",
        "--set",
        "dim=3",
        "--out",
        out,
    ).out
    assert shown.startswith(Settings().method)
    assert "Of the 10 best items of a user stay:" in " ".join(shown.split())
    rows = json.loads(puid("recommend", out, "--users", "3", "--k", 4, "--stable", "--json").out)
    assert len(rows) == 4
    assert all(row["gamma_max"] is None or row["gamma_max"] >= 1.0 for row in rows)
    assert "up to Γ" in puid("recommend", out, "--users", "3", "--stable").out
    assert f"default: ({Settings().method})" in " ".join(
        puid("train", "--help").out.replace("│", "").split()
    )


def test_quiet_turns_progress_off_for_its_command_only(puid, run_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        output, "tell", lambda line, terminal, over: terminal.file.write("puid: at work\n")
    )
    told = [
        puid("evaluate", run_folder, "--json", *quiet).err
        for quiet in ((), ("--quiet",), ("-q",), ())
    ]
    assert told == ["puid: at work\n", "", "", "puid: at work\n"]


def test_verbose_tells_every_step(puid, run_folder: Path) -> None:
    told = puid("evaluate", run_folder, "--json", "--verbose")
    assert re.fullmatch(r"puid: measuring, \d+:\d\d\n", told.err)
    assert json.loads(told.out)
    puid("evaluate", run_folder, "-q", "-v").refused("--quiet and --verbose contradict")


def test_ids_with_control_characters_do_not_reach_the_terminal(
    puid, files: Path, tmp_path: Path
) -> None:
    log = pl.read_csv(files / "logged.csv").with_columns(
        pl.format("i\x1b[31m{}", "item_id").alias("item_id")
    )
    log.write_csv(files / "log.csv")
    data = (
        "--data",
        "files",
        "--logged",
        files / "log.csv",
        "--method",
        "bias",
        "--out",
        tmp_path / "run",
    )
    assert puid("train", *data).code == 0
    shown = puid("recommend", tmp_path / "run", "--users", "u1", "--k", 3).out
    assert "\x1b" not in shown
    assert r"i\x1b[31m" in shown


def test_a_config_file_holds_options_and_settings_and_the_command_line_wins(
    puid, tmp_path: Path
) -> None:
    settings = '["data.n_users=60", "data.n_items=40"]'
    config = tmp_path / "run.toml"
    config.write_text(f'method = "mf"\nepochs = 3\ndim = 4\nseed = 7\nsettings = {settings}\n')
    facts = json.loads(puid("train", "-c", config, "--json").out)
    assert (facts["method"], facts["seed"], facts["epochs"]) == ("mf", 7, 3)
    facts = json.loads(puid("train", "-c", config, "--method", "bias", "--json").out)
    assert facts["method"] == "bias"


def test_set_is_merged_with_the_settings_of_a_config_file(puid, tmp_path: Path) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "run"
    settings = '["data.n_users=60", "data.n_items=40", "dim=4", "epochs=9"]'
    config.write_text(f'method = "mf"\nsettings = {settings}\n')
    facts = json.loads(puid("train", "-c", config, "--set", "epochs=2", "--out", out, "--json").out)
    assert facts["epochs"] == 2
    model = tomllib.loads((out / "config.toml").read_text())
    assert (model["dim"], model["epochs"]) == (4, 2)
    source = json.loads((out / "environment.json").read_text())["data_source"]
    assert source["options"] == {"n_users": 60, "n_items": 40}
    described = puid(
        "data", "describe", "--set", "data.seed=3", "--json", "-c", _only_data(tmp_path)
    )
    assert json.loads(described.out)["n_users"] == 60


def _only_data(folder: Path) -> Path:
    file = folder / "data.toml"
    file.write_text('settings = ["data.n_users=60", "data.n_items=40"]\n')
    return file


def test_mistakes_are_one_line_and_write_nothing(puid, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    puid("train", "--method", "nope", "--out", out).refused("unknown method", "nope", "puid-dr")
    puid("train", "--set", "epoch=3", "--out", out).refused(
        "unknown setting", "epoch", "Did you mean epochs?"
    )
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
        (
            500,
            "Γ was set by the default 1.1: only 23 uniform ratings held out for calibration, at "
            "least 50 are needed.",
        ),
        (1400, "Γ was set by 66 uniform ratings held out for calibration."),
    ],
)
def test_what_set_gamma_is_said(puid, tmp_path: Path, rows: int, words: str) -> None:
    sizes = (
        "--set",
        "data.n_users=60",
        "--set",
        "data.n_items=40",
        "--set",
        f"data.n_uniform={rows}",
        *("--set", "dim=2", "--set", "l2=0.1"),
        "--protocol",
        "rd",
    )
    outcome = puid(
        "train", "--method", "signed-rd", *sizes, "--set", "epochs=2", "--out", tmp_path / "run"
    )
    assert outcome.code == 0, outcome
    assert words in " ".join(outcome.out.split())
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["gamma_set_by"] in words
    assert ("scale of Γ" in facts["uniform_rows_used"]) == (rows == 1400)
    told = puid(
        "train",
        "--method",
        "signed-rd",
        *sizes,
        "--set",
        "epochs=2",
        "--set",
        "gamma=1.3",
        "--json",
    )
    assert "gamma_set_by" not in json.loads(told.out)


def test_export_writes_each_format(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    forms = {
        "onnx": "scores.onnx",
        "parquet": "users.parquet",
        "npy": "users.npy",
        "csr": "seen.npz",
        "recbole": "model.inter",
    }
    for form, file in forms.items():
        outcome = puid("export", run_folder, "--format", form, "--out", tmp_path / form)
        assert outcome.code == 0, outcome
        assert file in outcome.out
        assert "inner product" in outcome.out
        assert (tmp_path / form / file).exists()
    assert pl.read_parquet(tmp_path / "parquet" / "items.parquet").height == 40


def test_the_json_of_an_export_is_what_the_folder_says(
    puid: Any, run_folder: Path, tmp_path: Path
) -> None:
    said = json.loads(
        puid("export", run_folder, "--format", "npy", "--out", tmp_path / "out", "--json").out
    )
    files = said.pop("files")
    assert said == json.loads((tmp_path / "out" / "export.json").read_text())
    assert files == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    digest = json.loads((run_folder / "environment.json").read_text())["data_sha256"]
    assert said["data_sha256"] == digest


def test_what_cannot_be_exported_is_one_line(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    puid("export", tmp_path, "--format", "npy", "--out", tmp_path / "out").refused(
        "not a run folder"
    )
    puid("export", run_folder, "--format", "npy", "--out", run_folder).refused("holds other files")
    assert (run_folder / "model").is_dir()


def test_ids_in_csv_files_are_no_formulas(puid: Any, tmp_path: Path) -> None:
    from puidrec.run_folder import train_run
    from puidrec.settings import Settings

    users = ["=1+1", "+1", "-1", "@x", "plain", "a=b"]
    rows = [
        (user, item, 1 + (k + item) % 5)
        for k, user in enumerate(users)
        for item in range(12)
        if (k + item) % 4
    ]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "rating"], orient="row")
    train_run(Dataset.from_frame(log), Settings.of("item-rate"), out=tmp_path / "run")
    for form in ("csv", "parquet"):
        done = puid(
            "recommend",
            tmp_path / "run",
            "--k",
            1,
            "--include-seen",
            "--out",
            tmp_path / f"top.{form}",
        )
        assert done.code == 0, done
    written = pl.read_csv(tmp_path / "top.csv")["user_id"].to_list()
    assert sorted(written) == sorted(["'=1+1", "'+1", "'-1", "'@x", "plain", "a=b"])
    assert sorted(pl.read_parquet(tmp_path / "top.parquet")["user_id"].to_list()) == sorted(users)

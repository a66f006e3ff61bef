"""`puid audit`, called as a user calls it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.comparing.job import DataSpec
from puidrec.run_folder import train_run
from puidrec.settings import Settings

DATA = ("--set", "data.n_users=60", "--set", "data.n_items=40")


def train(folder: Path, method: str, seed: int, **more: float) -> None:
    spec = DataSpec("simulated", options={"n_users": 60, "n_items": 40})
    settings = Settings.of(method, seed=seed, epochs=3, dim=4, patience=0, **more)
    train_run(spec.load(), settings, out=folder, source=spec.to_source())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `a`, `b`, `strict` of one split, and `other` of another seed."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "a", "item-rate", 1)
    train(folder / "b", "bias", 1)
    train(folder / "strict", "bias", 1, l2=5.0)
    train(folder / "other", "bias", 2)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def test_a_lead_is_audited_and_written(puid, runs: Path) -> None:
    out = runs / "audit"
    outcome = puid(
        "audit", runs / "a", "--against", runs / "b", *DATA, "--out", out, "--replicates", 20
    )
    assert outcome.code == 0, outcome
    values = json.loads((out / "audit.json").read_text())
    assert " ".join(outcome.out.split()).startswith(" ".join(values["sentence"].split()))
    assert {path.name for path in out.iterdir()} == {
        "audit.json",
        "summary.txt",
        "report.html",
        "MODEL_CARD.md",
    }
    assert (values["model"]["method"], values["against"]["method"]) == ("item-rate", "bias")
    assert values["data"]["seed"] == 1
    assert "<html" in (out / "report.html").read_text()
    assert f"wrote {out}" in outcome.out.replace("\n", "")


def test_the_card_beside_the_page_is_that_of_the_run_with_the_verdict(puid, runs: Path) -> None:
    out, run = runs / "audit", runs / "a"
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    assert puid("audit", run, "--against", runs / "b", "--out", out, "--replicates", 0).code == 0
    values = json.loads((out / "audit.json").read_text())
    own, rest = (run / "MODEL_CARD.md").read_text().split("## Audit\n")
    card, verdict = (out / "MODEL_CARD.md").read_text().split("## Audit\n")
    assert card == own
    assert "No audit was made" in rest
    assert "No audit was made" not in verdict
    assert verdict.strip().startswith(f"**{values['verdict']}**: {values['sentence']}")
    for name in ("error", "ranking", "ndcg"):
        assert f"| {values[name]['metric']} | {values[name]['verdict']} |" in verdict
    assert before == {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    assert (
        puid("audit", run, "--out", out, "--replicates", 0).code == 0
    )  # an earlier audit is replaced, card and all
    assert "**single**" not in (out / "MODEL_CARD.md").read_text()
    puid("audit", run, "--out", run, "--replicates", 0).refused("config.toml")


def test_a_card_says_nothing_of_data_that_the_run_was_not_trained_on(puid, runs: Path) -> None:
    out = runs / "audit"
    assert (
        puid(
            "audit",
            runs / "a",
            "--set",
            "data.seed=5",
            "--other-data",
            "--out",
            out,
            "--replicates",
            0,
        ).code
        == 0
    )
    card = (out / "MODEL_CARD.md").read_text()
    assert "Not measured here" in card
    assert (
        json.loads((out / "audit.json").read_text())["data"]["sha256"] in card.split("## Audit")[1]
    )
    scores = scores_of(runs / "a.parquet", 0.1)
    assert (
        puid(
            "audit",
            scores,
            "--data",
            "simulated",
            *DATA,
            "--unseen",
            "--out",
            out,
            "--replicates",
            0,
        ).code
        == 0
    )
    assert not (out / "MODEL_CARD.md").exists()


def test_json_for_machines_and_one_model_alone(puid, runs: Path) -> None:
    outcome = puid("audit", runs / "a", *DATA, "--replicates", 0, "--gamma-limit", 4, "--json")
    values = json.loads(outcome.out)
    assert values["verdict"] == "single"
    assert values["gamma_grid"][-1] == 4.0


def test_runs_of_one_method_are_told_apart_by_their_folders(puid, runs: Path) -> None:
    found = puid(
        "audit", runs / "b", "--against", runs / "strict", *DATA, "--replicates", 0, "--json"
    )
    values = json.loads(found.out)
    assert (values["model"]["name"], values["against"]["name"]) == ("b", "strict")


def test_mistakes_are_one_line(puid, runs: Path) -> None:
    a, b = runs / "a", runs / "b"
    puid("audit", a, "--against", runs / "other", *DATA).refused("differ in seed", "1 and 2")
    puid("audit", a, "--against", b, "--data", "simulated").refused(
        "not the data", "simulated", "--other-data"
    )
    puid("audit", runs, *DATA).refused("not a run folder")
    puid("audit", a, "--against", runs / "none", *DATA).refused("no such run or file", "none")
    puid("audit", a, *DATA, "--gamma-limit", 0.5).refused("limit")
    puid("audit", a, *DATA, "--gamma", "nonsense").refused("Γ rule")
    puid("audit", a, *DATA, "--set", "epochs=3").refused("unknown setting")
    (runs / "mine").mkdir()
    (runs / "mine" / "note.txt").write_text("keep")
    puid("audit", a, *DATA, "--out", runs / "mine").refused("note.txt")


def test_runs_of_other_data_or_protocol_are_refused(puid, runs: Path) -> None:
    for key, value, word in (("data_sha256", "0" * 64, "data"), ("protocol", "ge3", "protocol")):
        copy = runs / f"copy-{word}"
        shutil.copytree(runs / "b", copy)
        path = copy / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
        puid("audit", runs / "a", "--against", copy, *DATA).refused(f"differ in {word}")
    path.write_text("{}")
    puid("audit", copy, *DATA).refused("not written by puid train")
    path.write_text("[1, 2")
    puid("audit", copy, *DATA).refused("not JSON", "environment.json")
    path.unlink()
    puid("audit", copy, *DATA).refused("cannot read", "environment.json")


def test_the_runs_remember_their_data(puid, runs: Path) -> None:
    asked = ("audit", runs / "a", "--against", runs / "b", "--replicates", 0, "--json")
    assert json.loads(puid(*asked).out) == json.loads(
        puid(*asked, "--data", "simulated", *DATA).out
    )


def test_other_data_are_audited_only_when_told(puid, runs: Path) -> None:
    asked = ("audit", runs / "a", "--set", "data.seed=5", "--replicates", 0, "--json")
    puid(*asked).refused("not the data", "--other-data")
    assert puid(*asked, "--other-data").code == 0


def scores_of(path: Path, shift: float) -> Path:
    """Scores of every pair of the runs' data, written as a file."""
    data = DataSpec("simulated", options={"n_users": 60, "n_items": 40}).load()
    user, item = (axis.ravel() for axis in np.indices((60, 40)))
    ids = {"user_id": data.user_ids.decode(user), "item_id": data.item_ids.decode(item)}
    score = 3.0 + shift * np.sin(user + 3 * item)
    frame = pl.DataFrame({**ids, "score": score})
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path


def test_files_of_scores_are_audited_against_each_other_and_against_a_run(puid, runs: Path) -> None:
    a, b = scores_of(runs / "a.parquet", 0.1), scores_of(runs / "b.csv", 0.6)
    data = ("--data", "simulated", *DATA)
    found = json.loads(
        puid("audit", a, "--against", b, *data, "--unseen", "--replicates", 0, "--json").out
    )
    assert (found["model"]["name"], found["against"]["name"]) == ("a", "b")
    assert found["rows"]["source"] == "claimed"
    assert found["rows"]["lists"] == "catalogue"
    rows = runs / "rows.csv"
    log = DataSpec("simulated", options={"n_users": 60, "n_items": 40}).load().logged.to_frame()
    log.select("user_id", "item_id")[::2].write_csv(rows)
    asked = (
        "audit",
        runs / "a",
        "--against",
        b,
        "--rows",
        rows,
        "--replicates",
        0,
        "--folds",
        2,
        "--json",
    )
    found = json.loads(puid(*asked, "--metric", "ranking", "--k", 5).out)
    assert found["rows"]["n"] == -(-log.height // 2)
    assert found["ranking"]["metric"] == "DCG@5"
    assert found["verdict"] == found["ranking"]["verdict"]
    puid("audit", a, "--against", b, *data).refused("has not seen", "--unseen")
    puid("audit", a, "--against", b, "--unseen").refused("which data", "--data")
    puid("audit", a, *data, "--unseen", "--metric", "rmse").refused("metric", "rmse")
    puid("audit", a, *data, "--rows", runs / "none.csv").refused("no such file", "none.csv")

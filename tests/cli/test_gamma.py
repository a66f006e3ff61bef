from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec import gamma_study, load_dataset
from puidrec.cli import command as output
from puidrec.gamma_study import study_gamma
from puidrec.report import gamma as report

FILES = sorted(report.FILES)
STUDIES: dict[str, Any] = {}


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Equal studies of equal data are made once: these tests are about what is said of them."""

    def once(data: Any, rule: Any = "information", *, progress: Any = None, **options: Any) -> Any:
        key = f"{data.name} {data.sha256} {rule!r} {sorted(options.items())}"
        if key not in STUDIES:
            STUDIES[key] = study_gamma(data, rule, progress=progress, **options)
        return STUDIES[key]

    monkeypatch.setattr(gamma_study, "study_gamma", once)
    return STUDIES


@pytest.mark.usefixtures("studied")
def test_tables_charts_and_summary_are_written(puid: Any, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "gamma"
    done = puid("gamma", "--data", "files", "--data-dir", files, "--out", out, "--json")
    assert (done.code, done.err) == (0, "")
    assert sorted(file.name for file in out.iterdir()) == FILES
    assert json.loads(done.out) == json.loads((out / "summary.json").read_text())
    table = pl.read_parquet(out / "gamma.parquet")
    study = study_gamma(load_dataset("files", files))
    assert dict(table["kind"].value_counts().iter_rows()) == {"cell": 4, "user": 60, "item": 40}
    users = table.filter(pl.col("kind") == "user")
    assert users["user_id"].to_list() == study.data.user_ids.ids.to_list()
    np.testing.assert_allclose(users["gamma"], np.exp(study.gamma.user_mean_log()))
    assert {"age=old", "age=young"} == set(users["user_group"])


def test_without_a_data_set_the_simulated_one_is_taken_as_by_other_commands(puid: Any) -> None:
    sizes = ("--set", "data.n_users=60", "--set", "data.n_items=40")
    done = puid("gamma", *sizes, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["data"]["name"] == "simulated"
    described = puid("data", "describe", *sizes, "--json")
    assert json.loads(described.out)["name"] == "simulated"


def test_the_same_seed_gives_the_same_bytes(puid: Any, files: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        puid("gamma", "--data", "files", "--data-dir", files, "--seed", 4, "--out", tmp_path / name)
        runs.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert runs[0] == runs[1]
    assert sorted(runs[0]) == FILES


@pytest.mark.usefixtures("studied")
@pytest.mark.parametrize(
    ("rule", "width"),
    [("information", 80), ("information", 120), ("paper", 80), ("2", 80), ("recovered", 80)],
)
def test_people_read_it_at_any_width(
    rule: str, width: int, puid: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", width)
    done = puid("gamma", "--data", "files", "--data-dir", files, "--rule", rule)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= width
    words = " ".join(done.out.split())
    for part in (
        "median",
        "plug-in",
        "permutation",
        "printed equation",
        "hiding",
        "limit",
        "rating 5",
    ):
        assert part in words


@pytest.mark.usefixtures("studied")
def test_no_features_and_no_uniform_rows(puid: Any, files: Path, tmp_path: Path) -> None:
    done = puid(
        "gamma", "--data", "files", "--logged", files / "logged.csv", "--out", tmp_path / "out"
    )
    assert done.code == 0
    assert "No features" in done.out
    assert "No uniform rows" in done.out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["certificates"] == summary["calibration"] == []


@pytest.mark.usefixtures("studied")
def test_weights_and_settings_reach_the_rule(puid: Any, files: Path) -> None:
    common = ("gamma", "--data", "files", "--data-dir", files, "--json")
    weighted = json.loads(puid(*common, "--rule", "paper", "--alpha", 400, "--beta", 300).out)
    assert (weighted["rule"]["alpha"], weighted["rule"]["beta"]) == (400, 300)
    printed = weighted["printed_equation"]
    plugin = weighted["entropies"]["plugin"]
    assert printed["value"] == pytest.approx(400 * plugin["gain_user"] + 300 * plugin["gain_item"])
    assert weighted["gamma"]["median"] == pytest.approx(min(printed["value"], 20.0))
    assert weighted["gamma"]["share_raised_to_one"] == printed["share_below_one"] == 0.0
    capped = json.loads(puid(*common, "--rule", "recovered", "--set", "gamma.cap=1.001").out)
    assert capped["gamma"]["max"] == pytest.approx(1.001)
    assert capped["gamma"]["share_at_cap"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--rule", "magic"), ("unknown Γ rule", "'magic'", "information")),
        (("--rule", "0.5"), ("Γ value out of range", "0.5")),
        (("--rule", "nan"), ("Γ value out of range",)),
        (("--alpha", "much"), ("alpha", "'much'", "auto")),
        (("--rule", "paper", "--alpha", "auto"), ("numbers",)),
        (("--rule", "1.5", "--beta", "2"), ("--beta has no effect", "'1.5'")),
        (("--propensity", "magic"), ("unknown propensity", "two-way")),
        (("--set", "gamma.colour=red"), ("'colour'", "unknown Γ option")),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], parts: tuple[str, ...], puid: Any, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    puid("gamma", "--data", "files", "--data-dir", files, "--out", out, *arguments).refused(*parts)
    assert not out.exists()


def test_a_folder_with_other_files_is_left_alone(puid: Any, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("keep me")
    puid("gamma", "--data", "files", "--data-dir", files / "nowhere", "--out", out).refused(
        "letter.txt", "--out"
    )
    puid("gamma", "--data", "files", "--data-dir", files, "--out", out / "letter.txt").refused(
        "not a folder"
    )
    assert [file.name for file in out.iterdir()] == ["letter.txt"]


@pytest.mark.usefixtures("studied")
def test_a_failed_write_leaves_what_was_there(
    puid: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "results"
    assert puid("gamma", "--data", "files", "--data-dir", files, "--out", place / "out").code == 0
    before = {file.name: file.read_bytes() for file in (place / "out").iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "save_png", full)
    failed = puid(
        "gamma", "--data", "files", "--data-dir", files, "--rule", "2", "--out", place / "out"
    )
    failed.refused("No space left on device", code=1)
    assert {file.name: file.read_bytes() for file in (place / "out").iterdir()} == before
    assert [file.name for file in place.iterdir()] == ["out"]


def test_nothing_but_the_result_is_said(files: Path, tmp_path: Path) -> None:
    code = "import sys; from puidrec.cli.main import run; sys.argv[0] = 'puid'; run()"
    arguments = [
        "gamma",
        "--data",
        "files",
        "--data-dir",
        str(files),
        "--out",
        str(tmp_path / "out"),
        "--json",
        "-q",
    ]
    nowhere = {
        **os.environ,
        "MPLCONFIGDIR": str(files / "logged.csv"),
    }  # a chart library without a cache complains
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=nowhere,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["data"]["n_users"] == 60


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["coat", "ml-100k"])
def test_the_printed_equation_on_real_data_is_reported_as_what_it_is(
    name: str, puid: Any, data_root: Path, studied: dict[str, Any]
) -> None:
    """In JSON and in words, of one study: the command makes the same one again."""
    before = len(studied)
    common = ("gamma", "--data", name, "--data-dir", data_root / name, "--rule", "paper")
    summary = json.loads(puid(*common, "--json").out)
    assert summary["printed_equation"]["value"] < 1.0
    assert summary["printed_equation"]["share_below_one"] == pytest.approx(1.0)
    assert summary["gamma"]["share_raised_to_one"] == pytest.approx(1.0)
    assert summary["gamma"]["min"] == summary["gamma"]["max"] == 1.0
    words = " ".join(puid(*common).out.split())
    assert "below 1, hence no valid Γ, for 100% of the pairs" in words
    assert "100.0%" in words
    assert len(studied) == before + 1


@pytest.mark.real_data
def test_the_certificate_of_coat(puid: Any, data_root: Path) -> None:
    summary = json.loads(
        puid("gamma", "--data", "coat", "--data-dir", data_root / "coat", "--json").out
    )
    found = {
        (proof["outcome"], proof["adjusted"]): proof["gamma"] for proof in summary["certificates"]
    }
    assert found["label", False] == pytest.approx(1.5, abs=0.1)
    assert found["rating", False] == pytest.approx(2.0, abs=0.15)
    assert found["rating", True] < found["rating", False]


def test_a_run_shows_the_gamma_that_its_uniform_ratings_taught(puid: Any, tmp_path: Path) -> None:
    sizes = ("--set", "data.n_users=60", "--set", "data.n_items=40", "--set", "data.n_uniform=600")
    puid("train", *sizes, "--set", "dim=2", "--set", "l2=0.1", "--out", tmp_path / "run")
    done = puid("gamma", tmp_path / "run", "--out", tmp_path / "learned", "--json")
    assert (done.code, done.err) == (0, "")
    summary = json.loads(done.out)
    assert summary == json.loads((tmp_path / "learned" / "summary.json").read_text())
    assert sorted(file.name for file in (tmp_path / "learned").iterdir()) == sorted(report.FILES)
    table = pl.read_parquet(tmp_path / "learned" / "gamma.parquet")
    assert summary["users"]["number"] == (table["kind"] == "user").sum()
    assert sum(summary["items"]["direction"].values()) == summary["items"]["number"]
    assert 0.0 < summary["users"]["share_of_the_fit"] < 1.0
    assert (table["low"] <= table["gamma"]).all()
    assert {"user", "item"} < set(table["kind"]), "segments of the side tables as well"
    assert "fit: share" in puid("gamma", tmp_path / "run").out


def test_a_run_without_uniform_ratings_is_refused_in_one_line(
    puid: Any, tmp_path: Path, files: Path
) -> None:
    puid(
        "train",
        "--data",
        "files",
        "--logged",
        files / "logged.csv",
        *("--set", "dim=2", "--set", "l2=0.1"),
        "--out",
        tmp_path / "run",
    )
    done = puid("gamma", tmp_path / "run")
    assert done.code == 2
    assert "the log alone cannot tell" in done.err
    assert len(done.err.strip().splitlines()) == 1

"""docs/extending.md, executed: its files become a package, its contract tests run, its names train
a model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.cli import main
from puidrec.data.sources import SOURCES
from puidrec.errors import InputError
from puidrec.evaluation.metrics import METRICS
from puidrec.exposure import PROPENSITIES
from puidrec.exposure.gamma import PRESETS
from puidrec.exposure.gamma import SOURCES as GAMMA_SOURCES
from puidrec.methods import METHODS
from puidrec.model import Recommender
from puidrec.scores import BACKBONES

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
FILE = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)
LONGEST, METHOD = 30, 42
"""Lines of a plug-in; a method, which is a model and a loss, may have a few more."""


def files() -> dict[str, str]:
    return dict(FILE.findall(PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and the metadata that pip would write from its pyproject.toml."""
    root = tmp_path_factory.mktemp("package")
    for name, text in files().items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    project = tomllib.loads(files()["pyproject.toml"])["project"]
    metadata = root / "my_puid-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return root


def test_every_plug_in_is_short() -> None:
    lines = {name: [line for line in text.splitlines() if line] for name, text in files().items()}
    lengths = {name: len(own) for name, own in lines.items() if name.endswith(".py")}
    assert len(lengths) == 14
    assert lengths.pop("my_puid/method.py") < METHOD
    assert max(lengths.values()) < LONGEST, lengths


def test_the_contract_tests_of_the_page_pass(package: Path) -> None:
    paths = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "tests"],
        cwd=package,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30  # type: ignore[index]


def test_the_commands_of_the_page_run(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "data").mkdir()
    pair, rng = np.arange(600), np.random.default_rng(0)
    log = pl.DataFrame(
        {"user_id": pair // 20, "item_id": pair % 20, "rating": rng.integers(1, 6, 600)}
    )
    log.filter(pl.Series(rng.random(600) < 0.5)).write_csv(package / "data" / "log.csv")
    monkeypatch.chdir(package)
    monkeypatch.syspath_prepend(str(package))
    for table in (METHODS, BACKBONES, PROPENSITIES, PRESETS, GAMMA_SOURCES, SOURCES, METRICS):
        monkeypatch.setattr(table, "_loaded", {})
    shown = re.search(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines()[1:]:
        more = ["--set", "epochs=3"] if line.startswith("puid train") else ["--json"]
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [*line.split(), *more])
        with pytest.raises(SystemExit) as left:
            main.run()
        assert not left.value.code, capsys.readouterr().err
    assert '"mrr@5"' in capsys.readouterr().out
    settings, own = (
        tomllib.loads((package / "runs" / name / "config.toml").read_text())
        for name in ("mine", "expectile")
    )
    assert (settings["backbone"], settings["propensity"], settings["gamma"]) == (
        "mf-hashed",
        "popularity",
        "rare",
    )
    assert (own["method"], own["under"]) == ("expectile", 3.0)


def test_help_shows_the_parameters_of_a_method_that_is_named(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(METHODS, "_loaded", {})
    monkeypatch.setattr(sys, "argv", ["puid", "train", "--method", "expectile", "--help"])
    with pytest.raises(SystemExit):
        main.run()
    shown = " ".join(capsys.readouterr().out.split())
    assert "under" in shown
    assert "What an underestimate costs" in shown


def test_a_parameter_of_its_own_is_checked(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(METHODS, "_loaded", {})
    assert Recommender("expectile", under=3.0).get_params()["under"] == 3.0
    assert Recommender("expectile").get_params()["under"] == 2.0
    with pytest.raises(InputError, match="under"):
        Recommender("expectile", under=-1.0)
    with pytest.raises(InputError, match="under"):
        Recommender("expectile", undr=1.0)
    with pytest.raises(InputError, match="unknown setting"):
        Recommender("mf", under=1.0)

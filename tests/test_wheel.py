"""What is built holds what is needed and nothing else, and runs where the repository is not.

`make wheel` does the same at full length: a new environment with every dependency from its source,
the demo, the README and the tutorial.
"""

from __future__ import annotations

import email
import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

import puidrec

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "puidrec"
NEEDED = [name for name in ("build", "hatchling", "pip") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(NEEDED), reason=f"building needs {', '.join(NEEDED)} (pip install 'puidrec[dev]')"
)
EXTRAS = {"pandas", "serve", "tune", "onnx", "ray", "mlflow", "docs", "bench", "other-tools", "dev"}
SESSION = """
import puidrec as pr

data = pr.load_dataset("simulated", n_users=60, n_items=40, n_rows=500, seed=0)
settings = {"dim": 3, "l2": 0.1, "epochs": 3, "propensity": "cells", "rng": 0}
one, other = (pr.Recommender(name, **settings).fit(data) for name in ("mf", "ips"))
one.save("model")
assert pr.Recommender.load("model").recommend([0], k=3).height == 3
pr.audit(one, data, against=other, replicates=5).to_html("audit.html")
"""
DATA = {
    ".parquet",
    ".npy",
    ".npz",
    ".safetensors",
    ".ascii",
    ".csv",
    ".gz",
    ".zip",
    ".pyc",
    ".pt",
    ".pkl",
    ".whl",
}


@dataclass(frozen=True)
class Built:
    """The two files, and where they are."""

    wheel: Path
    sdist: Path

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel made from the sdist, without the network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def metadata(built: Built) -> email.message.Message:
    with zipfile.ZipFile(built.wheel) as wheel:
        return email.message_from_bytes(wheel.read(f"puidrec-{built.version}.dist-info/METADATA"))


def _sources() -> set[str]:
    """Every file of the package, templates and marks of types too."""
    found = (
        path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(SOURCE.parent).as_posix() for path in found}


def test_the_wheel_is_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        entry_points = wheel.read(f"puidrec-{built.version}.dist-info/entry_points.txt").decode()
    wanted = _sources()
    assert inside == wanted
    assert "puidrec/py.typed" in wanted
    assert any(name.endswith(".html.j2") for name in wanted)
    assert "puid = puidrec.cli.main:run" in entry_points


def test_the_metadata_say_what_it_needs(built: Built, metadata: email.message.Message) -> None:
    assert built.version == metadata["Version"] == puidrec.__version__
    needed = metadata.get_all("Requires-Dist") or []
    assert "torch<3,>=2.10" in needed
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert not [line for line in needed if "@" in line], (
        "a requirement that names a place installs nowhere else"
    )


def test_the_sdist_can_be_built_and_tested_and_holds_no_data(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {
            PurePosixPath(name).relative_to(f"puidrec-{built.version}") for name in sdist.getnames()
        }
    top = {name.parts[0] for name in names}
    assert top == {
        ".ci",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "PKG-INFO",
        "SECURITY.md",
        "README.md",
        "bench",
        "constraints-hashes.txt",
        "constraints.txt",
        "docs",
        "mkdocs.yml",
        "pyproject.toml",
        "src",
        "tests",
    }
    assert {f"src/{name}" for name in _sources()} <= {str(name) for name in names}
    assert not [name for name in names if name.suffix in DATA or name.parts[:2] == ("bench", "out")]
    assert built.sdist.stat().st_size < 3_000_000


def test_the_installed_wheel_runs_away_from_the_repository(built: Built, tmp_path: Path) -> None:
    place, work = tmp_path / "place", tmp_path / "work"
    work.mkdir()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
    ]
    subprocess.run([*pip, "--target", str(place), str(built.wheel)], check=True, timeout=120)
    env = {
        **os.environ,
        "PYTHONPATH": str(place),
        "OMP_NUM_THREADS": "1",
        "MPLCONFIGDIR": str(tmp_path),
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=work, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    where = run(sys.executable, "-c", "import puidrec; print(puidrec.__file__)").strip()
    assert Path(where) == place / "puidrec" / "__init__.py"
    puid = str(place / "bin" / "puid")
    assert run(puid, "--version").strip() == f"puid {puidrec.__version__}"
    assert "Start with: puid demo" in run(puid, "--help")
    run(sys.executable, "-c", SESSION)
    page = (work / "audit.html").read_text(encoding="utf-8")  # its templates are in the wheel
    assert "<style" in page
    assert "<script" in page

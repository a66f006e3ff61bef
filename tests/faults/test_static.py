"""What must not stand in the sources: calls that run content, shells, and rules of the linter
switched off."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import puidrec

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(puidrec.__file__).parent.rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "yaml",
    "telnetlib",
    "jsonpickle",
}
"""joblib sends work to processes; that none of its readers of files is used, `tests/test_layers.py`
checks."""
HARMLESS = "pickle.PicklingError"
"""What joblib raises where a model cannot be sent: it reads nothing."""
SHELL_BY_NAME = {"get_completion_script"}
"""Calls whose `shell` is the name of one, for which text is made; nothing is run."""
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "yaml.load",
    "os.system",
    "os.popen",
    "pd.read_pickle",
}


def complaints(source: str) -> list[str]:
    """Calls and imports that may run what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        found += [name for name in names if name.split(".")[0] in MODULES and name != HARMLESS]
        if isinstance(node, ast.Call):
            shell = any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)
            shell &= ast.unparse(node.func) not in SHELL_BY_NAME
            unpickles = any(
                k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
            )
            if ast.unparse(node.func) in CALLS or shell or unpickles:
                found.append(ast.unparse(node)[:80])
    return found


def test_nothing_in_the_sources_runs_content_or_a_shell() -> None:
    assert len(SOURCES) > 100
    assert not [
        f"{path.name}: {line}"
        for path in SOURCES
        for line in complaints(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import load",
        "import shelve as s",
        "eval('1')",
        "exec(x)",
        "torch.load(p)",
        "subprocess.run(c, shell=True)",
        "np.load(p, allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_the_walk_sees_what_it_must(source: str) -> None:
    assert complaints(source)


def test_security_rules_are_on_and_nothing_switches_them_off_wholesale() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"][
        "lint"
    ]
    assert "S" in lint["select"]
    assert not [
        rule for rule in lint["ignore"] if rule.startswith("S") and not rule.startswith("SIM")
    ]
    in_source = {
        rule
        for where, rules in lint["per-file-ignores"].items()
        if where.startswith("src")
        for rule in rules
    }
    assert not [rule for rule in in_source if rule.startswith("S")]
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        whole = re.findall(r"#\s*(?:ruff|flake8):\s*noqa(?:: *(\w+(?:, *\w+)*))?", text)
        assert whole in ([], ["S101"] if path.parent.name == "testing" else []), (
            path.name
        )  # contracts assert
        assert not re.search(r"#\s*noqa(?!:)", text), path.name


HOLED = "jinja2==2.4.1"
"""Old, with holes that are on record: a database that does not know them does not answer."""


def _audited(*options: str, seconds: int) -> list[dict[str, Any]]:
    """Dependencies as pip-audit judges them; nothing where its database does not answer in time."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--format",
        "json",
        "--progress-spinner",
        "off",
        "--timeout",
        "5",
    ]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return []
    return json.loads(done.stdout)["dependencies"] if done.stdout.startswith("{") else []


@pytest.mark.slow
def test_dependencies_have_no_known_holes(tmp_path: Path) -> None:
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("pip-audit is not installed (pip install 'puidrec[dev]')")
    probe = tmp_path / "probe.txt"
    probe.write_text(f"{HOLED}\n", encoding="utf-8")
    known = _audited("--no-deps", "--disable-pip", "-r", str(probe), seconds=15)
    if not any(entry.get("vulns") for entry in known):
        pytest.skip(
            f"the database of pip-audit cannot be reached: it does not know the holes of {HOLED}"
        )
    found = _audited(seconds=120)
    if not found:
        pytest.skip(
            "the database of pip-audit answered for one package, but not for all of them within "
            "two minutes"
        )
    assert not [entry["name"] for entry in found if entry.get("vulns")]

"""The README's library example runs as it is written, and the commands it shows exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_library_example_runs_as_written(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    (tmp_path / "example.py").write_text(code.group(1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "uauc" in done.stdout
    assert (tmp_path / "my-model" / "model.safetensors").exists()


def test_the_example_is_short() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    assert len([line for line in code.group(1).splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_at_the_top_set_up_what_they_need(target: str, tmp_path: Path) -> None:
    assert f"make {target}" in README.split("## ")[0]
    command = ["make", "-n", target, f"VENV={tmp_path}/venv"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m venv" in planned
    assert ("[dev" in planned) == (target == "test")  # the demo needs none of the developers' tools
    (tmp_path / "venv").mkdir()
    for name in (".ready", ".ready-demo"):
        (tmp_path / "venv" / name).touch()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "install" not in again


def test_every_page_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_command_shown_answers_help() -> None:
    from typer.testing import CliRunner

    from puidrec.cli.main import app

    for line in re.findall(r"^puid (.+?)(?:\s+#.*)?$", README, re.MULTILINE):
        words = []
        for word in line.split():
            if word.startswith("-") or "/" in word:
                break
            words.append(word)
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0, line

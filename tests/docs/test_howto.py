"""Python blocks of the how-tos run as they are written; commands that are shown exist, with the
options shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

ROOT = Path(__file__).parents[2]
HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))
HOWTO += [
    ROOT / "docs" / "concepts" / f"{name}.md" for name in ("sets", "signed")
]  # they show numbers
SHOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", HOWTO, ids=lambda page: page.stem)
def test_python_blocks_run_in_order(
    page: Path,
    pages: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    shown = [
        block for block in pages.blocks(page.read_text(encoding="utf-8")) if block.kind == "python"
    ]
    assert shown or page.stem == "index", "a how-to shows at least one block of Python"
    for block in shown:
        if block.note is None:
            exec(compile(block.body, f"{page.name}", "exec"), scope)
    printed = capsys.readouterr().out
    assert bool(printed) == any("print(" in block.body for block in shown if block.note is None)


@pytest.mark.usefixtures("one_thread")
def test_implicit_is_compared(pages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("implicit")
    text = (ROOT / "docs" / "howto" / "comparing-methods.md").read_text(encoding="utf-8")
    found = [block.body for block in pages.blocks(text) if block.kind == "python"]
    scope: dict[str, object] = {"__name__": "page"}
    first = next(body for body in found if "load_dataset" in body)
    loads = "\n".join(line for line in first.splitlines() if line.startswith(("import", "data =")))
    for body in (loads, *(body for body in found if "implicit" in body)):
        exec(compile(body, "page", "exec"), scope)
    assert "Als: another package's" in capsys.readouterr().out


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path, pages: ModuleType) -> None:
    from puidrec.cli.main import app

    for block in pages.blocks(page.read_text(encoding="utf-8")):
        if block.kind != "console" or block.note is not None:
            continue
        for command in pages.commands(block.body):
            words = shlex.split(command, comments=True)
            if words[:1] == ["puid"]:
                _check(words[1:], get_command(app), command)


def _check(words: list[str], command: object, shown: str) -> None:
    below = getattr(command, "commands", {})
    while words and below:
        if words[0].startswith("-"):
            break
        assert words[0] in below, f"no such command: {shown}"
        command, words = below[words[0]], words[1:]
        below = getattr(command, "commands", {})
    known = {name for param in command.params for name in param.opts} | {"--help"}  # type: ignore[attr-defined]
    for word in words:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            assert word.split("=")[0] in known, f"{word} is no option: {shown}"


def test_a_block_can_be_marked_as_not_run(pages: ModuleType) -> None:
    text = "<!-- not run: needs a GPU -->\n```python\n1 / 0\n```\n\n```python\nx = 1\n```\n"
    first, second = pages.blocks(text)
    assert first.note == "not run: needs a GPU"
    assert second.note is None

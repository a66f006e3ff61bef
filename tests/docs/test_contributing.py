"""CONTRIBUTING.md is a map: every file and name on it exists, and every folder is on it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "puidrec"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMES = re.compile(r"`((?:\w+/)*\w+\.py|puidrec\.testing\.\w+)`((?:,? `\w+`)*)")


def text_of(file: str) -> str | None:
    """The source of a file, given from `src/puidrec`, from the root, or as a module."""
    path = (
        f"{file.removeprefix('puidrec.').replace('.', '/')}.py"
        if file.startswith("puidrec.")
        else file
    )
    found = next((base / path for base in (SOURCE, ROOT) if (base / path).is_file()), None)
    return None if found is None else found.read_text(encoding="utf-8")


def defines(text: str, name: str) -> bool:
    return re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE) is not None


def test_every_file_and_name_on_the_map_exists() -> None:
    cited = NAMES.findall(PAGE)
    assert len(cited) > 40
    missing = [file for file, _ in cited if text_of(file) is None and "/" in file]
    assert not missing
    hops = [(file, name) for file, names in cited for name in re.findall(r"\w+", names)]
    assert len(hops) > 25
    assert not [(file, name) for file, name in hops if not defines(text_of(file) or "", name)]


def test_every_folder_of_the_package_is_on_the_map() -> None:
    table = PAGE.partition("## Where is what?")[2].partition("\n## ")[0]
    parts = [
        path for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").is_file()
    ]
    parts += [path for path in SOURCE.glob("*.py") if path.stem != "__init__"]
    wanted = [f"{path.name}/" if path.is_dir() else path.name for path in parts]
    assert not [name for name in wanted if f"`{name}`" not in table]


def test_every_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+) ", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

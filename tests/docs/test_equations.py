"""docs/equations.md names functions and tests that exist."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
TESTS = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, something in one, or a method of a class there."""
    try:
        pkgutil.resolve_name(name)
    except (ModuleNotFoundError, AttributeError):
        return False
    return True


def test_every_function_named_exists() -> None:
    names = re.findall(r"`(puidrec(?:\.\w+)+)`", PAGE)
    assert len(names) > 25
    assert not [name for name in names if not resolves(name) and not _is_module(name)]


def _is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_every_test_named_exists() -> None:
    cited = re.findall(r"`(tests/(?:\w+/)+)?(test_\w+\.py)(?:::(\w+))?`", PAGE)
    assert len(cited) > 20
    for folder, file, test in cited:
        path = ROOT / folder / file if folder else TESTS.get(file)
        assert path is not None, file
        assert path.is_file(), f"{folder}{file}"
        assert not test or f"def {test}(" in path.read_text(encoding="utf-8"), f"{file}::{test}"

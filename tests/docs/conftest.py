"""The tools of the documentation, and where its pages are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def pages() -> ModuleType:
    """docs/pages.py: runs what pages show."""
    return _load("pages")


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    """docs/hooks.py: what the site adds."""
    return _load("hooks")

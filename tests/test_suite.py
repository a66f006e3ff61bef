"""Rules of the tests themselves (each can fail, none times the code, and they lie where the code
lies), and of the size of what they test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import puidrec

TESTS, SOURCE = Path(__file__).parent, Path(puidrec.__file__).parent
BY_NAME = "a contract test found by getattr"
CHECKS = {"raises", "warns", "fail", "refusal", "refuse", BY_NAME}
CLOCKS = {"perf_counter", "process_time", "time_ns", "thread_time"}
MAY_WAIT = {"test_kill.py"}
"""Kills a process after a while; what it asserts does not depend on the moment."""


def called(node: ast.AST) -> Iterator[str]:
    """Names of all functions that are called below a node."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):
            yield BY_NAME if ast.unparse(call.func).startswith("getattr(contract") else ""
        elif isinstance(call, ast.Call):
            yield (
                call.func.attr
                if isinstance(call.func, ast.Attribute)
                else getattr(call.func, "id", "")
            )


def checks(node: ast.AST) -> bool:
    """Whether something below a node can fail a test."""
    names = set(called(node))
    asserts = any(isinstance(child, ast.Assert) for child in ast.walk(node))
    return asserts or bool(names & CHECKS) or any(name.startswith("assert_") for name in names)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    yield from (node for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every test module, and the contract tests that the package ships."""
    paths = [*TESTS.rglob("*.py"), *(SOURCE / "testing").glob("*.py")]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_every_test_can_fail(trees: dict[Path, ast.Module]) -> None:
    helpers = {
        f.name
        for tree in trees.values()
        for f in functions(tree)
        if checks(f) and not f.name.startswith("test")
    }
    idle = [
        f"{path.name}::{f.name}"
        for path, tree in trees.items()
        for f in functions(tree)
        if f.name.startswith("test_") and not checks(f) and not helpers & set(called(f))
    ]
    assert not idle, "these assert nothing"


def test_no_test_reads_the_clock_or_patches_defaults(trees: dict[Path, ast.Module]) -> None:
    for path, tree in trees.items():
        assert path.name in MAY_WAIT or not CLOCKS & set(called(tree)), path
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert path == Path(__file__) or "__defaults__" not in used, path


def test_no_example_has_a_deadline() -> None:
    assert settings().deadline is None


def test_functions_and_modules_can_be_read_at_once() -> None:
    """A function fits on a screen with its docstring, a module is one idea."""
    long = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = functions(ast.parse(text))
        long += [f"{path}::{f.name}" for f in found if (f.end_lineno or 0) - f.lineno >= 60]
        long += [str(path)] if text.count("\n") > 500 else []
    assert not long, "\n".join(long)


def test_every_folder_of_the_package_has_its_tests() -> None:
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    assert not [str(folder) for folder in folders if not list((TESTS / folder).glob("test_*.py"))]

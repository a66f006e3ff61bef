"""The public names are what they say, whatever was imported before: functions are functions with
real signatures."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import puidrec

ROOT = Path(puidrec.__file__).parent
FUNCTIONS = {
    "audit": ("model", "data", "against"),
    "certify": ("data",),
    "compare": ("data", "methods"),
    "evaluate": ("model", "interactions"),
}
"""Public functions and their leading parameters."""


def test_a_public_function_is_a_function_in_a_fresh_process() -> None:
    checks = "\n".join(f"assert inspect.isfunction(puidrec.{name})" for name in FUNCTIONS)
    subprocess.run([sys.executable, "-c", f"import inspect, puidrec\n{checks}"], check=True)


def test_importing_every_module_hides_no_public_function() -> None:
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] not in (
            "__main__",
            "engines_ray",
            "ray_engine",
        ):  # the last two need an extra that may be absent
            import_module(".".join(("puidrec", *parts)).removesuffix(".__init__"))
    for name, leading in FUNCTIONS.items():
        function = getattr(puidrec, name)
        assert inspect.isfunction(function)
        assert tuple(inspect.signature(function).parameters)[: len(leading)] == leading


def test_every_public_name_is_found_and_listed() -> None:
    assert set(puidrec.__all__) <= set(dir(puidrec))
    assert all(getattr(puidrec, name) is not None for name in puidrec.__all__)

"""Imports go down the layers only; only the command line prints or reads argv."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import puidrec
from puidrec.plugins import GROUPS

ROOT = Path(puidrec.__file__).parent
LAYERS = (
    "errors",
    "view",
    "rng",
    "atomic",
    "plugins",
    "world",
    "data",
    "entities",
    "features",
    "evaluation",
    "exposure",
    "data.sources",
    "scores",
    "losses",
    "methods.table",
    "settings",
    "history",
    "optimise",
    "methods",
    "methods.spectrum",
    "cold_start",
    "fold_in",
    "recommending",
    "fitting",
    "model",
    "store",
    "auditing",
    "run_folder",
    "gamma_study",
    "demo",
    "comparing",
    "reproduce",
    "report",
    "serve",
    "export",
    "testing",
    "cli",
)
"""From the bottom up; a layer imports layers before it only, so that no two import each other."""
LEVEL = {name: level for level, name in enumerate(LAYERS)}
ARRAYS_ONLY = ("exposure", "evaluation", "auditing")
"""These see arrays: no tensors, no settings, no models."""
REACHES_UP = {
    (
        "auditing.result",
        "report",
    ),  # a finished audit can show itself: `to_html` looks the page up when called
    ("exposure.certificate", "report"),  # so can a certificate, in a notebook
    ("comparing.comparison", "report"),  # and a comparison
    ("comparing.tune", "report"),  # and a search
    ("gamma_study", "report"),  # the words of its sentence are a template
    ("model", "report"),  # `to_card` is a method of the model
    ("model", "store"),  # `save` and `load` are methods of the model
    (
        "methods.table",
        "methods",
    ),  # a row names what builds it, so that listing methods imports no torch
    ("methods.table", "methods.spectrum"),
    ("methods.prepare", "methods.spectrum"),  # gamma="learned" asks a model of the default method
}
"""Module and layer above it: looked up when called, never at import."""
DISPATCHERS = {"__init__", "__main__"}
"""Public names are looked up by name, downwards from the top; `python -m` starts the command. They
have no layer."""


def layer(module: str) -> str:
    """`data.sources.coat` → `data.sources`, `methods.robust` → `methods`; the longest name that is
    a layer."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in (2, 1)]
    return next((name for name in names if name in LEVEL), parts[0])


def type_checking_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that can run: the bodies of `if TYPE_CHECKING` are left out."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt) and type_checking_only(child):
            continue
        yield child
        yield from nodes(child)


def imports(source: str, package: list[str]) -> Iterator[str]:
    """Full names of all modules a source imports, at its top or inside functions, by statement or
    by name."""
    for node in nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("puidrec.")
        ):
            yield node.value.split(":")[0]


def modules() -> dict[str, str]:
    files = {
        path.relative_to(ROOT).with_suffix(""): path.read_text(encoding="utf-8")
        for path in ROOT.rglob("*.py")
    }
    return {".".join(path.parts).removesuffix(".__init__"): text for path, text in files.items()}


def complaints(name: str, source: str) -> Iterator[str]:
    """What a module imports that it should not."""
    own = layer(name)
    package = ["puidrec", *name.split(".")[:-1]]
    for target in imports(source, package):
        if target in GROUPS:
            continue  # the name of a group of entry points; a module is never imported whole
        if own in ARRAYS_ONLY and (target == "torch" or target.startswith("torch.")):
            yield f"{name} imports {target}: it should see arrays only"
        if not target.startswith("puidrec."):
            continue
        other = layer(target.removeprefix("puidrec."))
        if other not in LEVEL:
            continue  # `from puidrec import __version__`
        if LEVEL[other] > LEVEL[own] and (name, other) not in REACHES_UP:
            yield f"{name} imports {target}: {other} is above {own}"
        if own in ARRAYS_ONLY and other in ("settings", "model", "store", "optimise", "methods"):
            yield f"{name} imports {target}: it should see arrays only"


def test_no_module_imports_upwards() -> None:
    found = [
        line
        for name, text in modules().items()
        if name not in DISPATCHERS
        for line in complaints(name, text)
    ]
    assert not found, "\n".join(found)


def test_every_module_has_a_layer() -> None:
    homeless = {layer(name) for name in modules() if name not in DISPATCHERS} - set(LEVEL)
    assert not homeless


def test_only_the_command_line_prints_or_reads_argv() -> None:
    found = []
    for name, text in modules().items():
        if layer(name) == "cli":
            continue
        for node in nodes(ast.parse(text)):
            printed = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("print", "input")
            )
            stream = (
                isinstance(node, ast.Attribute)
                and node.attr in ("argv", "stdout")
                and ast.unparse(node.value) == "sys"
            )
            if printed or stream:
                found.append(f"{name}:{node.lineno}")
    assert not found, "\n".join(found)


BANNED = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
"""Modules that run what a file says; joblib sends work to processes, and only its readers are
banned."""
HARMLESS = "pickle.PicklingError"
"""What joblib raises where a model cannot be sent: it reads nothing."""
JOBLIB_FILES = ("load", "dump", "Memory", "memory", "numpy_pickle")


def running(name: str, text: str) -> list[str]:
    """What in a source may execute the content of a file."""
    found = []
    for target in imports(text, ["puidrec"]):
        top, *rest = target.split(".")
        if (top in BANNED and target != HARMLESS) or (
            top == "joblib" and any(part in JOBLIB_FILES for part in rest)
        ):
            found.append(f"{name}: {target}")
    for node in nodes(ast.parse(text)):
        if isinstance(node, ast.Call) and runs_content(node):
            found.append(f"{name}: {ast.unparse(node)}")
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] == "joblib":
            found += [f"{name}: {ast.unparse(node)}"] if node.attr in JOBLIB_FILES else []
    return found


def test_nothing_runs_what_it_reads() -> None:
    assert not [line for name, text in modules().items() for line in running(name, text)]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import joblib\njoblib.load(path)",
        "import joblib\nread = joblib.load",
        "import joblib\ncache = joblib.Memory('x')",
        "from joblib import dump",
        "from joblib.memory import Memory",
        "import joblib.numpy_pickle",
        "eval(text)",
        "np.load(path)",
    ],
)
def test_what_runs_files_is_found(source: str) -> None:
    assert running("x", source)


def test_joblib_may_send_work_to_processes() -> None:
    assert not running("x", "import joblib\njoblib.Parallel(2)(joblib.delayed(f)(x) for x in xs)")


def runs_content(call: ast.Call) -> bool:
    """Whether a call may execute what a file says."""
    function = ast.unparse(call.func)
    safe = any(k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords)
    return function in ("eval", "exec", "torch.load") or (
        function in ("np.load", "numpy.load") and not safe
    )


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("data.dataset", "from puidrec.features import bins"),
        ("data.dataset", "def f():\n    import puidrec.model"),
        ("features.bins", "from puidrec.data.sources.coat import load"),
        ("rng", "from .data import dataset"),
        ("methods.robust", "from ..auditing import envelope"),
        ("exposure.base", "HOME = {'x': 'puidrec.settings:Settings'}"),
        ("exposure.gamma", "import torch"),
        ("auditing.envelope", "from puidrec.settings import Settings"),
        ("report.page", "from puidrec.cli import main"),
        ("auditing.envelope", "from puidrec.report.audit import audit_html"),
        ("features.bins", "from puidrec.exposure.bounds import bounds"),
        ("scores.towers", "from puidrec.losses.pair_loss import PairLoss"),
    ],
)
def test_the_walk_sees_what_it_must(name: str, source: str) -> None:
    assert list(complaints(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("data.dataset", "if TYPE_CHECKING:\n    from puidrec.model import Recommender"),
        ("data.sources.coat", "from puidrec.features.factors import with_pseudo_features"),
        ("model", "from puidrec import __version__"),
        ("auditing.audit", "from puidrec.evaluation.metrics import auc"),
    ],
)
def test_the_walk_lets_pass_what_it_may(name: str, source: str) -> None:
    assert not list(complaints(name, source))

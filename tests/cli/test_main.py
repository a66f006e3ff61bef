from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from puidrec import __version__
from puidrec.cli import main
from puidrec.errors import InputError, OutputError

HELP = """
import sys
sys.argv = ["puid", *{arguments}]
from puidrec.cli.main import run
try:
    run()
except SystemExit as left:
    assert not left.code, left.code
heavy = [name for name in "torch polars numpy scipy matplotlib".split() if name in sys.modules]
print(heavy, file=sys.stderr)
"""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(main.app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_parses(path: tuple[str, ...], puid: Any) -> None:
    shown = puid(*path, "--help")
    assert shown.code == 0
    command = COMMANDS[path]
    assert command.epilog.startswith("Example: puid " + " ".join(path))
    assert "Example: puid" in shown.out
    words = shlex.split(command.epilog.removeprefix("Example: "))
    command.make_context("puid", words[1 + len(path) :])  # raises on an option that does not exist


@pytest.mark.parametrize("path", [(), ("data",), *COMMANDS], ids=" ".join)
def test_help_has_a_short_name(path: tuple[str, ...], puid: Any) -> None:
    short = puid(*path, "-h")
    assert short.code == 0
    assert short.out == puid(*path, "--help").out


def test_python_m_is_the_command() -> None:
    command = [sys.executable, "-m", "puidrec", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("puid ")


def test_no_color_is_respected() -> None:
    command = [sys.executable, "-c", "from puidrec.cli.main import run; run()", "data", "describe"]
    sizes = ["--set", "data.n_users=30", "--set", "data.n_items=20"]
    for more, words in ((["--help"], "Usage"), (sizes, "users")):
        colours = []
        for given in ({"NO_COLOR": "1"}, {}):
            unset = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
            environment = {**unset, "FORCE_COLOR": "1", "TERM": "xterm-256color", **given}
            done = subprocess.run(
                [*command, *more], capture_output=True, text=True, check=True, env=environment
            )
            assert words in done.stdout
            colours.append(bool(re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]", done.stdout)))
        assert colours == [False, more == ["--help"]]  # tables are bold at most


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_can_be_quiet(path: tuple[str, ...]) -> None:
    names = {name for parameter in COMMANDS[path].params for name in parameter.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= names


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_speaks_json_and_describes_its_options(path: tuple[str, ...]) -> None:
    parameters = COMMANDS[path].params
    assert "as_json" in {parameter.name for parameter in parameters}
    assert all(parameter.help for parameter in parameters if parameter.name != "help")


SIGNING = {"--private", "--public", "--signature"}
SCRIPTS = {"--parts", "--logs", "--store"}
FOREIGN = {"--help", "--version", "--nproc-per-node", "--num-gpus", "--strict", *SIGNING, *SCRIPTS}
"""Options of every command or none, of torchrun, Ray, mkdocs, model-signing and the scripts in
bench."""


def test_messages_and_pages_name_options_that_exist() -> None:
    known = {
        name
        for command in COMMANDS.values()
        for parameter in command.params
        for name in parameter.opts
    }
    root = Path(__file__).parents[2]
    sources = [*(root / "src").rglob("*.py"), *(root / "src").rglob("*.j2")]
    files = [*sources, *(root / "docs").rglob("*.md"), root / "README.md"]
    named = {
        (file.name, name)
        for file in files
        for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", file.read_text())
    }
    assert len(named) > 100
    assert {(file, name) for file, name in named if name not in known | FOREIGN} == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["data", "describe", "--help"], ["gamma", "--help"]]
)
def test_help_is_fast_and_light(arguments: list[str]) -> None:
    """Processor seconds, since the clock tells how busy the machine is."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(arguments=arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr.strip() == "[]"
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0


TRAIN = """
import gc, sys
mine, out = sys.argv[1:]
sys.argv = ["puid", "train", "--data", "files", "--logged", mine + "/logged.csv",
            "--uniform", mine + "/uniform.csv", "--scale", "1,5", "--method", "mf",
            "--set", "epochs=3", "--set", "dim=2", "--out", out]
from puidrec.cli.main import run
try:
    run()
except SystemExit as left:
    assert not left.code, left.code
unused = ("scipy.optimize", "scipy.interpolate", "scipy.spatial", "scipy.stats", "sklearn",
          "pandas", "matplotlib", "torch._dynamo", "puidrec.auditing.envelope",
          "puidrec.report.charts")
found = [name for name in unused if name in sys.modules]
print(found, gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr)
"""


def test_training_starts_without_what_it_does_not_use(files: Path, tmp_path: Path) -> None:
    """A second of each run went into imports that a plain factorisation does not need, and into
    garbage collection."""
    command = [sys.executable, "-c", TRAIN, str(files), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[] True True"


def test_the_version(puid: Any) -> None:
    assert puid("--version").out == f"puid {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("gamma", "--no-such-option"), ("data", "convert")]
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...], puid: Any) -> None:
    done = puid(*arguments)
    assert done.code == 2
    assert done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("bad thing", found="x\ny"), 2, "bad thing"),
        (OutputError("cannot write there"), 1, "cannot write there"),
        (
            RuntimeError("first\nsecond"),
            1,
            "internal error (RuntimeError: first second); PUID_DEBUG=1",
        ),
        (RuntimeError("x" * 10_000), 1, "PUID_DEBUG=1"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_errors_leave_as_one_line(
    error: Exception, code: int, words: str, puid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert len(puid().refused(words, code=code)) < 500


def test_debug_shows_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("here")

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setenv("PUID_DEBUG", "1")
    with pytest.raises(RuntimeError, match="here"):
        main.run()


def test_a_reader_that_leaves_early_gets_no_trace() -> None:
    command = [sys.executable, "-c", "from puidrec.cli.main import run; run()"]
    read, write = os.pipe()
    os.close(read)
    size = ("--set", "data.n_users=30", "--set", "data.n_items=20")
    command += ["data", "describe", "--data", "simulated", *size, "--json", "--quiet"]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=buffered
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_installed_command_refuses_in_one_line() -> None:
    script = Path(sys.executable).with_name("puid")
    if not script.exists():
        pytest.skip("the command puid is not installed beside this Python")
    done = subprocess.run(
        [script, "data", "describe", "--data", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("puid: unknown data set; found 'nothing'; expected one of coat")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_of_shells(
    puid: Any, shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The shell is the one that is named, wherever the command runs; nothing is asked about the
    parent process."""
    done = puid("--show-completion", shell)
    assert done.code == 0, done
    assert "_PUID_COMPLETE" in done.out
    assert f"complete_{shell}" in done.out
    if shell == "powershell":
        return  # installed by asking the shell itself where
    monkeypatch.setenv("HOME", str(tmp_path))
    installed = puid("--install-completion", shell)
    assert installed.code == 0, installed
    files = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and "_PUID_COMPLETE" in path.read_text()
    ]
    assert [str(path) in installed.out for path in files] == [True]


def test_completion_without_a_known_shell_is_bad_usage(puid: Any) -> None:
    for arguments in (
        ("--show-completion",),
        ("--show-completion", "tcsh"),
        ("--install-completion", ""),
    ):
        done = puid(*arguments)
        assert (done.code, done.out) == (2, ""), done
        assert arguments[0] in done.err


@pytest.mark.parametrize(
    ("words", "found"), [("puid tra", "train"), ("puid train --meth", "--method")]
)
def test_a_shell_gets_completions(words: str, found: str) -> None:
    code = "import sys; from puidrec.cli.main import run; sys.argv[0] = 'puid'; run()"
    asked = {
        "_PUID_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **asked},
    )
    assert done.stdout.split() == [found]

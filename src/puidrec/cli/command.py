"""What all commands share: groups of options as Typer sees them, and what is printed: tables for
people, JSON for machines, progress as a bar or as lines.

A group is a dataclass derived from `Options`; each field is an option. A command takes whole groups
as arguments, and the decorator `command` tells Typer their fields: an option is declared once,
however many commands have it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer.core import TyperCommand

from puidrec.atomic import locked, plain_json

if TYPE_CHECKING:
    from puidrec.comparing.run import Event


@dataclass(frozen=True)
class Options:
    """Base of option groups: dataclasses whose fields are made by `option`."""


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """A field of a group: its default, what --help says, names other than its own, what else
    `typer.Option` takes."""
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **more)})


def path_option(help: str, metavar: str = "DIR") -> Any:
    """An optional path. The parser does not look at it: the loaders say in one line what is wrong
    with it."""
    return option(None, help, metavar=metavar, readable=False)


class Command(NamedTuple):
    """A command: the function that Typer calls, with all options in its signature, and an example
    for its help."""

    run: Callable[..., None]
    example: str


def command(example: str, *, writes: str | None = None) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function: each argument that is a group of options becomes the options of
    that group.

    writes: the option that names the folder that the command writes; from start to end no other
    process may.
    """

    def decorate(function: Callable[..., None]) -> Command:
        hints = get_type_hints(function, include_extras=True)
        groups = {
            name: kind
            for name, kind in hints.items()
            if isinstance(kind, type) and issubclass(kind, Options)
        }

        @functools.wraps(function)
        def run(**given: Any) -> None:
            folder = None if writes is None else given[writes]
            made = {
                name: kind(**{own.name: given.pop(own.name) for own in fields(kind)})
                for name, kind in groups.items()
            }
            with locked(folder):
                function(**given, **made)

        parameters = list(_spread(function, hints, groups))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return Command(run, f"Example: {example}")

    return decorate


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import what a command needs with the garbage collector off, which leaves these imports alone
    from then on.

    torch makes hundreds of thousands of objects that stay to the end. Looking for garbage among
    them again and again, and once more at exit, took 0.4 s of every command. Where torch was
    imported before, nothing is changed.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _spread(
    function: Callable[..., None], hints: dict[str, Any], groups: dict[str, type[Options]]
) -> Iterator[inspect.Parameter]:
    """The parameters of a command, the fields of groups in their places. By name only, so that
    their order is free."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            yield parameter.replace(kind=by_name, annotation=hints[name])
            continue
        kinds = get_type_hints(groups[name])
        for own in fields(groups[name]):
            kind, info = kinds[own.name], own.metadata["option"]
            yield inspect.Parameter(
                own.name, by_name, default=own.default, annotation=Annotated[kind, info]
            )


def add_commands(app: typer.Typer, *commands: Command) -> None:
    """Register commands under the names of their functions."""
    for one in commands:
        app.command(epilog=one.example, cls=CommandWithParams)(one.run)


class CommandWithParams(TyperCommand):
    """A command whose help also shows the parameters that the method named before --help has of its
    own."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """The usual help, and the method's parameters under it."""
        words = [part for word in sys.argv for part in word.split("=", 1)]
        named = [words[k + 1] for k, word in enumerate(words[:-1]) if word == "--method"]
        if named:
            self.epilog = f"{self.epilog}\n\n{_own_params(named[-1])}"
        super().format_help(context, formatter)


def _own_params(method: str) -> str:
    """What the help says of a method's own parameters."""
    from puidrec.methods.table import get_method

    kind = get_method(method).own_params
    if kind is None:
        return f"{method} has no parameters of its own."
    own = [
        f"{name}={field.default}: {field.description or ''}"
        for name, field in kind.model_fields.items()
    ]
    return f"Parameters of {method}, for --set: {' '.join(own)}"


console = Console(highlight=False)
FIRST_LINE, NEXT_LINE = 2.0, 30.0
"""Seconds to the first line of progress where there is no terminal, and from one to the next."""
_progress: Literal["shown", "quiet", "verbose"] = "shown"


def show_progress(how: Literal["shown", "quiet", "verbose"]) -> None:
    """How progress is told from now on: `--quiet` turns it off, `--verbose` writes every step on a
    line of its own."""
    global _progress  # noqa: PLW0603 (the command line of this process, read once)
    _progress = how


def is_verbose() -> bool:
    """Whether every step is told."""
    return _progress == "verbose"


def visible(text: str, keep: str = "") -> str:
    """Text that is safe on a terminal: control characters, which ids may hold, are spelt out as in
    \\x1b."""

    def safe(c: str) -> bool:
        return c.isprintable() or c in keep or unicodedata.category(c) == "Zs"

    return text if text.isprintable() else "".join(c if safe(c) else ascii(c)[1:-1] for c in text)


def another_process_prints() -> bool:
    """Whether this is one of several processes of a run (`torchrun`), of which the first one
    prints."""
    several = "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return several and os.environ.get("RANK", "0") != "0"


def say(text: str, *, bold: bool = False, wrap: bool = True) -> None:
    """Print text as it is, without markup. wrap=False leaves long lines to the terminal: paths can
    then be copied."""
    console.print(
        visible(text, keep="\n"), style="bold" if bold else None, markup=False, soft_wrap=not wrap
    )


def print_json(content: Any) -> None:
    """Write JSON to standard output; numbers that are not finite become null."""
    text = json.dumps(plain_json(content), indent=2, ensure_ascii=False)
    sys.stdout.write(
        "".join(f"\\u{ord(c):04x}" if "\x7f" <= c <= "\x9f" else c for c in text) + "\n"
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(
            visible(column), justify="left" if position == 0 else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*(visible(str(cell)).replace("[", r"\[") for cell in row))
    say(title, bold=True)  # Table(title=) would break it at the width of a narrow table
    console.print(table)


def print_page(template: str, **values: Any) -> None:
    """Print what `report/templates/terminal/TEMPLATE.md.j2` says: its tables, and its words as
    paragraphs, each with an empty line after it unless the template says otherwise."""
    from puidrec.report.page import clip_text, markdown_page

    def words(caller: Callable[[], str], end: str = "\n", indent: str = "", **how: Any) -> str:
        say(indent + re.sub(r"[ \t]*\n\s*", " ", caller().strip()) + end, **how)
        return ""

    tools = {"table": print_table, "clip": clip_text, "words": words}
    markdown_page(f"terminal/{template}", **tools, **values)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on standard error; where that is not a terminal, lines now and then; with
    --quiet, nothing."""
    terminal = Console(stderr=True)
    bar = _Steps(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal or not tells_progress() or is_verbose(),
    )
    with bar, progress_lines(lambda: _task_line(bar), terminal):
        yield bar


class _Steps(Progress):
    """A bar that with --verbose is lines instead: one whenever its words change."""

    _told = ""

    def update(self, *args: Any, **changes: Any) -> None:
        super().update(*args, **changes)
        if (
            is_verbose()
            and changes.get("description", self._told) != self._told
            and tells_progress()
        ):
            self._told = changes["description"]
            write_line(_task_line(self), self.console)


def tells_progress() -> bool:
    """Whether this process tells its progress at all."""
    return _progress != "quiet" and not another_process_prints()


def _task_line(bar: Progress) -> str:
    """The tasks of a bar in words: what is done, how far, since when."""
    parts = []
    for task in bar.tasks:
        far = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
        parts.append(f"{task.description}{far}, {_clock(task.elapsed or 0.0)}")
    return "; ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def progress_lines(line: Callable[[], str], terminal: Console) -> Iterator[None]:
    """Write a line on standard error now and then, if that is not a terminal: a log shows that work
    goes on."""
    if terminal.is_terminal or not tells_progress() or is_verbose():
        yield
        return
    over = threading.Event()
    teller = threading.Thread(target=tell, args=(line, terminal, over.wait), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def tell(line: Callable[[], str], terminal: Console, over: Callable[[float], bool]) -> None:
    """Write lines until `over`, which waits for so many seconds, says that the work is done."""
    pause = FIRST_LINE
    while not over(pause):
        write_line(line(), terminal)
        pause = NEXT_LINE


def write_line(words: str, terminal: Console) -> None:
    """A line of progress, unless there is nothing to say."""
    with contextlib.suppress(OSError, ValueError):  # the reader has left: the work goes on without
        terminal.file.write(f"puid: {visible(words)}\n" if words else "")
        terminal.file.flush()


@contextlib.contextmanager
def steps(first: str) -> Iterator[Callable[[str], None]]:
    """Show the step that is under way; call the yielded function with the name of the next one."""
    with progress_bar() as bar:
        task = bar.add_task(first, total=None)
        yield lambda name: bar.update(task, description=name)


@contextlib.contextmanager
def jobs_bar(words: str) -> Iterator[Callable[[Event], None]]:
    """Show how far a study is and which job ended last; call the yielded function with each
    event."""
    with progress_bar() as bar:
        task = bar.add_task(words, total=None)

        def note(event: Event) -> None:
            job = event.outcome.job
            bar.update(
                task,
                description=f"{words}, job {event.done}: {job.name}, seed {job.seed}",
                completed=event.done,
                total=event.total,
            )

        yield note

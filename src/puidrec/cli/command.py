"""Commands and groups of options, as Typer sees them.

A group is a dataclass derived from `Options`; each field is an option. A command takes whole groups
as arguments, and the decorator `command` tells Typer their fields: an option is declared once,
however many commands have it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

from puidrec.atomic import locked


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

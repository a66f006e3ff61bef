"""The command `puid`: commands register here, errors leave here as one line and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer._completion_shared import Shells, get_completion_script, install

from puidrec.cli import audit, data, runs, studies
from puidrec.cli.command import add_commands, another_process_prints, is_verbose
from puidrec.errors import PuidError, PuidWarning, one_line

app = typer.Typer(
    name="puid",
    help="Train, evaluate and audit recommenders learned from logs with hidden confounding.",
    epilog="Start with: puid demo",
    no_args_is_help=True,
    add_completion=False,  # it asks the parent process which shell this is; here the caller says so
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
add_commands(app, studies.demo, data.gamma, runs.train, runs.evaluate, runs.recommend, audit.audit)
add_commands(app, studies.compare, studies.tune, studies.reproduce, runs.export)
add_commands(app, runs.serve)

INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl+C."""
COMPLETE = "_PUID_COMPLETE"
"""The variable by which a shell asks for completions."""


def _version(wanted: bool) -> None:
    if wanted:
        from puidrec import __version__

        typer.echo(f"puid {__version__}")
        raise typer.Exit


def _show_completion(shell: Shells | None) -> None:
    if shell:
        script = get_completion_script(prog_name="puid", complete_var=COMPLETE, shell=shell.value)
        typer.echo(script)
        raise typer.Exit


def _install_completion(shell: Shells | None) -> None:
    if shell:
        _, path = install(shell.value, prog_name="puid", complete_var=COMPLETE)
        typer.echo(f"Completion for {shell.value} is in {path}; new terminals have it.")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    install_completion: Annotated[
        Shells | None,
        typer.Option(
            callback=_install_completion,
            is_eager=True,
            help="Install completion for a shell and exit.",
        ),
    ] = None,
    show_completion: Annotated[
        Shells | None,
        typer.Option(
            callback=_show_completion,
            is_eager=True,
            help="Print the completion script of a shell and exit.",
        ),
    ] = None,
) -> None:
    """Train, evaluate and audit recommenders learned from logs with hidden confounding."""


def run() -> None:
    """Run the command line: exit code 0 is fine, 2 bad usage or input, 1 failure; no traces for
    user mistakes."""
    if another_process_prints():
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # its remarks on caches are no output of ours
    if COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        try:
            with _warnings_in_one_line():
                app()
        finally:
            sys.stdout.flush()  # here, where a reader that left early can still be caught
    except PuidError as error:
        if another_process_prints() and type(error).__name__ != "WorldError":
            sys.exit(error.exit_code)  # the first process prints it
        _leave(f"puid: {error}", error.exit_code)
    except SystemExit as left:
        if left.code == INTERRUPTED:
            typer.echo("puid: interrupted; what was written before is whole", err=True)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _leave("puid: out of memory; use a smaller data set or a machine with more of it", 1)
    except Exception as error:
        if os.environ.get("PUID_DEBUG") or is_verbose():
            raise
        name = type(error).__name__
        _leave(
            f"puid: internal error ({name}: {one_line(str(error))[:300]}); PUID_DEBUG=1 or "
            "--verbose shows the trace",
            1,
        )


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings of this package when a command is done, one line each; a refusal is the only
    line there is."""
    told: dict[str, None] = {}

    def keep(message: Warning | str, *rest: Any) -> None:
        if isinstance(message, PuidWarning):
            told[str(message)] = None
        else:
            show(message, *rest)

    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.simplefilter("always", PuidWarning)
        warnings.showwarning = keep  # type: ignore[assignment]
        try:
            yield
        except SystemExit as left:  # how a command ends, also a successful one
            for words in told if not left.code and not another_process_prints() else ():
                typer.echo(f"puid: warning: {words}", err=True)
            raise


def _leave(line: str, code: int) -> None:
    typer.echo(line, err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()

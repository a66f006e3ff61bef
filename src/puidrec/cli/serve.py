"""`puid serve`: answer for a run folder over HTTP."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from puidrec.cli import options
from puidrec.errors import InputError

EXAMPLE = "Example: puid serve runs/puid-dr --port 8000"


class UnknownIds(StrEnum):
    """What ids get that the model does not know."""

    prior = "prior"
    refuse = "404"


def serve(
    run: Annotated[Path, typer.Argument(help="Folder written by puid train.", metavar="RUN", readable=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default answers this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    unknown: Annotated[
        UnknownIds, typer.Option(help="Users without training rows or features: the average user's answer, or 404.")
    ] = UnknownIds.prior,
    max_k: Annotated[
        int, typer.Option(help="Most items per user that a client may ask for.", min=1, max=100_000)
    ] = 1000,
    device: options.Device = None,
    config: options.Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON, once it answers.")] = False,
) -> None:
    """Serve recommendations over HTTP until Ctrl+C: POST /recommend and /score, GET /health and /model.

    The page /docs says what they take and give; it needs no network.
    """
    from puidrec.cli.output import console, print_json

    try:
        from puidrec.serve.app import serve_run
        from puidrec.serve.server import open_socket, serve_forever
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving needs {error.name}, which is not installed", hint="pip install 'puidrec[serve]'"
        ) from error
    from puidrec.serve.limits import Limits
    from puidrec.serve.schema import Unknown

    listener = open_socket(host, port)
    with listener:
        limits = Limits(k=max_k, results=max(Limits.results, max_k))
        app = serve_run(run, Unknown(unknown.value), limits, device or "cpu")
        card = app.state.card
        listener.listen()  # from here on clients may connect, and are answered as soon as the loop runs
        name, number = listener.getsockname()[:2]
        address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
        if as_json:
            print_json({"url": f"http://{address}", "method": card["method"]})
            sys.stdout.flush()  # whoever reads this waits for it
        else:
            console.print(
                f"{card['method']}, {card['users']:,} users × {card['items']:,} items, on http://{address} "
                f"(what it answers: http://{address}/docs)",
                markup=False, soft_wrap=True,
            )  # fmt: skip
        serve_forever(app, listener)
    if not as_json:
        console.print("stopped", markup=False)

"""`puid serve`: put a model into service."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puidrec.cli import options
from puidrec.cli.command import command, option, path_option
from puidrec.cli.output import print_json, say
from puidrec.errors import InputError
from puidrec.serve import Seen, Unknown

if TYPE_CHECKING:
    from puidrec.serve.service import Policy


@dataclass(frozen=True)
class ServeOptions(options.CommonOptions):
    """Where the server listens, and what clients get."""

    host: str = option("127.0.0.1", "Address to listen on; the default answers this machine only.")
    port: int = option(8000, "Port; 0 takes a free one.", min=0, max=65535)
    api_key_file: Path | None = path_option(
        "Keys, one per line; clients must send one. Needed when others can reach the server.",
        "FILE",
    )
    allowed_host: list[str] | None = option(
        None,
        "Name by which clients call the server, such as api.example.com; may be repeated.",
        metavar="NAME",
    )
    cors_origin: list[str] | None = option(
        None,
        "Origin of web pages whose scripts may ask, such as https://example.com; may be repeated.",
        metavar="URL",
    )
    proxy: list[str] | None = option(
        None,
        "Address of a proxy before the server; its X-Forwarded-For is believed. May be repeated.",
        metavar="ADDRESS",
    )
    unknown: Unknown = option(
        Unknown.PRIOR, "Users without training rows or features: the average user's answer, or 404."
    )
    seen: Seen = option(
        Seen.CATALOGUE,
        "Where items that a user rated are left out: of the catalogue, also of lists of items, or never.",
    )
    max_k: int = option(1000, "Most items per user that a client may ask for.", min=1, max=100_000)
    device: str | None = option(None, options.DEVICES, show_default="cpu")
    as_json: bool = option(False, "Print the address as JSON, once it answers.", "--json")
    quiet: bool = option(False, "No log lines of requests on standard error.", "-q", "--quiet")


@command("puid serve runs/coat --port 8000")
def serve(run: options.RunFolder, asked: ServeOptions) -> None:
    """Serve recommendations over HTTP until Ctrl+C: POST /recommend and /score, GET /health, /model
    and /metrics.

    The page /docs says what they take and give; it needs no network. SIGHUP takes the run folder
    anew.
    """
    try:
        from puidrec.serve.app import serve_run
        from puidrec.serve.server import address_of, open_socket, serve_forever, survive_hangup
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving needs {error.name}, which is not installed",
            hint="pip install 'puidrec[serve]'",
        ) from error

    policy = _policy(asked)
    with open_socket(asked.host, asked.port) as listener:
        app = serve_run(run, policy)
        survive_hangup()
        listener.listen()  # from here on clients may connect, and are answered as soon as the loop runs
        _announce(app.state.serving.service.card, address_of(listener), asked.as_json)
        log = None if asked.quiet else sys.stderr
        serve_forever(app, listener, proxies=asked.proxy or (), log=log)
    if not asked.as_json:
        say("stopped")


def _policy(asked: ServeOptions) -> Policy:
    """What the options ask of the server; refused where it would let in anybody."""
    from puidrec.serve.access import ApiKeys, allowed_hosts, require_key_beyond_loopback
    from puidrec.serve.limits import Limits
    from puidrec.serve.service import Policy

    keys = None if asked.api_key_file is None else ApiKeys(asked.api_key_file)
    require_key_beyond_loopback(asked.host, keys)
    origins = asked.cors_origin or []
    wrong = next(
        (origin for origin in origins if not origin.startswith(("http://", "https://"))), None
    )
    if wrong is not None:
        raise InputError(
            "not an origin",
            found=wrong,
            expected="http:// or https://, a name, and a port if need be",
        )
    limits = Limits(k=asked.max_k, results=max(Limits.results, asked.max_k))
    return Policy(
        unknown=asked.unknown,
        seen=asked.seen,
        limits=limits,
        device=asked.device or "cpu",
        keys=keys,
        hosts=allowed_hosts(asked.host, asked.allowed_host or []),
        origins=origins,
    )


def _announce(card: dict[str, Any], url: str, as_json: bool) -> None:
    """Say what is served and where."""
    if as_json:
        print_json({"url": url, "method": card["method"]})
        sys.stdout.flush()  # the reader waits for it
    else:
        what = f"{card['method']}, {card['users']:,} users × {card['items']:,} items"
        say(f"{what}, on {url} (what it answers: {url}/docs)", wrap=False)

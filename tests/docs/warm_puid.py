"""A `puid` that starts at once: a server has imported everything, and each call of the command is a
fork of it.

`python warm_puid.py SOCKET` is the server. The command (`CLIENT` in conftest.py) hands over its
arguments, its folder and its three streams, and ends with the exit code of the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys

import puidrec
from puidrec.cli.main import run

NOT_IMPORTED = ("__main__", "ray_engine", "worker_process")


def answer(call: bytes, streams: list[int]) -> int:
    """Run the command with the caller's arguments, folder and streams; returns its exit code."""
    arguments, folder = json.loads(call)
    for own, given in enumerate(streams):
        os.dup2(given, own)
    os.chdir(folder)
    sys.argv = ["puid", *arguments]
    try:
        run()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Import what commands import, then fork for each caller."""
    for module in pkgutil.walk_packages(puidrec.__path__, "puidrec."):
        if module.name.rpartition(".")[2] not in NOT_IMPORTED:
            with contextlib.suppress(ImportError):  # of an extra
                importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)  # noqa: T201 (to the fixture)
        while True:
            caller, _ = listener.accept()
            call, streams, _, _ = socket.recv_fds(caller, 2**16, 3)
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = 1
                try:
                    code = answer(call, streams)
                finally:
                    caller.send(bytes([code]))
                    os._exit(code)
            caller.close()
            for stream in streams:
                os.close(stream)


if __name__ == "__main__":
    main()

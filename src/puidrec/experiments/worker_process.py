"""A worker process of the local engine: jobs in on standard input, one line each, answers out; no code travels.

It ends when its standard input ends, even in the middle of a job: the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

Messages = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    """Run jobs until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which then closes our input
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library may print is no answer
    warnings.simplefilter("ignore")
    messages: Messages = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    from puidrec.experiments.run_job import attempt

    while True:
        message = messages.get()
        error = attempt(message["job"], Path(message["folder"]))
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


def _listen(messages: Messages) -> None:
    for line in sys.stdin:
        messages.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()

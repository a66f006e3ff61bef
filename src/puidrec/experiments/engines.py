"""Where jobs run: in this process, in processes of this machine, or on a Ray cluster. All give the same files.

An engine takes jobs and the folder that their files go to; it yields each job as it ends, with what went wrong or None.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import puidrec
from puidrec.errors import InputError
from puidrec.experiments import run_job
from puidrec.experiments.job import Job
from puidrec.optimise.devices import require_device

RETRIES = 2
"""How often a job is tried again after its worker died. One that kills every worker must not run for ever."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
Ended = tuple[Job, str | None]
Engine = Callable[[Sequence[Job], Path, int | None], Generator[Ended, None, None]]
"""(jobs, folder, workers) → jobs as they end, in any order; closing it stops all work. No number: a worker per core."""


def inline(jobs: Sequence[Job], folder: Path, workers: int | None) -> Generator[Ended, None, None]:
    """One after the other in this process: for debugging and for methods that only this process knows."""
    _require_devices(jobs)
    for job in jobs:
        yield job, run_job.attempt(job.to_plain(), folder)


def local(jobs: Sequence[Job], folder: Path, workers: int | None) -> Generator[Ended, None, None]:
    """Processes of this machine, one thread each. A worker that dies is replaced and its job tried again."""
    _require_devices(jobs)
    waiting, ended = deque(jobs), queue.SimpleQueue[Ended]()
    pool = [_Worker(folder) for _ in range(min(workers or cores(), len(jobs)))]
    threads = [threading.Thread(target=_serve, args=(worker, waiting, ended), daemon=True) for worker in pool]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            yield ended.get()
    finally:
        waiting.clear()
        for worker in pool:
            worker.stop()
        for thread, worker in zip(threads, pool, strict=True):
            thread.join()
            worker.close()


def none(jobs: Sequence[Job], folder: Path, workers: int | None) -> Generator[Ended, None, None]:
    """Run nothing: tables of what is finished, and a list of what is not."""
    yield from ((job, "not run yet") for job in jobs)


def on_ray(jobs: Sequence[Job], folder: Path, workers: int | None) -> Generator[Ended, None, None]:
    """The machines of a Ray cluster; see `ray_engine`."""
    from puidrec.experiments.ray_engine import run_on_ray

    return run_on_ray(jobs, folder, workers)


ENGINES: dict[str, Engine] = {"local": local, "inline": inline, "none": none, "ray": on_ray}


def get_engine(name: str) -> Engine:
    """Look an engine up by name; one whose package is not installed is refused here, before any work."""
    if name not in ENGINES:
        raise InputError("unknown engine", found=name, expected=f"one of {', '.join(ENGINES)}")
    if name == "ray":
        from puidrec.experiments.ray_engine import import_ray

        import_ray()
    return ENGINES[name]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _require_devices(jobs: Sequence[Job]) -> None:
    """A device that is not here is one line, not one failure per job."""
    for name in sorted({job.resolved.device for job in jobs}):
        require_device(name)


def _serve(worker: _Worker, waiting: deque[Job], ended: queue.SimpleQueue[Ended]) -> None:
    """Give a worker one job after the other."""
    while True:
        try:
            job = waiting.popleft()
        except IndexError:
            return
        try:
            error = worker.run(job)
        except Exception as failure:  # a job must end, or the study would wait for ever
            error = f"the worker could not be used ({type(failure).__name__}: {failure})"
        ended.put((job, error))


class _Worker:
    """A process that runs jobs, started when first needed and again after its death."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.lock = threading.Lock()

    def run(self, job: Job) -> str | None:
        """Have a job run; an error in one line, or None."""
        line = json.dumps({"job": job.to_plain(), "folder": str(self.folder)}) + "\n"
        code: int | None = None
        for _ in range(1 + RETRIES):
            with self.lock:
                if self.stopped:
                    return "stopped"
                process = self._alive()
            answer = _ask(process, line)
            if answer:
                error: str | None = json.loads(answer)["error"]
                return error
            code = process.wait()
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"its worker died {1 + RETRIES} times ({cause}); out of memory? Try fewer --workers"

    def stop(self) -> None:
        """End the process, whatever it is doing: files appear whole or not at all."""
        with self.lock:
            self.stopped = True
            if self.process is not None:
                self.process.kill()

    def close(self) -> None:
        """Leave nothing of the process behind."""
        if self.process is not None:
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()

    def _alive(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process = _start()
        return self.process


def _start() -> subprocess.Popen[str]:
    """A worker that finds this very package, with one thread for every library."""
    paths = [str(Path(puidrec.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(
        [sys.executable, "-m", "puidrec.experiments.worker_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=None if os.environ.get("PUID_DEBUG") else subprocess.DEVNULL, env=environment, encoding="utf-8",
    )  # fmt: skip


def _ask(process: subprocess.Popen[str], line: str) -> str:
    """Send a job and wait for the answer; nothing comes back from a process that died."""
    if process.stdin is None or process.stdout is None:
        return ""
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):  # it died, or it was stopped and its streams are closed
        return ""

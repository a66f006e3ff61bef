"""The Ray engine: jobs on the machines of a cluster, or on a local one that is started and stopped here.

RAY_ADDRESS names a cluster (`auto`: the one this machine belongs to). Results travel back as files, so nothing but the
data folder must be reachable from all machines, under the same path. Every trial of a search is a job of its own
whose file comes back at once; the job follows when all of them have ended, and they travel along. So a worker that
dies takes one training with it, which is started again, and an interrupted study goes on from its files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from puidrec.atomic import write_bytes
from puidrec.errors import InputError, one_line
from puidrec.experiments.engines import RETRIES, Ended, cores
from puidrec.experiments.job import Job, ResultFolder
from puidrec.experiments.run_job import attempt
from puidrec.experiments.search import trials

AHEAD = 1_000
"""Jobs handed to a cluster at a time: enough to keep it busy, few enough to hold their answers."""
Answer = tuple[str | None, dict[str, bytes]]
"""What went wrong, and the files that were made."""


def run_remotely(plain: Mapping[str, Any], known: Mapping[str, bytes]) -> Answer:
    """On a machine of the cluster: run a job in a folder of its own and return the files that are new."""
    with tempfile.TemporaryDirectory(prefix="puid-job-") as name:
        folder = Path(name)
        for file, content in known.items():
            (folder / file).write_bytes(content)
        error = attempt(plain, folder)
        made = {path.name: path.read_bytes() for path in folder.glob("*.safetensors") if path.name not in known}
    return error, made


def run_on_ray(jobs: Sequence[Job], folder: Path, workers: int | None) -> Generator[Ended, None, None]:
    """Trainings of one CPU each, on CUDA with a GPU, at most `workers` at a time, where given. Ray starts those of a
    dead worker again."""
    ray = import_ray()
    ours = _connect(ray, workers)
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(run_remotely)
    files = ResultFolder(folder)
    queue = _Queue(jobs, files)
    running: dict[Any, Job] = {}
    try:
        _require_gpus(ray, jobs)
        while queue.waiting or running:
            while queue.waiting and len(running) < (workers or AHEAD):
                job = queue.waiting.popleft()
                own = remote.options(num_gpus=1) if _on_cuda(job) else remote
                running[own.remote(job.to_plain(), _known(job, files))] = job
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready)
            error = _collect(ray, ready, folder)
            if not queue.was_trial(job):
                yield job, error
    finally:
        for reference in running:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()


def _on_cuda(job: Job) -> bool:
    return job.resolved.device.startswith("cuda")


def _require_gpus(ray: Any, jobs: Sequence[Job]) -> None:
    """A cluster would wait for ever for a GPU that it does not have."""
    if any(map(_on_cuda, jobs)) and not ray.cluster_resources().get("GPU"):
        raise InputError(
            "no GPU in the Ray cluster", found="--device cuda", expected="a cluster with GPUs, or cpu",
            hint="Leave --device out, or start its machines with ray start --num-gpus N.",
        )  # fmt: skip


class _Queue:
    """Jobs in order, a search as its trials first; the search itself comes next when the last of them has ended."""

    def __init__(self, jobs: Sequence[Job], files: ResultFolder) -> None:
        self.waiting: deque[Job] = deque()
        self._searches: dict[str, list[tuple[Job, set[str]]]] = {}
        """By trial: the searches that want it, each with its trials that have not ended."""
        for job in jobs:
            unfinished = {trial.key: trial for trial in _trials(job) if not files.path(trial).is_file()}
            left = set(unfinished)
            for key, trial in unfinished.items():
                if key not in self._searches:
                    self.waiting.append(trial)
                self._searches.setdefault(key, []).append((job, left))
            if not unfinished:
                self.waiting.append(job)

    def was_trial(self, job: Job) -> bool:
        """Note the end of a job; True for a trial, whatever became of it: the search will see."""
        searches = self._searches.pop(job.key, [])
        for search, left in searches:
            left.discard(job.key)
            if not left:
                self.waiting.appendleft(search)
        return bool(searches)


def _trials(job: Job) -> list[Job]:
    """The trials of a search; none where there is nothing to choose from."""
    found = trials(job) if job.budget > 1 else []
    return found if len(found) > 1 else []


def _known(job: Job, files: ResultFolder) -> dict[str, bytes]:
    """Finished trials of a search."""
    paths = [files.path(trial) for trial in _trials(job)]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _collect(ray: Any, reference: Any, folder: Path) -> str | None:
    """Write the files of a finished job; whatever the cluster may complain of is this job's failure alone."""
    try:
        error, made = ray.get(reference)
    except ray.exceptions.RayError as problem:
        return f"the cluster could not finish it ({type(problem).__name__}: {one_line(str(problem))[:200]})"
    for name, content in made.items():
        write_bytes(folder / Path(name).name, content)
    failure: str | None = error
    return failure


def _connect(ray: Any, workers: int | None) -> bool:
    """Use the cluster we are in, join the one that RAY_ADDRESS names, or start a local one; True for the last."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    own = {"include_dashboard": False, "num_cpus": workers or cores()} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        raise InputError(
            "cannot reach the Ray cluster", found=address, expected=one_line(str(error))[:120],
            hint="Check RAY_ADDRESS and RAY_AUTH_TOKEN, or unset RAY_ADDRESS for a cluster of our own.",
        ) from error  # fmt: skip
    return True


def import_ray() -> Any:
    """The package, which is an extra."""
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "the engine ray needs the package ray", found="not installed", hint="pip install 'puidrec[ray]'"
        ) from error
    return ray

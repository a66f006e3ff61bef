"""Where a fit runs: the processes of `torchrun` (who we are among them, sums over all of us), the
device, the threads.

Alone, every sum of a `World` is the identity and no process group exists.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from puidrec.errors import InputError, PuidError

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others in a run that has begun; a dead one is noticed at once.
"""
JOINING = timedelta(minutes=10)
"""How long a process waits for the others to start."""
REMINDER = 15.0
"""Seconds after which a process that waits for the others says so, and says so again."""
SMALL = 2_000_000
"""Observed pairs × dimensions up to which one thread is faster: handing out work costs more than
the work."""
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class WorldError(PuidError):
    """Another process of the run is gone, so this one cannot go on."""


@dataclass(frozen=True)
class World:
    """Rank `rank` of `size` processes, each of which holds some of the users and all of the
    items."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Σ over processes, in place, the same everywhere."""
        if self.size > 1:
            with _collective():
                dist.all_reduce(values)
        return values

    @contextlib.contextmanager
    def first_ahead(self) -> Iterator[None]:
        """Let the first process do something before the others do it: what it wrote, they find."""
        if self.size > 1 and not self.first:
            self.sum_number(0.0)
        try:
            yield
        finally:
            if self.size > 1 and self.first:
                self.sum_number(0.0)

    def sum_number(self, value: float) -> float:
        """Σ over processes of one number each, in float64."""
        if self.size == 1:
            return value
        return float(self.sum(torch.tensor(value, dtype=torch.float64, device=self.device)))


ALONE = World()
"""A single process."""


def launched() -> bool:
    """Whether `torchrun` (or anything that sets its variables) started this process as one of
    several."""
    return all(name in os.environ for name in LAUNCHED) and os.environ["WORLD_SIZE"] != "1"


@contextlib.contextmanager
def join_world(
    device: str = "cpu", waiting: Callable[[str], None] | None = None
) -> Iterator[World]:
    """The processes we were launched with: gloo on CPU, nccl on CUDA. Alone, nothing is started.

    waiting: told every 15 s, in one line, that others of the run are not there yet.
    """
    if not launched():
        yield ALONE
        return
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise InputError("several processes need cpu or cuda", found=device)
    own = device
    if kind == "cuda" and torch.device(device).index is None:
        own = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
        torch.cuda.set_device(own)
    _meet("nccl" if kind == "cuda" else "gloo", waiting)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), own)
    finally:
        dist.destroy_process_group()


def _meet(backend: str, waiting: Callable[[str], None] | None) -> None:
    """Wait until every process of the run is there, but not for ever and not in silence."""
    rank, size, *where = (os.environ[name] for name in LAUNCHED)
    here = f"rank {rank} of {size} processes waits for the others at {':'.join(where)}"
    met = threading.Event()

    def remind() -> None:
        while waiting is not None and not met.wait(REMINDER):
            waiting(f"{here}; it ends after {JOINING.total_seconds() / 60:g} minutes")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        store, own, total = next(rendezvous("env://", timeout=JOINING))
        store.set_timeout(PATIENCE)
        with _collective():
            dist.init_process_group(
                backend, store=store, rank=own, world_size=total, timeout=PATIENCE
            )
    except (dist.DistError, ValueError) as error:
        raise WorldError(
            f"{here}, and they did not come ({_reason(error)}); start all {size}, or unset "
            "WORLD_SIZE for one process"
        ) from error
    finally:
        met.set()
        reminder.join()


def _reason(error: Exception) -> str:
    """The first line, without the place in torch's sources that it came from."""
    return re.sub(r"^\[[^\]]*\]\s*", "", (str(error).splitlines() or ["no reason given"])[0])[
        :100
    ].rstrip(": ")


@contextlib.contextmanager
def _collective() -> Iterator[None]:
    """Turn a lost connection into one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise WorldError(
            f"lost the other processes of this run ({_reason(error)}); "
            "repeat the command to go on from the last checkpoint, on any number of processes"
        ) from error


def require_device(name: str) -> None:
    """Refuse a device that is not there, before any work is spent."""
    try:
        torch.zeros(1, device=name).add_(1.0).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = [kind for kind in ("cuda", "mps", "xpu") if getattr(torch, kind).is_available()]
        raise InputError(
            "no such device here",
            found=name,
            expected=f"one of {', '.join(['cpu', *found])}",
            hint="Leave device (--device) out to use the CPU.",
        ) from error


@contextlib.contextmanager
def threads_for(pairs: int, dim: int, small: int | None = None) -> Iterator[None]:
    """Use one thread for a small problem, and leave the setting as it was. The choice depends on
    sizes alone, so that equal runs are equal to the last bit."""
    before = torch.get_num_threads()
    try:
        if pairs * dim <= (SMALL if small is None else small):
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)

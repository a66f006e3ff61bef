"""Shared fixtures: a small data set, a model and a run folder, the public data sets, and how a refusal must look."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset
    from puidrec.model import Recommender

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # workers share the cores: more threads would only wait for each other
settings.register_profile("suite", deadline=None)  # a busy machine is no fault
settings.load_profile("suite")
TINY = {"n_users": 60, "n_items": 40}


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the public data sets; tests that need it are skipped where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("PUIDREC_DATA", default))
    if not root.is_dir():
        pytest.skip(f"no public data sets in {root} (set PUIDREC_DATA)")
    return root


@pytest.fixture(scope="session")
def refusal() -> Callable[..., str]:
    """Call something that must be refused; returns the message, which must be one line and hold all `parts`."""

    def refuse(call: Callable[[], Any], *parts: str) -> str:
        with pytest.raises(InputError) as caught:
            call()
        message = str(caught.value)
        assert message
        assert message.splitlines() == [message]
        for part in parts:
            assert part in message, f"{part!r} not in {message!r}"
        return message

    return refuse


@pytest.fixture(scope="session")
def lock_holder() -> Any:
    """A context in which somebody else (another thread) holds the lock of a folder."""
    from puidrec.atomic import locked

    @contextlib.contextmanager
    def hold(folder: Path) -> Iterator[None]:
        held, release = threading.Event(), threading.Event()

        def other() -> None:
            with locked(folder):
                held.set()
                release.wait(60)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(other)
            assert held.wait(60)
            try:
                yield
            finally:
                release.set()
                done.result()

    return hold


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread only waits, and on a busy machine it waits long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_data() -> Dataset:
    """60 users and 40 items with features, a confounded log and uniform rows; frozen, so that tests may share it."""
    from puidrec.data.synthetic import simulate

    return simulate("mixed", **TINY, density=0.2, rng=0).data


@pytest.fixture(scope="session")
def suited() -> Callable[..., tuple[Dataset, dict[str, Any]]]:
    """(method, data, options) → the same, or what a method that refuses them can do with.

    Methods that train on uniform ratings get a world with enough of them; options that a method refuses are left out:
    `spectrum` is solved by least squares alone, `idcf` needs a backbone that reads features.
    """
    from puidrec.data.synthetic import simulate
    from puidrec.methods import METHODS

    uniform = simulate("mixed", **TINY, density=0.2, n_uniform=2_000, rng=3).data
    refused = {("spectrum", "solver", "adam"), ("spectrum", "backbone", "mf-mlp"), ("idcf", "backbone", "mf")}

    def suit(method: str, data: Dataset, options: dict[str, Any]) -> tuple[Dataset, dict[str, Any]]:
        own = {key: value for key, value in options.items() if (method, key, value) not in refused}
        if method == "spectrum":
            own.pop("block_users", None)
        return uniform if METHODS[method].needs_uniform else data, own

    return suit


@pytest.fixture(scope="session")
def tiny_model(tiny_data: Dataset) -> Recommender:
    """A model of `tiny_data` with ID embeddings and linear features; do not change it."""
    from puidrec.model import Recommender

    return Recommender("rd-ips", dim=4, epochs=5, rng=0).fit(tiny_data, protocol="rd")


@pytest.fixture(scope="session")
def _trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from puidrec.comparing.job import DataSpec
    from puidrec.run_folder import train_run
    from puidrec.settings import Settings

    folder = tmp_path_factory.mktemp("trained") / "run"
    data = DataSpec("simulated", options=TINY)
    train_run(data.load(), Settings.of("rd-ips", seed=1, epochs=5, dim=4), out=folder, source=data.to_source())
    return folder


@pytest.fixture
def run_folder(_trained_run: Path, tmp_path: Path) -> Path:
    """The run that `puid train` writes for a simulated data set of 60 users and 40 items; a copy per test."""
    return Path(shutil.copytree(_trained_run, tmp_path / "run"))


N_USERS, N_ITEMS = 37, 23
"""The population of `make_scores` and `make_observed`."""


@pytest.fixture
def make_scores():
    """Random factors that want gradients."""
    import torch

    from puidrec.scores.low_rank import LowRank

    def make(seed, dim=5, dtype=None, n_users=N_USERS, n_items=N_ITEMS):
        rng, dtype = torch.Generator().manual_seed(seed), dtype or torch.float64
        left, right = (torch.randn(n, dim, generator=rng, dtype=dtype) for n in (n_users, n_items))
        return LowRank.of(left.requires_grad_(), right.requires_grad_())

    return make


@pytest.fixture
def make_observed():
    """A random log on the population, with signed targets and a box."""
    import numpy as np
    import torch
    from puidrec.objective.terms import Observed

    from puidrec.losses.worst_case import Box
    from puidrec.scores.sparse import LogPattern

    def make(seed, share=0.3, dtype=None, gamma=2.0):
        rng, dtype = np.random.default_rng(seed), dtype or torch.float64
        mask = rng.random((N_USERS, N_ITEMS)) < share
        user, item = np.nonzero(mask)
        target = torch.tensor(rng.choice([-1.0, 1.0], user.size), dtype=dtype)
        odds = torch.tensor(rng.uniform(0.5, 6.0, user.size), dtype=dtype)
        box = Box.exactly(1 + odds) if gamma == 1 else Box(1 + odds / gamma, 1 + odds * gamma)
        return Observed(LogPattern.from_pairs(user, item, N_USERS, N_ITEMS), target, box), torch.from_numpy(mask)

    return make

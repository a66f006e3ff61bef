"""Shared fixtures: a small data set, a model and a run folder, the public data sets, and how a
refusal must look."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset
    from puidrec.model import Recommender

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # workers share the cores: more threads would only wait for each other
    )
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
    """Call something that must be refused; returns the message, which must be one line and hold all
    `parts`."""

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
    """60 users and 40 items with features, a confounded log and uniform rows; frozen, so that tests
    may share it."""
    from puidrec.data.synthetic import simulate

    return simulate("mixed", **TINY, density=0.2, rng=0).data


@pytest.fixture(scope="session")
def suited() -> Callable[..., tuple[Dataset, dict[str, Any]]]:
    """(method, data, options) → the same, or what a method that refuses them can do with.

    Methods that train on uniform ratings get a world with enough of them; options that a method
    refuses are left out: `spectrum` and `dcf` are solved by least squares alone, `idcf` needs a
    backbone that reads features.
    """
    from puidrec.data.synthetic import simulate
    from puidrec.methods import METHODS

    uniform = simulate("mixed", **TINY, density=0.2, n_uniform=2_000, rng=3).data
    refused = {
        ("spectrum", "solver", "adam"),
        ("spectrum", "backbone", "mf-mlp"),
        ("dcf", "backbone", "mf-mlp"),
        ("dcf", "solver", "adam"),
        ("idcf", "backbone", "mf"),
    }

    def suit(method: str, data: Dataset, options: dict[str, Any]) -> tuple[Dataset, dict[str, Any]]:
        own = {key: value for key, value in options.items() if (method, key, value) not in refused}
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
    train_run(
        data.load(),
        Settings.of("rd-ips", seed=1, epochs=5, dim=4),
        out=folder,
        source=data.to_source(),
    )
    return folder


@pytest.fixture
def run_folder(_trained_run: Path, tmp_path: Path) -> Path:
    """The run that `puid train` writes for a simulated data set of 60 users and 40 items; a copy
    per test."""
    return Path(shutil.copytree(_trained_run, tmp_path / "run"))


N_USERS, N_ITEMS = 37, 23
"""The population of `make_scores` and `make_log`."""


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
def make_log():
    """A random log on the population as an operator, its columns (±1 targets and a box of weights),
    and its mask."""
    import numpy as np
    import torch

    from puidrec.scores.log import Log

    def make(seed, share=0.3, dtype=None, gamma=2.0):
        rng, dtype = np.random.default_rng(seed), dtype or torch.float64
        mask = rng.random((N_USERS, N_ITEMS)) < share
        user, item = np.nonzero(mask)
        log = Log(np.concatenate([[0], np.cumsum(mask.sum(1))]), item, N_ITEMS, dtype=dtype)
        odds, target = rng.uniform(0.5, 6.0, user.size), rng.choice([-1.0, 1.0], user.size)
        numbers = {"r": target, "a": 1 + odds / gamma, "b": 1 + odds * gamma}
        columns = {name: log.filled(lambda rows, x=x: x[rows]) for name, x in numbers.items()}
        return log, columns, torch.from_numpy(mask)

    return make


def _dense(factors) -> np.ndarray:
    """All scores as a float64 matrix."""
    parts = zip(factors.lefts, factors.rights, strict=True)
    return sum(
        left.detach().double().numpy() @ right.detach().double().numpy().T for left, right in parts
    )


@pytest.fixture(scope="session")
def dense_scores():
    """All scores of factors as a float64 matrix."""
    return _dense


@cache
def _world(seed: int, n_users: int, n_items: int):
    from puidrec.data.synthetic import simulate

    return simulate("mixed", n_users, n_items, density=0.2, rng=seed).data


@pytest.fixture(scope="session")
def world():
    """A small log with hidden confounding, features and uniform rows."""

    def make(seed=0, n_users=40, n_items=25):
        return _world(seed, n_users, n_items)

    return make


@pytest.fixture(scope="session")
def prepare(world):
    """A world seen through a method's settings."""
    from puidrec.methods.prepare import Prepared
    from puidrec.settings import Settings

    def make(method, seed=0, data=None, **given):
        common = {"dim": 3, "l2": 0.1, "epochs": 12, "propensity": "cells", "seed": seed}
        settings = Settings.of(method, **{**common, **given})
        data = data or world(seed)
        return Prepared.of(data, data.split("rd", seed, select=settings.select), settings)

    return make


@pytest.fixture(scope="session")
def many_uniform():
    """A log with uniform rows enough to train on."""
    from puidrec.data.synthetic import simulate

    return simulate("mixed", **TINY, density=0.2, n_uniform=2_000, rng=3).data


class Dense:
    """Losses of the grid by visiting every pair, in float64 NumPy; shares no code with the engine
    but Γ and p."""

    def __init__(self, prepared) -> None:
        from puidrec.exposure.bounds import bounds

        self.prepared = prepared
        rows, spec = prepared.rows, prepared.settings.spec
        self.at = (rows.user, rows.item)
        self.target = prepared.log.target(rows).astype(np.float64)
        if spec.estimator == "naive":
            self.a = self.b = np.ones(len(rows))
        else:
            box = bounds(prepared.log.nominal.propensity_of(rows), prepared.gamma.at(*self.at))
            self.a, self.b = box.a, box.b

    def error(self, prediction, target):
        """Errors as the textbook writes them."""
        loss, signed = self.prepared.settings.loss, self.prepared.log.scale.signed
        if loss == "squared":
            return (prediction - target) ** 2
        if loss == "absolute":
            return np.abs(prediction - target)
        chance, y = 1 / (1 + np.exp(-prediction)), (target + 1) / 2 if signed else target
        return -y * np.log(chance) - (1 - y) * np.log(1 - chance)

    def label(self, output):
        """What a pseudo-label's score means."""
        if self.prepared.settings.loss != "cross-entropy":
            return output
        chance = 1 / (1 + np.exp(-output))
        return 2 * chance - 1 if self.prepared.log.scale.signed else chance

    def terms(self, phi, theta):
        """Σ_D base and coef on O."""
        prediction = _dense(phi)
        error = self.error(prediction[self.at], self.target)
        if theta is None:
            return 0.0, error
        imputed = self.error(prediction, self.label(_dense(theta)))
        return imputed.sum(), error - imputed[self.at]

    def prediction_loss(self, phi, theta=None, base=None):
        """`eq:puid-ips`, `eq:puid-dr`, `eq:bpuid-ips`, `eq:bpuid-dr` and their limits."""
        total, coef = self.terms(phi, theta)
        if base is not None:
            total0, coef0 = self.terms(*base)
            total, coef = total - total0, coef - coef0
        data = self.prepared.data
        naive = self.prepared.settings.spec.estimator == "naive"
        pairs = coef.size if naive else data.n_users * data.n_items
        return (total + np.maximum(coef * self.a, coef * self.b).sum()) / pairs

    def imputation_loss(self, theta):
        """`eq:puid-dr-imp` for pseudo-labels, a weighted mean."""
        mismatch = self.error(_dense(theta)[self.at], self.target)
        return (mismatch * self.b).sum() / self.b.sum()


@pytest.fixture(scope="session")
def oracle():
    """Dense(prepared): losses by brute force."""
    return Dense


@pytest.fixture(scope="session")
def problem_after():
    """(prepared) → the method's own problem, and what the stages before it left, trained as the
    method trains."""
    from puidrec.methods.stages import Run, stages_of

    def build(prepared):
        run, stages = Run(prepared), stages_of(prepared)
        for stage in stages[:-1]:
            run.train(stage)
        return stages[-1].build(run.done), run.done

    return build


@pytest.fixture
def run_together():
    """(size, function of a World) → what each of so many processes returns: threads whose sums meet
    at a barrier."""
    import torch

    from puidrec.world import World

    def run(size, function):
        barrier, box = threading.Barrier(size, timeout=10), [None] * size

        class Thread(World):
            def sum(self, values):
                box[self.rank] = values.clone()
                barrier.wait()
                total = torch.stack(box).sum(0)
                barrier.wait()
                return values.copy_(total)

        def work(rank):
            try:
                return function(Thread(rank, size))
            except threading.BrokenBarrierError:
                return None  # another one failed, and says why
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(work, range(size)))

    return run

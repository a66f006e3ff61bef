"""A log on disk trains the model of the log in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data import on_disk
from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import simulate
from puidrec.experiments.gamma_study import study_gamma
from puidrec.model import Recommender
from puidrec.train import stored

COMMON = {"dim": 3, "epochs": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated log as a user's own files, its rows shuffled and in two parts."""
    root = tmp_path_factory.mktemp("mine")
    data = simulate("mixed", 60, 25, density=0.2, n_uniform=1_100, rng=0).data
    (root / "logged").mkdir()
    rows = data.logged.to_frame().sample(fraction=1.0, shuffle=True, seed=3)
    rows[:150].write_parquet(root / "logged" / "a.parquet")
    rows[150:].write_parquet(root / "logged" / "b.parquet")
    rows.write_parquet(root / "logged.parquet")
    data.uniform.to_frame().write_parquet(root / "uniform.parquet")
    data.users.write_parquet(root / "users.parquet")
    data.items.write_parquet(root / "items.parquet")
    return root


@pytest.fixture
def both(folder: Path, tmp_path: Path):
    """The same data in memory and on disk."""
    side = {key: folder / f"{key}.parquet" for key in ("uniform", "users", "items")}
    options = {**side, "unknown_ids": "keep", "scale": (1, 5)}
    memory = load_dataset("files", logged=folder / "logged.parquet", **options)
    return memory, load_dataset("files", logged=folder / "logged", shards=tmp_path / "shards", **options)


FITS = [
    {"method": "mf", "target": "binary"},
    {"method": "ips", "propensity": "logistic"},
    {"method": "puid-dr", "block_users": 20},
    {"method": "puid-dr", "backbone": "mf-mlp"},
    {"method": "brd-dr", "gamma": 2.0, "head": "residual", "backbone": "mf"},
    {"method": "bpuid-ips", "gamma": "exposure-gap"},
    {"method": "multi-dr", "block_users": 30},
    {"method": "rd-dr", "gamma": "certified"},
    {"method": "dr", "propensity": "naive-bayes"},
    {"method": "signed-rd"},
    {"method": "signed-puid", "ids": False, "select": "observational"},
    {"method": "sharp-puid", "gamma": "certified"},
    {"method": "item-rate"},
    {"method": "bias"},
    {"method": "pure-svd"},
]


@pytest.mark.parametrize("options", FITS, ids=lambda options: options["method"])
def test_the_model_is_that_of_the_log_in_memory(options, both) -> None:
    memory, disk = (Recommender(**{**COMMON, **options}).fit(data) for data in both)
    np.testing.assert_allclose(disk.user_factors_, memory.user_factors_, atol=1e-6)
    np.testing.assert_allclose(disk.item_factors_, memory.item_factors_, atol=1e-6)
    assert disk.report_["epochs"] == memory.report_["epochs"]
    users = memory.user_ids_.ids[:5]
    assert (
        disk.recommend(users, 3)
        .select("user_id", "item_id")
        .equals(memory.recommend(users, 3).select("user_id", "item_id"))
    )


PIECES = [
    {"method": "dr", "backbone": "mf"},
    {"method": "bpuid-dr", "backbone": "mf"},
    {"method": "signed-rd", "ids": False},
    {"method": "pure-svd"},
]


@pytest.mark.parametrize("options", PIECES, ids=lambda options: options["method"])
def test_small_pieces_make_the_same_model(options, both, monkeypatch) -> None:
    monkeypatch.setattr(stored, "PIECE_PAIRS", 30)
    memory, disk = (Recommender(**COMMON, **options).fit(data) for data in both)
    np.testing.assert_allclose(disk.user_factors_, memory.user_factors_, atol=1e-5)


@pytest.mark.parametrize("rule", ["information", "exposure-gap"])
def test_gamma_is_that_of_the_log_in_memory(rule, both, monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 100)
    memory, disk = (study_gamma(data, rule) for data in both)
    np.testing.assert_allclose(disk.pairs, memory.pairs, rtol=1e-12)
    assert disk.proved == pytest.approx(memory.proved, rel=1e-9)
    assert disk.calibration == memory.calibration
    assert disk.table().equals(memory.table())


def test_a_run_goes_on_from_its_checkpoint(both, tmp_path: Path) -> None:
    options = {**COMMON, "method": "dr", "checkpoint_every": 2}
    whole = Recommender(**options).fit(both[1])

    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, *_) -> None:
        if done == 5:
            raise Stopped

    with pytest.raises(Stopped):
        Recommender(**options).fit(both[1], checkpoint=tmp_path / "c", progress=stop)
    again = Recommender(**options).fit(both[1], checkpoint=tmp_path / "c")
    np.testing.assert_allclose(again.user_factors_, whole.user_factors_, atol=1e-6)


@pytest.mark.parametrize("protocol", ["rd", "paper"])
@pytest.mark.parametrize("method", ["puid-dr", "signed-rd"])
def test_without_uniform_rows_the_log_itself_is_held_out_from(method, protocol, folder, tmp_path, monkeypatch) -> None:
    """The same rows validate and test, and dropped ratings are dropped, whether the log is in memory or not."""
    monkeypatch.setattr(on_disk, "CHUNK", 64)
    monkeypatch.setattr(stored, "PIECE_PAIRS", 40)
    options = {"users": folder / "users.parquet", "unknown_ids": "keep", "scale": (1, 5)}
    memory = load_dataset("files", logged=folder / "logged.parquet", **options)
    disk = load_dataset("files", logged=folder / "logged", shards=tmp_path / "shards", **options)
    one, other = (Recommender(method, **COMMON).fit(data, protocol=protocol) for data in (memory, disk))
    np.testing.assert_allclose(other.user_factors_, one.user_factors_, atol=1e-5)
    for name in ("validation", "test"):
        parts = [getattr(data.split(protocol), name).frame for data in (memory, disk)]
        assert parts[0].select("user", "item", "rating", "label").equals(parts[1])
    for mine, theirs in zip(one.seen_, other.seen_, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_needs_the_log_in_memory_is_refused(both, refusal) -> None:
    disk = both[1]
    refusal(lambda: Recommender("dr", propensity="given").fit(disk), "in memory", "given")
    refusal(lambda: disk.split("rd", add_uniform=True), "on disk")


FIT = """
import resource, sys
import os
import subprocess
import sys
from pathlib import Path
import numpy as np, polars as pl, torch, scipy.optimize, sklearn.linear_model, torch.distributed.tensor
from puidrec.data import on_disk
from puidrec.data.sources import load_dataset
from puidrec.model import Recommender
from puidrec.train import stored

root, how, room = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
on_disk.BATCH_ROWS, stored.PIECE_PAIRS = 100_000, 200_000
on_disk.CHUNK = 200_000
torch.set_num_threads(1)
now = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(now.split()[1]) * 1024 + room * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
files = {"logged": root / "logged.parquet", "uniform": root / "uniform.parquet"}
data = load_dataset("files", **files, **({"shards": root / "shards"} if how == "disk" else {}))
options = {"dim": 4, "epochs": 1, "backbone": "mf", "propensity": "cells"}
Recommender("puid-dr", **options).fit(data).save(root / "model")
print(len(data.logged))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory limits are those of Linux")
def test_a_log_that_does_not_fit_trains_from_disk(tmp_path: Path) -> None:
    """In memory this log takes about 250 MB beyond the libraries, from disk 155; the limit is 200."""
    rng = np.random.default_rng(0)
    for name, n in (("logged", 1_000_000), ("uniform", 2_000)):
        key = rng.permutation(np.unique(rng.integers(0, 20_000 * 2_000, round(1.1 * n))))[:n]
        columns = {"user_id": key // 2_000, "item_id": key % 2_000, "rating": rng.integers(1, 6, n).astype(np.int8)}
        pl.DataFrame(columns).write_parquet(tmp_path / f"{name}.parquet", row_group_size=100_000)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    outcome = {}
    for how in ("disk", "memory"):
        command = [sys.executable, "-c", FIT, str(tmp_path), how, "200"]
        outcome[how] = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
    assert outcome["disk"].returncode == 0, outcome["disk"].stderr[-2000:]
    assert outcome["disk"].stdout == "1000000\n"
    assert outcome["memory"].returncode != 0

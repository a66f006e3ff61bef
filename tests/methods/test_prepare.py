"""What problems are given, and: a log on disk trains the model of the log in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import simulate
from puidrec.exposure.estimate import estimate_exposure
from puidrec.gamma_study import study_gamma
from puidrec.methods import prepare as prepare_module
from puidrec.methods.prepare import DEFAULT_GAMMA, Prepared
from puidrec.methods.problem import backbone_penalty
from puidrec.model import Recommender
from puidrec.scores import log as log_module
from puidrec.settings import Settings


def target_of(prepared):
    return prepared.log.target(prepared.rows)


def propensity_of(prepared):
    return prepared.log.nominal.propensity_of(prepared.rows)


def test_targets_on_every_scale(prepare) -> None:
    rating = prepare("mf")
    stars = rating.rows.rating
    np.testing.assert_allclose(target_of(rating), (stars - 1) / 4)
    liked = stars >= 4
    np.testing.assert_array_equal(target_of(prepare("mf", target="binary")), np.where(liked, 1, -1))
    np.testing.assert_array_equal(
        target_of(prepare("signed-rd", target="binary")), liked.astype(float)
    )


def test_bounds_surround_the_inverse_propensity(prepare) -> None:
    plain, wide = prepare("ips").columns("box"), prepare("rd-ips", gamma=2.0).columns("box")
    inverse = 1.0 / propensity_of(prepare("ips"))
    np.testing.assert_allclose(plain["a"].values, inverse, rtol=1e-6)
    assert plain["a"] is plain["b"]
    np.testing.assert_allclose(wide["a"].values, 1 + (inverse - 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(wide["b"].values, 1 + (inverse - 1) * 2, rtol=1e-6)
    unit = prepare("mf").columns("unit")
    assert unit["a"] is unit["b"]
    np.testing.assert_array_equal(unit["a"].values, np.ones(len(inverse)))
    mean_one = prepare("ips").columns("inverse")["b"].values
    np.testing.assert_allclose(mean_one, inverse / inverse.mean(), rtol=1e-6)


def test_gamma_is_one_a_number_or_a_rule(prepare) -> None:
    def gamma(*args, **given):
        prepared = prepare(*args, **given)
        return prepared.gamma.at(prepared.rows.user, prepared.rows.item)

    assert np.allclose(gamma("ips"), 1.0)
    assert np.allclose(gamma("rd-ips"), DEFAULT_GAMMA)
    assert np.allclose(gamma("rd-ips", gamma=3.0), 3.0)
    assert np.allclose(gamma("puid-ips", gamma=3.0), 3.0)
    personal = gamma("puid-ips", gamma="exposure-gap")
    assert personal.min() >= 1
    assert personal.std() > 0
    doubled = gamma("puid-ips", gamma="exposure-gap", alpha=2.0, beta=2.0)
    assert doubled.mean() > personal.mean()


def test_the_first_stage_shares_what_both_need(prepare) -> None:
    prepared = prepare("brd-ips")
    first = prepared.first_stage("ips")
    assert first.log is prepared.log
    assert first.settings.method == "ips"
    assert np.allclose(first.gamma.at(first.rows.user, first.rows.item), 1.0)


@pytest.mark.parametrize(
    ("loss", "target"), [("squared", "rating"), ("squared", "binary"), ("cross-entropy", "binary")]
)
def test_a_backbone_starts_at_the_mean_of_the_targets(loss, target, prepare) -> None:
    prepared = prepare("ips", loss=loss, target=target)
    start = float(prepared.backbone("main").mean.detach())
    value = prepared.log.scale.of_scores(np.array([start]))[0]
    assert value == pytest.approx(target_of(prepared).mean(), abs=1e-5)


def test_stages_start_from_numbers_of_their_own(prepare) -> None:
    prepared = prepare("mf")
    first, second, again = (
        prepared.backbone(stage).users().detach().numpy() for stage in ("a", "b", "a")
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_observational_rows_are_weighted_by_inverse_propensity(prepare) -> None:
    prepared = prepare("mf", select="observational")
    validator, rows = prepared.validator(), prepared.split.validation
    np.testing.assert_allclose(validator.weight, 1 / prepared.log.nominal.propensity_of(rows))
    seen = set(zip(prepared.rows.user.tolist(), prepared.rows.item.tolist(), strict=True))
    assert not seen & set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))
    assert prepare("mf").validator().weight is None
    assert prepare("mf", select="none").validator() is None


def test_a_backbone_without_features_does_not_encode_them(prepare, world) -> None:
    assert prepare("mf", backbone="mf").log.encoders == {}
    assert set(prepare("mf").log.encoders) == {"user_id", "item_id"}
    data = world(0)
    plain = Prepared.of(data, data.split("rd", 0), Settings.of("mf", backbone="mf"))
    assert plain.backbone("x").dim == 16


COMMON = {"dim": 3, "l2": 0.1, "epochs": 8}


def scores(model) -> np.ndarray:
    return model.user_factors_ @ model.item_factors_.T


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated log as a user's own files, its rows shuffled and in two parts."""
    root = tmp_path_factory.mktemp("mine")
    data = simulate("mixed", 60, 25, density=0.2, n_uniform=1_400, rng=0).data
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
    return memory, load_dataset(
        "files", logged=folder / "logged", shards=tmp_path / "shards", **options
    )


FITS = [
    {"method": "mf", "target": "binary"},
    {"method": "ips", "propensity": "logistic"},
    {"method": "puid-dr"},
    {"method": "puid-dr", "dim": "auto", "l2": "auto"},
    {"method": "dr", "cross_fit": 3},
    {"method": "brd-dr", "gamma": 2.0, "benchmark": "mf", "shrink_to": "mf", "backbone": "mf"},
    {"method": "bpuid-ips", "gamma": "exposure-gap"},
    {"method": "rd-dr", "gamma": "certified"},
    {"method": "dr", "propensity": "naive-bayes"},
    {"method": "signed-rd"},
    {"method": "signed-puid", "ids": False, "select": "observational"},
    {"method": "item-rate"},
    {"method": "bias"},
    {"method": "pure-svd"},
    {"method": "all-rank"},
    {"method": "ease"},
    {"method": "spectrum"},
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


ON_DISK_CASES = [
    {"method": "dr", "backbone": "mf"},
    {"method": "bpuid-dr", "backbone": "mf"},
    {"method": "signed-rd", "ids": False},
    {"method": "pure-svd"},
    {"method": "all-rank", "backbone": "mf"},
    {"method": "ease"},
    {"method": "spectrum", "backbone": "mf"},
]


@pytest.mark.parametrize("options", ON_DISK_CASES, ids=lambda options: options["method"])
def test_small_parts_make_the_same_model(options, both, monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 30)
    monkeypatch.setattr(log_module, "PAIRS_FROM_DISK", 30)
    memory, disk = (Recommender(**COMMON, **options).fit(data) for data in both)
    np.testing.assert_allclose(scores(disk), scores(memory), atol=1e-4)


@pytest.mark.parametrize("rule", ["information", "exposure-gap"])
def test_gamma_is_that_of_the_log_in_memory(rule, both, monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 100)
    memory, disk = (study_gamma(data, rule) for data in both)
    np.testing.assert_allclose(disk.pairs, memory.pairs, rtol=1e-12)
    assert disk.proved == pytest.approx(memory.proved, rel=1e-9)
    assert disk.evidence.calibration == memory.evidence.calibration
    assert disk.table().equals(memory.table())


def test_a_run_goes_on_from_its_checkpoint(both, tmp_path: Path) -> None:
    """A checkpoint is due every tenth sweep."""
    options = {**COMMON, "method": "dr", "epochs": 25}
    whole = Recommender(**options).fit(both[1])
    assert whole.report_["epochs"] > 14

    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, *_) -> None:
        if done == 14:
            raise Stopped

    with pytest.raises(Stopped):
        Recommender(**options).fit(both[1], checkpoint=tmp_path / "c", progress=stop)
    told: list[int] = []
    again = Recommender(**options).fit(
        both[1], checkpoint=tmp_path / "c", progress=lambda *_: told.append(1)
    )
    assert len(told) < whole.report_["epochs"]
    np.testing.assert_allclose(again.user_factors_, whole.user_factors_, atol=1e-6)


@pytest.mark.parametrize("protocol", ["rd", "paper"])
@pytest.mark.parametrize("method", ["puid-dr", "signed-rd"])
def test_without_uniform_rows_the_log_itself_is_held_out_from(
    method, protocol, folder, tmp_path, monkeypatch
) -> None:
    """The same rows validate and test, and dropped ratings are dropped, whether the log is in
    memory or not."""
    monkeypatch.setattr(on_disk, "CHUNK", 64)
    monkeypatch.setattr(log_module, "PAIRS_FROM_DISK", 40)
    options = {"users": folder / "users.parquet", "unknown_ids": "keep", "scale": (1, 5)}
    memory = load_dataset("files", logged=folder / "logged.parquet", **options)
    disk = load_dataset("files", logged=folder / "logged", shards=tmp_path / "shards", **options)
    one, other = (
        Recommender(method, **COMMON).fit(data, protocol=protocol) for data in (memory, disk)
    )
    np.testing.assert_allclose(scores(other), scores(one), atol=1e-4)
    for name in ("validation", "test"):
        parts = [getattr(data.split(protocol), name).frame for data in (memory, disk)]
        assert parts[0].select("user", "item", "rating", "label").equals(parts[1])
    for mine, theirs in zip(
        (*one.seen_, *one.held_out_), (*other.seen_, *other.held_out_), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert len(memory.logged) == one.seen_[1].size + one.held_out_[1].size > one.seen_[1].size


def test_what_needs_the_log_in_memory_is_refused(both, refusal) -> None:
    disk = both[1]
    refusal(lambda: Recommender("dr", propensity="given").fit(disk), "in memory", "given")
    for options in (
        {"method": "multi-dr"},
        {"method": "cvib"},
        {"method": "auto-debias"},
        {"method": "dr", "solver": "adam"},
        {"method": "puid-dr", "backbone": "mf-mlp"},
        {"method": "rd-ips", "normalise": True},
    ):
        refusal(
            partial(Recommender(**COMMON, **options).fit, disk),
            "adam",
            "in memory",
            "a log on disk",
        )
    refusal(lambda: disk.split("rd", add_uniform=True), "on disk")


FIT = """
import resource, sys
from pathlib import Path
import numpy as np, polars as pl, torch
import scipy.optimize, sklearn.linear_model, torch.distributed.tensor
from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.model import Recommender
from puidrec.scores import log

root, how, room = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
on_disk.BATCH_ROWS, log.PAIRS_FROM_DISK = 100_000, 200_000
on_disk.CHUNK = 200_000
torch.set_num_threads(1)
now = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(now.split()[1]) * 1024 + room * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
files = {"logged": root / "logged.parquet", "uniform": root / "uniform.parquet"}
data = load_dataset("files", **files, **({"shards": root / "shards"} if how == "disk" else {}))
options = {"dim": 4, "l2": 0.1, "epochs": 1, "backbone": "mf", "propensity": "cells"}
Recommender("puid-dr", **options).fit(data).save(root / "model")
print(len(data.logged))
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory limits are those of Linux"
)
def test_a_log_that_does_not_fit_trains_from_disk(tmp_path: Path) -> None:
    """In memory this log takes more than 400 MB beyond the libraries, from disk about 260; the
    limit is 280."""
    rng = np.random.default_rng(0)
    for name, n in (("logged", 1_500_000), ("uniform", 2_000)):
        key = rng.permutation(np.unique(rng.integers(0, 20_000 * 2_000, round(1.1 * n))))[:n]
        columns = {
            "user_id": key // 2_000,
            "item_id": key % 2_000,
            "rating": rng.integers(1, 6, n).astype(np.int8),
        }
        pl.DataFrame(columns).write_parquet(tmp_path / f"{name}.parquet", row_group_size=100_000)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    outcome = {}
    for how in ("disk", "memory"):
        command = [sys.executable, "-c", FIT, str(tmp_path), how, "280"]
        outcome[how] = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert outcome["disk"].returncode == 0, outcome["disk"].stderr[-2000:]
    assert outcome["disk"].stdout == "1500000\n"
    assert outcome["memory"].returncode != 0


@pytest.mark.parametrize(("l2", "l2_features"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.3, 0.7)])
def test_the_penalty_is_a_mean_over_the_entities_of_each_side(l2, l2_features, prepare) -> None:
    prepared = prepare("mf", l2=l2, l2_features=l2_features)
    backbone = prepared.backbone("main")
    expected = 0.0
    for towers in (backbone.user_towers, backbone.item_towers):
        ids, linear = towers
        own = ids.weight.detach().double().numpy() ** 2
        expected += l2 * float(own.sum()) / ids.n_rows
        power = linear.design.column_power().float()
        expected += l2_features * float((power * linear.weight.detach().square().sum(1)).sum())
    assert float(backbone_penalty(backbone, prepared.settings).detach()) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("tables", ["none", "ids only"])
@pytest.mark.parametrize("method", ["puid-dr", "signed-puid"])
def test_without_features_a_personal_gamma_comes_from_exposure_residuals(method, tables) -> None:
    """A side table that holds ids alone says no more than none does."""
    data = simulate("mixed", 60, 40, density=0.2, rng=0).data
    bare = replace(data, users=None, items=None)
    if tables == "ids only":
        bare = replace(data, users=data.users.select("user_id"), items=data.items.select("item_id"))
    with_features, without = (
        Prepared.of(own, own.split("rd", 0), Settings.of(method)).gamma for own in (data, bare)
    )
    users, items = np.divmod(np.arange(2400), 40)
    expected = estimate_exposure(bare, bare.split("rd", 0).train, gamma="exposure-gap").gamma
    np.testing.assert_allclose(without.at(users, items), expected.at(users, items), rtol=1e-9)
    assert np.ptp(without.at(users, items)) > 0.1
    assert not np.allclose(without.at(users, items), with_features.at(users, items))


def test_side_tables_of_ids_do_not_make_puid_the_plain_estimator() -> None:
    data = simulate("mixed", 60, 40, density=0.2, rng=0).data
    files = {"logged": data.logged.to_frame(), "uniform": data.uniform.to_frame()}
    ids = {"users": data.users.select("user_id"), "items": data.items.select("item_id")}
    bare = Dataset.from_frame(**files, **ids, scale=(1, 5))
    options = {"dim": 3, "l2": 0.1, "rng": 0}
    puid, dr = (scores(Recommender(method, **options).fit(bare)) for method in ("puid-dr", "dr"))
    assert np.abs(puid - dr).max() > 0.01


def test_small_logs_train_in_double_precision_and_models_are_kept_in_single(
    prepare, monkeypatch
) -> None:
    prepared = prepare("mf")
    assert prepared.log.dtype == torch.float64
    assert (
        prepared.backbone("main").mean.dtype
        == prepared.columns("unit")["r"].values.dtype
        == torch.float64
    )
    options = {"dim": 2, "rng": 0, "l2": 0.01}
    model = Recommender("dr", **options).fit(prepared.data)
    assert model.user_factors_.dtype == np.float32
    assert {value.dtype for value in model.parameters_.values() if value.is_floating_point()} == {
        torch.float32
    }
    monkeypatch.setattr(prepare_module, "DOUBLE", 0)
    assert prepare("mf").log.dtype == torch.float32
    single = Recommender("dr", **options).fit(prepared.data)
    gap = (
        single.user_factors_ @ single.item_factors_.T - model.user_factors_ @ model.item_factors_.T
    )
    assert 0.0 < np.abs(gap).max() < 1e-3

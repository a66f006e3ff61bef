"""Log → evidence → p → Γ → bounds: the parts put together by hand, and the same from a log on
disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import StoredInteractions, shard_log
from puidrec.exposure import PROPENSITIES, Exposure, make_propensity
from puidrec.exposure.certificate import certify_values
from puidrec.exposure.estimate import (
    CALIBRATION_ROWS,
    LARGEST_LOW,
    NominalExposure,
    WeightCalibration,
    estimate_exposure,
)
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import PRESETS, resolve_gamma

ESTIMATED = [name for name in PROPENSITIES if name != "given"]


def evidence_of(data: Dataset, rows) -> Evidence:
    sizes = {"n_users": data.n_users, "n_items": data.n_items}
    return Evidence.from_log(rows.user, rows.item, users=data.users, items=data.items, **sizes)


@pytest.fixture(scope="module")
def nominal(tiny_data) -> NominalExposure:
    split = tiny_data.split("rd", 0)
    return estimate_exposure(tiny_data, split.train, split.propensity, min_propensity=0.05)


@pytest.mark.parametrize("name", ESTIMATED)
def test_propensities_are_those_of_the_parts_by_hand(tiny_data, name) -> None:
    split = tiny_data.split("rd", 0)
    rows = split.train
    counts = evidence_of(tiny_data, rows).counts
    by_hand = make_propensity(name, low=0.05).fit(
        Exposure.from_rows(tiny_data, rows, split.propensity, counts)
    )
    found = estimate_exposure(tiny_data, rows, split.propensity, name, min_propensity=0.05)
    np.testing.assert_array_equal(
        found.seen_propensity, by_hand.predict(rows.user, rows.item, rows.rating)
    )
    assert found.propensity.describe() == by_hand.describe()


@pytest.mark.parametrize("spec", [*PRESETS, 1.7])
def test_gamma_is_the_rule_fitted_to_the_evidence(tiny_data, nominal, spec) -> None:
    rows = nominal.seen
    expected = resolve_gamma(spec).fit(evidence_of(tiny_data, rows), rng=0).at(rows.user, rows.item)
    found = estimate_exposure(tiny_data, rows, propensity="cells", gamma=spec).gamma
    np.testing.assert_array_equal(found.at(rows.user, rows.item), expected)


def test_held_out_rows_have_propensities_of_their_own(nominal) -> None:
    half = nominal.seen.take(np.arange(len(nominal.seen) // 2))
    expected = nominal.seen_propensity[: len(half)]
    np.testing.assert_array_equal(nominal.propensity_of(half), expected)


@pytest.mark.parametrize("outcome", ["label", "rating"])
@pytest.mark.parametrize("adjust", [False, True])
def test_the_certificate_is_that_of_the_arrays(tiny_data, nominal, outcome, adjust) -> None:
    rows, uniform = (
        nominal.seen,
        tiny_data.with_overlap("keep").uniform.labelled(tiny_data.split("rd", 0).protocol),
    )
    assert nominal.certifies_levels(uniform)
    found = nominal.certificate(outcome, uniform, adjust=adjust)
    key = rows.user.astype(np.int64) * tiny_data.n_items + rows.item
    unseen = uniform.take(
        ~np.isin(uniform.user.astype(np.int64) * tiny_data.n_items + uniform.item, key)
    )
    assert len(unseen) < len(uniform)  # a pair that is in the log says nothing of unseen pairs
    expected = certify_values(
        getattr(rows, outcome).astype(float),
        getattr(unseen, outcome).astype(float),
        logged_user=rows.user,
        logged_propensity=nominal.weight_calibration.applied(nominal.seen_propensity)
        if adjust
        else None,
        uniform_user=unseen.user,
    )
    assert (found.adjusted, len(found.levels)) == (adjust, len(expected.levels))
    assert (found.n_uniform, found.propensity) == (len(unseen), "two-way" if adjust else None)
    assert (found.gamma, found.lower) == pytest.approx((expected.gamma, expected.lower), rel=1e-9)


def test_uniform_rows_that_are_all_in_the_log_prove_nothing_and_are_refused(
    nominal, refusal
) -> None:
    refusal(lambda: nominal.certificate("label", nominal.seen), "no uniform row of an unseen pair")


def test_without_a_smallest_propensity_it_follows_the_share_seen(tiny_data) -> None:
    rows = tiny_data.split("rd", 0).train
    assert (
        estimate_exposure(tiny_data, rows, min_propensity=None).propensity.describe()["low"]
        == LARGEST_LOW
    )
    few = estimate_exposure(tiny_data, rows.take(np.arange(20)), min_propensity=None)
    assert 0.1 * few.exposure.rate < LARGEST_LOW
    assert few.propensity.describe()["low"] == pytest.approx(0.1 * few.exposure.rate)


def test_features_are_hidden_in_fewer_rows_where_asked(tiny_data) -> None:
    rows = tiny_data.split("rd", 0).train
    thin = Evidence.of_rows(tiny_data, rows, 100)
    assert 50 < thin.log[0].size <= 100
    assert thin.counts.n_observed == len(rows)
    assert Evidence.of_rows(tiny_data, rows, 10**6).log[0].size == len(rows)


def test_an_unknown_propensity_is_refused_before_any_work(tiny_data, refusal) -> None:
    refusal(
        lambda: estimate_exposure(tiny_data, tiny_data.logged, propensity="magic"),
        "magic",
        "two-way",
    )


def test_a_log_on_disk_gives_the_values_of_one_in_memory(
    tiny_data, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 64)
    tiny_data.logged.to_frame().write_parquet(tmp_path / "log.parquet")
    parts = {
        "users": tiny_data.users,
        "items": tiny_data.items,
        "uniform": tiny_data.uniform.to_frame(),
    }
    stored = shard_log(
        tmp_path / "log.parquet",
        tmp_path / "shards",
        partial(Dataset.from_frame, **parts, scale=tiny_data.scale),
    )
    memory = Dataset.from_frame(tiny_data.logged.to_frame(), **parts, scale=tiny_data.scale)
    disk, whole = (
        estimate_exposure(data, (split := data.split("rd", 0)).train, split.propensity)
        for data in (stored, memory)
    )
    assert isinstance(disk.seen, StoredInteractions)
    rows, uniform = whole.seen, memory.uniform.labelled(memory.split("rd", 0).protocol)
    np.testing.assert_allclose(disk.propensity_of(rows), whole.seen_propensity, rtol=1e-12)
    for spec in ("information", "exposure-gap", "recovered"):
        found, expected = (
            resolve_gamma(spec).fit(side.evidence).at(rows.user, rows.item)
            for side in (disk, whole)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    for outcome in ("label", "rating"):
        found, expected = (side.certificate(outcome, uniform) for side in (disk, whole))
        assert (found.gamma, found.lower) == pytest.approx(
            (expected.gamma, expected.lower), rel=1e-9
        )
    np.testing.assert_allclose(
        disk.weight_calibration.factor, whole.weight_calibration.factor, rtol=1e-9
    )


def test_calibrated_weights_stand_for_the_unseen_pairs_of_every_range(tiny_data, nominal) -> None:
    n_users, n_items = tiny_data.n_users, tiny_data.n_items
    user, item = (axis.ravel() for axis in np.indices((n_users, n_items)))
    everywhere, found = nominal.propensity.predict(user, item), nominal.weight_calibration
    own = nominal.seen_propensity
    weight = 1.0 / found.applied(own) - 1.0
    pairs, rows = (np.searchsorted(found.edges, p, side="right") for p in (everywhere, own))
    assert found.factor.size > 2
    assert np.bincount(rows).min() >= CALIBRATION_ROWS
    np.testing.assert_allclose(
        np.bincount(rows, weight), np.bincount(pairs) - np.bincount(rows), rtol=1e-9
    )
    total = sum((1.0 / p - 1.0).sum() for _, p in nominal.weighted())
    assert total == pytest.approx(n_users * n_items - len(nominal.seen))
    assert [p for _, p in nominal.weighted(adjust=False)] == [None]


def test_a_curve_that_is_wrong_in_its_tail_no_longer_sways_a_mean() -> None:
    """Rare pairs are seen by a floor of 1 %, and a propensity that knows of none gives the few seen
    huge weights."""
    rng = np.random.default_rng(0)
    push = rng.normal(-2.0, 1.5, 400_000)
    chance, wrong, value = (
        0.01 + 0.99 * ndtr(push),
        np.maximum(ndtr(push), 1e-6),
        push + rng.normal(size=push.size),
    )
    seen = rng.random(push.size) < chance
    edges = np.quantile(wrong, np.arange(1, 20) / 20)
    code = np.searchsorted(edges, wrong, side="right")
    counts = [np.bincount(code[part], minlength=20).astype(float) for part in (slice(None), seen)]
    found = WeightCalibration.of(
        edges, *counts, np.bincount(code[seen], 1.0 / wrong[seen] - 1.0, minlength=20)
    )
    truth = value[~seen].mean()
    before, after, exact = (
        abs(np.average(value[seen], weights=1.0 / p[seen] - 1.0) - truth)
        for p in (wrong, found.applied(wrong), chance)
    )
    assert before > 1.0
    assert after < 0.1
    assert exact < 0.1


def test_ranges_of_few_rows_are_joined_and_what_cannot_be_calibrated_stays() -> None:
    found = WeightCalibration.of(
        np.array([0.1, 0.2, 0.3]),
        np.full(4, 1000.0),
        np.array([10.0, 45.0, 60.0, 20.0]),
        np.full(4, 500.0),
    )
    np.testing.assert_array_equal(found.edges, [0.2])
    np.testing.assert_allclose(found.factor, [(2000 - 55) / 1000, (2000 - 80) / 1000])
    dense = WeightCalibration.of(np.zeros(0), np.array([60.0]), np.array([60.0]), np.array([5.0]))
    np.testing.assert_array_equal(dense.applied(np.array([0.5])), [0.5])


def test_propensities_of_ratings_are_not_calibrated(tiny_data) -> None:
    split = tiny_data.split("rd", 0)
    nominal = estimate_exposure(tiny_data, split.train, split.propensity, "naive-bayes")
    assert nominal.weight_calibration is None
    ((_, p),) = nominal.weighted()
    np.testing.assert_array_equal(p, nominal.seen_propensity)

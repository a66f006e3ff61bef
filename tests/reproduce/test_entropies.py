"""RQ3 and RQ4: shares, ratios, nested orders, controls, and their summaries over random orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from puidrec import load_dataset
from puidrec.reproduce.entropies import (
    interval,
    observed_features,
    ratios,
    run_rq3,
    run_rq4,
    summarise_rq3,
    summarise_rq4,
)
from puidrec.reproduce.information_gains import ExposureLog, Gain


def test_sixteen_combinations_and_their_control(exposed: ExposureLog) -> None:
    rows = run_rq3(exposed, 3, 5)
    assert len(rows) == 32
    keys = {(row["control"], row["share_user"], row["share_item"]) for row in rows}
    assert len(keys) == 32
    assert rows == run_rq3(exposed, 3, 5)
    assert rows != run_rq3(exposed, 4, 5)
    for row in rows:
        assert row["ratio_user"]["plugin"] is None or row["ratio_user"]["plugin"] >= 0


def test_the_control_gains_too_until_it_is_corrected(exposed: ExposureLog) -> None:
    rows = [
        row
        for seed in range(4)
        for row in run_rq3(exposed, seed, 9)
        if row["control"] == "permuted"
    ]
    plugin = np.array([[row["gains"][step]["plugin"] for step in row["gains"]] for row in rows])
    corrected = np.array(
        [[row["gains"][step]["permutation"] for step in row["gains"]] for row in rows]
    )
    assert (plugin > -1e-12).all()
    assert np.abs(corrected.mean()) < 0.1 * plugin.mean()


def test_ratios_by_hand() -> None:
    def gain(plugin: float, noise: float, high: float) -> Gain:
        return Gain(plugin, plugin - 0.01, noise, high)

    gains = {
        "x_u": gain(0.2, 0.1, 0.15),
        "h_u": gain(0.4, 0.2, 0.3),
        "x_i": gain(0.3, 0.1, 0.2),
        "h_i": gain(0, 0, 0),
    }
    found = ratios(gains)
    assert found["ratio_user"] == pytest.approx(
        {"plugin": 0.5, "miller-madow": 0.19 / 0.39, "permutation": 0.5}
    )
    assert found["ratio_item"] == {"plugin": None, "miller-madow": None, "permutation": None}
    gains["h_u"] = gain(0.4, 0.2, 0.45)
    assert ratios(gains)["ratio_user"]["permutation"] is None


def test_shares_round_and_keep_one() -> None:
    assert [observed_features(34, k) for k in (2, 3, 4, 5)] == [17, 11, 8, 7]
    assert observed_features(3, 5) == 1


@pytest.mark.real_data
def test_on_movielens_plugin_ratios_are_positive_with_or_without_information(
    data_root: Path,
) -> None:
    folder = data_root / "ml-100k"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    rows = run_rq3(ExposureLog.of(load_dataset("ml-100k", folder)), 0, 1)
    assert all(row["ratio_user"]["plugin"] > 0 and row["ratio_item"]["plugin"] > 0 for row in rows)


def test_plugin_gains_rise_by_construction_and_end_at_the_whole_side(exposed: ExposureLog) -> None:
    rng = np.random.default_rng(0)
    for log in (exposed, exposed.shuffled(rng)):
        rows = run_rq4(log, 1, 2)
        whole_user, whole_item = (side.block(range(len(side))) for side in (log.users, log.items))
        none = {
            "user": (np.zeros_like(whole_user), whole_item),
            "item": (whole_user, np.zeros_like(whole_item)),
        }
        for side, n in (("user", 9), ("item", 6)):
            own = [row for row in rows if row["side"] == side]
            assert [row["hidden"] for row in own] == list(range(1, n + 1))
            assert (np.diff([row["plugin"] for row in own]) > -1e-12).all()
            total = log.entropy(*none[side])[0] - log.entropy(whole_user, whole_item)[0]
            assert own[-1]["plugin"] == pytest.approx(total, abs=1e-12)
            assert own[-1]["observed_bins"] == 1


def test_what_is_left_after_noise_is_the_feature_that_matters(exposed: ExposureLog) -> None:
    last = [row for row in run_rq4(exposed, 0, 9) if row["hidden"] == row["of"]]
    assert all(row["beyond_chance"] for row in last)
    for row in (
        r
        for r in run_rq4(exposed.shuffled(np.random.default_rng(5)), 0, 9)
        if r["hidden"] == r["of"]
    ):
        assert abs(row["permutation"]) < 0.1 * row["plugin"]


def test_seeded(exposed: ExposureLog) -> None:
    assert run_rq4(exposed, 2, 2) == run_rq4(exposed, 2, 2)


def test_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = interval(values)
    assert (found["n"], found["mean"]) == (4, 3.0)
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert interval([2.0]) == {"n": 1, "mean": 2.0, "low": None, "high": None}
    assert interval([])["mean"] is None


def test_rq3_summary_means_over_orders(exposed: ExposureLog) -> None:
    rows = [{"data": "made", **row} for seed in range(3) for row in run_rq3(exposed, seed, 3)]
    summary = summarise_rq3(rows)
    assert summary["orders"] == 3
    assert len(summary["ratios"]) == 2 * 16 * 2 * 3
    one = next(
        r
        for r in summary["ratios"]
        if (r["control"], r["share_user"], r["share_item"], r["ratio"], r["estimator"])
        == ("none", 2, 3, "ratio_item", "plugin")
    )
    own = [
        r["ratio_item"]["plugin"]
        for r in rows
        if (r["control"], r["share_user"], r["share_item"]) == ("none", 2, 3)
    ]
    assert one["mean"] == pytest.approx(np.mean(own))
    assert one["positive"] == np.mean([value > 0 for value in own])
    steps = {(g["control"], g["step"]): g for g in summary["gains"]}
    assert steps["none", "h_i"]["plugin"] > steps["none", "h_i"]["noise"] > 0
    assert summarise_rq3([]) == {}


def test_rq4_summary_counts_rises(exposed: ExposureLog) -> None:
    rows = [{"data": "made", **row} for seed in range(3) for row in run_rq4(exposed, seed, 3)]
    summary = summarise_rq4(rows)
    assert summary["sides"]["user"]["rising"]["plugin"] == 1.0
    assert summary["sides"]["item"]["features"] == 6
    last = [row for row in rows if (row["side"], row["hidden"]) == ("item", 6)]
    share = np.mean([row["noise"] for row in last]) / np.mean([row["plugin"] for row in last])
    assert summary["sides"]["item"]["artefact_at_the_end"] == pytest.approx(share)
    assert summary["sides"]["item"]["final"]["plugin"]["mean"] == pytest.approx(last[0]["plugin"])
    fallen = [{**row, "plugin": -row["hidden"]} for row in rows]
    assert summarise_rq4(fallen)["sides"]["user"]["rising"]["plugin"] == 0.0
    assert summarise_rq4([]) == {}

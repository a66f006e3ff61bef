from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from puidrec.experiments.reproduce.chain import Exposed
from puidrec.experiments.reproduce.entropy_summary import interval, summarise_rq3, summarise_rq4
from puidrec.experiments.reproduce.rq3 import run_rq3
from puidrec.experiments.reproduce.rq4 import run_rq4


def test_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = interval(values)
    assert (found["n"], found["mean"]) == (4, 3.0)
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert interval([2.0]) == {"n": 1, "mean": 2.0, "low": None, "high": None}
    assert interval([])["mean"] is None


def test_rq3_summary_means_over_orders(exposed: Exposed) -> None:
    rows = [{"data": "made", **row} for seed in range(3) for row in run_rq3(exposed, seed, 3)]
    summary = summarise_rq3(rows)
    assert summary["orders"] == 3
    assert len(summary["ratios"]) == 2 * 16 * 2 * 3
    one = next(
        r for r in summary["ratios"]
        if (r["control"], r["share_user"], r["share_item"], r["ratio"], r["estimator"])
        == ("none", 2, 3, "ratio_item", "plugin")
    )  # fmt: skip
    own = [
        r["ratio_item"]["plugin"] for r in rows if (r["control"], r["share_user"], r["share_item"]) == ("none", 2, 3)
    ]
    assert one["mean"] == pytest.approx(np.mean(own))
    assert one["positive"] == np.mean([value > 0 for value in own])
    steps = {(g["control"], g["step"]): g for g in summary["gains"]}
    assert steps["none", "h_i"]["plugin"] > steps["none", "h_i"]["noise"] > 0
    assert summarise_rq3([]) == {}


def test_rq4_summary_counts_rises(exposed: Exposed) -> None:
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

from __future__ import annotations

import numpy as np
import pytest

from puidrec.experiments.reproduce.chain import Exposed
from puidrec.experiments.reproduce.rq4 import run_rq4


def test_plugin_gains_rise_by_construction_and_end_at_the_whole_side(exposed: Exposed) -> None:
    rng = np.random.default_rng(0)
    for log in (exposed, exposed.shuffled(rng)):
        rows = run_rq4(log, 1, 2)
        whole_user, whole_item = (side.block(range(len(side))) for side in (log.users, log.items))
        none = {"user": (np.zeros_like(whole_user), whole_item), "item": (whole_user, np.zeros_like(whole_item))}
        for side, n in (("user", 9), ("item", 6)):
            own = [row for row in rows if row["side"] == side]
            assert [row["hidden"] for row in own] == list(range(1, n + 1))
            assert (np.diff([row["plugin"] for row in own]) > -1e-12).all()
            total = log.entropy(*none[side])[0] - log.entropy(whole_user, whole_item)[0]
            assert own[-1]["plugin"] == pytest.approx(total, abs=1e-12)
            assert own[-1]["observed_bins"] == 1


def test_what_is_left_after_noise_is_the_feature_that_matters(exposed: Exposed) -> None:
    last = [row for row in run_rq4(exposed, 0, 9) if row["hidden"] == row["of"]]
    assert all(row["beyond_chance"] for row in last)
    for row in (r for r in run_rq4(exposed.shuffled(np.random.default_rng(5)), 0, 9) if r["hidden"] == r["of"]):
        assert abs(row["permutation"]) < 0.1 * row["plugin"]


def test_seeded(exposed: Exposed) -> None:
    assert run_rq4(exposed, 2, 2) == run_rq4(exposed, 2, 2)

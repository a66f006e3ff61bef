from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.experiments.reproduce.chain import Exposed, Gain
from puidrec.experiments.reproduce.rq3 import observed_features, ratios, run_rq3


def test_sixteen_combinations_and_their_control(exposed: Exposed) -> None:
    rows = run_rq3(exposed, 3, 5)
    assert len(rows) == 32
    keys = {(row["control"], row["share_user"], row["share_item"]) for row in rows}
    assert len(keys) == 32
    assert rows == run_rq3(exposed, 3, 5)
    assert rows != run_rq3(exposed, 4, 5)
    for row in rows:
        assert row["ratio_user"]["plugin"] is None or row["ratio_user"]["plugin"] >= 0


def test_the_control_gains_too_until_it_is_corrected(exposed: Exposed) -> None:
    rows = [row for seed in range(4) for row in run_rq3(exposed, seed, 9) if row["control"] == "permuted"]
    plugin = np.array([[row["gains"][step]["plugin"] for step in row["gains"]] for row in rows])
    corrected = np.array([[row["gains"][step]["permutation"] for step in row["gains"]] for row in rows])
    assert (plugin > -1e-12).all()
    assert np.abs(corrected.mean()) < 0.1 * plugin.mean()


def test_ratios_by_hand() -> None:
    def gain(plugin: float, noise: float, high: float) -> Gain:
        return Gain(plugin, plugin - 0.01, noise, high)

    gains = {"x_u": gain(0.2, 0.1, 0.15), "h_u": gain(0.4, 0.2, 0.3), "x_i": gain(0.3, 0.1, 0.2), "h_i": gain(0, 0, 0)}
    found = ratios(gains)
    assert found["ratio_user"] == pytest.approx({"plugin": 0.5, "miller-madow": 0.19 / 0.39, "permutation": 0.5})
    assert found["ratio_item"] == {"plugin": None, "miller-madow": None, "permutation": None}
    gains["h_u"] = gain(0.4, 0.2, 0.45)
    assert ratios(gains)["ratio_user"]["permutation"] is None


def test_shares_round_and_keep_one() -> None:
    assert [observed_features(34, k) for k in (2, 3, 4, 5)] == [17, 11, 8, 7]
    assert observed_features(3, 5) == 1


@pytest.mark.real_data
def test_on_movielens_plugin_ratios_are_positive_with_or_without_information(data_root: Path) -> None:
    folder = data_root / "ml-100k"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    rows = run_rq3(Exposed.of(load_dataset("ml-100k", folder)), 0, 1)
    assert all(row["ratio_user"]["plugin"] > 0 and row["ratio_item"]["plugin"] > 0 for row in rows)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.protocol import PROTOCOLS, get_protocol
from puidrec.data.schema import RatingScale

STARS = np.array([1, 2, 3, 4, 5], np.float32)
EXPECTED = {"rd": [0, 0, 0, 1, 1], "paper": [0, 0, -1, 1, 1], "ge3": [0, 0, 1, 1, 1]}
EXPECTED |= {"cvib": EXPECTED["ge3"], "idcf": EXPECTED["rd"], "unlogged": EXPECTED["rd"]}
EXPECTED |= dict.fromkeys(
    ("big-small", "temporal", "leave-last-out", "kuairand-random", "kuairand-standard"),
    EXPECTED["rd"],
)


@pytest.mark.parametrize("name", EXPECTED)
def test_lines_between_stars(name: str) -> None:
    label = get_protocol(name).label(STARS, RatingScale(1, 5))
    assert label.tolist() == EXPECTED[name]
    assert label.dtype == np.int8


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.0), (0.1, 0.7)])
def test_the_scale_does_not_move_the_lines(name: str, low: float, high: float) -> None:
    levels = np.linspace(low, high, 5).astype(np.float32)
    assert get_protocol(name).label(levels, RatingScale(low, high)).tolist() == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_all_agree_on_binary_labels(name: str) -> None:
    assert get_protocol(name).label(np.array([0.0, 1.0]), RatingScale(0, 1)).tolist() == [0, 1]


def test_names(refusal) -> None:
    assert set(PROTOCOLS) == set(EXPECTED)
    assert get_protocol(PROTOCOLS["rd"]) is PROTOCOLS["rd"]
    refusal(lambda: get_protocol("RD"), "unknown protocol", "'RD'", "rd, paper, ge3")


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    rating = rng.integers(1, 6, (60, 40))
    tables = []
    for share in (0.3, 0.3):
        user, item = np.nonzero(rng.random((60, 40)) < share)
        tables.append(
            {"user_id": user, "item_id": item, "rating": rating[user, item].astype(float)}
        )
    return Dataset.from_frame(*tables, scale=(1, 5), overlap="keep")


def test_cvib_tests_on_every_uniform_row_and_validates_on_the_log(data: Dataset) -> None:
    split = data.split("cvib", 1)
    assert len(split.test) == len(data.uniform)
    assert (len(split.propensity), split.selection, split.evaluation) == (0, "logged", "uniform")
    assert len(split.train) + len(split.validation) == len(data.logged)
    np.testing.assert_array_equal(split.test.label, split.test.rating >= 3)
    assert split.protocol.users == "all"


def test_idcf_validates_on_30_percent(data: Dataset) -> None:
    split = data.split("idcf", 1)
    n = len(data.uniform)
    assert (len(split.validation), len(split.test), len(split.propensity)) == (
        round(0.3 * n),
        n - round(0.3 * n),
        0,
    )
    assert split.selection == "uniform"


def test_unlogged_ranks_no_logged_pair_even_where_they_are_kept(data: Dataset) -> None:
    logged = set(zip(data.logged.user.tolist(), data.logged.item.tolist(), strict=True))

    def repeated(protocol: str) -> int:
        test = data.split(protocol, 0).test
        return sum(
            pair in logged for pair in zip(test.user.tolist(), test.item.tolist(), strict=True)
        )

    assert repeated("unlogged") == 0
    assert repeated("rd") > 50


def test_a_protocol_of_one_log_refuses_another(data: Dataset, refusal) -> None:
    refusal(lambda: data.split("big-small", 0), "big-small", "log='big-matrix'")
    platform = replace(
        data, notes={"log": "the platform's own (big_matrix), a pair positive if any view was"}
    )
    assert len(platform.split("big-small", 0).test) == len(data.uniform)

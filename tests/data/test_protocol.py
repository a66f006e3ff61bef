from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.protocol import PROTOCOLS, get_protocol
from puidrec.data.schema import RatingScale

STARS = np.array([1, 2, 3, 4, 5], np.float32)
EXPECTED = {"rd": [0, 0, 0, 1, 1], "paper": [0, 0, -1, 1, 1], "ge3": [0, 0, 1, 1, 1]}


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

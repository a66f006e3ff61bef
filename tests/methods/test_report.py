"""What a model says of its own making."""

from __future__ import annotations

import pytest

from puidrec.methods.stages import gamma_set_by


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (0, "the default 1.1: no uniform rating held out for calibration, at least 50 are needed"),
        (
            1,
            "the default 1.1: only 1 uniform rating held out for calibration, at least 50 are "
            "needed",
        ),
        (
            49,
            "the default 1.1: only 49 uniform ratings held out for calibration, at least 50 are "
            "needed",
        ),
        (50, "50 uniform ratings held out for calibration"),
        (1234, "1,234 uniform ratings held out for calibration"),
    ],
)
def test_what_set_gamma_in_words(rows: int, words: str) -> None:
    assert gamma_set_by(rows) == words


@pytest.mark.parametrize(
    ("method", "gamma", "expected"),
    [
        ("signed-rd", "auto", True),
        ("signed-rd", 1.3, False),
        ("rd-dr", "auto", False),
        ("mf", "auto", False),
    ],
)
def test_only_methods_that_value_unseen_ratings_leave_the_scale_open(
    method: str, gamma: object, expected: bool, prepare
) -> None:
    assert prepare(method, gamma=gamma).scales_gamma is expected

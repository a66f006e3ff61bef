"""Segments: counted, bounded and averaged as by hand; ids that are more than ids."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.auditing import diagnostics
from puidrec.auditing.diagnostics import (
    SegmentSide,
    changes,
    segment_side,
)
from puidrec.auditing.envelope import Pairs, sharp
from puidrec.auditing.inputs import AuditArrays


@pytest.fixture
def arrays() -> AuditArrays:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((40, 30)) < 0.4)
    n = user.size
    return AuditArrays(
        user,
        item,
        rng.random(n),
        rng.integers(0, 2, n),
        rng.random(n),
        rng.random(n),
        rng.uniform(0.1, 0.9, n),
    )


@pytest.fixture
def side(arrays: AuditArrays) -> SegmentSide:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"user_id": [f"u{k}" for k in range(40)], "city": ["a", "b", "<script>", "a"] * 10}
    )
    degree = np.bincount(arrays.user, minlength=40)
    return SegmentSide("user", frame, degree, rng.uniform(0, 1, 40))


def test_a_segment_is_what_its_own_rows_say(arrays: AuditArrays, side: SegmentSide) -> None:
    strength = 1.7
    found = segment_side(side, arrays, strength, {})
    assert {row["column"] for row in found} == {"city", "activity (ratings)"}
    for row in (row for row in found if row["column"] == "city"):
        members = np.flatnonzero(side.frame["city"].to_numpy() == row["segment"])
        rows = np.isin(arrays.user, members)
        alone = sharp(Pairs(arrays.main.value[rows], arrays.propensity[rows]), strength)
        assert (row["n"], row["entities"]) == (rows.sum(), members.size)
        assert (row["low"], row["high"]) == (pytest.approx(alone.low), pytest.approx(alone.high))
        assert row["width"] == pytest.approx(alone.high - alone.low)
        assert row["gamma_mean"] == pytest.approx(np.exp(side.mean_log_gamma[members].mean()))
        log_gamma = np.sort(side.mean_log_gamma[members])
        assert row["gamma_p95"] == pytest.approx(
            np.exp(np.quantile(log_gamma, 0.95, method="higher"))
        )
        assert row["score_shift"] == pytest.approx((arrays.model - arrays.against)[rows].mean())
    assert "<script>" in {row["segment"] for row in found}  # as it is: pages escape
    assert [row["gamma_mean"] for row in found] == sorted(
        (row["gamma_mean"] for row in found), reverse=True
    )


def test_a_segment_without_rows_has_no_envelope(arrays: AuditArrays, side: SegmentSide) -> None:
    frame = side.frame.with_columns(city=pl.Series(["x"] * 39 + ["nobody"]))
    few = arrays.user < 39
    part = AuditArrays(
        *(
            getattr(arrays, n)[few]
            for n in ("user", "item", "outcome", "label", "model", "against", "propensity")
        )
    )
    other = SegmentSide("user", frame, side.degree, side.mean_log_gamma)
    row = next(r for r in segment_side(other, part, 1.5, {}) if r["segment"] == "nobody")
    assert (row["n"], row["entities"]) == (0, 1)
    assert row["low"] is row["high"] is row["width"] is row["score_shift"] is None


def test_very_many_rows_are_thinned(
    arrays: AuditArrays, side: SegmentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = segment_side(side, arrays, 1.5, {})
    monkeypatch.setattr(diagnostics, "MAX_SORTED", arrays.user.size // 2)
    thin = segment_side(side, arrays, 1.5, {})
    assert [row["n"] for row in thin] == [row["n"] for row in whole]
    wide = [row["width"] for row in whole if row["n"] > 100]
    np.testing.assert_allclose([row["width"] for row in thin if row["n"] > 100], wide, rtol=0.5)


def test_changes_of_recommendations() -> None:
    own, other = np.array([[0, 2], [0, 1]]), np.array([[1, 2], [1, 0]])
    users, items = changes(np.array([1, 3]), own, other, 4, 3)
    np.testing.assert_array_equal(users["overlap"], [np.nan, 0.5, np.nan, 1.0])
    np.testing.assert_array_equal(items["change_per_100"], [50.0, -50.0, 0.0])
    alone = changes(np.array([1, 3]), np.array([[0, -1], [1, 2]]), None, 4, 3)
    assert alone[0] == {}
    assert alone[1]["recommended_per_100"].tolist() == [50.0, 50.0, 50.0]  # −1: the list is shorter


def test_averages_leave_out_what_is_unknown(arrays: AuditArrays, side: SegmentSide) -> None:
    value = np.full(40, np.nan)
    value[0] = 0.25  # city a
    found = segment_side(side, arrays, 1.5, {"overlap": value})
    by_city = {row["segment"]: row["overlap"] for row in found if row["column"] == "city"}
    assert by_city == {"a": 0.25, "b": None, "<script>": None}

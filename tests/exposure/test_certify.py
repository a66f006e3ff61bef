"""`certify` on data sets: what is proved, of which segments, and how it is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.data.synthetic import simulate
from puidrec.exposure.certify import MIN_SEGMENT, all_labelled


@pytest.fixture(scope="module")
def confounded():
    return simulate(
        "entity", n_users=300, n_items=200, n_uniform=4_000, exposure_strength=2.5, rng=0
    ).data


@pytest.fixture(scope="module")
def found(confounded):
    return pr.certify(confounded, propensity="cells")


def test_what_is_hidden_is_proved_and_said_with_what_is_assumed(found) -> None:
    assert found.lower > 1.05
    assert "hidden, or missed by the propensity" in found.sentence
    assert "prove Γ ≥" in found.sentence
    assert len(repr(found).splitlines()) <= 3
    assert found.propensity == "cells"


def test_rows_of_logged_pairs_are_left_out(confounded, found) -> None:
    key = confounded.logged.user.astype(np.int64) * confounded.n_items + confounded.logged.item
    drawn = confounded.uniform.user.astype(np.int64) * confounded.n_items + confounded.uniform.item
    assert found.n_uniform == int((~np.isin(drawn, key)).sum()) <= len(confounded.uniform)


def test_segments_have_enough_rows_and_wider_limits_than_the_whole(found) -> None:
    assert found.segments
    assert all(
        row.n_uniform >= MIN_SEGMENT and row.lower >= 1.0 and 0.0 <= row.p_value <= 1.0
        for row in found.segments
    )
    assert {row.side for row in found.segments} == {"user", "item"}
    assert all(row.p_value <= 0.05 + 1e-9 for row in found.segments if row.lower > 1.0)


def test_it_shows_itself_as_a_frame_a_table_and_a_figure(found) -> None:
    frame = found.to_frame()
    assert frame["part"].to_list()[0] == "whole"
    assert frame.filter(pl.col("part") == "level").height == len(found.levels)
    html = found._repr_html_()
    assert f"Γ ≥ {found.lower:.2f}" in html
    assert "biased upward" in html
    (axes,) = found.plot().axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == [row.name for row in found.levels]
    assert len(axes.collections) == 2  # what is proved as a bar, and the estimates


def test_a_protocol_that_drops_ratings_drops_none_here(confounded) -> None:
    rule = all_labelled(confounded.split("paper").protocol)
    assert set(np.unique(rule.label(confounded.logged.rating, confounded.scale))) == {0, 1}
    labels = pr.certify(
        confounded, outcome="label", protocol="paper", propensity="cells", checks=False
    )
    assert len(labels.levels) == 1
    assert labels.n_uniform == pr.certify(confounded, propensity="cells", checks=False).n_uniform


def test_mistakes_are_one_line(confounded, refusal) -> None:
    refusal(lambda: pr.certify(replace(confounded, uniform=None)), "needs uniform rows")
    refusal(lambda: pr.certify(confounded, outcome="stars"), "outcome", "'stars'")
    refusal(lambda: pr.certify(confounded, propensity="magic"), "unknown propensity")
    refusal(lambda: pr.certify(confounded, confidence=1.5), "confidence")

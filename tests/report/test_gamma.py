from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.gamma_study import GammaStudy, study_gamma
from puidrec.report.gamma import (
    FILES,
    gamma_html,
    gamma_summary,
    histogram_of,
    sentence,
    write_gamma_study,
)


@pytest.fixture(scope="module")
def study() -> GammaStudy:
    return study_gamma(simulate("mixed", 300, 200, rng=0).data, "information")


def test_the_summary_is_json_and_agrees_with_the_study(study: GammaStudy) -> None:
    summary = json.loads(json.dumps(gamma_summary(study), allow_nan=False))
    spread = summary["gamma"]
    assert spread["pairs"] == 60_000
    assert spread["sampled"] is False
    assert (
        spread["min"]
        <= spread["q25"]
        <= spread["median"]
        <= spread["q75"]
        <= spread["q95"]
        <= spread["max"]
    )
    assert spread["max"] <= spread["upper_limit"] * (1 + 1e-12)
    users, items = np.meshgrid(np.arange(300), np.arange(200), indexing="ij")
    everyone = study.gamma.at(users.ravel(), items.ravel())
    assert spread["median"] == pytest.approx(np.median(everyone))
    assert spread["geometric_mean"] == pytest.approx(np.exp(np.log(everyone).mean()))
    for estimator in summary["entropies"].values():
        chain = estimator["H_given_both"] + estimator["gain_item"] + estimator["gain_user"]
        assert chain == pytest.approx(estimator["H"])
    chance = summary["entropies"]["permutation"]["chance_user"]
    assert chance["low"] <= chance["mean"] <= chance["high"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("1", "Γ = 1 for every pair"),
        ("2.5", "Γ is 2.50 for every pair"),
        ("random", "for the median pair"),
    ],
)
def test_the_sentence_says_what_the_rule_claims(rule: str, words: str) -> None:
    data = replace(simulate("mixed", 80, 60, rng=0).data, uniform=None)
    said = sentence(study_gamma(data, rule, propensity="cells"))
    assert words in said
    assert "\n" not in said


def test_the_sentence_says_what_uniform_rows_prove(study: GammaStudy) -> None:
    proved = study.proved
    assert proved is not None
    assert proved > 1.0
    assert f"must reach {proved:.2f} somewhere" in sentence(study)
    calm = study_gamma(simulate("no-confounding", 300, 200, rng=0).data, "2")
    assert calm.proved == 1.0
    assert "do not prove any hidden confounding" in sentence(calm)


def test_charts_speak_in_words(study: GammaStudy) -> None:
    histogram = histogram_of(study).axes[0]
    assert "odds that a user sees an item" in histogram.get_xlabel()
    assert histogram.get_ylabel() == "share of user–item pairs (%)"


def test_the_pairs_of_groups_with_the_largest_gamma_are_listed(study: GammaStudy, read) -> None:
    table = read(gamma_html(study)).first("#pairs").first("table")
    found = [float(row[0]) for row in table.rows()]
    cells = np.sort(np.exp(study.gamma.cell_mean_log()).ravel())[::-1]
    assert found == pytest.approx(cells[: len(found)], abs=0.0051)
    assert len(found) == min(16, cells.size)


def test_writing_replaces_a_study_and_nothing_else(
    study: GammaStudy, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    write_gamma_study(study, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(FILES)
    write_gamma_study(study, tmp_path / "out")
    (tmp_path / "out" / "letter.txt").write_text("keep me")
    refusal(lambda: write_gamma_study(study, tmp_path / "out"), "other files", "letter.txt")
    assert (tmp_path / "out" / "letter.txt").read_text() == "keep me"


def test_the_page_says_what_is_proved_and_what_a_rule_measures(study: GammaStudy) -> None:
    text = gamma_html(study)
    assert study.proved is not None
    assert f"must reach {study.proved:.2f} somewhere" in text
    assert "unexplained exposure, not confounding" in text
    assert "biased upward, used for nothing" in text
    assert "hidden or missed by the propensity" in text.lower().replace("hidden, or", "hidden or")
    bare = gamma_html(study_gamma(replace(study.data, uniform=None), "2", propensity="cells"))
    assert "nothing in these data proves" in bare

"""Random search: one space, one budget, the given settings first, and the validation score
decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

import puidrec as pr
from puidrec.comparing.job import SPACE, DataSpec, Job, Result, best, searched, trials
from puidrec.methods import METHODS

SMALL = DataSpec("simulated", options={"n_users": 40, "n_items": 30})


def job(method: str, **settings: object) -> Job:
    return Job(SMALL, method, 3, settings=settings, budget=30)


@pytest.mark.parametrize("method", METHODS)
def test_every_draw_of_every_method_can_be_trained(method: str) -> None:
    tried = trials(job(method))
    assert len(tried) == (30 if searched(job(method)) else 1)
    assert tried[0].settings == {}
    assert len({trial.key for trial in tried}) >= 0.8 * len(
        tried
    )  # two draws may round to one value
    assert not any(trial.measured for trial in tried)
    for trial in tried:
        trial.check()


def test_methods_that_share_a_setting_try_the_same_values() -> None:
    mf, rd = trials(job("mf")), trials(job("rd-dr"))
    assert mf[1].settings.keys() == {"l2_features"}
    for name in ("l2_features",):
        assert [t.settings.get(name) for t in mf] == [t.settings.get(name) for t in rd]
    assert trials(replace(job("mf"), seed=4))[1].settings != mf[1].settings
    assert trials(replace(job("mf"), seed=4), draws_seed=3)[1].settings == mf[1].settings


def test_a_larger_budget_begins_with_the_smaller_one() -> None:
    few, many = trials(replace(job("dr"), budget=4)), trials(job("dr"))
    assert [t.key for t in few] == [t.key for t in many[:4]]


def test_given_settings_stay_and_settings_without_meaning_are_not_searched() -> None:
    tried = trials(job("rd-ips", min_propensity=0.07, backbone="mf"))
    assert {t.settings["min_propensity"] for t in tried} == {0.07}
    names = {p.name for p in searched(job("rd-ips", min_propensity=0.07, backbone="mf"))}
    assert names == {"gamma"}
    assert "hidden" in {p.name for p in searched(job("mf", backbone="mf-mlp"))}
    assert "unseen_weight" in {p.name for p in searched(job("signed-rd"))}


@pytest.mark.parametrize(
    ("method", "settings", "by_adam"),
    [
        ("mf", {}, False),
        ("mf", {"solver": "adam"}, True),
        ("mf", {"backbone": "mf-mlp"}, True),
        ("dr", {}, False),
        ("dr", {"head": "residual"}, True),
        ("ips", {"normalise": True}, True),
        ("cvib", {}, True),
        ("multi-dr", {}, True),
        ("auto-debias", {}, True),
        ("signed-rd", {}, False),
        ("all-rank", {}, False),
        ("rd-dr", {}, False),
        ("ips", {"loss": "absolute"}, False),
    ],
)
def test_the_step_size_is_searched_exactly_where_adam_trains(
    method: str, settings: dict[str, object], by_adam: bool, tiny_data
) -> None:
    assert ("lr" in {p.name for p in searched(job(method, **settings))}) is by_adam
    model = pr.Recommender(method, epochs=2, dim=2, l2=0.1, **settings).fit(tiny_data)
    assert ("adam" in model.report_["solver"]) is by_adam


def test_what_the_fit_chooses_is_not_searched() -> None:
    assert {p.name for p in searched(job("mf", backbone="mf"))} == set()
    assert {p.name for p in searched(job("mf", backbone="mf"), likes=True)} == {"l2", "dim"}
    assert {p.name for p in searched(job("mf", backbone="mf-mlp"))} == {
        "l2",
        "l2_features",
        "dim",
        "hidden",
        "lr",
    }


def test_the_draws_fill_their_ranges() -> None:
    mlp = replace(job("mf", backbone="mf-mlp"), budget=300)
    values = [t.settings["l2"] for t in trials(mlp)[1:]]
    assert 0.02 <= min(values) < 0.03
    assert 0.35 < max(values) <= 0.5
    assert sum(value < 0.1 for value in values) / 299 == pytest.approx(
        0.5, abs=0.1
    )  # even per factor
    assert {p.name for p in SPACE} == {
        name for method in METHODS.values() for name in method.search_space
    }


def test_the_best_has_the_highest_score_and_the_given_settings_win_ties() -> None:
    made = [
        Result(job("mf"), {}, {"k": k}, score, {}, {})
        for k, score in enumerate([0.5, 0.7, 0.7, None])
    ]
    assert best(made).context["k"] == 1
    assert best([made[3], replace(made[3], context={"k": 9})]).context["k"] == 3
    assert best([made[3], made[0]]).context["k"] == 0

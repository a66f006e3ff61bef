"""Audits as a caller meets them: what they say, what they refuse, what they write."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import puidrec
from puidrec.auditing.audit import audit as audit_models
from puidrec.auditing.result import AuditResult
from puidrec.data.dataset import Dataset

audit = partial(audit_models, unseen=True)
"""The models of these tests were made, not trained."""


@pytest.fixture(scope="module")
def found(simulation, good, poor) -> AuditResult:
    return audit(good, simulation.data, against=poor, replicates=60)


def without_uniform(data: Dataset) -> Dataset:
    return replace(data, uniform=None)


def test_the_public_name_is_the_function(simulation, good) -> None:
    assert puidrec.audit(good, simulation.data, replicates=0, unseen=True).verdict == "single"


def test_the_summary_starts_with_the_conclusion(found: AuditResult) -> None:
    first, second = found.summary().splitlines()[:2]
    assert first == found.to_dict()["sentence"] == found.sentence
    assert first.count(";") == 0  # one clause
    assert "good" in first
    assert "poor" in first
    assert second == ""
    assert "Not claimed:" in found.summary()
    assert "What to know about these figures:" in found.summary()


def test_a_result_is_shown_in_at_most_three_lines(found: AuditResult, simulation, good) -> None:
    alone = audit(good, simulation.data, replicates=0)
    for shown in (found, alone):
        assert shown.to_dict()["sentence"] in repr(shown)
        assert shown.verdict in repr(shown)
        assert len(repr(shown).splitlines()) <= 3
    assert f"Γ* = {found.tipping_point:.2f}" in repr(found)


def test_its_values_are_plain_and_complete(found: AuditResult) -> None:
    values = found.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    expected = {
        "version",
        "sentence",
        "verdict",
        "metric",
        "error",
        "ranking",
        "precision",
        "ndcg",
        "model",
        "against",
        "data",
        "rows",
        "gamma_grid",
        "envelopes",
        "tipping",
        "benchmarks",
        "groups",
        "scenarios",
        "reference",
        "believe",
        "leakage",
        "certificate",
        "tilt",
        "uniform",
        "sequential",
        "control",
        "gamma_map",
        "gamma",
        "segments",
        "diagnostics",
        "limits",
        "not_claimed",
    }
    assert set(values) == expected
    slots = {f"{what}_{metric}" for what in ("model", "against") for metric in ("dcg", "precision")}
    slots |= {"dcg_gap", "precision_gap"}
    assert set(values["envelopes"]) == {"loss_gap", "model_loss", "against_loss", *slots}
    n = len(values["gamma_grid"])
    for name, curves in values["envelopes"].items():
        for kind in ("normalised",) if name in slots else ("box", "normalised", "sharp"):
            curve = curves[kind]
            assert len(curve["low"]) == len(curve["high"]) == len(curve["band"]["low"]) == n
            assert curve["low"][0] == pytest.approx(curves["point"])
            assert curve["band"]["low"][0] < curves["point"] < curve["band"]["high"][0]
    assert values["certificate"]["n_uniform"] == 1_500 - 209
    proves = values["certificate"]["low"] > 1.0
    assert (values["certificate"]["finding"] == "nothing proved") is not proves
    assert bool(values["certificate"]["segments"]) is proves
    assert values["data"]["n_logged"] == values["rows"]["n"]


def test_a_copy_is_a_copy(found: AuditResult) -> None:
    found.to_dict()["envelopes"].clear()
    assert found.to_dict()["envelopes"]


def test_gap_and_losses_fit_together(found: AuditResult) -> None:
    curves = found.to_dict()["envelopes"]
    gap = curves["against_loss"]["point"] - curves["model_loss"]["point"]
    assert curves["loss_gap"]["point"] == pytest.approx(gap, abs=1e-12)


def test_the_tipping_point_is_where_the_chart_crosses_zero(found: AuditResult) -> None:
    values = found.to_dict()
    grid, low = (
        np.array(values["gamma_grid"]),
        np.array(values["envelopes"]["loss_gap"]["box"]["low"]),
    )
    star = found.tipping_point
    assert grid[-1] > star
    assert (low[grid < star] > 0).all()
    assert (low[grid > star] < 0).all()
    assert values["tipping"]["low"] <= star <= values["tipping"]["high"]


def test_the_truth_lies_within(simulation, good, poor, found: AuditResult) -> None:
    """The true gap over all pairs lies in the envelope at the true Γ, and uniform rows estimate
    it."""
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))
    gap = float(((poor.scores - truth) ** 2 - (good.scores - truth) ** 2).mean())
    values = found.to_dict()
    at = int(np.searchsorted(values["gamma_grid"], 2.0))
    curve = values["envelopes"]["loss_gap"]["sharp"]
    assert curve["low"][at] < gap < curve["high"][at]
    unseen = np.ones(truth.shape, bool)
    unseen[simulation.data.logged.user, simulation.data.logged.item] = False
    gap = float(((poor.scores - truth) ** 2 - (good.scores - truth) ** 2)[unseen].mean())
    for kind in ("uniform", "adjusted"):
        assert values["error"][kind]["low"] < gap < values["error"][kind]["high"]
    assert values["error"]["combined"] is None  # uniform rows alone decide of error
    assert values["ranking"]["combined"] is not None


def test_the_same_seed_gives_the_same_audit_and_models_can_be_swapped(
    simulation, good, poor, found: AuditResult
) -> None:
    assert audit(good, simulation.data, against=poor, replicates=60).to_dict() == found.to_dict()
    swapped = audit(poor, simulation.data, against=good, replicates=20)
    assert (swapped.error.verdict, swapped.error.tipping_point) == ("refuted", 1.0)
    assert swapped.summary().startswith("Measured: good is ahead of poor in squared error")
    bare = without_uniform(simulation.data)
    swapped = audit(
        type(poor)(bare, poor.scores), bare, against=type(good)(bare, good.scores), replicates=0
    )
    assert (swapped.error.verdict, swapped.error.tipping_point) == ("undecided", 1.0)
    assert "the log shows" in swapped.summary().splitlines()[0]
    swapped = audit(poor, simulation.data, against=good, replicates=20)
    assert swapped.to_dict()["envelopes"]["loss_gap"]["point"] == pytest.approx(
        -found.to_dict()["envelopes"]["loss_gap"]["point"]
    )


def test_error_and_ranking_stand_side_by_side(found: AuditResult, simulation, good, poor) -> None:
    for lead in (found.error, found.ranking, found.precision):
        assert lead.verdict in ("confirmed", "robust", "fragile", "undecided", "refuted")
        assert 1.0 <= lead.interval[0] <= lead.tipping_point <= lead.interval[1]
        assert lead.lead.low < lead.lead.value < lead.lead.high
        assert lead.uniform is not None
    assert found.ndcg.tipping is None  # its normaliser is known on uniform rows only
    assert found.ndcg.uniform.low < found.ndcg.uniform.value
    assert found.error.verdict == "confirmed"
    assert (found.verdict, found.tipping_point) == (found.error.verdict, found.error.tipping_point)
    for metric in ("ranking", "precision", "ndcg"):
        asked = audit(good, simulation.data, against=poor, replicates=0, metric=metric)
        lead = getattr(asked, metric)
        assert (asked.verdict, asked.tipping_point) == (lead.verdict, lead.tipping_point)
        assert lead.metric in asked.summary().splitlines()[0]
        assert asked.error.tipping.gamma == found.error.tipping.gamma
    assert found.ranking.metric == "DCG@10"
    assert (
        audit(good, simulation.data, against=poor, replicates=0, k=3).precision.metric
        == "precision@3"
    )


def test_values_of_lists_are_within_their_range(found: AuditResult) -> None:
    """DCG@10 of a list is at most Σ discounts = 4.54, whatever the weights and Γ are."""
    envelopes = found.to_dict()["envelopes"]
    for name, most in (("dcg", 4.5436), ("precision", 1.0)):
        for who in ("model", "against"):
            curve = envelopes[f"{who}_{name}"]
            assert curve["most"] == pytest.approx(most, abs=1e-4)
            assert min(curve["normalised"]["low"]) >= 0.0
            assert max(curve["normalised"]["high"]) <= most + 1e-4
        lead = envelopes[f"{name}_gap"]
        assert -lead["most"] - 1e-9 <= min(lead["normalised"]["low"])
        assert max(lead["normalised"]["high"]) <= lead["most"] + 1e-9 <= most + 1e-4


def test_what_uniform_rows_have_decided_lists_nothing_that_could_overturn_it(
    found: AuditResult, simulation, good, poor
) -> None:
    assert found.verdict == "confirmed"
    bare = without_uniform(simulation.data)
    models = type(good)(bare, good.scores), type(poor)(bare, poor.scores)
    open_ = audit(models[0], bare, against=models[1], replicates=0)
    for words in ("could overturn it", "Γ* is compared with", "would end it"):
        assert words in open_.summary()
        assert words not in found.summary()


def test_a_belief_decides_and_is_said(simulation, good, poor) -> None:
    """Without uniform rows and features, the same Γ* is robust against a small Γ, fragile against a
    large one."""
    bare = replace(simulation.data, uniform=None, users=None, items=None)
    models = type(good)(bare, good.scores), type(poor)(bare, poor.scores)
    silent = audit(models[0], bare, models[1], replicates=0)
    assert silent.error.shown
    assert silent.verdict == "undecided"
    assert silent.sentence.startswith("The log shows table (audited) ahead of")
    assert "Nothing is known of Γ here" in silent.summary()
    low = silent.error.interval[0]
    for believe, verdict in ((1.0 + 0.5 * (low - 1.0), "robust"), (low + 1.0, "fragile")):
        told = audit(models[0], bare, models[1], replicates=0, believe=believe)
        assert told.verdict == verdict
        assert f"Γ = {believe:.2f}" in told.sentence
        assert told.to_dict()["believe"] == believe


def test_the_control_at_gamma_1_is_printed_and_holds(found: AuditResult) -> None:
    control = found.to_dict()["control"]
    assert control["holds"] is True
    assert control["at_gamma_1"] == pytest.approx(control["weighted"])
    assert control["words"] in found.summary()


def test_what_will_be_computed_is_said_first(simulation, good, poor) -> None:
    told: list[str] = []
    audit(good, simulation.data, against=poor, replicates=0, progress=told.append)
    assert told[0].startswith(f"judging by {len(simulation.data.logged):,} rows, nothing to train")
    assert " s and " in told[0]


@pytest.mark.parametrize("shape", ["same", "stars", "constant"])
def test_models_that_do_not_differ_are_undecided(simulation, good, shape: str) -> None:
    """The same model in stars is the same model; so are two that say one number for all."""
    data, scores = simulation.data, good.scores.astype(np.float32)
    pair = {
        "same": (scores, scores),
        "stars": (scores, 1 + 4 * scores),
        "constant": (np.full_like(scores, 0.5),) * 2,
    }
    models = [
        lambda u, i, s=s: s[data.user_ids.encode(u), data.item_ids.encode(i)] for s in pair[shape]
    ]
    found = audit(models[0], data, against=models[1], replicates=20)
    assert (found.error.verdict, found.error.tipping_point) == ("undecided", 1.0)
    assert found.ranking.verdict == "undecided"
    assert "do not tell them apart" in found.summary().splitlines()[0] or shape == "constant"


def test_a_gap_of_one_size_on_every_row_is_no_proof(simulation) -> None:
    """Predictions of 0.5 and 0.5 ± a step: whichever way it goes, the sentence agrees with the
    figures under it."""
    data = simulation.data
    found = audit(
        lambda u, i: np.full(len(u), 0.5),
        data,
        against=lambda u, i: np.full(len(u), 0.6),
        replicates=0,
    )
    assert found.ranking.verdict == "undecided"
    assert np.isfinite(found.tipping_point)
    assert found.tipping_point < 20


def test_one_model_alone(simulation, good) -> None:
    found = audit(good, simulation.data, replicates=20)
    values = found.to_dict()
    assert (found.tipping_point, values["tipping"], values["against"]) == (None, None, None)
    assert list(values["envelopes"]) == ["model_loss", "model_dcg", "model_precision"]
    assert "good" in found.summary().splitlines()[0]


def test_without_uniform_rows_or_features(simulation, good, poor) -> None:
    bare = replace(simulation.data, uniform=None, users=None, items=None)
    values = audit(
        type(good)(bare, good.scores), bare, type(poor)(bare, poor.scores), replicates=0
    ).to_dict()
    assert values["certificate"] is None
    assert values["uniform"] is None
    assert values["benchmarks"] == []
    assert {row["column"] for row in values["segments"]["users"]} == {"activity (ratings)"}
    assert "band" not in values["envelopes"]["loss_gap"]


def test_a_memoriser_is_told_and_never_robust(simulation) -> None:
    data = simulation.data
    learned = np.full((data.n_users, data.n_items), 0.5)
    learned[data.logged.user, data.logged.item] = data.scale.unit(data.logged.rating)
    noisy = learned + np.random.default_rng(0).normal(0, 0.1, learned.shape)
    worse = type("Off", (), {"predict": lambda self, users, items: np.full(len(users), 0.9)})()
    for scores in (learned, noisy, 10 * learned - 50):
        model = type(
            "Memory",
            (),
            {
                "predict": lambda _, u, i, s=scores: s[
                    data.user_ids.encode(u), data.item_ids.encode(i)
                ]
            },
        )
        found = audit(model(), data, against=worse, replicates=20)
        for lead in (found.error, found.ranking, found.precision):
            assert lead.verdict in ("undecided", "refuted") or lead.measured.decides.low > 0.0
            assert replace(lead, measured=None).verdict == "undecided"  # by the log alone
        assert found.to_dict()["leakage"]["model"] > 0.5
        assert any(
            text.startswith("Scores of Memory reproduce the ratings (leakage)")
            for text in found.to_dict()["limits"]
        )
        json.dumps(found.to_dict(), allow_nan=False)
    rows = audit(learned_rows(data), data, against=worse, replicates=0)
    assert "reproduce the ratings" in rows.summary()


def learned_rows(data: Dataset) -> pl.DataFrame:
    """The logged ratings themselves as scores."""
    return data.logged.to_frame().select("user_id", "item_id", score=pl.col("rating"))


def test_a_model_better_on_every_pair_has_no_finite_tipping_point(simulation, good) -> None:
    data = simulation.data
    worse = type("Off", (), {"predict": lambda self, users, items: np.full(len(users), 2.0)})()
    worse.get_params = lambda: {"target": "rating"}  # its scores are said to be on [0, 1]
    data = replace(data, uniform=None)
    found = audit(good, data, against=worse, replicates=20)
    assert found.tipping_point == np.inf
    assert found.to_dict()["tipping"]["gamma"] is None
    assert found.to_dict()["tipping"]["gamma_infinite"] is True
    assert found.error.interval == (np.inf, np.inf)
    assert "Γ* = ∞" in found.summary()
    assert found.verdict == "robust"
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_curves_are_a_table(found: AuditResult) -> None:
    table = found.to_frame()
    assert table.columns == ["quantity", "kind", "gamma", "low", "high", "band_low", "band_high"]
    values = found.to_dict()
    assert table.height == len(values["gamma_grid"]) * (3 * 3 + 6)
    sharp = table.filter((pl.col("quantity") == "loss_gap") & (pl.col("kind") == "sharp"))
    assert sharp["low"].to_list() == values["envelopes"]["loss_gap"]["sharp"]["low"]
    assert (sharp["band_low"] <= sharp["low"]).all()


def test_a_notebook_shows_verdicts_and_a_chart(found: AuditResult, simulation, good) -> None:
    shown = found._repr_html_()
    assert found.to_dict()["sentence"].split("Γ")[0] in shown
    assert shown.count("<tr>") == 5
    assert audit(good, simulation.data, replicates=0)._repr_html_().count("<tr>") == 0
    drawing = found.plot()
    assert any("Γ* = " in text.get_text() for text in drawing.axes[0].texts)
    assert audit(good, simulation.data, replicates=0).plot().axes


def test_labels_are_audited_on_their_own_scale(simulation, good) -> None:
    """A model of ±1 and one of 0/1 that say the same are level."""
    data = simulation.data
    chance = np.clip(good.scores, 0, 1)
    signed = type(good)(data, 2 * chance - 1, method="ips", target="binary")
    unit = type(good)(data, chance, method="signed-rd", target="binary")
    unit.settings = SimpleNamespace(spec=SimpleNamespace(target_scale="unit"))
    values = audit(signed, data, against=unit, replicates=0).to_dict()
    assert values["envelopes"]["loss_gap"]["point"] == pytest.approx(0.0, abs=1e-12)
    assert values["rows"]["outcome"] == "label"
    assert values["certificate"]["kind"] == "labels"


def test_factors_rank_like_predictions(simulation, good) -> None:
    rng = np.random.default_rng(5)
    left, right = rng.normal(size=(80, 3)), rng.normal(size=(60, 3))
    asked = type(good)(simulation.data, left @ right.T, method="x")
    held = type(good)(simulation.data, left @ right.T, method="x")
    held.user_factors_, held.item_factors_ = left, right
    one, two = (audit(m, simulation.data, replicates=0).to_dict() for m in (asked, held))
    np.testing.assert_allclose(
        one["envelopes"]["model_dcg"]["point"], two["envelopes"]["model_dcg"]["point"]
    )
    assert one["segments"]["items"][0] == two["segments"]["items"][0]


def test_ids_are_kept_as_they_are(good) -> None:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((25, 20)) < 0.5)
    names = np.array([f"<script>{k}</script>" for k in range(25)])
    frame = pl.DataFrame(
        {"user_id": names[user], "item_id": item, "rating": rng.integers(1, 6, user.size)}
    )
    data = Dataset.from_frame(frame, scale=(1, 5))
    values = audit(type(good)(data, rng.random((25, 20))), data, replicates=10).to_dict()
    assert values["rows"]["users"] == len(set(user))


def test_tiny_and_extreme_logs(good) -> None:
    for rows in (3, 8):
        k = np.arange(rows)
        data = Dataset.from_frame(
            pl.DataFrame({"user_id": k, "item_id": k % 2, "rating": 1 + k % 5}), scale=(1, 5)
        )
        for replicates in (0, 20):
            found = audit(type(good)(data, np.full((rows, 2), 0.4)), data, replicates=replicates)
            json.dumps(found.to_dict(), allow_nan=False)
            assert found.summary()
    full = np.indices((6, 4)).reshape(2, -1)
    data = Dataset.from_frame(
        pl.DataFrame({"user_id": full[0], "item_id": full[1], "rating": full[0] % 5 + 1})
    )
    found = audit(
        type(good)(data, np.full((6, 4), 0.4)),
        data,
        type(good)(data, np.full((6, 4), 0.5)),
        replicates=20,
    )
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_cannot_be_audited_is_refused(simulation, good, poor, refusal) -> None:
    data, kind = simulation.data, type(good)
    refusal(lambda: audit(object(), data), "predict")
    refusal(lambda: audit_models(good, data), "cannot be trained again", "unseen=True")
    refusal(lambda: audit(good, data, poor, metric="rmse"), "metric", "rmse")
    refusal(lambda: audit(good, data, poor, k=0), "k must be")
    refusal(
        lambda: audit(good, data, poor, groups={"body": ["height"]}), "no such feature", "height"
    )
    refusal(
        lambda: audit(good, data, kind(data, good.scores, target="binary")),
        "different things",
        "binary",
    )
    refusal(
        lambda: audit(good, data, kind(data, good.scores, seed=1)), "different seeds", "0 and 1"
    )
    refusal(
        lambda: audit(good, data, kind(data, good.scores, select="observational")),
        "different selects",
    )
    refusal(lambda: audit(good, data, poor, gamma_limit=0.5), "limit")
    refusal(lambda: audit(good, data, poor, believe=0.5), "believe", "1 or more")
    refusal(lambda: audit(good, data, poor, replicates=-1), "replicates")
    refusal(lambda: audit(good, data, poor, level=1.0), "level")
    refusal(lambda: audit(good, data, poor, gamma="nonsense"), "Γ rule")
    refusal(lambda: audit(good, data, poor, propensity="nonsense"), "propensity")
    refusal(lambda: audit(good, data, poor, protocol="nonsense"), "protocol")
    refusal(lambda: audit(kind(data, np.full(good.scores.shape, np.nan)), data), "finite")
    unknown_user = kind(data, good.scores)
    unknown_user.user_ids_ = replace(data.user_ids, ids=data.user_ids.ids + 1)
    refusal(lambda: audit(unknown_user, data), "other users")
    audit(good, data, kind(data, poor.scores, seed=1), split=data.split(), replicates=0)


def test_files_appear_whole_and_replace_only_an_audit(
    found: AuditResult, tmp_path, refusal
) -> None:
    folder = tmp_path / "audit"
    found.save(folder, html=False)
    assert json.loads((folder / "audit.json").read_text()) == found.to_dict()
    assert (folder / "summary.txt").read_text() == found.summary()
    found.save(folder, html=False)
    (folder / "mine.txt").write_text("keep")
    refusal(lambda: found.save(folder), "mine.txt")
    assert (folder / "mine.txt").read_text() == "keep"


def test_a_folder_that_another_process_writes_is_left_alone(
    found: AuditResult, tmp_path, refusal, lock_holder
) -> None:
    with lock_holder(tmp_path / "audit"):
        refusal(lambda: found.save(tmp_path / "audit", html=False), "has been writing there")
    assert not (tmp_path / "audit").exists()


def test_the_page_is_written(found: AuditResult, tmp_path) -> None:
    pytest.importorskip("puidrec.report.audit")
    found.to_html(tmp_path / "report.html")
    assert "good" in (tmp_path / "report.html").read_text()
    found.save(tmp_path / "audit")
    assert (tmp_path / "audit" / "report.html").exists()


def test_random_ratings_settle_a_clear_lead_and_say_how_many_more_otherwise(
    found: AuditResult, simulation, good
) -> None:
    settled = found.to_dict()["sequential"]
    assert settled["leader"] in ("model", "against", None)
    assert settled["n"] == found.error.measured.n
    assert (found.ratings_needed == 0) is (settled["leader"] is not None)
    if settled["leader"] is not None:
        assert (settled["leader"] == "model") is (settled["difference"] > 0)
        assert settled["settled_after"] <= settled["n"]
    same = audit(good, simulation.data, against=good, replicates=0, names=("a", "b"))
    assert (
        same.ratings_needed is None
    )  # a model against itself: no number of ratings tells them apart
    assert "no end is in sight" in same.to_dict()["sequential"]["sentence"]
    assert audit(good, simulation.data, replicates=0).ratings_needed is None


def test_likes_alone_are_judged_by_ranking() -> None:
    """Where every rating is the same, a model that says one number for all has no error; that is no
    lead."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((60, 40)) < 0.2)
    data = Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))
    other = rng.random((60, 40))
    found = audit(
        lambda u, i: np.ones(len(u)), data, against=lambda u, i: other[u, i], replicates=0
    )
    assert found.error.verdict == "undecided"
    assert found.to_dict()["metric"] == "ranking"
    assert found.ranking.verdict == "undecided"

"""Any model: tables, files and functions of scores, other scales, and one line for each mistake."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
import pytest

from puidrec.auditing.audit import audit as audit_models
from puidrec.auditing.models import AuditedModel, isotonic_map
from puidrec.evaluation.any_model import ScoreTable

audit = partial(audit_models, unseen=True, replicates=0)


@pytest.fixture(scope="module")
def logged(simulation, good) -> pl.DataFrame:
    """Scores of the logged rows alone, as a table."""
    rows = simulation.data.logged
    ids = rows.to_frame().select("user_id", "item_id")
    return ids.with_columns(score=pl.Series(good.scores[rows.user, rows.item]))


@pytest.fixture(scope="module")
def complete(simulation, good) -> pl.DataFrame:
    """Scores of all pairs."""
    data = simulation.data
    user, item = (axis.ravel() for axis in np.indices(good.scores.shape))
    ids = {"user_id": data.user_ids.decode(user), "item_id": data.item_ids.decode(item)}
    return pl.DataFrame({**ids, "score": good.scores.ravel()}).sample(
        fraction=1.0, shuffle=True, seed=0
    )


def test_every_form_of_one_model_gives_one_audit(
    simulation, good, poor, complete, tmp_path
) -> None:
    data = simulation.data
    complete.write_csv(tmp_path / "a.csv")
    complete.write_parquet(tmp_path / "a.parquet")
    paths = tmp_path / "a.csv", str(tmp_path / "a.parquet")
    forms = [good.predict, complete, complete.to_pandas(), complete.to_arrow(), *paths]
    expected = audit(good, data, against=poor)
    for form in forms:
        found = audit(form, data, against=poor)
        for name in ("error", "ranking", "precision"):
            one, two = getattr(found, name), getattr(expected, name)
            assert one.verdict == two.verdict
            assert one.tipping_point == pytest.approx(two.tipping_point, rel=1e-6)
        assert found.to_dict()["rows"]["lists"] == "catalogue"


def test_scores_of_the_audited_rows_suffice_for_error_and_the_ranking_of_rated_items(
    simulation, good, poor, logged
) -> None:
    data = simulation.data
    found, whole = audit(logged, data, against=poor), audit(good, data, against=poor)
    assert found.error.tipping_point == pytest.approx(whole.error.tipping_point)
    assert found.to_dict()["rows"]["lists"] == "rated"
    assert any("rated items" in text for text in found.to_dict()["limits"])
    assert found.to_dict()["uniform"] is None  # the table has no score of a uniform row
    assert found.ranking.tipping_point >= 1.0


def test_scores_on_another_scale_are_judged_by_ranking_and_mapped_for_error(
    simulation, good, poor
) -> None:
    data = simulation.data
    logits = [type(good)(data, 20 * m.scores - 10).predict for m in (good, poor)]
    found, plain = audit(logits[0], data, against=logits[1]), audit(good, data, against=poor)
    values = found.to_dict()
    assert (values["metric"], values["rows"]["mapped"]) == ("ranking", True)
    assert any("isotonic" in text for text in values["limits"])
    assert found.ranking.tipping == plain.ranking.tipping  # ranks do not ask for a scale
    assert "DCG@10" in values["sentence"]
    assert values["envelopes"]["model_loss"]["point"] < 0.2
    assert audit(logits[0], data, against=logits[1], metric="error").verdict == found.error.verdict


def test_a_map_never_falls_and_is_made_without_the_rows_it_is_used_for() -> None:
    rng = np.random.default_rng(1)
    score = rng.normal(size=2_000)
    outcome = np.clip(0.5 + 0.2 * score + rng.normal(0, 0.2, 2_000), 0, 1)
    own, apply = isotonic_map(score, outcome, 0)
    grid = np.linspace(-3, 3, 50)
    assert (np.diff(apply(grid)) >= 0).all()
    assert np.corrcoef(own, apply(score))[0, 1] > 0.99
    noise = rng.random(2_000)
    mapped, apply = isotonic_map(noise, outcome, 0)
    # noise explains nothing of other rows, and something of the rows that a map is made of
    assert np.mean((mapped - outcome) ** 2) > 0.98 * outcome.var()
    assert np.mean((apply(noise) - outcome) ** 2) < np.mean((mapped - outcome) ** 2)


def test_each_mistake_is_one_line(simulation, poor, complete, logged, refusal, tmp_path) -> None:
    data = simulation.data
    first = logged.row(0)
    refusal(
        lambda: audit(logged[1:], data, poor),
        "no score for 1 of",
        f"user {first[0]}, item {first[1]}",
    )
    refusal(
        lambda: audit(pl.concat([logged, logged[:3]]), data, poor),
        "scored twice",
    )
    for bad in (float("nan"), float("inf"), None):
        spoilt = logged.with_columns(
            score=pl.when(pl.int_range(pl.len()) == 4).then(pl.lit(bad)).otherwise("score")
        )
        refusal(lambda spoilt=spoilt: audit(spoilt, data, poor), "row 5", "finite number")
    refusal(lambda: audit(logged.rename({"score": "rating"}), data, poor), "missing column score")
    refusal(
        lambda: audit(logged.with_columns(user_id=pl.col("user_id") + 10**6), data, poor),
        "no pair of the table",
    )
    refusal(lambda: audit(logged[:0], data, poor), "empty")
    refusal(lambda: audit(lambda u, i: np.zeros(3), data, poor), "one score per pair", "(3,)")
    refusal(lambda: audit(lambda u, i: np.zeros((len(u), 2)), data, poor), "one score per pair")
    refusal(
        lambda: audit(lambda u, i: np.full(len(u), np.nan), data, poor),
        "finite numbers",
        "nan for user",
    )
    refusal(lambda: audit(lambda u, i: ["high"] * len(u), data, poor), "could not score")
    refusal(lambda: audit(tmp_path / "none.csv", data, poor), "no such file")
    (tmp_path / "bad.csv").write_text("user_id,item_id,score\n0,1,high\n")
    refusal(lambda: audit(tmp_path / "bad.csv", data, poor), "not a number", "high")
    refusal(lambda: audit(object(), data, poor), "predict", "object")
    refusal(lambda: audit(AuditedModel, data, poor), "class AuditedModel")


def test_text_ids_match_text_ids(tmp_path) -> None:
    from puidrec.data.dataset import Dataset

    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((30, 12)) < 0.6)
    log = pl.DataFrame(
        {
            "user_id": user.astype(str),
            "item_id": item.astype(str),
            "rating": rng.integers(1, 6, user.size),
        }
    )
    data = Dataset.from_frame(log, scale=(1, 5))
    log.select("user_id", "item_id", score="rating").write_csv(tmp_path / "s.csv")
    found = AuditedModel.of(tmp_path / "s.csv", data)
    assert isinstance(found.model, ScoreTable)
    np.testing.assert_array_equal(found.scores(data.logged), data.logged.rating)

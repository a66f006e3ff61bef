"""What uniform rows measure: the lead itself, the log adjusted by the tilt, and both together where
they agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.auditing.audit import audit
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import (
    LabelledRows,
    carried,
    features,
    measure_error,
    measure_ndcg,
    measure_slots,
    settlement,
)
from puidrec.auditing.models import AuditedModel
from puidrec.auditing.rows import Asked, Fits, choose_rows
from puidrec.data.dataset import Dataset
from puidrec.model import Recommender


class Scores:
    """A model that looks its scores up."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"method": "scores", "target": "rating"}

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return self.scores[np.asarray(users), np.asarray(items)]


def chosen_log(slope: float, seed: int) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """People see what they rate highly (slope > 0); 600 uniform rows; the true ratings in 0..1, and
    who saw what."""
    rng = np.random.default_rng(seed)
    good = rng.normal(0.0, 1.0, 100)
    unit = np.clip(np.round(2.0 + good + rng.normal(0, 1.2, (200, 100))), 0, 4) / 4
    seen = rng.random(unit.shape) < 1 / (1 + np.exp(-(-2.6 + slope * unit)))
    drawn = np.divmod(rng.choice(np.flatnonzero(~seen), 600, replace=False), 100)
    frames = [
        pl.DataFrame({"user_id": u, "item_id": i, "rating": 1 + 4 * unit[u, i]})
        for u, i in (np.nonzero(seen), drawn)
    ]
    return (
        Dataset.from_frame(frames[0], uniform=frames[1], scale=(1, 5), unknown_ids="keep"),
        unit,
        seen,
    )


def gap_over(pairs: np.ndarray, own: np.ndarray, other: np.ndarray, unit: np.ndarray) -> float:
    """The true lead in squared error over some pairs."""
    return float(((other - unit) ** 2 - (own - unit) ** 2)[pairs].mean())


def inputs_of(data: Dataset, *scores: np.ndarray) -> AuditInputs:
    models = tuple(AuditedModel.of(Scores(own), data) for own in scores)
    split = data.split("rd", 0)
    judged = choose_rows(models, data, split, Asked(unseen=True))
    return AuditInputs(
        data, split, judged, tuple(Fits(one, (one,)) for one in models), "two-way", None, 1.0, 0, 5
    )


@pytest.fixture(scope="module")
def biased() -> tuple[AuditInputs, float]:
    """In the log the model that says more is ahead, over all others it is behind."""
    data, unit, seen = chosen_log(2.5, 0)
    own, other = np.full(unit.shape, 0.62), np.full(unit.shape, 0.5)
    return inputs_of(data, own, other), gap_over(~seen, own, other, unit)


def test_uniform_rows_show_the_lead_that_the_log_hides(biased: tuple[AuditInputs, float]) -> None:
    inputs, true = biased
    assert inputs.arrays.gaps.point > 0 > true
    found = measure_error(inputs)
    assert found is not None
    assert found.n == len(inputs.uniform_test)
    assert found.uniform.low < true < found.uniform.high < 0.0
    assert found.decides == found.uniform
    assert found.combined is None


def test_the_tilt_takes_the_bias_out_of_the_log(biased: tuple[AuditInputs, float]) -> None:
    inputs, true = biased
    found = measure_error(inputs)
    assert found is not None
    assert abs(found.adjusted.value - true) < 0.2 * abs(inputs.arrays.gaps.point - true)


def test_adjusted_intervals_hold_where_the_form_is_right() -> None:
    """40 logs: 95 % intervals of the adjusted lead hold the true one in 34 or more, those of the
    plain log in few."""
    held, plain = 0, 0
    for seed in range(40):
        data, unit, seen = chosen_log(1.5, seed)
        own, other = np.full(unit.shape, 0.6), np.full(unit.shape, 0.45)
        inputs = inputs_of(data, own, other)
        true = gap_over(~seen, own, other, unit)
        found = measure_error(inputs)
        assert found is not None
        held += found.adjusted.low <= true <= found.adjusted.high
        plain += (
            abs(inputs.arrays.gaps.point - true) < (found.adjusted.high - found.adjusted.low) / 2
        )
    assert held >= 34
    assert plain <= 20


def test_rankings_take_both_where_they_agree_and_both_are_narrower_than_either() -> None:
    data, unit, _ = chosen_log(1.0, 3)
    rng = np.random.default_rng(0)
    inputs = inputs_of(
        data, unit.mean(axis=0) + rng.normal(0, 0.05, unit.shape), rng.random(unit.shape)
    )
    for metric in ("dcg", "precision"):
        found = measure_slots(inputs, metric)
        assert found is not None
        assert found.combined is not None
        assert found.decides == found.combined
        widths = [part.high - part.low for part in (found.combined, found.uniform, found.adjusted)]
        assert widths[0] <= min(widths[1:]) * 1.02
        assert found.combined.low > 0.0


def test_uniform_rows_decide_alone_where_the_adjusted_log_disagrees() -> None:
    """The log's labels are turned around: no tilt that is linear in the rating repairs that."""
    data, unit, _ = chosen_log(0.0, 3)
    rng = np.random.default_rng(0)
    inputs = inputs_of(
        data, unit.mean(axis=0) + rng.normal(0, 0.05, unit.shape), rng.random(unit.shape)
    )
    turned = replace(inputs.arrays, label=1 - inputs.arrays.label)
    vars(inputs)["arrays"] = turned
    found = measure_slots(inputs, "dcg")
    assert found is not None
    assert found.adjusted.high < 0 < found.uniform.value
    assert found.decides.value > 0
    assert found.decides.high > found.uniform.value


def test_without_uniform_rows_or_another_model_nothing_is_measured() -> None:
    data, unit, _ = chosen_log(1.0, 4)
    log = Dataset.from_frame(
        data.logged.to_frame().select("user_id", "item_id", "rating"), scale=(1, 5)
    )
    alone = inputs_of(data, np.full(unit.shape, 0.5))
    bare = inputs_of(log, np.full(unit.shape, 0.5), np.full(unit.shape, 0.6))
    for inputs in (alone, bare):
        assert measure_error(inputs) is measure_slots(inputs, "dcg") is measure_ndcg(inputs) is None
        assert settlement(inputs, 0) is None
    assert bare.tilt is None


def test_rows_that_trained_a_model_do_not_measure_it(simulation) -> None:
    """`spectrum` fitted without a split mixes by every uniform row: it is measured by a fit that
    left these out."""
    data = simulation.data
    settings = {"rng": 0, "dim": 2, "l2": 0.1, "epochs": 5}
    models = [Recommender(name, **settings).fit(data) for name in ("spectrum", "bias")]
    assert models[0].report_["uniform_rows_used"] != "none"
    found = audit(models[0], data, against=models[1], replicates=0, folds=2)
    assert (
        found.error.measured is not None
    )  # by the fits of the parts, which had a split with test rows
    test = data.split("rd", 0).test
    assert found.error.measured.n == len(test)
    held = audit(models[0], data, against=models[1], replicates=0, rows=data.logged.to_frame()[:50])
    assert held.error.measured is None or held.to_dict()["rows"]["source"] == "cross-fitted"


def labelled(label: np.ndarray, gain: np.ndarray, **columns: np.ndarray) -> LabelledRows:
    """Rows of one user and item each, with two predictions that are drawn at random."""
    rng, n = np.random.default_rng(0), label.size
    found = {
        "features": features([rng.random(n), rng.random(n)], rng.uniform(0.05, 0.5, n)),
        "weight": rng.uniform(0.5, 2.0, n),
        "user": np.arange(n),
        "item": np.arange(n),
    }
    return LabelledRows(label=label, gain=gain, **{**found, **columns})


def test_a_regression_that_is_right_carries_the_lead_whatever_rows_correct_it() -> None:
    rng = np.random.default_rng(1)
    rows = labelled(np.zeros(60), rng.choice([-1.0, 0.0, 0.5], 60))
    truth = np.array([0.2, 0.3, -0.1, 0.05])
    rows = rows._replace(label=rows.features @ truth)
    columns, gain = rows.features[:20] * 1.3, rng.normal(size=20)
    found = carried((columns, gain), rows, rng.uniform(0.5, 2.0, 60), rows, (60, 60))
    assert found.value == pytest.approx(float(gain @ columns @ truth))


def test_rows_in_the_lists_correct_a_regression_that_is_wrong() -> None:
    """Pairs of the lists look like any rows, and are liked more: the correction says by how much,
    side by side."""
    rng = np.random.default_rng(4)
    gain = rng.choice([-1.0, 0.0, 0.5], 4_000)
    liked = (rng.random(4_000) < np.select([gain > 0, gain < 0], [0.8, 0.4], 0.1)).astype(float)
    rows = labelled(liked, gain)
    listed = rows.features[:500], np.where(np.arange(500) % 2 == 0, 0.02, -0.02)
    found = carried(listed, rows, np.ones(4_000), rows, (4_000, 4_000))
    assert found.value == pytest.approx(250 * 0.02 * (0.8 - 0.4), abs=0.3)
    assert found.limits(0.95).low < 2.0 < found.limits(0.95).high


def test_few_rows_that_are_all_liked_do_not_make_a_correction_certain() -> None:
    """And rows of one item have that item's luck in common."""
    rng = np.random.default_rng(3)
    log = labelled((rng.random(2_000) < 0.5).astype(float), np.zeros(2_000))
    few = labelled(np.ones(8), np.array([1.0, -1.0] * 4))
    listed = log.features[:100], np.where(np.arange(100) < 50, 0.02, -0.02)
    found = carried(listed, log, np.ones(2_000), few, (2_000, 2_000))
    assert found.variance > 2 * 0.25 / 4 * 0.5
    apart = labelled(log.label[:400], np.where(np.arange(400) % 4 < 2, 1.0, -1.0))
    alike = apart._replace(item=np.arange(400) % 2, label=np.arange(400) % 2 * 1.0)
    wide, narrow = (
        carried(listed, log, np.ones(2_000), rows, (2_000, 2_000)) for rows in (alike, apart)
    )
    assert wide.variance > 5 * narrow.variance


def test_intervals_of_a_measured_ranking_hold_the_true_lead() -> None:
    """20 logs in which people see what they like: the deciding 95 % interval holds the true lead
    in precision over unseen pairs in 17 or more, and is narrower than that of uniform rows."""
    held, widths = 0, []
    for seed in range(20):
        data, unit, seen = chosen_log(1.5, seed)
        rng = np.random.default_rng(seed)
        scores = [unit.mean(axis=0) + rng.normal(0, s, unit.shape) for s in (0.15, 0.3)]
        found = measure_slots(inputs_of(data, *scores), "precision")
        assert found is not None
        lists = [np.argsort(-np.where(seen, -np.inf, own), axis=1)[:, :5] for own in scores]
        true = [np.take_along_axis(unit >= 0.75, own, 1).mean() for own in lists]
        held += found.decides.low <= true[0] - true[1] <= found.decides.high
        widths.append(
            (found.decides.high - found.decides.low) / (found.uniform.high - found.uniform.low)
        )
    assert held >= 17
    assert np.median(widths) < 0.7

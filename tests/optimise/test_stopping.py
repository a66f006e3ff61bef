from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.evaluation.metrics import TargetScale
from puidrec.optimise import stopping
from puidrec.optimise.stopping import WARM_UP, Stopping, Validator, pair_scores
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings


def run(stopping, scores, admissible=None):
    """Feed scores until patience runs out; returns which epochs were the best when they came."""
    best = []
    for epoch, score in enumerate(scores):
        if stopping.exhausted:
            break
        if stopping.update(score, lambda epoch=epoch: admissible is None or admissible[epoch]):
            best.append(epoch)
    return best


def test_a_hand_worked_sequence() -> None:
    stopping = Stopping(patience=2, smoothing=0.5, warm_up=1)
    # smoothed: 4, 5, 5.5, 4.75, 4.375
    assert run(stopping, [4, 6, 6, 4, 4, 100]) == [1, 2]
    assert stopping.smoothed == 4.375
    assert (stopping.best, stopping.best_epoch, stopping.epoch) == (5.5, 2, 4)
    assert stopping.exhausted


def test_one_lucky_epoch_does_not_win() -> None:
    spike = Stopping(patience=0 + 50, smoothing=0.9, warm_up=0)
    run(spike, [0.5, 0.5, 0.52, 0.5] + [0.51 + 0.001 * k for k in range(20)])
    assert spike.best_epoch == 23
    raw = Stopping(patience=50, smoothing=0.0, warm_up=0)
    run(raw, [0.5, 0.5, 0.9, 0.5, 0.6])
    assert raw.best_epoch == 2


def test_early_epochs_are_no_candidates() -> None:
    stopping = Stopping(patience=3, smoothing=0.0, warm_up=4)
    assert run(stopping, [9, 9, 9, 9, 1, 2, 1, 1, 1, 1]) == [4, 5]
    assert stopping.epoch == 8


def test_patience_zero_keeps_the_last_epoch() -> None:
    stopping = Stopping(patience=0)
    assert run(stopping, [3.0, 2.0, 1.0]) == [0, 1, 2]
    assert not stopping.exhausted
    assert stopping.best_epoch == 2


def test_inadmissible_epochs_are_never_chosen_and_use_up_patience() -> None:
    stopping = Stopping(patience=3, smoothing=0.0, warm_up=0)
    assert run(stopping, [1, 2, 3, 4, 5, 6], [True, False, False, False, False, True]) == [0]
    assert stopping.best_epoch == 0
    last = Stopping(patience=0)
    assert run(last, [1, 2, 3], [True, True, False]) == [0, 1]


def test_whether_an_epoch_may_be_chosen_is_asked_only_where_its_score_is_the_best() -> None:
    """The answer costs a pass over the log."""
    asked = []
    stopping = Stopping(patience=9, smoothing=0.0, warm_up=2)
    for epoch, score in enumerate([9.0, 9.0, 1.0, 0.5, 1.0, 2.0]):
        stopping.update(score, lambda epoch=epoch: bool(asked.append(epoch)))
    assert asked == [2, 3, 4, 5]  # none was admissible, so there is no best score to beat
    asked.clear()
    stopping.update(3.0)
    stopping.update(2.0, lambda: bool(asked.append(7)))
    assert asked == []


@pytest.mark.parametrize("every", [1, 2, 5])
def test_smoothing_and_patience_count_epochs_not_judgements(every) -> None:
    """A score that stays for some epochs: judged in each or in the last of them, it counts as
    much."""
    scores = [0.5, 0.6, 0.7, 0.65, 0.6, 0.6, 0.6, 0.6]
    each, some = (Stopping(patience=2 * every, warm_up=0) for _ in range(2))
    each.update(scores[0], epochs=every)
    some.update(scores[0], epochs=every)
    for score in scores[1:]:
        if some.exhausted:
            break
        for _ in range(every):
            each.update(score)
        some.update(score, epochs=every)
        assert some.smoothed == pytest.approx(each.smoothed, abs=1e-12)
        assert (some.epoch, some.best_epoch, some.exhausted) == (
            each.epoch,
            each.best_epoch,
            each.exhausted,
        )
    assert (some.epoch + 1) % every == 0


def test_equal_scores_keep_the_first() -> None:
    assert run(Stopping(patience=9, warm_up=0), [1.0] * 5) == [0]


@pytest.mark.parametrize("rounding", [-1e-7, 0.0, 1e-7])
def test_rounding_does_not_choose_between_epochs_that_are_as_good(rounding) -> None:
    """Two maxima, 40 epochs apart: whichever is larger in the seventh digit, the first is kept."""
    scores = [0.70, *[0.65] * 39, 0.70 + rounding, *[0.65] * 9]
    assert run(Stopping(patience=60, smoothing=0.0, warm_up=0), scores) == [0]
    better = [0.70, *[0.65] * 39, 0.701]
    assert run(Stopping(patience=60, smoothing=0.0, warm_up=0), better) == [0, 40]


@pytest.mark.parametrize("cut", range(1, 9))
def test_it_goes_on_where_it_left_off(cut) -> None:
    scores = [3.0, 4, 2, 5, 5, 6, 1, 1, 1, 1, 1]
    whole = Stopping(patience=3, warm_up=2, smoothing=0.5)
    run(whole, scores)
    first = Stopping(patience=3, warm_up=2, smoothing=0.5)
    run(first, scores[:cut])
    second = Stopping.from_state(first.state())
    run(second, scores[cut:])
    assert second == whole


def test_the_default_warm_up_is_short_against_a_run() -> None:
    assert Stopping(patience=1).warm_up == WARM_UP <= 50


SCORES = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.4]])
FACTORS = LowRank.of(SCORES, torch.eye(3))


@pytest.fixture
def rows():
    """User 0 rated 5, 1, 3; user 1 rated 2, 4, 5."""
    table = pl.DataFrame(
        {
            "user_id": [0, 0, 0, 1, 1, 1],
            "item_id": [0, 1, 2, 0, 1, 2],
            "rating": [5.0, 1, 3, 2, 4, 5],
        }
    )
    data = Dataset.from_frame(table, scale=(1, 5))
    return data.logged.labelled(data.split("rd", 0).protocol)


def test_scores_of_pairs_are_the_products(monkeypatch) -> None:
    monkeypatch.setattr(stopping, "CHUNK", 2)
    user, item = np.array([0, 1, 0, 1, 1]), np.array([2, 1, 0, 0, 2])
    np.testing.assert_array_equal(pair_scores(FACTORS, user, item), SCORES.numpy()[user, item])
    double = LowRank(FACTORS.lefts * 2, FACTORS.rights * 2)
    np.testing.assert_array_equal(pair_scores(double, user, item), 2 * SCORES.numpy()[user, item])


def test_auc_by_hand(rows) -> None:
    # positives .9 .8 .4, negatives .1 .5 .2: of nine pairs only (.4, .5) is wrong
    assert Validator.from_rows(rows, "auc").score(FACTORS) == pytest.approx(8 / 9)


def test_uauc_by_hand(rows) -> None:
    # user 0: .9 over .1 and .5 → 1; user 1: .8 and .4 over .2 → 1; with user 1 reversed → 0
    assert Validator.from_rows(rows, "uauc").score(FACTORS) == 1.0
    reversed_user = LowRank.of(SCORES * torch.tensor([[1.0], [-1.0]]), torch.eye(3))
    assert Validator.from_rows(rows, "uauc").score(reversed_user) == 0.5


def test_mse_by_hand_on_every_scale(rows) -> None:
    prediction = SCORES.numpy().ravel().astype(np.float64)
    unit, label = np.array([1.0, 0, 0.5, 0.25, 0.75, 1]), np.array([1.0, 0, 0, 0, 1, 1])
    cases = {
        TargetScale(): unit - prediction,
        TargetScale(labels=True): label - prediction,
        TargetScale(labels=True, signed=True): 2 * label - 1 - prediction,
        TargetScale(log_odds=True): unit - 1 / (1 + np.exp(-prediction)),
        TargetScale(True, True, True): 2 * label - 1 - (2 / (1 + np.exp(-prediction)) - 1),
    }
    for scale, residual in cases.items():
        score = Validator.from_rows(rows, "mse", scale=scale).score(FACTORS)
        assert score == pytest.approx(-np.mean(residual**2), rel=1e-6)


def test_weights_of_self_selected_rows(rows) -> None:
    weight = np.array([1.0, 2, 3, 4, 5, 6])
    won, lost = np.array([1.0, 5, 6]), np.array([2.0, 3, 4])  # weights of positives, negatives
    wrong = 6 * 3  # (.4 of weight 6) below (.5 of weight 3)
    expected = 1 - wrong / (won.sum() * lost.sum())
    assert Validator.from_rows(rows, "auc", weight).score(FACTORS) == pytest.approx(expected)
    residual = SCORES.numpy().ravel() - np.array([1.0, 0, 0.5, 0.25, 0.75, 1])
    mse = -np.average(residual**2, weights=weight)
    assert Validator.from_rows(rows, "mse", weight).score(FACTORS) == pytest.approx(mse, rel=1e-6)


def test_auto_ranks_within_users_where_they_have_rows_enough(rows, monkeypatch) -> None:
    assert Validator.from_rows(rows, "auto").metric == "auc"
    monkeypatch.setattr(stopping, "ROWS_PER_USER", 3)
    assert Validator.from_rows(rows, "auto").metric == "uauc"
    one_label_each = rows.take(np.array([1, 2, 4, 5]))  # user 0 dislikes all, user 1 likes all
    monkeypatch.setattr(stopping, "ROWS_PER_USER", 1)
    assert Validator.from_rows(one_label_each, "auto").metric == "auc"


def test_rows_that_cannot_tell_models_apart_give_no_validator(rows) -> None:
    assert Validator.from_rows(rows.take(np.array([], dtype=int)), "auto") is None
    assert Validator.from_rows(rows.take(np.array([0, 4])), "auc") is None
    assert Validator.from_rows(rows.take(np.array([1, 2, 4, 5])), "uauc") is None
    assert Validator.from_rows(rows.take(np.array([0, 4])), "mse") is not None


@pytest.mark.parametrize(
    ("method", "given", "scale"),
    [
        ("ips", {}, TargetScale()),
        ("dr", {"target": "binary"}, TargetScale(True, True)),
        ("dr", {"target": "binary", "loss": "cross-entropy"}, TargetScale(True, True, True)),
        ("signed-rd", {"target": "binary"}, TargetScale(True, False)),
        ("bias", {"loss": "cross-entropy"}, TargetScale()),
    ],
)
def test_the_scale_of_a_method(method, given, scale) -> None:
    assert Settings.of(method, **given).target_scale == scale


@pytest.mark.parametrize("signed", [False, True])
def test_log_odds_map_to_means_and_back(signed) -> None:
    scale, logit = TargetScale(True, signed, True), np.linspace(-8, 8, 33)
    mean = scale.of_scores(logit)
    chance = (mean + 1) / 2 if signed else mean
    np.testing.assert_allclose(np.log(chance / (1 - chance)), logit, atol=1e-9)
    np.testing.assert_array_equal(scale.of_labels(np.array([0, 1])), [-1, 1] if signed else [0, 1])

from __future__ import annotations

import pytest

from puidrec.train.stopping import WARM_UP, Stopping


def run(stopping, scores, admissible=None):
    """Feed scores until patience runs out; returns which epochs were the best when they came."""
    best = []
    for epoch, score in enumerate(scores):
        if stopping.exhausted:
            break
        if stopping.update(score, True if admissible is None else admissible[epoch]):
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


def test_equal_scores_keep_the_first() -> None:
    assert run(Stopping(patience=9, warm_up=0), [1.0] * 5) == [0]


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

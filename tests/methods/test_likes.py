"""Logs of likes: what held-out likes choose, and that the caller's numbers stand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.methods import dim_and_l2 as likes
from puidrec.model import Recommender
from puidrec.scores.log import Log

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """120 users of three groups like items of their own group; the first items of each are
    popular."""
    rng = np.random.default_rng(0)
    own = np.arange(120)[:, None] % 3 == np.arange(60)[None, :] % 3
    popular = np.where(np.arange(60) < 12, 0.5, 0.12)
    user, item = np.nonzero(rng.random(own.shape) < np.where(own, popular, 0.02))
    return Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))


@pytest.mark.parametrize("method", ["all-rank", "spectrum"])
def test_held_out_likes_choose_and_both_ways_of_judging_are_reported(method, data) -> None:
    model = Recommender(method, rng=0).fit(data)
    chosen = model.report_["chosen"]
    best = max(one[likes.CHOOSES] for one in chosen["tried"])
    names = ("dim", "l2_factor", "unseen_weight")
    own = next(one for one in chosen["tried"] if all(one[name] == chosen[name] for name in names))
    assert (
        0.7 * best < own[likes.CHOOSES] <= best
    )  # not clearly worse, and as regularised as can be
    assert {one["l2_factor"] for one in chosen["tried"]} == set(likes.LIKES_FACTORS)
    assert {one["unseen_weight"] for one in chosen["tried"]} == {1.0}
    assert all(
        0.0 <= one[name] <= 1.0 for one in chosen["tried"] for name in ("recall", likes.CHOOSES)
    )
    assert model.dim_ == chosen["dim"]


def test_what_the_caller_gives_is_not_chosen(data) -> None:
    given = Recommender("all-rank", dim=4, unseen_weight=2.0, rng=0).fit(data).report_["chosen"]
    assert {(one["dim"], one["unseen_weight"]) for one in given["tried"]} == {(4, 2.0)}
    assert "chosen" not in Recommender("all-rank", dim=4, l2=0.1, rng=0).fit(data).report_


def test_a_held_out_like_counts_as_unseen_where_it_is_looked_for(data, monkeypatch) -> None:
    """The fits that are judged have no held-out like among their rows, and every tenth like is
    one."""
    looked_for = []
    whole = likes.find_liked

    def spy(factors, liked, seen, k):
        row_start, item = seen[0]
        user = np.repeat(np.arange(row_start.size - 1), np.diff(row_start))
        looked_for.append(
            (
                set(zip(user.tolist(), item.tolist(), strict=True)),
                [*zip(*map(np.ndarray.tolist, liked), strict=True)],
            )
        )
        return whole(factors, liked, seen, k)

    monkeypatch.setattr(likes, "find_liked", spy)
    Recommender("all-rank", rng=0).fit(data)
    for trained, held in looked_for:
        assert not trained & set(held)
        assert 0.05 < len(held) / (len(trained) + len(held)) < 0.16


def test_nothing_that_was_in_memory_before_is_read(data, monkeypatch) -> None:
    """Columns come as room that holds anything: every fit that is judged fills what it reads."""
    first = Recommender("all-rank", dim=4, rng=0).fit(data).report_["chosen"]
    room = Log.column

    def dirty(self):
        column = room(self)
        column.values.fill_(float("nan"))
        return column

    monkeypatch.setattr(Log, "column", dirty)
    assert Recommender("all-rank", dim=4, rng=0).fit(data).report_["chosen"] == first


def test_a_resumed_fit_keeps_the_choice(data, tmp_path, monkeypatch) -> None:
    """Interrupted after its first sweep, the fit goes on with the weight that was chosen before."""
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SECONDS", 0.0)
    whole = Recommender("all-rank", rng=0).fit(data)

    def stop(stage, done, total, figures):
        if stage == "main" and (tmp_path / "c").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Recommender("all-rank", rng=0).fit(data, checkpoint=tmp_path / "c", progress=stop)
    monkeypatch.setattr(likes, "find_liked", None)  # nothing is judged again
    again = Recommender("all-rank", rng=0).fit(data, checkpoint=tmp_path / "c")
    np.testing.assert_allclose(
        again.user_factors_ @ again.item_factors_.T,
        whole.user_factors_ @ whole.item_factors_.T,
        atol=1e-5,
    )

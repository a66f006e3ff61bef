"""The baseline of likes."""

from __future__ import annotations

import numpy as np
import polars as pl

import puidrec as pr
from puidrec.comparing.comparison import compared_methods


def likes() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((60, 30)) < np.linspace(0.05, 0.6, 30))
    return pl.DataFrame({"user_id": pairs[:, 0], "item_id": pairs[:, 1]})


def test_what_most_people_have_comes_first() -> None:
    log = likes()
    model = pr.Recommender("popularity", select="none").fit(log)
    rows = model.train_rows_
    assert rows is not None
    count = np.bincount(rows.item, minlength=30)
    np.testing.assert_allclose(model.predict(0, model.item_ids_.ids), count / 60, rtol=1e-6)
    best = (
        model.recommend([0, 7], k=3, exclude_seen=False)
        .group_by("user_id", maintain_order=True)
        .agg("item_id")
    )
    assert best["item_id"][0].to_list() == best["item_id"][1].to_list()
    assert count[best["item_id"][0][0]] == count.max()


def test_it_is_shown_beside_every_comparison_of_likes(tiny_data: pr.Dataset) -> None:
    assert "popularity" in compared_methods(pr.Dataset.from_frame(likes()), ["all-rank"], None)[0]
    names = compared_methods(tiny_data, ["mf"], None)[0]
    assert "popularity" not in names
    assert "item-rate" in names

"""What `recommend` returns goes into the metrics of RecTools and LensKit as it is, and they find
what ours find.

Both need an older pandas than constraints.txt has, so they get an environment of their own: `pip
install 'puidrec[other-tools]'`, then `pytest tests/test_other_tools.py`. Elsewhere these tests are
skipped.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

K = 5


@pytest.fixture(scope="module")
def recommended(tiny_data, tiny_model):
    """Recommendations of all users, and the uniform rows they would have liked."""
    liked = tiny_data.uniform.to_frame().filter(pl.col("rating") >= 4).select("user_id", "item_id")
    return tiny_model.recommend(liked["user_id"].unique().sort(), k=K, exclude_seen=False), liked


def own_precision(top: pl.DataFrame, liked: pl.DataFrame) -> float:
    """Mean over users of the share of their recommendations that they like, by hand."""
    shares = [
        len(set(top.filter(pl.col("user_id") == user)["item_id"]) & set(rows["item_id"])) / K
        for (user,), rows in liked.group_by("user_id")
    ]
    return float(np.mean(shares))


def test_rectools_takes_the_frame(recommended) -> None:
    metrics = pytest.importorskip("rectools.metrics")
    top, liked = recommended
    found = metrics.Precision(k=K).calc(reco=top.to_pandas(), interactions=liked.to_pandas())
    assert found == pytest.approx(own_precision(top, liked))


def test_lenskit_takes_the_frame(recommended) -> None:
    data, metrics = pytest.importorskip("lenskit.data"), pytest.importorskip("lenskit.metrics")
    top, liked = recommended
    lists = data.ItemListCollection.from_df(top.to_pandas(), ["user_id"])
    truth = data.ItemListCollection.from_df(liked.to_pandas(), ["user_id"])
    analysis = metrics.RunAnalysis()
    analysis.add_metric(metrics.Precision(K))
    found = analysis.measure(lists, truth).list_metrics()
    assert found.iloc[:, 0].mean() == pytest.approx(own_precision(top, liked))

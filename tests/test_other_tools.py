"""What `recommend` returns goes into the metrics of RecTools and LensKit as it is, and they find
what ours find.

Both need an older pandas than constraints.txt has, so they get an environment of their own: `pip
install 'puidrec[other-tools]'`, then `pytest tests/test_other_tools.py`. Elsewhere these tests are
skipped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl
import pytest

import puidrec as pr

K = 5
pytestmark = pytest.mark.filterwarnings("ignore")  # what other packages warn of is theirs


class Case(NamedTuple):
    """Recommendations of all users, the rows they liked, those of training, and our metrics."""

    top: pl.DataFrame
    liked: pl.DataFrame
    seen: pl.DataFrame
    ours: dict[str, float]


@pytest.fixture(scope="module")
def case(tiny_data: pr.Dataset) -> Case:
    """At most K liked rows per user: LensKit divides recall by K where there are more."""
    split = tiny_data.split()
    model = pr.Recommender("bias").fit(tiny_data, split)
    seen = split.train.to_frame().select("user_id", "item_id")
    first = split.test.to_frame().group_by("user_id", maintain_order=True).head(K)
    rows = first.filter(pl.col("user_id").is_in(seen["user_id"].implode()))
    liked = rows.filter(pl.col("label") == 1).select("user_id", "item_id")
    top = model.recommend(liked["user_id"].unique(), k=K, exclude_seen="training")
    names = [f"unseen-{name}@{K}" for name in ("recall", "ndcg", "mrr", "hit", "coverage")]
    found = pr.evaluate(top, liked, names, exclude=split.train)
    assert found.n_users == top["user_id"].n_unique() > 40
    return Case(top, liked, seen, found.means)


def agree(case: Case, theirs: dict[str, Any]) -> None:
    for name, value in theirs.items():
        assert case.ours[f"unseen-{name}@{K}"] == pytest.approx(float(value), abs=1e-6), name


def test_rectools_finds_the_same(case: Case) -> None:
    metrics = pytest.importorskip("rectools.metrics")
    top, liked, seen = (table.to_pandas() for table in (case.top, case.liked, case.seen))
    ideal = metrics.NDCG(k=K, divide_by_achievable=True)  # of lists as long as the liked rows are
    pairs = {"recall": metrics.Recall(k=K), "mrr": metrics.MRR(k=K), "hit": metrics.HitRate(k=K)}
    theirs = {
        name: metric.calc(reco=top, interactions=liked)
        for name, metric in {**pairs, "ndcg": ideal}.items()
    }
    catalogue = set(liked["item_id"]) | set(seen["item_id"]) | set(top["item_id"])
    coverage = metrics.CatalogCoverage(k=K, normalize=True).calc(reco=top, catalog=catalogue)
    agree(case, {**theirs, "coverage": coverage})


def test_lenskit_finds_the_same(case: Case) -> None:
    data, metrics = pytest.importorskip("lenskit.data"), pytest.importorskip("lenskit.metrics")
    lists = data.ItemListCollection.from_df(case.top.to_pandas(), ["user_id"])
    truth = data.ItemListCollection.from_df(case.liked.to_pandas(), ["user_id"])
    rank = metrics.LogRankWeight(offset=1)  # 1/log2(rank + 1); stock: the first two ranks alike
    asked = {
        "recall": metrics.Recall(K),
        "mrr": metrics.RecipRank(K),
        "hit": metrics.Hit(K),
        "ndcg": metrics.NDCG(K, weight=rank),
    }
    analysis = metrics.RunAnalysis()
    for name, metric in asked.items():
        analysis.add_metric(metric, name)
    means = analysis.measure(lists, truth).list_metrics().mean()
    agree(case, {name: means[name] for name in asked})

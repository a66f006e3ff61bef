"""Models of other packages beside ours: what they are known to score is what the table says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.comparing.comparison import ELSEWHERE, is_refitted
from puidrec.comparing.run import Results
from puidrec.data.synthetic import simulate
from puidrec.report.study import study_html

METRICS = ["uauc", "ndcg@5", "mse", "catalogue-recall@20"]
FIT: dict[str, Any] = {"dim": 2, "l2": 0.1}


@pytest.fixture(scope="module")
def data() -> pr.Dataset:
    return simulate("mixed", 80, 50, density=0.4, rng=0).data


@pytest.fixture(scope="module")
def pairs(data: pr.Dataset) -> pl.DataFrame:
    users, items = (
        ids.ids.to_frame(key)
        for ids, key in zip((data.user_ids, data.item_ids), ("user_id", "item_id"), strict=True)
    )
    return users.join(items, how="cross")


def run(data: pr.Dataset, methods: Any, **options: Any) -> pr.Comparison:
    return pr.compare(
        data, methods, **{"seeds": 1, "baselines": False, "metrics": METRICS, **FIT, **options}
    )


def means(found: pr.Comparison) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for row in found.rows:
        table.setdefault(row.label, {})[row.metric] = row.mean
    return table


class ItemMean:
    """What a user would write around another package."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.rows = shift, 0

    def fit(self, train: pl.DataFrame) -> None:
        assert self.rows == 0, "fitted twice"
        self.rows = train.height
        means = train.group_by("item_id").agg(pl.col("rating").mean())
        self.mean = dict(means.iter_rows())

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return np.array([self.mean.get(item, 3.0) + self.shift for item in items])


class Returned(ItemMean):
    """`fit` gives back the model, as scikit-learn's do, or another object, as LensKit's."""

    def fit(self, train: pl.DataFrame) -> Any:
        super().fit(train)
        return SimpleNamespace(predict=self.predict)


def test_a_table_of_our_own_scores_has_our_figures(data: pr.Dataset, pairs: pl.DataFrame) -> None:
    split = data.split("rd", 0)
    model = pr.Recommender("mf", rng=0, **FIT).fit(data, split)
    unit = pairs.with_columns(score=model.predict(pairs["user_id"], pairs["item_id"], scale="unit"))
    stars = pairs.with_columns(score=model.predict(pairs["user_id"], pairs["item_id"]))
    chance = pairs.with_columns(score=pl.Series(np.random.default_rng(0).random(pairs.height)))
    given = [
        ("unit", unit),
        ("stars", stars.to_pandas()),
        ("chance", chance),
        ("as is", model.predict),
    ]
    found = run(data, ["mf", *given])
    table = means(found)
    for name in ("unit", "stars", "as is"):
        assert table[name] == pytest.approx(table["mf"], abs=1e-6), name
    rows = {(row.label, row.metric): row for row in found.rows}
    assert rows["chance", "uauc"].verdict == "loses"
    assert rows["chance", "mse"].difference > 0.02
    assert abs(rows["chance", "uauc"].mean - 0.5) < 0.1
    assert rows["unit", "uauc"].difference == pytest.approx(0.0, abs=1e-6)
    assert rows["unit", "uauc"].n_users == rows["mf", "uauc"].n_users


def test_leakage_is_named_wherever_the_table_is(data: pr.Dataset, pairs: pl.DataFrame) -> None:
    truth = data.uniform.to_frame().select("user_id", "item_id", score="rating")
    cheat = pairs.join(truth, on=["user_id", "item_id"], how="left").with_columns(
        pl.col("score").fill_null(3.0)
    )
    odd = pl.concat(
        [
            cheat,
            pl.DataFrame({"user_id": [10**6], "item_id": [0], "score": [3.0]}, schema=cheat.schema),
        ]
    )
    found = run(data, ["mf", ("cheat", odd), ItemMean], metrics=["uauc"])
    rows = {row.label: row for row in found.rows}
    assert rows["cheat"].mean == pytest.approx(1.0)
    assert (rows["cheat"].uniform_rows, rows["ItemMean"].uniform_rows, rows["mf"].uniform_rows) == (
        None,
        0,
        0,
    )
    line = f"cheat: {ELSEWHERE}; 1 of its 4,001 rows are of users or items that the data lack."
    said = [repr(found), found._repr_html_(), *found.sentences, *found.summary()["notes"]]
    assert sum(line in words for words in said) == 4
    assert "data leakage" in study_html(found)
    assert (
        found.to_frame()
        .filter(pl.col("label") == "cheat")["note"][0]
        .startswith("fitted elsewhere")
    )
    assert "ItemMean: another package's, fitted on the training rows" in repr(found)
    assert "no uniform rows used" not in repr(found)  # who knows?


def test_what_can_be_fitted_is_fitted_on_each_split(data: pr.Dataset) -> None:
    given = ItemMean()
    made: list[int] = []

    def seeded(seed: int) -> ItemMean:
        made.append(seed)
        return ItemMean()

    found = run(
        data,
        [
            given,
            ("class", ItemMean),
            ("factory", lambda: Returned(shift=0.0)),
            ("seeded", seeded),
            "item-rate",
        ],
        seeds=2,
        reference="class",
    )
    table = means(found)
    assert given.rows == 0  # each split has a copy
    assert made == [0, 1]
    for name in ("ItemMean", "factory", "seeded"):
        assert table[name] == table["class"]
    expected = []
    for seed in range(2):
        split = data.split("rd", seed)
        own = ItemMean()
        own.fit(split.train.to_frame())
        rows = split.test.to_frame()
        scores = rows.select("user_id", "item_id").with_columns(
            score=(own.predict(rows["user_id"], rows["item_id"]) - 1) / 4
        )
        expected.append(pr.evaluate(scores, split.test, ["uauc", "mse"]))
    for metric in ("uauc", "mse"):
        assert table["class"][metric] == pytest.approx(
            np.mean([one[metric] for one in expected]), abs=1e-9
        )
    assert is_refitted(ItemMean)
    assert not is_refitted(ItemMean().predict)


def test_a_recommender_gives_its_settings(data: pr.Dataset) -> None:
    found = run(data, ["mf", ("mf, 1 column", pr.Recommender("mf", dim=1))], metrics=["uauc"])
    alone = run(data, ["mf"], dim=1, metrics=["uauc"])
    assert means(found)["mf, 1 column"] == means(alone)["mf"] != means(found)["mf"]


def test_scores_that_are_no_ratings_have_no_errors(data: pr.Dataset) -> None:
    odd = ("logits", lambda users, items: np.asarray(items) * 100.0 - 7.0)
    found = run(data, ["mf", odd], metrics=["uauc", "mse"])
    assert set(means(found)["logits"]) == {"uauc"}
    assert "| – |" in repr(found)
    assert set(means(run(data, "mf", metrics=["uauc"]))) == {"mf"}  # one alone


def test_lists_and_scores_are_judged_among_all_unseen_items() -> None:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((60, 30)) < np.linspace(0.05, 0.5, 30))
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))
    split = data.split("rd", 0)
    model = pr.Recommender("popularity").fit(data, split)
    pairs = pl.DataFrame(
        {"user_id": np.repeat(np.arange(60), 30), "item_id": np.tile(np.arange(30), 60)}
    )
    scores = pairs.with_columns(score=model.predict(pairs["user_id"], pairs["item_id"]))
    seen = pl.concat([split.train.to_frame(), split.validation.to_frame()]).select(
        "user_id", "item_id"
    )
    ranked = scores.join(seen, on=["user_id", "item_id"], how="anti").sort(
        "user_id", -pl.col("score"), maintain_order=True
    )
    lists = ranked.with_columns(rank=pl.int_range(1, pl.len() + 1).over("user_id")).drop("score")
    found = pr.compare(
        data, ["popularity", ("scores", scores), ("lists", lists)], seeds=1, baselines=False
    )
    table = means(found)
    assert set(table["popularity"]) == {"unseen-recall@10", "unseen-ndcg@10"}
    assert table["scores"] == pytest.approx(table["popularity"], abs=1e-9)
    assert table["lists"] == pytest.approx(table["popularity"], abs=1e-9)


def test_mistakes_are_one_line_before_anything_is_trained(
    data: pr.Dataset,
    pairs: pl.DataFrame,
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any, **__: Any) -> Results:
        raise AssertionError("trained")

    monkeypatch.setattr("puidrec.comparing.comparison.run_jobs", never)
    scores = pairs.with_columns(score=pl.lit(3.0))
    test = data.split("rd", 1).test.to_frame().select("user_id", "item_id")
    holed = scores.join(test.head(3), on=["user_id", "item_id"], how="anti")
    refusal(
        lambda: run(data, ["mf", ("mine", holed)], seeds=2),
        "mine",
        "no score for 3 of",
        "user",
        "item",
    )
    nan = scores.with_columns(
        score=pl.when(pl.int_range(pl.len()) < 5).then(float("nan")).otherwise(3.0)
    )
    refusal(lambda: run(data, ["mf", ("mine", nan)]), "mine", "not a finite number", "4 more rows")
    other = scores.with_columns(pl.col("user_id").cast(pl.String))
    refusal(
        lambda: run(data, ["mf", ("mine", other)]),
        "mine",
        "no pair of the table is in the data set",
    )
    ranked = scores.with_columns(rank=pl.lit(1)).drop("score")
    refusal(lambda: run(data, ["mf", ("mine", ranked)]), "no scores of rows")
    refusal(lambda: run(data, ["mf", scores, scores]), "one name", "table", '("name", model)')
    refusal(lambda: run(data, ["mf", ("dr", scores)]), "one name", "dr")
    refusal(lambda: run(data, ["mf", 3]), "no model", "int")
    refusal(lambda: run(data, [ItemMean], reference="mf"), "reference", "mf", "ItemMean")


def test_a_model_that_fails_is_named_in_one_line(data: pr.Dataset) -> None:
    class Broken:
        def fit(self, users: Any, items: Any) -> None: ...

        def predict(self, users: Any, items: Any) -> None: ...

    class Holes(ItemMean):
        def predict(self, users: Any, items: Any) -> np.ndarray:
            return np.where(np.arange(len(users)) < 2, np.nan, super().predict(users, items))

    found = run(data, ["mf", Broken, Holes], metrics=["uauc"])
    lines = [str(failure) for failure in found.results.failures]
    assert len(lines) == 2
    assert "it failed (TypeError" in lines[0]
    assert "score: bad value in 2 row(s)" in lines[1]
    assert all("\n" not in line for line in lines)


def test_tables_are_kept_in_the_folder_and_other_things_are_not(
    data: pr.Dataset, pairs: pl.DataFrame, tmp_path: Path
) -> None:
    scores = pairs.with_columns(score=pl.Series(np.random.default_rng(0).random(pairs.height)))
    methods = ["mf", ("table", scores), ItemMean]
    first = run(data, methods, folder=tmp_path, metrics=["uauc"])
    kept = sorted(path.name for path in (tmp_path / "cells").iterdir())
    assert len(kept) == 2
    again = run(data, methods, folder=tmp_path, metrics=["uauc"])
    assert means(again) == means(first)
    run(
        data,
        ["mf", ("table", scores.with_columns(score=-pl.col("score")))],
        folder=tmp_path,
        metrics=["uauc"],
    )
    assert len(list((tmp_path / "cells").iterdir())) == 3  # another table, another file
    first.save(tmp_path)
    assert {row["label"] for row in json.loads((tmp_path / "results.json").read_text())} == {
        "mf",
        "table",
        "ItemMean",
    }
    html = (tmp_path / "report.html").read_text()
    assert "ItemMean" in html
    assert "fitted elsewhere" in html


def test_processes_give_the_same(data: pr.Dataset, pairs: pl.DataFrame) -> None:
    methods = [
        ("table", pairs.with_columns(score=pl.lit(3.0))),
        ("factory", lambda: ItemMean(shift=0.5)),
    ]
    here, there = (run(data, methods, workers=workers, metrics=["uauc"]) for workers in (None, 2))
    assert means(here) == means(there)


def test_what_cannot_travel_to_processes_is_one_line(
    data: pr.Dataset, refusal: Callable[..., str]
) -> None:
    stuck = ItemMean()
    stuck.lock = threading.Lock()  # type: ignore[attr-defined]
    refusal(lambda: run(data, ["mf", stuck], workers=2), "other processes", "leave workers out")

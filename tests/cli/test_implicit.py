"""A log of likes, from the file to recommendations: described, trained, compared, tuned, measured,
served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.methods import METHODS, learning_from_likes
from puidrec.optimise.stopping import with_drawn_pairs


@pytest.fixture(scope="module")
def likes() -> pl.DataFrame:
    """80 users in two groups, who like items of their own group nine times out of ten."""
    rng = np.random.default_rng(0)
    group = np.arange(80) % 2
    chance = np.where(group[:, None] == (np.arange(60) % 2)[None, :], 0.27, 0.03)
    user, item = np.nonzero(rng.random((80, 60)) < chance)
    return pl.DataFrame(
        {"user_id": user, "item_id": item, "timestamp": rng.integers(1000, 2000, user.size)}
    )


def test_no_ratings_and_equal_ratings_are_one_and_the_same(
    likes: pl.DataFrame, refusal: Any
) -> None:
    data = pr.Dataset.from_frame(likes)
    assert data.positives_only
    assert data.sha256 == pr.Dataset.from_frame(likes.with_columns(rating=5)).sha256
    assert (data.scale.low, data.scale.high, set(data.logged.rating)) == (0.0, 1.0, {1.0})
    stars = pr.Dataset.from_frame(likes.with_columns(rating=5), scale=(1, 5))
    assert stars.positives_only
    assert stars.logged.rating[0] == 5
    refusal(
        lambda: pr.Dataset.from_frame(likes.with_columns(rating=3), scale=(1, 5)),
        "all ratings are equal",
        "3 in",
    )


def test_a_misspelt_rating_is_no_log_of_likes(
    likes: pl.DataFrame, tmp_path: Path, refusal: Any
) -> None:
    for name in ("ratng", "stars", "Clicks", "label"):
        table = likes.with_columns(pl.lit(2).alias(name))
        refusal(
            lambda table=table: pr.Dataset.from_frame(table),
            "missing column rating",
            name,
            "--columns rating=",
        )
        for suffix in ("csv", "parquet"):
            getattr(table, f"write_{suffix}")(tmp_path / f"log.{suffix}")
            file = tmp_path / f"log.{suffix}"
            refusal(
                lambda file=file: pr.load_dataset("files", logged=file),
                "missing column rating",
                name,
            )


def test_a_missing_id_is_told_before_a_missing_rating(likes: pl.DataFrame, refusal: Any) -> None:
    table = likes.rename({"item_id": "product"}).with_columns(stars=2)
    for given in (table, table.drop("stars")):
        refusal(
            lambda given=given: pr.Dataset.from_frame(given), "missing column item_id", "product"
        )


def test_uniform_rows_beside_likes(likes: pl.DataFrame, refusal: Any) -> None:
    random = pl.DataFrame({"user_id": [0, 1, 2], "item_id": [1, 1, 5], "rating": [0, 1, 0]})
    data = pr.Dataset.from_frame(likes, random)
    assert data.positives_only
    assert (data.scale.low, data.scale.high) == (0.0, 1.0)
    stars = random.with_columns(rating=pl.Series([1, 5, 3]))
    refusal(lambda: pr.Dataset.from_frame(likes, stars), "1 to 5", "--liked-from 4")
    assert pr.Dataset.from_frame(
        likes, stars, liked_from=4, overlap="keep"
    ).uniform.rating.tolist() == [0.0, 1.0, 0.0]
    refusal(
        lambda: pr.Dataset.from_frame(likes, random.drop("rating")),
        "uniform",
        "missing column rating",
    )


def test_impressions_with_clicks() -> None:
    shown = pl.DataFrame(
        {
            "user_id": [1, 1, 1, 2],
            "item_id": [7, 7, 8, 8],
            "rating": [1, 0, 0, 1],
            "timestamp": [5, 9, 1, 2],
        }
    )
    found = {
        how: pr.Dataset.from_frame(shown, duplicates=how).logged.rating[0]
        for how in ("max", "mean", "first", "last")
    }
    assert found == {"max": 1.0, "mean": 0.5, "first": 1.0, "last": 0.0}


def test_last_is_by_time_not_by_line() -> None:
    log = pl.DataFrame(
        {
            "user_id": [1, 1, 2],
            "item_id": [7, 7, 8],
            "rating": [5, 1, 3],
            "timestamp": [20, 10, 1],
        }
    )
    assert pr.Dataset.from_frame(log, duplicates="last").logged.rating[0] == 5
    assert pr.Dataset.from_frame(log, duplicates="first").logged.rating[0] == 1
    assert pr.Dataset.from_frame(log.drop("timestamp"), duplicates="last").logged.rating[0] == 1


def test_methods_that_need_levels_name_those_that_do_not(likes: pl.DataFrame, refusal: Any) -> None:
    able = learning_from_likes()
    assert able == ["spectrum", "popularity", "all-rank", "ease"]
    for name in ("mf", "puid-dr", "bias", "signed-rd"):
        refusal(
            lambda name=name: pr.Recommender(name, epochs=2).fit(likes),
            f"{name} needs rating levels",
            *able,
        )
    assert not {name for name in able if METHODS[name].needs_levels}


@pytest.mark.parametrize("method", ["all-rank", "ease"])
def test_the_groups_are_found(method: str, likes: pl.DataFrame) -> None:
    data = pr.Dataset.from_frame(likes)
    model = pr.Recommender(method, rng=0, **({"dim": 4} if METHODS[method].trains else {})).fit(
        data
    )
    top = model.recommend(model.user_ids_.ids, k=5)
    own = ((top["user_id"] % 2) == (top["item_id"] % 2)).mean()
    assert own > 0.8  # by chance a half


def test_validation_draws_unseen_pairs(likes: pl.DataFrame) -> None:
    split = pr.Dataset.from_frame(likes).split()
    log = (
        np.concatenate([[0], np.cumsum(np.bincount(split.train.user, minlength=80))]),
        split.train.item,
    )
    rows = with_drawn_pairs(split.validation, log, np.random.default_rng(0))
    drawn = rows.frame.filter(pl.col("label") == 0)
    assert len(rows) - drawn.height == len(split.validation)
    assert drawn.height > 0.7 * len(split.validation)
    liked = set(likes.select("user_id", "item_id").rows()) - set(
        split.test.to_frame().select("user_id", "item_id").rows()
    )
    assert not liked & {(int(u), int(i)) for u, i in drawn.select("user", "item").rows()}


def test_from_a_file_through_every_command(likes: pl.DataFrame, tmp_path: Path, puid: Any) -> None:
    log, run = tmp_path / "clicks.csv", tmp_path / "run"
    likes.write_csv(log)
    told = ("--data", "files", "--logged", log)
    assert "implicit" in puid("data", "describe", *told).out
    puid("train", *told, "--method", "mf", "--out", run).refused(
        "mf needs rating levels", "all-rank"
    )
    assert not run.exists()
    done = puid("train", *told, "--method", "all-rank", "--set", "dim=4", "--out", run)
    assert done.code == 0, done
    facts = json.loads((run / "metrics.json").read_text())
    assert 0.2 < facts["unseen-recall@10"] <= 1.0
    assert {"unseen-mrr@10", "unseen-hit@10", "unseen-coverage@10", "unseen-novelty@10"} <= set(
        facts
    )
    assert {"unseen-recall-popularity@10", "unseen-ndcg-propensity@10"} <= set(facts)
    again = json.loads(puid("evaluate", run, "--json").out)
    assert again["unseen-recall@10"] == pytest.approx(facts["unseen-recall@10"])
    assert puid("recommend", run, "--users", "0", "--k", "3").code == 0
    tried = puid(
        "tune", *told, "--method", "all-rank", "--budget", "2", "--engine", "inline", "--json"
    )
    assert all(trial["validation"] > 0.5 for trial in json.loads(tried.out))
    told = (*told, "--seeds", "1", "--engine", "inline")
    puid("compare", *told, "--methods", "mf,all-rank").refused("mf needs rating levels")
    table = json.loads(puid("compare", *told, "--methods", "all-rank", "--json").out)
    assert {row["label"] for row in table["rows"]} == {"all-rank", "ease", "popularity"}
    assert {row["metric"] for row in table["rows"]} == {"unseen-recall@10", "unseen-ndcg@10"}


@pytest.mark.parametrize("protocol", ["temporal", "leave-last-out"])
def test_by_time_through_the_commands(
    protocol: str, likes: pl.DataFrame, tmp_path: Path, puid: Any
) -> None:
    log, run = tmp_path / "clicks.csv", tmp_path / "run"
    likes.write_csv(log)
    told = ("--data", "files", "--logged", log, "--protocol", protocol)
    done = puid("train", *told, "--method", "all-rank", "--set", "dim=4", "--out", run)
    assert done.code == 0, done
    assert done.err == ""
    facts = json.loads((run / "metrics.json").read_text())
    assert facts["unseen-recall@10"] > 0.2
    assert (facts["protocol"], facts["evaluated_on"]) == (protocol, "logged")
    assert json.loads(puid("evaluate", run, "--json").out)["unseen-mrr@10"] == pytest.approx(
        facts["unseen-mrr@10"]
    )
    told = (*told, "--seeds", "1", "--engine", "inline")
    table = json.loads(puid("compare", *told, "--methods", "all-rank", "--json").out)
    assert {row["metric"] for row in table["rows"]} == {"unseen-recall@10", "unseen-ndcg@10"}
    likes.drop("timestamp").write_csv(log)
    puid(
        "train", *told[:4], "--protocol", protocol, "--method", "ease", "--out", tmp_path / "none"
    ).refused("timestamps")
    puid("compare", *told, "--methods", "ease", "--out", tmp_path / "none").refused(
        "needs timestamps"
    )
    assert not (tmp_path / "none").exists()


def test_ratings_by_time_are_ranked_too(likes: pl.DataFrame, tmp_path: Path, puid: Any) -> None:
    log = tmp_path / "stars.csv"
    likes.with_columns(rating=4 + (pl.col("user_id") + pl.col("item_id")) % 2 * -2).write_csv(log)
    told = ("--data", "files", "--logged", log, "--scale", "1,5", "--method", "bias", "--json")
    timed = puid("train", *told, "--protocol", "temporal")
    assert {"unseen-recall@10", "unseen-coverage@10", "auc", "mse"} <= set(json.loads(timed.out))
    assert timed.err == ""
    warned = puid("train", *told)
    assert "uauc" in json.loads(warned.out)
    assert warned.err.count("\n") == warned.err.count("puid: warning: ") == 1

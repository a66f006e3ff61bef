"""Evaluating a model by the caller's own ids, from data sets and from tables, weighted by
propensity; refusals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.schema import RatingScale
from puidrec.evaluation.evaluator import evaluate, evaluate_scores
from puidrec.evaluation.result import Evaluation


class Table:
    """Predicts from a dictionary of ids."""

    def __init__(self, scores: dict) -> None:
        self.scores = scores

    def predict(self, users, items):
        return [self.scores[pair] for pair in zip(users, items, strict=True)]


ROWS = {
    "user_id": ["zoe", "zoe", "zoe", "amy", "amy", "bob"],
    "item_id": [10, 20, 30, 10, 20, 10],
    "rating": [5.0, 1.0, 4.0, 2.0, 5.0, 5.0],
}
MODEL = Table(
    {
        ("zoe", 10): 0.9,
        ("zoe", 20): 0.5,
        ("zoe", 30): 0.4,
        ("amy", 10): 0.7,
        ("amy", 20): 0.2,
        ("bob", 10): 1,
    }
)


def test_a_part_of_a_data_set() -> None:
    data = Dataset.from_frame(pl.DataFrame(ROWS), scale=(1, 5))
    result = evaluate(MODEL, data.logged, ["uauc", "precision@1", "mse"])
    assert result["uauc"] == pytest.approx(0.25)
    assert result.per_user["uauc"].users.tolist() == ["amy", "zoe"]
    assert result.per_user["uauc"].values.tolist() == [0.0, 0.5]
    assert result["mse"] == pytest.approx(
        (0.1**2 + 0.5**2 + 0.35**2 + 0.45**2 + 0.8**2 + 0) / 6, abs=1e-7
    )
    assert (result.n_users, result.n_rows, result.positive_rate) == (2, 6, pytest.approx(4 / 6))
    assert dict(result) == result.means
    assert len(result) == 3


def test_tables_of_any_kind_agree_with_the_data_set() -> None:
    data = Dataset.from_frame(pl.DataFrame(ROWS), scale=(1, 5))
    names = ["uauc", "ndcg@2", "ndcg-graded@2", "mse", "auc"]
    expected = evaluate(MODEL, data.logged, names)
    frame = pl.DataFrame(ROWS)
    for table in (
        frame,
        frame.to_pandas(),
        frame.to_arrow(),
        ROWS,
        frame.sample(fraction=1, shuffle=True, seed=1),
    ):
        assert dict(evaluate(MODEL, table, names, scale=(1, 5))) == pytest.approx(
            dict(expected), abs=1e-6
        )
    labelled = frame.with_columns(label=(pl.col("rating") >= 4).cast(pl.Int8)).drop("rating")
    assert evaluate(MODEL, labelled, ["uauc"])["uauc"] == expected["uauc"]


def test_the_protocol_labels_and_drops() -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "rating": [3, 5, 1]})
    model = Table({(1, 1): 0.9, (1, 2): 0.5, (1, 3): 0.1})
    found = [
        evaluate(model, frame, ["uauc"], protocol=p, scale=(1, 5)) for p in ("rd", "paper", "ge3")
    ]
    assert [r["uauc"] for r in found] == [0.5, 1.0, 1.0]
    assert [r.n_rows for r in found] == [3, 2, 3]


def test_targets() -> None:
    scale = RatingScale(1, 5)
    rows = (np.array([0, 0]), np.array([0.5, 0.5]), np.array([1, 0]), np.array([4.0, 2.0]))
    found = {
        t: evaluate_scores(*rows, metrics=["mae"], scale=scale, target=t)["mae"]
        for t in ("rating", "binary", "label")
    }
    assert found == pytest.approx({"rating": 1.0, "binary": 1.0, "label": 0.5})


def test_graded_gains_count_stars_above_the_lowest() -> None:
    user, score, label, rating = [0, 0], [2.0, 1.0], [0, 1], np.array([1.0, 5.0])
    with_scale = evaluate_scores(
        user,
        score,
        label,
        rating,
        metrics=["ndcg-graded@1", "ndcg-graded"],
        scale=RatingScale(1, 5),
    )
    assert with_scale["ndcg-graded@1"] == 0.0
    assert with_scale["ndcg-graded"] == pytest.approx(1 / np.log2(3))
    assert evaluate_scores(user, score, label, rating, metrics=["ndcg-graded@1"])[
        "ndcg-graded@1"
    ] == pytest.approx(1 / 31)


def test_no_user_that_counts_gives_nan_not_a_number() -> None:
    result = evaluate_scores([0, 1], [0.1, 0.2], [0, 1], metrics=["uauc", "ndcg@5"])
    assert np.isnan([result["uauc"], result["ndcg@5"]]).all()
    assert result.n_users == 0


def test_intervals_need_values_per_user(refusal) -> None:
    result = evaluate_scores([0, 0, 1, 1], [1, 2, 3, 4], [0, 1, 1, 0], metrics=["uauc", "auc"])
    assert [result.interval(name).n_users for name in ("uauc", "auc")] == [2, 2]
    one_label = evaluate_scores([0, 0, 1, 1], [1, 2, 3, 4], [1, 1, 1, 1], metrics=["mse", "auc"])
    refusal(lambda: one_label.interval("auc"), "auc", "mse")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (([0, 0], [1.0], [0, 1]), ["score", "(2,)"]),
        (([0, 0], [1.0, np.nan], [0, 1]), ["score", "row 2"]),
        (([0, 0], [1.0, 2.0], [1, -1]), ["labels must be 0 or 1"]),
        (([0, 0], ["a", "b"], [0, 1]), ["not numbers"]),
        (([], [], []), ["0 rows"]),
        (([0, 0], [1.0, 2.0], [0, 1], [np.inf, 1.0]), ["rating", "row 1"]),
    ],
)
def test_bad_arrays_are_refused(arguments, parts, refusal) -> None:
    refusal(lambda: evaluate_scores(*arguments), *parts)


def test_bad_options_are_refused(refusal) -> None:
    rows = ([0, 0], [1.0, 2.0], [0, 1])
    refusal(lambda: evaluate_scores(*rows, target="stars"), "stars")
    refusal(lambda: evaluate_scores(*rows, users="some"), "both-labels")
    refusal(lambda: evaluate_scores(*rows, weight=[1.0, 0.0]), "weight", "row 2")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS)), "scale=(1, 5)")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS).drop("item_id")), "item_id")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS).head(0), scale=(1, 5)), "empty")


N_USERS, N_ITEMS = 60, 50


class Scores:
    """Predicts from a matrix; ids are codes."""

    def __init__(self, score: np.ndarray) -> None:
        self.score = score

    def predict(self, users, items) -> np.ndarray:
        return self.score[users, items]


def weighted(user, item, score, label, p, metrics) -> Evaluation:
    table = pl.DataFrame({"user_id": user, "item_id": item, "label": label[user, item]})
    return evaluate(Scores(score), table, metrics, propensity=p[user, item])


@pytest.fixture(scope="module")
def world() -> dict[str, np.ndarray]:
    """A whole matrix of scores whose errors go along with the propensities."""
    taste = np.random.default_rng(0).normal(size=(N_USERS, 1)) + np.random.default_rng(1).normal(
        size=N_ITEMS
    )
    score = 1.0 + np.exp(0.25 * taste)
    return {"score": score, "label": np.ones(score.shape, int), "p": 1 / (1 + np.exp(1.0 - taste))}


def test_the_weighted_error_is_that_of_all_pairs(world) -> None:
    truth, rng, found = ((world["score"] - 1.0) ** 2).mean(), np.random.default_rng(1), []
    for _ in range(200):
        user, item = np.nonzero(rng.random(world["p"].shape) < world["p"])
        found.append(weighted(user, item, **world, metrics=["mse"])["mse"])
    assert abs(np.mean(found) - truth) < 3 * np.std(found) / np.sqrt(200) + 0.002 * truth
    assert (
        (world["score"][user, item] - 1.0) ** 2
    ).mean() > 1.1 * truth  # what the plain mean would say


def test_a_common_factor_of_the_propensities_does_not_matter(world) -> None:
    user, item = np.divmod(np.arange(900), N_ITEMS)
    full, half = (
        weighted(user, item, **{**world, "p": c * world["p"]}, metrics=["mse"])["mse"]
        for c in (1.0, 0.5)
    )
    assert full == pytest.approx(half)


def test_intervals_cover_users_drawn_anew() -> None:
    """Users are the sampling unit: each draw meets new people whose errors differ."""
    rng, hits, trials = np.random.default_rng(3), 0, 400
    for _ in range(trials):
        level, items = rng.normal(1.0, 0.3, size=(80, 1)), rng.normal(0.0, 0.2, size=(80, 30))
        error = level + items
        p = 1 / (1 + np.exp(1 - 2 * items))
        user, item = np.nonzero(rng.random(p.shape) < p)
        score = np.sqrt(np.maximum(error, 0.0))  # labels are 0, so the squared error is `error`
        found = evaluate_scores(
            user,
            score[user, item],
            np.zeros(user.size),
            metrics=["mse"],
            weight=1.0 / p[user, item],
        ).interval("mse")
        hits += found.low <= 1.0 <= found.high
    assert 0.91 < hits / trials < 0.98


def _ranking_world(
    n_users: int, n_items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Scores, labels and propensities: positives are seen more, and the rows that the model gets
    right most."""
    rng = np.random.default_rng(4)
    hidden = rng.normal(size=(n_users, n_items))
    label = (hidden + rng.normal(size=hidden.shape) > 1).astype(int)
    score = hidden + rng.normal(size=hidden.shape)
    p = 1 / (1 + np.exp(1.5 - label - np.where(label == 1, score, -score)))
    return score, label, p, rng


def test_weighted_rankings_recover_the_uniform_ones() -> None:
    score, label, p, rng = _ranking_world(400, 300)
    uniform, biased = rng.random(p.shape) < 0.4, rng.random(p.shape) < p
    names, (user, item) = ["uauc", "ndcg@20", "precision@20"], np.nonzero(biased)
    truth = evaluate_scores(np.nonzero(uniform)[0], score[uniform], label[uniform], metrics=names)
    plain = evaluate_scores(user, score[biased], label[biased], metrics=names)
    found = weighted(user, item, score, label, p, names)
    assert found.weighted
    for name in names:
        assert abs(found[name] - truth[name]) < 0.25 * abs(plain[name] - truth[name]), name


def test_the_bias_of_self_normalising_fades_as_lists_grow() -> None:
    """UAUC weighted, less UAUC over all pairs: a ratio's bias is of order 1 / rows, so ten times
    the rows cut it."""
    gaps = []
    for n_users, n_items in ((1200, 100), (120, 1000)):
        score, label, p, rng = _ranking_world(n_users, n_items)
        user, item = np.nonzero(rng.random(p.shape) < p)
        every = np.repeat(np.arange(n_users), n_items)
        full = evaluate_scores(every, score.ravel(), label.ravel(), metrics=["uauc"])
        gaps.append(abs(weighted(user, item, score, label, p, ["uauc"])["uauc"] - full["uauc"]))
    assert gaps[1] < 0.4 * gaps[0]


def test_propensities_stay_with_their_rows_where_the_protocol_drops_some() -> None:
    rows = {"user_id": [0, 0, 1], "item_id": [0, 1, 2], "rating": [5.0, 3.0, 1.0]}
    p, score = np.array([0.5, 0.1, 0.25]), np.array([[0.9, 0.5, 0.4], [0.9, 0.5, 0.4]])
    expected = (2 * 0.1**2 + 4 * 0.4**2) / 6  # the paper's protocol drops the 3
    data = Dataset.from_frame(pl.DataFrame(rows), scale=(1, 5))
    for part in (data.logged, pl.DataFrame(rows)):
        found = evaluate(Scores(score), part, ["mse"], protocol="paper", scale=(1, 5), propensity=p)
        assert (found.n_rows, found["mse"]) == (2, pytest.approx(expected, abs=1e-6))


def test_bad_propensities_are_refused(refusal) -> None:
    table = {"user_id": [0, 0], "item_id": [0, 1], "label": [0, 1]}

    def ask(*p: float) -> Evaluation:
        return evaluate(Scores(np.zeros((1, 2))), table, ["mse"], propensity=np.array(p))

    refusal(lambda: ask(0.5, 1.5), "row 2", "1.5")
    refusal(lambda: ask(0.0, 0.5), "row 1")
    refusal(lambda: ask(0.5), "one entry per row")


class Memory(Scores):
    """Says that it was trained on the diagonal."""

    def trained_on(self, users, items) -> np.ndarray:
        return np.asarray(users) == np.asarray(items)


def test_pairs_that_a_model_was_trained_on_are_left_out_or_refused(refusal) -> None:
    user, item = (part.ravel() for part in np.indices((4, 4)))
    score = np.random.default_rng(0).random((4, 4))
    label = ((user + 2 * item) % 3 == 0).astype(int)
    table = pl.DataFrame({"user_id": user, "item_id": item, "label": label})
    fresh, known = (table.filter(keep) for keep in (user != item, user == item))
    found = evaluate(Memory(score), table, ["mse", "auc"])
    assert (found.n_rows, found.n_trained_on) == (12, 4)
    assert dict(found) == dict(evaluate(Scores(score), fresh, ["mse", "auc"]))
    kept = evaluate(Memory(score), table, ["mse", "auc"], overlap="keep")
    assert (kept.n_rows, kept.n_trained_on) == (16, 4)
    assert dict(kept) == dict(evaluate(Scores(score), table, ["mse", "auc"]))
    p = np.linspace(0.1, 1.0, 16)
    weighted_all = evaluate(Memory(score), table, ["mse"], propensity=p)["mse"]
    assert (
        weighted_all == evaluate(Scores(score), fresh, ["mse"], propensity=p[user != item])["mse"]
    )
    refusal(lambda: evaluate(Memory(score), known, ["mse"]), "trained on", "4 of 4", "keep")

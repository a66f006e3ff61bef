from __future__ import annotations

import itertools
import sys
import types
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

import puidrec
from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import PuidError
from puidrec.evaluation import evaluate
from puidrec.methods import METHODS
from puidrec.model import Recommender

OPTIONS = {"epochs": 4, "dim": 3, "l2": 0.1, "propensity": "cells"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data():
    return simulate("mixed", 40, 25, density=0.2, rng=0).data


@pytest.fixture(scope="module")
def named(data):
    """The same log under ids that are text."""
    tables = {
        "logged": data.logged.to_frame(),
        "uniform": data.uniform.to_frame(),
        "users": data.users,
        "items": data.items,
    }
    to_text = {"user_id": "u{}", "item_id": "i{}"}
    text = {
        name: frame.with_columns(
            pl.format(form, key).alias(key) for key, form in to_text.items() if key in frame.columns
        )
        for name, frame in tables.items()
    }
    return Dataset.from_frame(**text, scale=(1, 5), unknown_ids="keep")


@pytest.fixture(scope="module")
def model(data):
    return Recommender("mf", **OPTIONS).fit(data, protocol="rd")


class TestParameters:
    def test_constructor_get_and_set(self, refusal) -> None:
        model = Recommender("rd-dr", dim=7, gamma=2, rng=3)
        params = model.get_params()
        assert (params["method"], params["dim"], params["gamma"], params["seed"]) == (
            "rd-dr",
            7,
            2.0,
            3,
        )
        assert Recommender(**params).get_params() == params
        assert model.set_params(dim=5, method="ips") is model
        assert (model.settings.dim, model.settings.method) == (5, "ips")
        assert model.set_params(rng=9).get_params()["seed"] == 9
        refusal(lambda: model.set_params(dims=3), "Did you mean dim")
        refusal(lambda: Recommender(dimm=4), "unknown setting", "dimm", "Did you mean dim?")
        refusal(lambda: Recommender("rd-dr", colour=3), "unknown setting")
        refusal(lambda: Recommender("nope"), "unknown method")

    def test_random_state_is_another_name_of_rng(self, refusal) -> None:
        assert (
            Recommender("mf", random_state=3).get_params() == Recommender("mf", rng=3).get_params()
        )
        assert Recommender("mf", random_state=None).settings.seed == 0
        assert Recommender("mf").set_params(random_state=4).settings.seed == 4
        assert Recommender("mf", rng=5).set_params(random_state=None).settings.seed == 5
        refusal(
            lambda: Recommender("mf", random_state=3, rng=3), "given twice", "rng and random_state"
        )
        refusal(lambda: Recommender("mf", seed=3, rng=4), "given twice", "rng and seed")
        refusal(lambda: Recommender("mf", random_state="x"), "seed")

    @pytest.mark.parametrize("method", METHODS)
    def test_clones_are_unfitted_and_equal(self, method) -> None:
        model = Recommender(method, lr=0.0123, l2=0.3, rng=4)
        copy = clone(model)
        assert copy is not model
        assert copy.get_params() == model.get_params()
        assert not hasattr(copy, "user_factors_")

    def test_a_fitted_model_clones_unfitted(self, model) -> None:
        assert not hasattr(clone(model), "user_factors_")

    def test_repr_says_what_differs_from_the_defaults(self) -> None:
        assert repr(Recommender("ips", dim=7)) == "Recommender('ips', dim=7)"
        assert eval(repr(Recommender("rd-ips", gamma=2.0, rng=1))).get_params()["seed"] == 1

    def test_repr_says_what_the_model_was_fitted_on(self, data) -> None:
        model = Recommender("bias", dim=7).fit(data)
        rows = f"{model.seen_[1].size:,} logged rows of {data.n_users} users × {data.n_items} items"
        assert repr(model).splitlines() == ["Recommender('bias', dim=7)", f"  fitted on {rows}"]

    def test_before_fit(self, tmp_path) -> None:
        model = Recommender("ips")
        for call in (
            lambda: model.predict([1], [1]),
            lambda: model.recommend([1]),
            lambda: model.save(tmp_path / "m"),
        ):
            with pytest.raises(NotFittedError, match="not fitted; call fit"):
                call()
            with pytest.raises(PuidError):
                call()
        assert not (tmp_path / "m").exists()

    def test_fit_returns_self_and_can_be_repeated(self, data) -> None:
        model = Recommender("ips", **OPTIONS)
        assert model.fit(data) is model
        first = model.user_factors_.copy()
        assert np.array_equal(model.fit(data).user_factors_, first)

    def test_fit_takes_a_log_as_a_table(self, data, refusal) -> None:
        log = data.logged.to_frame()
        expected = Recommender("bias", rng=1).fit(Dataset.from_frame(log)).user_factors_
        for table in (
            log,
            log.lazy(),
            log.to_pandas(),
            log.to_arrow(),
            log.to_dict(as_series=False),
        ):
            model = Recommender("bias", rng=1).fit(table)
            np.testing.assert_array_equal(model.user_factors_, expected)
        for wrong in (None, 3, [1, 2], np.zeros((3, 3)), "log.csv"):
            refusal(
                lambda wrong=wrong: Recommender("bias").fit(wrong),
                "not a table",
                "Polars, pandas or Arrow",
            )
        refusal(
            lambda: Recommender("bias").fit(log.drop("rating")), "needs rating levels", "likes only"
        )


class TestPredict:
    def test_scores_are_inner_products(self, model, data) -> None:
        full = model.user_factors_ @ model.item_factors_.T
        users, items = np.repeat(np.arange(40), 25), np.tile(np.arange(25), 40)
        got = model.predict(data.user_ids.decode(users), data.item_ids.decode(items), scale="unit")
        np.testing.assert_allclose(got, full.ravel(), atol=1e-6)
        assert got.dtype == np.float32

    def test_ratings_come_on_the_scale_of_the_log(self, model, data, refusal, tmp_path) -> None:
        low, high = data.scale.low, data.scale.high
        unit, stars = model.predict(1, [2, 3], scale="unit"), model.predict(1, [2, 3])
        np.testing.assert_allclose(stars, low + (high - low) * unit, rtol=1e-6)
        assert stars.dtype == np.float32
        np.testing.assert_array_equal(model.predict(1, [2, 3], scale="rating"), stars)
        best = model.recommend(1, k=2)
        np.testing.assert_allclose(best["score"], model.predict(1, best["item_id"]), rtol=1e-6)
        in_unit = model.recommend(1, k=2, scale="unit")
        np.testing.assert_allclose(
            in_unit["score"], model.predict(1, best["item_id"], scale="unit"), rtol=1e-6
        )
        model.save(tmp_path / "m")
        np.testing.assert_array_equal(Recommender.load(tmp_path / "m").predict(1, [2, 3]), stars)
        refusal(lambda: model.predict(1, 2, scale="stars"), "scale", "'stars'", "rating, unit")
        refusal(lambda: model.recommend(1, scale=5), "scale", "rating, unit")
        errors = evaluate(model, data.test, ["mse", "rmse", "mae"])
        truth, guess = (
            data.test.rating,
            model.predict(*(data.test.to_frame()[k] for k in ("user_id", "item_id"))),
        )
        assert errors["mae"] == pytest.approx(float(np.abs(guess - truth).mean()), rel=1e-5)
        assert errors["rmse"] == pytest.approx(
            float(np.sqrt(np.mean((guess - truth) ** 2))), rel=1e-5
        )
        assert errors["rmse"] == pytest.approx((high - low) * errors["mse"] ** 0.5)

    def test_ids_of_any_container(self, model) -> None:
        lists = model.predict([0, 1], [2, 3])
        for kind in (np.array, pl.Series, tuple, lambda x: pl.Series(x).cast(pl.Int16)):
            np.testing.assert_array_equal(model.predict(kind([0, 1]), kind([2, 3])), lists)

    def test_single_ids(self, model, named, refusal) -> None:
        assert model.predict(1, 2).shape == (1,)
        np.testing.assert_array_equal(model.predict(1, 2), model.predict([1], [2]))
        np.testing.assert_array_equal(
            model.predict(1, np.array([2, 3])), model.predict([1, 1], [2, 3])
        )
        np.testing.assert_array_equal(
            model.predict(pl.Series([1, 4]), np.int64(2)), model.predict([1, 4], [2, 2])
        )
        other = Recommender("bias").fit(named)
        np.testing.assert_array_equal(other.predict("u11", "i2"), other.predict(["u11"], ["i2"]))
        refusal(lambda: model.predict(None, [1]), "users must be ids", "NoneType")
        refusal(lambda: model.predict([1], {"item_id": [1]}), "items must be ids", "dict")
        refusal(lambda: model.predict(1.5, [1]), "users must be ids", "float")

    def test_text_ids_give_the_same_model(self, named, model) -> None:
        other = Recommender("mf", **OPTIONS).fit(named)
        order = np.argsort([f"u{k}" for k in range(40)])
        assert other.user_ids_.ids.to_list() == [f"u{k}" for k in order]
        assert other.predict(["u3"], ["i4"]).shape == (1,)
        frame = other.recommend(["u3", "u11"], k=2)
        assert frame.schema["user_id"] == frame.schema["item_id"] == pl.String
        assert frame["user_id"].to_list() == ["u3", "u3", "u11", "u11"]

    def test_unknown_ids_get_the_average_entity(self, model) -> None:
        average_user, average_item = model.user_factors_.mean(0), model.item_factors_.mean(0)
        known_user, known_item = model.user_factors_[1], model.item_factors_[2]
        got = model.predict([999, 1, 999, None], [2, 999, 999, 2], scale="unit")
        expected = [
            average_user @ known_item,
            known_user @ average_item,
            average_user @ average_item,
            average_user @ known_item,
        ]
        np.testing.assert_allclose(got, expected, atol=1e-6)
        np.testing.assert_array_equal(
            model.predict(["1"], [2]), model.predict([999], [2])
        )  # text is another id

    def test_lengths_must_agree(self, model, refusal) -> None:
        refusal(lambda: model.predict([1, 2], [1]), "one length", "2 and 1")
        assert model.predict([], []).shape == (0,)

    @pytest.mark.parametrize("target", ["rating", "binary"])
    def test_cross_entropy_predicts_on_the_scale_of_the_target(self, data, target) -> None:
        model = Recommender("ips", loss="cross-entropy", target=target, **OPTIONS).fit(data)
        score = model.predict(data.user_ids.ids.gather([0] * 25), data.item_ids.ids, scale="unit")
        assert score.min() > (-1 if target == "binary" else 0)
        assert score.max() < 1
        assert model.recommend([0], k=1)["score"][0] == pytest.approx(
            float(model.predict([0], model.recommend([0], k=1)["item_id"])[0]), abs=1e-6
        )


class TestRecommend:
    def brute_force(self, model, data, user, k, exclude):
        scores = {
            i: float(s)
            for i, s in zip(
                data.item_ids.ids, model.predict([user] * 25, data.item_ids.ids), strict=True
            )
        }
        seen = (
            set(data.logged.to_frame().filter(pl.col("user_id") == user)["item_id"])
            if exclude
            else set()
        )
        return sorted((item for item in scores if item not in seen), key=lambda i: (-scores[i], i))[
            :k
        ]

    @pytest.mark.parametrize("exclude", [True, False])
    @pytest.mark.parametrize("k", [1, 5, 25, 1000])
    def test_equals_brute_force(self, model, data, k, exclude, monkeypatch) -> None:
        monkeypatch.setattr("puidrec.recommending.USERS_PER_BLOCK", 7)
        frame = model.recommend(data.user_ids.ids, k=k, exclude_seen=exclude)
        assert frame.columns == ["user_id", "item_id", "score", "rank"]
        lists = dict(frame.group_by("user_id", maintain_order=True).agg("item_id").iter_rows())
        for user in data.user_ids.ids:
            assert lists.get(user, []) == self.brute_force(model, data, user, k, exclude)

    @pytest.mark.parametrize(
        ("protocol", "uniform", "options"),
        [
            ("rd", False, {}),
            ("rd", True, {"select": "observational"}),
            ("paper", True, {}),
            ("temporal", False, {}),
        ],
        ids=[
            "test rows of the log",
            "validation rows of the log",
            "ratings that the protocol drops",
            "by time",
        ],
    )
    def test_nothing_of_the_log_is_recommended_again(
        self, data, protocol, uniform, options, tmp_path
    ) -> None:
        log = data.logged.to_frame().with_columns(timestamp=pl.int_range(pl.len()).shuffle(seed=0))
        given = Dataset.from_frame(
            log, uniform=data.uniform.to_frame() if uniform else None, scale=(1, 5)
        )
        model = Recommender("bias", **options).fit(given, protocol=protocol)
        split = given.split(protocol, select=model.settings.select)
        logged, trained = (
            set(rows.to_frame().select("user_id", "item_id").iter_rows())
            for rows in (given.logged, split.train)
        )
        assert trained < logged
        everything = set(itertools.product(given.user_ids.ids, given.item_ids.ids))
        model.save(tmp_path / "model")
        for one in (model, Recommender.load(tmp_path / "model")):
            for exclude, left_out in ((True, logged), ("training", trained), (False, set())):
                frame = one.recommend(given.user_ids.ids, k=25, exclude_seen=exclude)
                assert set(frame.select("user_id", "item_id").iter_rows()) == everything - left_out
            row_start, items = one.logged_pairs()
            users = one.user_ids_.decode(
                np.repeat(np.arange(row_start.size - 1), np.diff(row_start))
            )
            assert list(zip(users, one.item_ids_.decode(items), strict=True)) == sorted(logged)

    def test_held_out_items_can_still_be_found_by_an_evaluation(self, data) -> None:
        model = Recommender("bias").fit(
            Dataset.from_frame(data.logged.to_frame(), scale=(1, 5)), protocol="rd"
        )
        test = Dataset.from_frame(data.logged.to_frame(), scale=(1, 5)).split().test
        assert (
            evaluate(model, test, ["unseen-recall@25", "catalogue-recall@24"])["unseen-recall@25"]
            == 1.0
        )
        assert model.held_out_[1].size > 0
        assert (
            model.trained_on(*test.to_frame().select("user_id", "item_id").get_columns()).sum() == 0
        )

    def test_models_that_know_of_no_held_out_rows_leave_out_training_rows(
        self, data, refusal, tmp_path
    ) -> None:
        model = Recommender("bias").fit(Dataset.from_frame(data.logged.to_frame(), scale=(1, 5)))
        expected = model.recommend([0, 1], k=25, exclude_seen="training")
        model.held_out_ = None
        model.save(tmp_path / "model")
        assert Recommender.load(tmp_path / "model").recommend([0, 1], k=25).equals(expected)
        refusal(
            lambda: model.recommend([0], exclude_seen="tests"),
            "exclude_seen",
            "tests",
            "'training'",
        )

    def test_ranks_count_from_one_and_scores_fall(self, model, data) -> None:
        frame = model.recommend(data.user_ids.ids, k=6)
        for _, part in frame.group_by("user_id"):
            assert part["rank"].to_list() == list(range(1, part.height + 1))
            assert part["score"].is_sorted(descending=True)

    def test_ties_go_to_the_first_item(self, data) -> None:
        model = Recommender("mf", **OPTIONS).fit(data)
        rng = np.random.default_rng(0)
        model.item_factors_ = np.zeros_like(model.item_factors_)
        model.item_factors_[:, -1] = rng.integers(0, 3, 25)
        model.user_factors_[:, -1] = 1.0
        for k in (1, 3, 9, 17):
            frame = model.recommend([0, 5], k=k, exclude_seen=False)
            for _, part in frame.group_by("user_id"):
                expected = np.lexsort((np.arange(25), -model.item_factors_[:, -1]))[:k]
                assert part["item_id"].to_list() == expected.tolist()

    def test_users_may_repeat_and_come_in_any_order(self, model) -> None:
        frame = model.recommend([7, 3, 7], k=2)
        assert frame["user_id"].to_list() == [7, 7, 3, 3, 7, 7]
        assert frame[:2].equals(frame[4:])
        assert model.recommend([], k=2).height == 0
        assert model.recommend([], k=2).columns == frame.columns

    def test_a_single_id_is_one_user(self, model, named, refusal) -> None:
        assert model.recommend(5, k=3).equals(model.recommend([5], k=3))
        assert model.recommend(np.int32(5), k=3).equals(model.recommend([5], k=3))
        other = Recommender("bias").fit(named)
        assert other.recommend("u11", k=3).equals(other.recommend(["u11"], k=3))
        refusal(lambda: other.recommend("00001"), "1 unknown user", "'00001'")

    def test_ids_of_any_container(self, model) -> None:
        listed = model.recommend([5, 6], k=3)
        column = pl.Series([5, 6])
        for users in (
            column,
            column.to_pandas(),
            column.to_arrow(),
            {5, 6},
            range(5, 7),
            (own for own in (5, 6)),
        ):
            assert model.recommend(users, k=3).equals(listed)

    def test_what_is_no_ids_is_refused(self, model, refusal) -> None:
        frame = pl.DataFrame({"user_id": [1]})
        for users in (
            None,
            5.0,
            True,
            {"a": 1},
            object(),
            b"x",
            np.zeros((2, 2), int),
            frame,
            frame.to_pandas(),
        ):
            refusal(
                lambda users=users: model.recommend(users),
                "users must be ids",
                type(users).__name__,
            )
        refusal(lambda: model.recommend([[1, 2]]), "users must be ids", "flat")

    def test_mistakes_are_one_line(self, model, refusal) -> None:
        for k in (0, -1, 2.5, "3", None):
            refusal(lambda k=k: model.recommend([1], k=k), "k must be a positive integer")
        refusal(lambda: model.recommend([1, 999]), "1 unknown user", "999")
        refusal(lambda: model.recommend([1, 10**30]), "1 unknown user", "1000000")
        assert np.array_equal(model.predict([10**30], [1]), model.predict([999], [1]))
        refusal(lambda: model.recommend(["1"]), "unknown user", "Int64")
        assert model.recommend([1], k=np.int64(2)).height == 2


@pytest.mark.parametrize("select", ["uniform", "observational", "none"])
@pytest.mark.parametrize("uniform", [True, False])
def test_what_chooses_the_epoch(select, uniform, data) -> None:
    logged = data if uniform else Dataset.from_frame(data.logged.to_frame(), scale=(1, 5))
    model = Recommender("ips", select=select, solver="adam", **OPTIONS).fit(logged)
    assert ["score" in row for row in model.history_] == [False, False, False, select != "none"]
    used = model.report_["uniform_rows_used"]
    assert used == ("choice of the epoch" if select == "uniform" and uniform else "none")
    if select == "none":
        assert model.report_["best_epoch"] == 4


@pytest.mark.parametrize("metric", ["auto", "auc", "uauc", "mse"])
def test_every_validation_metric(metric) -> None:
    data = simulate("mixed", 40, 25, density=0.2, n_uniform=1000, rng=0).data
    history = Recommender("dr", metric=metric, solver="adam", **OPTIONS).fit(data).history_
    scores = [row["score"] for row in history if "score" in row]
    assert scores
    assert np.isfinite(scores).all()
    assert (max(scores) <= 0) == (metric == "mse")


def test_no_rows_to_learn_from(data, refusal) -> None:
    split = data.split("rd", 0)
    empty = replace(split, train=split.train.take(np.array([], dtype=int)))
    refusal(lambda: Recommender("mf", **OPTIONS).fit(data, empty), "no training rows")


def test_uniform_rows_never_train_unless_asked(data) -> None:
    """Ratings of uniform rows that do not validate leave the model as it is."""
    frame = data.uniform.to_frame()
    flipped = Dataset.from_frame(
        data.logged.to_frame(),
        frame.with_columns(6 - pl.col("rating")),
        data.users,
        data.items,
        scale=(1, 5),
        unknown_ids="keep",
    )
    one, other = (Recommender("puid-dr", select="none", **OPTIONS).fit(d) for d in (data, flipped))
    assert np.array_equal(one.user_factors_, other.user_factors_)


def test_a_model_knows_the_pairs_it_was_trained_on(named) -> None:
    model = Recommender("mf", **OPTIONS).fit(named, protocol="rd")
    rows = named.logged.to_frame()
    assert model.trained_on(rows["user_id"], rows["item_id"]).all()
    fresh = named.uniform.to_frame()
    assert not model.trained_on(fresh["user_id"], fresh["item_id"]).any()
    assert model.trained_on(["u0", "nobody"], ["nothing", "i0"]).tolist() == [False, False]
    mixed = pl.concat(
        [frame.select("user_id", "item_id", "rating") for frame in (fresh, rows.head(20))]
    )
    found = puidrec.evaluate(model, mixed, ["auc"], scale=(1, 5))
    assert (found.n_rows, found.n_trained_on) == (fresh.height, 20)


@pytest.mark.parametrize("method", ["mf", "spectrum"])
@pytest.mark.parametrize("select", ["uniform", "observational", "none"])
def test_without_a_protocol_every_uniform_row_is_used_and_none_may_test(
    method, select, named, refusal, tmp_path
) -> None:
    model = Recommender(method, select=select, **OPTIONS).fit(named)
    fresh = named.uniform.to_frame()
    assert model.trained_on(fresh["user_id"], fresh["item_id"]).all()
    refusal(
        lambda: puidrec.evaluate(model, named.test, ["auc"]), "most of these rows were trained on"
    )
    if method == "spectrum":
        assert model.report_["uniform_rows_used"] == f"mixing weights ({fresh.height:,} rows)"
    model.save(tmp_path / "m")
    assert Recommender.load(tmp_path / "m").trained_on(fresh["user_id"], fresh["item_id"]).all()


class TestScikitLearn:
    """A log is one table, `rating` in it: scikit-learn's tools take it without a second
    argument."""

    @pytest.fixture
    def log(self, data) -> pl.DataFrame:
        return data.logged.to_frame().select("user_id", "item_id", "rating")

    def test_cross_validation_is_minus_the_rmse_of_each_fold(self, log) -> None:
        folds = KFold(3, shuffle=True, random_state=0)
        found = cross_val_score(Recommender("bias"), log.to_pandas(), cv=folds)
        for value, (train, test) in zip(found, folds.split(log), strict=True):
            model, rows = Recommender("bias").fit(log[train]), log[test]
            error = model.predict(rows["user_id"], rows["item_id"]) - rows["rating"].to_numpy()
            assert value == pytest.approx(-float(np.sqrt(np.mean(error**2))), rel=1e-6)

    def test_grid_search_finds_and_fits_the_best(self, log) -> None:
        search = GridSearchCV(
            Recommender("mf", rng=0, dim=2), {"method": ["item-rate", "bias"]}, cv=3
        ).fit(log)
        assert search.best_params_["method"] in ("item-rate", "bias")
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_estimator_.recommend(1, k=2).height == 2
        own = GridSearchCV(
            Recommender("bias"),
            {"dim": [2]},
            cv=2,
            scoring=lambda model, rows, y=None: model.score(rows),
        )
        assert own.fit(log).best_score_ < 0

    def test_likes_are_looked_for_among_the_best(self, log) -> None:
        likes = log.select("user_id", "item_id")
        model = Recommender("all-rank", dim=2).fit(likes[::2])
        every = model.recommend(model.user_ids_.ids, k=10, exclude_seen="training")
        top = set(every.select("user_id", "item_id").rows())
        known = likes[1::2].filter(
            pl.col("user_id").is_in(model.user_ids_.ids.implode()),
            pl.col("item_id").is_in(model.item_ids_.ids.implode()),
        )
        assert model.score(likes[1::2]) == pytest.approx(
            np.mean([pair in top for pair in known.rows()])
        )
        assert model.score(likes[:1].with_columns(user_id=10**6)) == 0.0

    def test_ratings_beside_the_table_are_refused(self, log, model, refusal) -> None:
        refusal(
            lambda: Recommender("bias").fit(log, log["rating"].to_numpy()),
            "split",
            "ndarray",
            "column rating",
        )
        refusal(lambda: model.score(log, log["rating"]), "column rating", "y")
        labels = Recommender("bias", target="binary").fit(log)
        refusal(lambda: labels.score(log), "no RMSE", "scoring=")


class TestProgress:
    def test_a_bar_is_asked_for_or_not(self, data, capsys, refusal) -> None:
        for asked in (True, False, None):
            Recommender("mf", solver="adam", **OPTIONS).fit(data, progress=asked)
        calls = []
        Recommender("mf", solver="adam", **OPTIONS).fit(
            data, progress=lambda *told: calls.append(told)
        )
        assert [told[1:3] for told in calls] == [(k, 4) for k in range(1, 5)]
        refusal(
            lambda: Recommender("mf", **OPTIONS).fit(data, progress="bar"),
            "progress",
            "str",
            "True, False",
        )

    def test_a_notebook_shows_one_output_that_is_rewritten(self, data, monkeypatch) -> None:
        shown = []

        class Handle:
            def update(self, what, raw) -> None:
                shown.append(("again", what))

        def display(what, raw, display_id):
            shown.append(("new", what))
            return Handle()

        notebook = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1))
        monkeypatch.setitem(sys.modules, "IPython", notebook)
        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
        clock = itertools.count(0.0, 0.4)  # seconds at each look
        monkeypatch.setattr(
            "puidrec.view.time", types.SimpleNamespace(monotonic=lambda: next(clock))
        )
        Recommender("mf", solver="adam", **OPTIONS).fit(data)
        assert [kind for kind, _ in shown] == ["new"] + ["again"] * (len(shown) - 1)
        assert shown[-1][1]["text/plain"].startswith("main: 4 of 4, loss ")
        assert '<progress max="4" value="4">' in shown[-1][1]["text/html"]


class TestWhichRowsTrain:
    """`fit(data)` is for use, and leaves nothing to test with; a protocol is for measuring."""

    @pytest.fixture(scope="class")
    @staticmethod
    def log(data) -> pl.DataFrame:
        return data.logged.to_frame().select("user_id", "item_id", "rating")

    def test_likes_all_train_and_one_rating_in_ten_validates(self, log) -> None:
        likes = Recommender("all-rank", dim=2, l2=0.1).fit(log.drop("rating"))
        assert (likes.seen_[1].size, likes.held_out_) == (log.height, None)
        ratings = Recommender("bias").fit(Dataset.from_frame(log, scale=(1, 5)))
        assert ratings.seen_[1].size == log.height - round(0.1 * log.height)
        whole = Recommender("mf", select="none", **OPTIONS).fit(log)
        assert whole.seen_[1].size == log.height

    @pytest.mark.parametrize("protocol", [None, "rd", "ge3"])
    @pytest.mark.parametrize("kind", ["both", "ratings", "likes"])
    def test_a_model_says_its_split(self, data, log, tmp_path, protocol, kind) -> None:
        table = log.drop("rating") if kind == "likes" else log
        given = data if kind == "both" else Dataset.from_frame(table)
        model = Recommender("popularity", rng=3).fit(given, protocol=protocol)
        model.save(tmp_path / "m")
        for one in (model, Recommender.load(tmp_path / "m")):
            split = one.split_of(given)
            assert split.protocol.name == (protocol or "rd")
            assert (len(split.test) > 0) == (protocol is not None)
            start, items = model.seen_
            assert np.array_equal(split.train.item, items)
            assert np.array_equal(
                np.bincount(split.train.user, minlength=given.n_users), np.diff(start)
            )
            if model.held_out_ is not None:
                assert model.held_out_[1].size == len(given.logged) - len(split.train)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.tilt import CLEAR_T
from puidrec.methods.prepare import Prepared
from puidrec.methods.spectrum.blend import Column
from puidrec.methods.spectrum.from_log import (
    COARSE,
    FINE,
    FINE_RATED,
    RANK,
    RATED,
    exposure_scores,
    label_free_order,
    modulators,
)
from puidrec.methods.spectrum.members import Term, compress, gathered, spread
from puidrec.model import Recommender
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"dim": 3, "epochs": 20, "rng": 0}


@pytest.fixture(scope="module")
def world():
    return simulate("mixed", 80, 40, density=0.15, n_uniform=1_500, rng=0)


@pytest.fixture(scope="module")
def model(world):
    return Recommender("spectrum", **SMALL).fit(world.data)


def dense(model) -> np.ndarray:
    return model.user_factors_ @ model.item_factors_.T


def random_term(draw, width, **rest) -> Term:
    sides = (torch.from_numpy(draw.standard_normal((n, width))).float() for n in (30, 20))
    return Term("x", LowRank.of(*sides), **rest)


def matrix(term: Term) -> np.ndarray:
    return (term.left() @ term.right().T).numpy()


def test_compression_is_the_truncated_singular_value_decomposition_of_the_sum() -> None:
    draw = np.random.default_rng(0)
    terms = [
        random_term(draw, 3, weight=0.5),
        random_term(draw, 2, user_scale=draw.standard_normal(30)),
        random_term(draw, 4, item_scale=np.ones(20) * 2),
    ]
    terms.append(replace(terms[0], weight=2.0))  # columns that depend on others
    whole = sum(matrix(term) for term in terms)
    np.testing.assert_allclose(compress(terms, 48).scores.tile().numpy(), whole, atol=1e-5)
    left, strength, right = np.linalg.svd(whole)
    few = compress(terms, 4)
    np.testing.assert_allclose(
        few.scores.tile().numpy(), (left[:, :4] * strength[:4]) @ right[:4], atol=1e-5
    )
    assert few.kept == pytest.approx(np.sum(strength[:4] ** 2) / np.sum(strength**2), rel=1e-6)
    long = (
        torch.cat([term.left() for term in terms], 1),
        torch.cat([term.right() for term in terms], 1),
    )
    np.testing.assert_allclose(
        (long[0] @ few.users).numpy(), few.scores.lefts[0].numpy(), atol=1e-5
    )
    np.testing.assert_allclose(
        (long[1] @ few.items).numpy(), few.scores.rights[0].numpy(), atol=1e-5
    )


def test_blocks_of_entities_give_the_same_compression(monkeypatch) -> None:
    draw = np.random.default_rng(1)
    terms = [random_term(draw, 3), random_term(draw, 4)]
    whole = compress(terms, 5).scores.tile().numpy()
    monkeypatch.setattr("puidrec.methods.spectrum.members.ROWS", 7)
    np.testing.assert_allclose(compress(terms, 5).scores.tile().numpy(), whole, atol=1e-5)


def test_spreads_are_those_of_all_pairs() -> None:
    draw = np.random.default_rng(2)
    one, other = random_term(draw, 3), random_term(draw, 2)
    other = replace(other, weight=-2.0, item_scale=draw.standard_normal(20))
    assert spread([one]) == pytest.approx(matrix(one).std(), rel=1e-6)
    assert spread([one, other]) == pytest.approx((matrix(one) + matrix(other)).std(), rel=1e-6)


def test_columns_have_spread_one_however_small_their_scores_but_rounding_has_none() -> None:
    draw = np.random.default_rng(3)
    one = random_term(draw, 3)
    small = Column.standard("exposure", replace(one, weight=1e-6))
    assert spread(small.terms) == pytest.approx(1.0)
    nearly = Column.standard("members", one, replace(one, weight=-1.0 + 1e-7))
    assert spread(nearly.terms) < 1e-3


def test_terms_of_the_same_scores_are_added_up() -> None:
    draw = np.random.default_rng(3)
    base, other = random_term(draw, 3), random_term(draw, 2)
    added = [
        base,
        replace(base, weight=-0.3, user_scale=draw.standard_normal(30)),
        replace(base, weight=2.0, item_scale=draw.standard_normal(20)),
        replace(other, weight=0.4),
    ]
    few = gathered(added)
    assert len(few) == 3
    np.testing.assert_allclose(sum(map(matrix, few)), sum(map(matrix, added)), atol=1e-10)


def test_rows_that_calibrate_are_uniform_outside_the_log_and_reported(world, model) -> None:
    rows = len(world.data.uniform)
    assert model.report_["spectrum"]["calibrated_on"].startswith(f"{rows:,} uniform rows")
    assert model.report_["uniform_rows_used"] == f"mixing weights ({rows:,} rows)"
    assert model.report_["uniform_parts"] == {"calibration": rows}
    split = world.data.split("rd", 0)
    few = Recommender("spectrum", **SMALL).fit(world.data, split)
    assert (
        f"({len(split.propensity) + len(split.validation)} rows)"
        in few.report_["uniform_rows_used"]
    )


def test_without_uniform_rows_and_evidence_it_is_mf(world) -> None:
    data = Dataset.from_frame(
        world.data.logged.to_frame().select("user_id", "item_id", "rating"), scale=(1, 5)
    )
    split = data.split("rd", 0)
    model = Recommender("spectrum", backbone="mf", **SMALL).fit(data, split)
    naive = Recommender("mf", backbone="mf", **SMALL).fit(data, split)
    notes = model.report_["spectrum"]
    assert model.report_["uniform_rows_used"] == "none"
    assert notes["prior"] == ("mild" if notes["sign_check"]["t"] > CLEAR_T else "mf")
    assert notes["prior"] == "mild" or np.abs(dense(model) - dense(naive)).mean() < 0.02


@pytest.mark.parametrize("word", [{"liked": True}, {"gamma": 2.0}])
def test_the_callers_word_overrides(word, world) -> None:
    model = Recommender("spectrum", **SMALL, **word).fit(world.data)
    assert model.report_["spectrum"]["prior"] == "mild"
    assert "the caller's word" in model.report_["spectrum"]["prior_because"]


def test_cold_start_of_a_known_users_features_is_affine_in_them(world, model) -> None:
    table = world.data.users.head(3)
    new = table.with_columns(user_id=table["user_id"] + 10_000)
    scores = model.predict(new["user_id"], [0, 1, 2], user_features=new)
    assert np.isfinite(scores).all()
    assert np.ptp(model.predict(new["user_id"], 0, user_features=new)) > 0.0


def test_stable_recommendations_stay_up_to_their_gamma(model) -> None:
    users, gammas = model.user_ids_.ids[:10], model.parameters_["path.gamma"].numpy()
    frame = model.recommend(users, 5, exclude_seen=False, stable=True)
    assert set(frame["gamma_max"]) <= set(gammas.astype(float))
    for step, gamma in enumerate(gammas[1:]):
        left, right = (
            model.parameters_[f"path.{step}.{side}"].numpy() for side in ("left", "right")
        )
        moved = dense(model)[:10] + left[:10] @ right.T
        best = np.argsort(-moved, axis=1)[:, :5]
        for u, item, last in frame.select("user_id", "item_id", "gamma_max").rows():
            row = int(model.user_ids_.encode([u])[0])
            if last >= gamma:
                assert int(model.item_ids_.encode([item])[0]) in best[row]
    assert frame.drop("gamma_max").equals(model.recommend(users, 5, exclude_seen=False))


def test_models_without_a_path_and_settings_without_least_squares_are_refused(world) -> None:
    with pytest.raises(InputError, match="path along Γ"):
        Recommender("bias").fit(world.data).recommend([0], stable=True)
    with pytest.raises(InputError, match="solved by least squares"):
        Recommender("spectrum", backbone="mf-mlp", **SMALL).fit(world.data)


def log_of_likes() -> tuple[pl.DataFrame, np.ndarray]:
    """60 users in two groups, who like items of their own group nine times out of ten."""
    chance = np.where(np.arange(60)[:, None] % 2 == np.arange(40)[None, :] % 2, 0.27, 0.03)
    user, item = np.nonzero(np.random.default_rng(0).random(chance.shape) < chance)
    return pl.DataFrame({"user_id": user, "item_id": item}), chance


def test_likes_alone_give_all_rank_and_the_report_says_so(tmp_path) -> None:
    data = Dataset.from_frame(log_of_likes()[0])
    model, plain = (
        Recommender(method, dim=4, rng=0).fit(data) for method in ("spectrum", "all-rank")
    )
    np.testing.assert_allclose(dense(model), dense(plain), atol=1e-4)
    assert "likes only" in model.report_["spectrum"]["prior_because"]
    assert "validation" not in model.report_ | plain.report_  # no row of a log of likes is held out
    with pytest.raises(InputError, match="rating levels"):
        model.recommend([0], stable=True)


def test_uniform_rows_beside_likes_are_used() -> None:
    likes, chance = log_of_likes()
    rng = np.random.default_rng(1)
    pair = rng.permutation(chance.size)[:1200]
    liked = (rng.random(1200) < 3.0 * chance.ravel()[pair]).astype(int)
    uniform = pl.DataFrame({"user_id": pair // 40, "item_id": pair % 40, "rating": liked})
    data = Dataset.from_frame(likes, uniform)
    model, plain = (
        Recommender(method, dim=4, rng=0).fit(data) for method in ("spectrum", "all-rank")
    )
    truth = np.minimum(3.0 * chance, 1.0)
    assert np.mean((dense(model) - truth) ** 2) < 0.95 * np.mean((dense(plain) - truth) ** 2)
    seen = likes["user_id"].to_numpy(), likes["item_id"].to_numpy()
    assert dense(model)[seen].max() < 1.5, (
        "a pair that is known to be liked is not sent far beyond that"
    )


def test_a_log_of_few_rows_without_features_or_uniform_rows_is_enough() -> None:
    log = pl.DataFrame(
        {"user_id": list("aabbcc"), "item_id": list("xyxzyz"), "rating": [5, 4, 4, 2, 5, 1]}
    )
    model = Recommender(rng=0).fit(Dataset.from_frame(log, scale=(1, 5)))
    assert np.isfinite(model.predict(["a", "b"], ["z", "y"])).all()
    assert model.recommend(["a"], 2, stable=True)["item_id"].to_list() == ["z"]


def test_what_is_saved_gives_the_same_stable_recommendations(model, tmp_path) -> None:
    model.save(tmp_path / "m")
    users = model.user_ids_.ids[:5]
    again = Recommender.load(tmp_path / "m")
    assert again.recommend(users, 4, stable=True).equals(model.recommend(users, 4, stable=True))


def test_the_report_says_what_the_mixture_found(model) -> None:
    notes = model.report_["spectrum"]
    assert set(notes["deviations"]) == {
        *("level", "members", "exposure", "slope", "personal", "users", "items", "noise")
    }
    assert notes["effective_draws"] > 20
    assert notes["rank"] <= 48
    assert 0.99 < notes["kept_by_compression"] <= 1.0
    rows = int(notes["calibrated_on"].split()[0].replace(",", ""))
    assert model.report_["validation"] == pytest.approx(notes["log_evidence"] / rows, abs=1e-4)


def test_a_given_dim_has_sixteen_columns_more() -> None:
    data = simulate("mixed", 120, 100, density=0.15, n_uniform=500, rng=0).data
    settings = {"backbone": "mf", "l2": 1e-3, "epochs": 5, "rng": 0}
    for dim, columns in ((40, 56), (4, 48)):
        model = Recommender("spectrum", dim=dim, **settings).fit(data)
        assert model.user_factors_.shape[1] == columns


def test_where_uniform_ratings_are_higher_scores_go_up_and_where_lower_down() -> None:
    """The mirrored log has the mirrored scores: the sign of selection is read from the uniform
    rows, by no rule."""
    usual = simulate("pair", 80, 40, density=0.15, n_uniform=3_000, rng=0).data
    moves = []
    for rating in (pl.col("rating"), 6 - pl.col("rating")):
        frames = (
            rows.to_frame().select("user_id", "item_id", rating=rating)
            for rows in (usual.logged, usual.uniform)
        )
        data = Dataset.from_frame(*frames, scale=(1, 5))
        own, naive = (Recommender(name, **SMALL).fit(data) for name in ("spectrum", "mf"))
        moves.append(float(np.mean(dense(own) - dense(naive))))
    assert moves[0] < -0.02
    assert moves[1] > 0.02
    assert moves[0] == pytest.approx(-moves[1], abs=0.03)


def test_names_of_users_and_items_decide_neither_folds_nor_exposure_factors(world) -> None:
    """Rows of a renamed log come in the same random order, and their exposure scores are the
    same."""
    rng = np.random.default_rng(5)
    users, items = rng.permutation(80), rng.permutation(40)
    log = world.data.logged.to_frame().select("user_id", "item_id", "rating")
    user, item = (log[name].to_numpy() for name in ("user_id", "item_id"))
    renamed = pl.DataFrame(
        {"user_id": users[user], "item_id": items[item], "rating": log["rating"]}
    )
    found = []
    for frame in (log, renamed.sample(fraction=1.0, shuffle=True, seed=1)):
        data = Dataset.from_frame(frame, scale=(1, 5), unknown_ids="keep")
        split = data.split("rd", 0)
        whole = replace(split, train=data.logged.labelled(split.protocol))
        ratings = Prepared.of(data, whole, Settings.of("spectrum", dim=3)).log.ratings
        row = data.user_ids.decode(whole.train.user), data.item_ids.decode(whole.train.item)
        order = label_free_order(ratings)
        scores = exposure_scores(ratings)
        at = [np.asarray(ids.ids).argsort() for ids in (data.user_ids, data.item_ids)]
        tiles = {name: one.tile().numpy()[np.ix_(*at)] for name, one in scores.items()}
        found.append((np.column_stack([np.asarray(ids) for ids in row])[order], tiles))
    (rows, scores), (moved_rows, moved_scores) = found
    np.testing.assert_array_equal(
        np.column_stack([users[rows[:, 0]], items[rows[:, 1]]]), moved_rows
    )
    for name, tile in scores.items():
        np.testing.assert_allclose(moved_scores[name][np.ix_(users, items)], tile, atol=1e-5)


def test_exposure_scores_are_cut_at_their_ranks(world) -> None:
    prepared = Prepared.of(world.data, world.data.split("rd", 0), Settings.of("spectrum", dim=3))
    found = exposure_scores(prepared.log.ratings)
    assert list(found) == [f"exposure {rank}" for rank in (COARSE, RANK, FINE)] + [
        RATED,
        FINE_RATED,
    ]
    whole = found[f"exposure {FINE}"].lefts[0]
    assert whole.shape[1] == 38  # 40 items; the leading direction is off
    for rank in (COARSE, RANK):
        own = found[f"exposure {rank}"].lefts[0]
        np.testing.assert_array_equal(own.numpy(), whole[:, : rank - 1].numpy())


def test_the_level_of_users_is_their_shrunk_mean_rating(world) -> None:
    prepared = Prepared.of(world.data, world.data.split("rd", 0), Settings.of("spectrum", dim=3))
    values = {name: value for _, name, value in modulators(prepared)}
    user, target = prepared.rows.user, prepared.log.target(prepared.rows)
    count, total = np.bincount(user, minlength=80), np.bincount(user, target, 80)
    shrunk = (total + 10.0 * target.mean()) / (count + 10.0)
    np.testing.assert_allclose(
        values["user level"], np.clip((shrunk - shrunk.mean()) / shrunk.std(), -3, 3), rtol=1e-5
    )


@pytest.mark.parametrize("uniform", [True, False])
def test_other_names_and_orders_give_the_same_scores(world, uniform) -> None:
    """Users, items and rows under other names and in another order: no score moves by more than
    1e-4."""
    data, rng = world.data, np.random.default_rng(6)
    to = {
        "user_id": rng.permutation(data.n_users) + 7,
        "item_id": rng.permutation(data.n_items) + 3,
    }
    at = {
        "user_id": np.argsort(data.user_ids.ids.to_numpy()),
        "item_id": np.argsort(data.item_ids.ids.to_numpy()),
    }

    def renamed(frame: pl.DataFrame | None) -> pl.DataFrame | None:
        if frame is None:
            return None
        names = {key: to[key][at[key][frame[key].to_numpy()]] for key in at if key in frame.columns}
        return frame.with_columns(**names).sample(fraction=1.0, shuffle=True, seed=2)

    frames = [
        rows.to_frame().select("user_id", "item_id", "rating")
        for rows in (data.logged, data.uniform)
    ]
    tables = {"users": data.users, "items": data.items}
    models = []
    for change in (lambda frame: frame, renamed):
        log, drawn = (change(frame) for frame in frames)
        sides = {name: change(table) for name, table in tables.items()}
        own = Dataset.from_frame(
            log, drawn if uniform else None, scale=(1, 5), unknown_ids="keep", **sides
        )
        split = own.split("rd", 0)
        none = split.test.take(np.zeros(len(split.test), bool))
        whole = replace(
            split,
            train=own.logged.labelled(split.protocol),
            test=none,
            validation=none,
            propensity=None,
        )
        if uniform:
            whole = replace(whole, propensity=own.uniform.labelled(split.protocol))
        models.append(Recommender(rng=0).fit(own, whole))
    user, item = (np.repeat(np.arange(80), 40), np.tile(np.arange(40), 80))
    first = models[0].predict(user, item, scale="unit")
    other = models[1].predict(
        *(to[key][at[key][code]] for key, code in (("user_id", user), ("item_id", item))),
        scale="unit",
    )
    np.testing.assert_allclose(first, other, atol=1e-4)

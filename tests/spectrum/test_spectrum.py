from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.scores.low_rank import LowRank
from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.model import Recommender
from puidrec.sensitivity.sign_check import CLEAR_T
from puidrec.settings import Settings
from puidrec.spectrum import blend
from puidrec.spectrum.from_log import RANKS, RATED, RATED_RANKS, exposure_scores, modulators
from puidrec.spectrum.mixture import Interval
from puidrec.spectrum.terms import Term, compress
from puidrec.methods.prepare import Prepared

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


def test_compression_keeps_weighted_sums_and_reports_what_it_lost() -> None:
    draw = np.random.default_rng(0)

    def term(width, **rest):
        sides = (torch.from_numpy(draw.standard_normal((n, width))).float() for n in (30, 20))
        return Term("x", LowRank.of(*sides), **rest)

    terms = [term(3, weight=0.5), term(2, user_scale=draw.standard_normal(30)), term(4, item_scale=np.ones(20) * 2)]
    whole = sum((t.left @ t.right.T).numpy() for t in terms)
    np.testing.assert_allclose(compress(terms).scores.tile().numpy(), whole, atol=2e-3)
    few = compress(terms, most=4)
    error = np.sum((few.scores.tile().numpy() - whole) ** 2) / np.sum(whole**2)
    assert few.lost == pytest.approx(error, rel=1e-3)
    strength = np.linalg.svd(whole)[1]
    assert error == pytest.approx(np.sum(strength[4:] ** 2) / np.sum(strength**2), rel=1e-3)


def test_rows_that_calibrate_are_uniform_outside_the_log_and_reported(world, model) -> None:
    split = world.data.split("rd", 0)
    most = len(split.propensity) + len(split.validation)
    rows = int(model.report_["spectrum"]["calibrated_on"].split()[0])
    assert 0 < rows <= most
    assert model.report_["uniform_rows_used"] == f"mixing weights ({rows} rows)"


def test_without_uniform_rows_and_evidence_it_is_mf(world) -> None:
    data = Dataset.from_frame(world.data.logged.to_frame().select("user_id", "item_id", "rating"), scale=(1, 5))
    split = data.split("rd", 0)
    model = Recommender("spectrum", backbone="mf", **SMALL).fit(data, split)
    naive = Recommender("mf", backbone="mf", **SMALL).fit(data, split)
    notes = model.report_["spectrum"]
    assert model.report_["uniform_rows_used"] == "none"
    assert notes["prior"] == ("mild" if notes["sign_check"]["t"] > CLEAR_T else "mf")
    if "weights" not in notes and notes["prior"] == "mf":
        np.testing.assert_allclose(dense(model), dense(naive), atol=2e-3)


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
        left, right = (model.parameters_[f"path.{step}.{side}"].numpy() for side in ("left", "right"))
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
    model, plain = (Recommender(method, dim=4, rng=0).fit(data) for method in ("spectrum", "all-rank"))
    np.testing.assert_allclose(dense(model), dense(plain), atol=1e-4)
    assert "likes only" in model.report_["spectrum"]["prior_because"]
    assert model.report_["validation"] == pytest.approx(plain.report_["validation"], abs=1e-3)
    with pytest.raises(InputError, match="rating levels"):
        model.recommend([0], stable=True)


def test_uniform_rows_beside_likes_are_used() -> None:
    likes, chance = log_of_likes()
    rng = np.random.default_rng(1)
    pair = rng.permutation(chance.size)[:1200]
    liked = (rng.random(1200) < 3.0 * chance.ravel()[pair]).astype(int)
    uniform = pl.DataFrame({"user_id": pair // 40, "item_id": pair % 40, "rating": liked})
    data = Dataset.from_frame(likes, uniform)
    model, plain = (Recommender(method, dim=4, rng=0).fit(data) for method in ("spectrum", "all-rank"))
    truth = np.minimum(3.0 * chance, 1.0)
    assert np.mean((dense(model) - truth) ** 2) < 0.95 * np.mean((dense(plain) - truth) ** 2)
    seen = likes["user_id"].to_numpy(), likes["item_id"].to_numpy()
    assert dense(model)[seen].max() < 1.5, "a pair that is known to be liked is not sent far beyond that"


def test_a_log_of_few_rows_without_features_or_uniform_rows_is_enough() -> None:
    log = pl.DataFrame({"user_id": list("aabbcc"), "item_id": list("xyxzyz"), "rating": [5, 4, 4, 2, 5, 1]})
    model = Recommender(rng=0).fit(Dataset.from_frame(log, scale=(1, 5)))
    assert np.isfinite(model.predict(["a", "b"], ["z", "y"])).all()
    assert model.recommend(["a"], 2, stable=True)["item_id"].to_list() == ["z"]


def test_what_is_saved_gives_the_same_stable_recommendations(model, tmp_path) -> None:
    model.save(tmp_path / "m")
    users = model.user_ids_.ids[:5]
    again = Recommender.load(tmp_path / "m")
    assert again.recommend(users, 4, stable=True).equals(model.recommend(users, 4, stable=True))


def test_trials_are_judged_by_leave_one_out_on_the_rows_that_calibrate(world, model) -> None:
    notes, split = model.report_["spectrum"], world.data.split("rd", 0)
    naive = Recommender("mf", **SMALL).fit(world.data)
    rows = [(part.user, part.item, world.data.scale.unit(part.rating)) for part in (split.propensity, split.validation)]
    user, item, target = (np.concatenate(column) for column in zip(*rows, strict=True))
    error = np.mean((dense(naive)[user, item] - target) ** 2)
    assert -model.report_["validation"] == pytest.approx(error, rel=0.25)
    assert -model.report_["validation"] < error or notes["alpha"] is None


def test_members_that_order_the_items_of_users_worse_are_left_out(world, monkeypatch) -> None:
    """Whatever they gain in squared error: the order is then that of the prior."""
    long = {**SMALL, "epochs": 500, "backbone": "mf"}
    naive = Recommender("mf", **long).fit(world.data)
    worse = Interval(-0.02, -0.03, -0.01)
    monkeypatch.setattr(blend, "rank_gain", lambda *scores: worse)
    monkeypatch.setattr(blend, "CLEAR_MEAN", np.inf)  # so that the prior is mf
    model = Recommender("spectrum", **long).fit(world.data)
    notes = model.report_["spectrum"]
    assert notes["members"].startswith("left out")
    assert set(notes.get("weights", {})) <= {"prior", "one"}
    scale, level = np.polyfit(dense(naive).ravel(), dense(model).ravel(), 1)
    assert scale > 0
    np.testing.assert_allclose(dense(model), scale * dense(naive) + level, atol=5e-3)


def test_a_member_that_orders_clearly_better_is_the_prior(world, monkeypatch) -> None:
    def gain(user, liked, score, base):
        return Interval(0.02, 0.015, 0.025) if liked.any() and next(calls) == "ips" else Interval(0.0, -0.01, 0.01)

    names = ["bias", "mf", "ips"]
    calls = iter([*names, *["none"] * 50])
    monkeypatch.setattr(blend, "rank_gain", gain)
    notes = Recommender("spectrum", **SMALL).fit(world.data).report_["spectrum"]
    assert notes["prior"] == "ips"
    assert "orders the items of users best" in notes["prior_because"]


def test_where_uniform_ratings_are_higher_the_path_pulls_unseen_ratings_up(monkeypatch) -> None:
    """The mirrored log has the mirrored path: which sign selection has is read from the uniform rows."""
    usual = simulate("pair", 80, 40, density=0.15, n_uniform=3_000, rng=0).data
    own, seen = blend._ingredients, []
    monkeypatch.setattr(blend, "_ingredients", lambda *given: seen.append(own(*given)) or seen[-1])
    words = []
    for rating in (pl.col("rating"), 6 - pl.col("rating")):
        frames = (rows.to_frame().select("user_id", "item_id", rating=rating) for rows in (usual.logged, usual.uniform))
        notes = Recommender("spectrum", **SMALL).fit(Dataset.from_frame(*frames, scale=(1, 5))).report_["spectrum"]
        words.append(notes["prior_because"])
    assert "avoid" not in words[0]
    assert "avoid what they like" in words[1]
    down, up = ({name: float(m.tile().mean()) for name, m in given.members.items()} for given in seen)
    for name in ("mild", "Γ 3", "all-rank"):
        assert down[name] < down["mf"]
        assert up[name] > up["mf"]
        assert up[name] == pytest.approx(1.0 - down[name], abs=0.05)


def test_exposure_scores_are_cut_at_their_ranks_and_the_finest_keeps_all(world) -> None:
    prepared = Prepared.of(world.data, world.data.split("rd", 0), Settings.of("spectrum", dim=3))
    found = exposure_scores(prepared.log.ratings, 0)
    ranks = [min(rank, 39) for rank in RANKS], [min(rank, 39) for rank in RATED_RANKS]
    assert list(found.named) == [f"exposure {r}" for r in ranks[0]] + [f"{RATED} {r}" for r in ranks[1]]
    assert found.personal == [f"exposure {ranks[0][-1]}", f"{RATED} {ranks[1][0]}"]
    whole = found.named[f"{RATED} {ranks[1][-1]}"]
    np.testing.assert_allclose(whole.tile().numpy(), found.rated.tile().numpy())


def test_the_level_of_users_is_their_shrunk_mean_rating(world) -> None:
    prepared = Prepared.of(world.data, world.data.split("rd", 0), Settings.of("spectrum", dim=3))
    values = {name: value for _, name, value in modulators(prepared)}
    user, target = prepared.rows.user, prepared.log.target(prepared.rows)
    count, total = np.bincount(user, minlength=80), np.bincount(user, target, 80)
    shrunk = (total + 10.0 * target.mean()) / (count + 10.0)
    np.testing.assert_allclose(values["user level"], np.clip((shrunk - shrunk.mean()) / shrunk.std(), -3, 3), rtol=1e-5)

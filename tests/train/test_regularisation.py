from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from puidrec.train.regularisation import (
    GROWING,
    LEAST_SHARE,
    MOST,
    SHARE,
    USEFUL,
    Noise,
    centred,
    exposure_noise,
    feature_excess,
    half_slope,
    largest_singular_value,
    measure_noise,
    relaxed_share,
    whole_space_biases,
)
from puidrec.train.regularisation import noise_like as noises_of

import puidrec as pr
from puidrec.data.row_matrix import RowMatrix
from puidrec.losses.pointwise import pointwise_error
from puidrec.methods.prepare import Prepared
from puidrec.scores.features import Design
from puidrec.scores.sparse import LogPattern
from puidrec.settings import Settings


def log(seed=0, shape=(60, 80), density=0.3, signal=0.0, taste=None) -> RowMatrix:
    """Noise on a random pattern, plus a low-rank signal."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random(shape) < density)
    values = rng.standard_normal(user.size)
    taste = rng.standard_normal(shape[0]) if taste is None else taste
    values += signal * (taste[:, None] * rng.standard_normal(shape[1]))[user, item]
    return RowMatrix.of(sp.csr_matrix((values, (user, item)), shape=shape))


def dense(matrix: RowMatrix) -> np.ndarray:
    """All of it."""
    return np.concatenate([part.matrix.toarray() for part in matrix.parts()])


def design(x: np.ndarray) -> Design:
    """A dense matrix as features."""
    rows, columns = np.indices(x.shape)
    pattern = LogPattern.from_pairs(rows.ravel(), columns.ravel(), *x.shape)
    return Design(pattern, torch.from_numpy(x.ravel().astype(np.float32)))


@pytest.mark.parametrize(("share", "grows"), [(0.9, True), (1.1, False)])
def test_vectors_grow_just_below_the_edge_of_their_slopes(share, grows) -> None:
    """The identity behind it all: L2 at √(users · items) · σ₁(E) is where z = 0 stops being a minimum."""
    slopes = log(1, (12, 9), 0.6)
    n_users, n_items = slopes.shape
    target = torch.from_numpy(-dense(slopes) * slopes.nnz)
    seen = torch.from_numpy(dense(slopes) != 0)
    l2 = share * np.sqrt(n_users * n_items) * largest_singular_value(slopes)
    torch.manual_seed(0)
    z, w = (torch.full((n, 3), 1e-3, dtype=torch.float64).normal_(0, 1e-3).requires_grad_() for n in slopes.shape)
    optimizer = torch.optim.LBFGS([z, w], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14)

    def loss():
        optimizer.zero_grad()
        value = ((z @ w.T - target).square() * seen).sum() / slopes.nnz
        value = value + l2 * (z.square().sum() / n_users + w.square().sum() / n_items)
        value.backward()
        return value

    optimizer.step(loss)
    assert (float((z @ w.T).detach().abs().max()) > 0.05) is grows


def test_noise_keeps_the_size_of_every_pair_and_nothing_of_its_sign() -> None:
    slopes = log(2)
    (noise, *_) = noises_of(slopes, 0)
    raw = np.abs(slopes.values).sum()
    assert np.array_equal(noise.item, slopes.item)
    assert np.abs(noise.values).sum() == pytest.approx(raw, rel=0.05)
    assert abs(np.corrcoef(noise.values, slopes.values)[0, 1]) < 0.15
    for axis in (0, 1):
        assert np.abs(dense(noise).sum(axis=axis)).max() < 0.05


def test_noise_is_told_from_signal() -> None:
    edges = [measure_noise(log(s), None, None, 0).edge / np.sqrt(60 * 80) for s in range(4)]
    own = [largest_singular_value(centred(log(s))) for s in range(4)]
    np.testing.assert_allclose(edges, own, rtol=0.1)  # where all is noise, the log is at its edge
    strong = log(0, signal=2.0)
    assert largest_singular_value(centred(strong)) > 1.4 * measure_noise(strong, None, None, 0).edge / np.sqrt(60 * 80)


def test_more_ratings_need_less() -> None:
    """The mean loss averages noise out: its edge falls as the root of the ratings per entity."""
    sparse, full = (measure_noise(_scaled(log(3, density=d)), None, None, 0).edge for d in (0.1, 0.9))
    assert full == pytest.approx(sparse / 3.0, rel=0.25)


def _scaled(slopes: RowMatrix) -> RowMatrix:
    return slopes.map(lambda part: part.values / slopes.nnz)


def test_the_excess_of_features_by_hand() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32).astype(np.float64)
    slopes = centred(log(4, signal=0.5, taste=x[:, 0]))
    noises = list(noises_of(slopes, 0))
    unit = x / np.sqrt((x**2).mean(0))
    energy = [((unit.T @ dense(part)) ** 2).sum() for part in (slopes, *noises)]
    expected = energy[0] / np.mean(energy[1:]) - 1.0
    assert feature_excess(slopes, noises, design(x), "user") == pytest.approx(expected, rel=1e-4)
    turned = [RowMatrix.of(sp.csr_matrix(dense(part).T)) for part in (slopes, *noises)]
    assert feature_excess(turned[0], turned[1:], design(x), "item") == pytest.approx(expected, rel=1e-4)
    assert expected > 2 * USEFUL
    useless = rng.standard_normal((60, 3))
    assert abs(feature_excess(slopes, noises, design(useless), "user") or 0.0) < 0.5 * expected
    assert feature_excess(slopes, noises, None, "user") is None


@pytest.mark.parametrize("loss", ["squared", "absolute", "cross-entropy"])
@pytest.mark.parametrize("signed", [False, True])
def test_slopes_are_half_the_derivative(loss, signed) -> None:
    error = pointwise_error(loss, "signed" if signed else "unit")
    score = torch.tensor([-1.5, -0.2, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, -1.0, 1.0, -1.0] if signed else [1.0, 0.0, 0.25, 0.0], dtype=torch.float64)
    error(score, target).sum().backward()
    residual = (error.to_target(score) - target).detach().numpy()
    np.testing.assert_allclose(half_slope(residual, loss, signed=signed), 0.5 * score.grad.numpy(), rtol=1e-9)


excesses = st.none() | st.floats(-0.5, 5.0)


@given(st.floats(0, 10), excesses, excesses, st.floats(0.1, 5), st.floats(0.1, 5))
def test_factors_are_at_most_one_for_ids_and_at_least_one_for_features(edge, users, items, one, two):
    noise = Noise(edge, users, items)
    light, heavy = (noise.penalty_factors(0.1, load) for load in sorted((one, two)))
    assert light.ids <= heavy.ids <= SHARE * MOST * max(one, two, 1.0) * (1.0 + 1e-12)
    for excess, lighter, heavier in ((users, light[1], heavy[1]), (items, light[2], heavy[2])):
        assert 1.0 <= lighter <= heavier
        if excess is None or excess >= USEFUL:
            assert heavier == 1.0
    if 0 < edge < 0.1 * MOST:
        assert noise.penalty_factors(0.1, one).ids == pytest.approx(SHARE * edge * one / 0.1)


def test_a_flat_log_has_no_edge_and_keeps_the_settings() -> None:
    flat = sp.csr_matrix((np.zeros(3), ([0, 1, 1], [0, 0, 1])), shape=(2, 2))
    assert measure_noise(RowMatrix.of(flat), None, None, 0).penalty_factors(0.1)[:3] == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("name", "low", "high"), [("coat", 0.10, 0.125), ("kuairec", 0.035, 0.040)])
def test_the_edge_of_real_logs(name, low, high, data_root) -> None:
    data = pr.load_dataset(name, data_root / name)
    noise = Prepared.of(data, data.split("rd", 0), Settings.of("mf")).log.noise
    assert low < noise.edge < high
    factors = noise.penalty_factors(0.1)
    assert factors.ids == pytest.approx(SHARE * noise.edge / 0.1)
    assert (factors.user_features == 1.0) is (name == "coat")  # KuaiRec's user features say little of taste


@pytest.mark.parametrize("true", [(2.0,), (4.0, 3.0), (1.3, 1.2), (20.0, 8.0)])
def test_what_l2_takes_off_is_the_best_for_columns_in_noise(true) -> None:
    """Known columns in a matrix of noise: of all thresholds, the rule's is about the best in squared error."""
    n, errors, thresholds = 300, [], np.linspace(0.0, 1.0, 51)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        left, right = (np.linalg.qr(rng.standard_normal((n, len(true))))[0] for _ in range(2))
        truth = left * np.array(true) @ right.T
        p, y, q = np.linalg.svd(truth + rng.standard_normal((n, n)) / np.sqrt(n))  # the edge of this noise is 2
        kept = y > 2.0
        errors.append([
            np.sum(((p[:, kept] * np.maximum(y[kept] - 2.0 * share, 0.0)) @ q[kept] - truth) ** 2)
            for share in (*thresholds, relaxed_share(y / 2.0))
        ])  # fmt: skip
    mean = np.mean(errors, 0)
    assert mean[-1] <= 1.05 * mean[:-1].min()
    assert mean[-1] < (0.8 if max(true) > 1.5 else 0.95) * mean[-2], "a threshold at the edge itself takes too much"


@pytest.mark.parametrize("y", [2.05, 2.5, 4.0, 9.0])
@pytest.mark.parametrize("near", [0.05, 0.2])
def test_with_an_l2_towards_the_fit_at_the_edge_a_column_is_as_long_as_without(y, near) -> None:
    """The lowest t of (y − t)²/2 + 2 share · t + 2 near · (√t − √(y − 2))² is η(y), unless the share has its least."""
    share = relaxed_share(np.array([y / 2.0]), near)
    t = np.linspace(1e-9, y, 400_001)
    objective = 0.5 * (y - t) ** 2 + 2.0 * share * t + 2.0 * near * (np.sqrt(t) - np.sqrt(y - 2.0)) ** 2
    found, best = t[np.argmin(objective)], np.sqrt(y**2 - 4.0)
    assert found == pytest.approx(best, abs=1e-3) if share > LEAST_SHARE else found < best


def test_columns_within_the_noise_leave_l2_at_its_edge() -> None:
    assert relaxed_share(np.array([0.99, 0.5])) == relaxed_share(np.zeros(0)) == 1.0
    assert relaxed_share(np.array([1.0 + 1e-9, 0.5])) == pytest.approx(1.0, abs=1e-4)
    assert relaxed_share(np.array([1e9, np.inf])) == relaxed_share(np.array([1e9, np.inf]), 0.1) == LEAST_SHARE
    shares = [relaxed_share(np.array([y])) for y in (1.01, 1.1, 1.5, 3.0)]
    assert shares == sorted(shares, reverse=True)


def test_l2_that_grows_with_rows_has_the_edge_of_the_scaled_slopes() -> None:
    """Where f times the L2 holds a vector, √f times the vector has the L2 of the others."""
    slopes, rng = log(2), np.random.default_rng(2)
    factors = tuple(rng.uniform(0.5, 3.0, n) for n in slopes.shape)
    noises = [dense(noise) for noise in noises_of(centred(slopes), 0)]
    scaled = [noise / np.sqrt(np.multiply.outer(*factors)) for noise in noises]
    largest = [np.linalg.norm(noise, 2) for noise in scaled]
    expected = np.sqrt(60 * 80) * (np.mean(largest) + 2.0 * np.std(largest, ddof=1))
    assert measure_noise(slopes, None, None, 0, factors).edge == pytest.approx(expected, rel=2e-3)


def test_the_busiest_users_and_items_do_not_set_the_l2_of_all() -> None:
    """A few busy users and popular items: an L2 for all is set by them, one that grows with rows is not."""
    rng = np.random.default_rng(0)
    chance = np.minimum(0.05 * np.multiply.outer(rng.lognormal(0, 1, 300), rng.lognormal(0, 1, 200)), 0.9)
    user, item = np.nonzero(rng.random(chance.shape) < chance)
    noise = RowMatrix.of(sp.csr_matrix((rng.standard_normal(user.size), (user, item)), shape=chance.shape))
    counts = np.bincount(user, minlength=300), np.bincount(item, minlength=200)
    factors = tuple(1.0 - GROWING + GROWING * count / count.mean() for count in counts)
    one, growing = (measure_noise(noise, None, None, 0, given).edge for given in (None, factors))
    assert growing < 0.7 * one


def chosen(chance: np.ndarray, rating: np.ndarray, seed: int) -> tuple[RowMatrix, np.ndarray]:
    """Who saw what, drawn by chance: the ratings that were seen, and where."""
    seen = np.random.default_rng(seed).random(chance.shape) < chance
    user, item = np.nonzero(seen)
    return RowMatrix.of(sp.csr_matrix((rating[seen], (user, item)), shape=chance.shape)), seen


def uneven(n_users: int, n_items: int, exposure: float) -> tuple[np.ndarray, np.ndarray]:
    """Busy users and popular items, and ratings of a few levels above 0."""
    rng = np.random.default_rng(3)
    chance = rng.gamma(2.0, size=(n_users, 1)) * rng.gamma(2.0, size=n_items)
    return np.minimum(exposure * chance / chance.mean(), 0.9), rng.choice([0.25, 0.5, 1.0], (n_users, n_items))


@pytest.mark.parametrize("low", [0.0, 1.0])
def test_biases_over_all_pairs_are_those_of_a_dense_regression(low) -> None:
    ratings, seen = chosen(*uneven(9, 7, 0.3), 0)
    n_users, n_items = seen.shape
    weight = np.where(seen, 1.0 / seen.sum(), 2.0 / (~seen).sum()).ravel()
    target = np.where(seen, dense(ratings) - low, 0.0).ravel()
    x = np.hstack([np.repeat(np.eye(n_users), n_items, 0), np.tile(np.eye(n_items), (n_users, 1)), np.ones((63, 1))])
    penalty = np.diag([0.1 / n_users] * n_users + [0.1 / n_items] * n_items + [0.0])
    exact = x @ np.linalg.solve(x.T @ (weight[:, None] * x) + penalty, x.T @ (weight * target))
    users, items = whole_space_biases(ratings, 2.0, low, 0.1)
    np.testing.assert_allclose((users[:, None] + items).ravel(), exact, atol=1e-3)


def test_exposure_noise_is_that_of_drawing_anew_who_saw_what() -> None:
    """N: slopes of all pairs at fixed scores, less their mean over draws."""
    chance, rating = uneven(300, 250, 0.06)
    l2, draws, n = 0.1, 30, chance.sum()
    ratings, _ = chosen(chance, rating, 0)
    users, items = whole_space_biases(ratings, 1.0, 0.0, l2)
    scores = users[:, None] + items
    slopes = np.stack([
        np.where(chosen(chance, rating, 1 + k)[1], (scores - rating) / n, scores / (chance.size - n))
        for k in range(draws)
    ])  # fmt: skip
    singular = np.linalg.svd(slopes - slopes.mean(0), compute_uv=False)
    drawn = np.sqrt(chance.size) * np.sqrt(np.mean(singular**2) * draws / (draws - 1))
    measured = np.mean([exposure_noise(chosen(chance, rating, k)[0], 1.0, 0.0, l2) for k in range(3)])
    assert measured == pytest.approx(drawn, rel=0.1)


def test_exposure_noise_falls_with_ratings_per_user_and_not_with_more_users() -> None:
    chance, rating = uneven(120, 120, 0.05)
    small = exposure_noise(chosen(chance, rating, 0)[0], 1.0, 0.0, 0.1)
    tiled = np.tile(chance, (4, 1)), np.tile(rating, (4, 1))
    assert exposure_noise(chosen(*tiled, 1)[0], 1.0, 0.0, 0.1) == pytest.approx(small, rel=0.1)
    four_times = chosen(np.minimum(4.0 * chance, 0.9), rating, 2)[0]
    assert exposure_noise(four_times, 1.0, 0.0, 0.1) == pytest.approx(small / 2.0, rel=0.2)


def test_a_log_of_likes_has_noise_of_exposure_though_its_ratings_have_none() -> None:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((50, 40)) < 0.1)
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))
    prepared = Prepared.of(data, data.split("rd", 0, select="none"), Settings.of("all-rank"))
    assert prepared.log.noise.edge < 1e-9
    assert 1.0 < prepared.penalty_factors_unseen(0.0).ids < 5.0
    given = Prepared.of(data, data.split("rd", 0, select="none"), Settings.of("all-rank", l2_vectors=0.7))
    assert given.penalty_factors_unseen(0.0).ids == 0.7

"""The mixture against brute force, against draws from its own model, and under other orders and
names."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.methods.spectrum import mixture
from puidrec.methods.spectrum.mixture import HIDDEN, RATIOS, SCALES, Codes, fit_mixture

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(rng, n=60, users=25, items=12, widths=(("level", 1), ("members", 4), ("exposure", 2))):
    """Rows of the mixture's own model, the coefficients behind them, and their effects."""
    columns = {
        name: np.ones((n, 1)) if name == "level" else rng.standard_normal((n, k))
        for name, k in widths
    }
    sd = {name: abs(rng.normal(0.0, scale)) for name, scale in SCALES.items()}
    hidden = rng.choice(HIDDEN)
    sd |= {name: hidden * sd[name] for name, _ in widths}
    beta = np.concatenate([sd[name] / np.sqrt(k) * rng.standard_normal(k) for name, k in widths])
    user, item = rng.integers(users, size=n), rng.integers(items, size=n)
    a, b = sd["users"] * rng.standard_normal(users), sd["items"] * rng.standard_normal(items)
    x = np.column_stack([*columns.values()])
    y = x @ beta + a[user] + b[item] + sd["noise"] * rng.standard_normal(n)
    return columns, y, user, item, beta, a, b


def expected(found, x, user, item):
    return x @ found.coefficient + found.sides[0].mean[user] + found.sides[1].mean[item]


def variance(found, x, user, item):
    """Of that expectation, without the noise."""
    x = x - found.sides[0].slope[user] - found.sides[1].slope[item]
    own = found.sides[0].variance[user] + found.sides[1].variance[item]
    return np.einsum("rk,kl,rl->r", x, found.covariance, x) + own


def dense_posterior(columns, y, user, item, sizes, sds):
    """Mean of coefficients and effects for given standard deviations by dense matrices, and the log
    likelihood."""
    z = [np.eye(size)[code] for size, code in zip(sizes, (user, item), strict=True)]
    x = np.column_stack([*columns.values(), *z])
    prior = np.concatenate(
        [
            *(np.full(v.shape[1], sds[name] ** 2 / v.shape[1]) for name, v in columns.items()),
            np.full(sizes[0], sds["users"] ** 2),
            np.full(sizes[1], sds["items"] ** 2),
        ]
    )
    v = sds["noise"] ** 2 * np.eye(y.size) + (x * prior) @ x.T
    gain = prior[:, None] * x.T @ np.linalg.inv(v)
    log_likelihood = -0.5 * (y @ np.linalg.solve(v, y) + np.linalg.slogdet(2.0 * np.pi * v)[1])
    return gain @ y, np.diag(prior) - gain @ x * prior, log_likelihood


def test_given_the_deviations_it_is_the_dense_gaussian_posterior() -> None:
    rng = np.random.default_rng(0)
    columns, y, user, item, *_ = drawn(rng)
    sigma = 0.2
    sds = {"level": 0.2, "members": 0.05, "exposure": 0.1}
    sds |= {"users": RATIOS[3] * sigma, "items": RATIOS[2] * sigma, "noise": sigma}
    log_ratio = np.log([[sds[name] / sigma for name in (*columns, "users", "items")]])
    mean, covariance, log_likelihood = dense_posterior(columns, y, user, item, (25, 12), sds)
    rows = mixture.Rows(
        np.column_stack([*columns.values(), y]), Codes(user, item, (25, 12)), np.ones(y.size)
    )
    widths = {name: x.shape[1] for name, x in columns.items()}
    regression = mixture.Regression(rows, y.size, widths)
    given = regression.given(log_ratio)
    own = given.quadratic / sigma**2 + given.log_det + y.size * np.log(2.0 * np.pi * sigma**2)
    assert -0.5 * own[0] == pytest.approx(log_likelihood, rel=1e-9)
    found = regression.posterior(
        mixture.Draws(log_ratio, np.log([sigma]), np.zeros(1), given.mean, given.covariance)
    )
    np.testing.assert_allclose(found.coefficient, mean[:7], atol=1e-10)
    np.testing.assert_allclose(found.sides[0].mean, mean[7:32], atol=1e-10)
    np.testing.assert_allclose(found.sides[1].mean, mean[32:], atol=1e-10)
    x = np.column_stack([*columns.values()])
    whole = np.column_stack([x, np.eye(25)[user], np.eye(12)[item]])
    exact = np.einsum("rk,kl,rl->r", whole, covariance, whole)
    np.testing.assert_allclose(expected(found, x, user, item), whole @ mean, atol=1e-10)
    # of user and item effects only the covariance with each other is left out
    np.testing.assert_allclose(variance(found, x, user, item), exact, rtol=0.3)
    np.testing.assert_allclose(np.diag(found.covariance), np.diag(covariance)[:7], rtol=1e-8)


def test_deviations_are_averaged_as_brute_force_does() -> None:
    """Quadrature over all standard deviations of a tiny case, with those of users and items on
    finer grids."""
    rng = np.random.default_rng(1)
    n = 30
    columns = {"level": np.ones((n, 1))}
    user, item = rng.integers(5, size=n), rng.integers(4, size=n)
    y = 0.1 + np.array([-0.15, -0.05, 0.0, 0.05, 0.1])[user] + 0.2 * rng.standard_normal(n)
    grids = {
        "level": np.geomspace(0.001, 1.2, 22),
        "noise": np.geomspace(0.12, 0.35, 16),
        "users": np.linspace(0.0, 0.24, 11),
        "items": np.linspace(0.0, 0.16, 9),
    }
    total, mean, sd = 0.0, 0.0, dict.fromkeys(grids, 0.0)
    weights = {name: np.gradient(grid) for name, grid in grids.items()}
    for at in np.ndindex(*(grid.size for grid in grids.values())):
        sds = {name: grid[k] for (name, grid), k in zip(grids.items(), at, strict=True)}
        ends = [
            1.0 if name in ("level", "noise") or k else 0.5
            for name, k in zip(grids, at, strict=True)
        ]
        scaled = np.array([sds[name] / SCALES[name] for name in grids])
        prior = np.exp(-0.5 * scaled[1:] @ scaled[1:]) * np.prod(ends)
        prior *= np.mean(np.exp(-0.5 * (scaled[0] / HIDDEN) ** 2) / HIDDEN)
        found, _, log_likelihood = dense_posterior(columns, y, user, item, (5, 4), sds)
        weight = (
            prior
            * np.exp(log_likelihood)
            * np.prod([weights[m][k] for m, k in zip(grids, at, strict=True)])
        )
        total, mean = total + weight, mean + weight * found
        sd = {name: sd[name] + weight * value for name, value in sds.items()}
    own = fit_mixture(columns, y, np.random.default_rng(0), Codes(user, item, (5, 4)))
    assert own.effective_draws > 100
    assert own.coefficient[0] == pytest.approx(mean[0] / total, abs=0.006)
    np.testing.assert_allclose(own.sides[0].mean, mean[1:6] / total, atol=0.008)
    np.testing.assert_allclose(own.sides[1].mean, mean[6:] / total, atol=0.005)
    for name, value in sd.items():
        assert own.deviations[name] == pytest.approx(value / total, rel=0.12), name


def test_intervals_cover_what_its_own_model_draws() -> None:
    """Simulation-based calibration: 90 % and 50 % intervals of coefficients, new pairs and noise
    cover that share."""
    rng = np.random.default_rng(2)
    z, effective = [], []
    for _ in range(150):
        columns, y, user, item, beta, a, b = drawn(rng)
        found = fit_mixture(columns, y, rng, Codes(user, item, (25, 12)))
        effective.append(found.effective_draws)
        x = np.column_stack([np.ones(10), rng.standard_normal((10, 6))])
        u, i = rng.integers(25, size=10), rng.integers(12, size=10)
        gap = x @ beta + a[u] + b[i] - expected(found, x, u, i)
        z.append(gap / np.sqrt(variance(found, x, u, i)))
    inside = np.abs(np.concatenate(z))
    assert np.mean(inside < 1.645) == pytest.approx(0.90, abs=0.035)
    assert np.mean(inside < 0.674) == pytest.approx(0.50, abs=0.06)
    assert np.median(effective) > 150


def test_order_and_names_do_not_matter_and_a_seed_gives_the_same_again() -> None:
    columns, y, user, item, *_ = drawn(np.random.default_rng(3), n=80)

    def fit(rows, users, items):
        moved = {name: x[rows] for name, x in columns.items()}
        own = fit_mixture(
            moved,
            y[rows],
            np.random.default_rng(0),
            Codes(users[user][rows], items[item][rows], (25, 12)),
        )
        return own.coefficient, own.sides[0].mean[users], own.sides[1].mean[items]

    rng = np.random.default_rng(4)
    usual = np.arange(80), np.arange(25), np.arange(12)
    first = fit(*usual)
    for a, b in zip(first, fit(*usual), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        first, fit(rng.permutation(80), rng.permutation(25), rng.permutation(12)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_few_rows_change_little_and_many_rows_are_believed() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((20_000, 3))
    y = x @ [0.1, 0.0, -0.1] + 0.25 * rng.standard_normal(20_000)
    few, many = (
        fit_mixture({"members": x[:n]}, y[:n], np.random.default_rng(0)) for n in (5, 20_000)
    )
    assert np.abs(few.coefficient).max() < 0.05
    np.testing.assert_allclose(many.coefficient, [0.1, 0.0, -0.1], atol=0.01)
    assert many.noise == pytest.approx(0.0625, rel=0.03)


def test_known_pairs_hold_coefficients_back() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((200, 2))
    y = x @ [0.2, 0.0] + 0.1 * rng.standard_normal(200)
    free = fit_mixture({"exposure": x}, y, np.random.default_rng(0)).coefficient
    held = fit_mixture(
        {"exposure": x}, y, np.random.default_rng(0), known=(30.0 * np.eye(2), 200.0)
    ).coefficient
    assert abs(held[0]) < 0.4 * abs(free[0])


def test_entities_beyond_the_most_are_those_with_the_fewest_rows(monkeypatch) -> None:
    columns, y, user, item, *_ = drawn(np.random.default_rng(7), n=80)
    item[:40] = 0
    monkeypatch.setattr(mixture, "MOST_INNER", 5)
    found = fit_mixture(columns, y, np.random.default_rng(0), Codes(user, item, (25, 12)))
    count = np.bincount(item, minlength=12)
    assert 0 < (found.sides[1].mean != 0.0).sum() <= 5
    assert count[found.sides[1].mean != 0.0].min() > count[found.sides[1].mean == 0.0].max()

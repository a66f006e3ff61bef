from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.optimize import brentq
from scipy.special import expit, logit

from puidrec.data.simulator.population import (
    Strengths,
    hidden_from_uniform,
    hidden_nodes,
)
from puidrec.data.simulator.truth import (
    CUTS,
    HiddenMean,
    average_over_hidden,
    level_by_cuts,
    mean_by_cuts,
    pair_uniform,
    stream_key,
)
from puidrec.data.synthetic import WORLDS, Truth, simulate, simulation_options
from puidrec.errors import InputError
from puidrec.rng import mix64

CONFOUNDED = [name for name in WORLDS if name not in ("no-confounding", "awkward")]
"""Worlds in which something hidden drives exposure."""


def truth_of(world: str, n_users: int = 300, n_items: int = 300, **options: object) -> Truth:
    return Truth.from_options(simulation_options(world, n_users, n_items, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("world", CONFOUNDED)
def test_empirical_odds_ratios_match_the_stated_gamma(world: str) -> None:
    """The odds ratio of exposure to nominal odds, fitted among pairs of like φ, is exp(φ): Γ with
    its sign."""
    z, largest = [], 0.0
    for seed in range(4):
        simulation = simulate(world, 400, 300, rng=seed)
        phi, index = simulation.truth.matrix("phi"), logit(simulation.truth.matrix("propensity"))
        seen = np.zeros(phi.shape)
        seen[simulation.data.logged.user, simulation.data.logged.item] = 1
        for level in np.array_split(np.argsort(phi, axis=None, kind="stable"), 20):
            m, rows = index.flat[level], seen.flat[level].sum()
            fitted = float(
                brentq(lambda ratio, m=m, rows=rows: expit(m + ratio).sum() - rows, -6.0, 6.0)
            )
            p = expit(m + fitted)
            z.append((fitted - phi.flat[level].mean()) * np.sqrt((p * (1 - p)).sum()))
            largest = max(largest, abs(fitted))
    assert np.abs(z).max() < 4.5
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert largest > 0.5


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_nominal_propensity_is_the_mean_true_one_given_features(world: str) -> None:
    """Over populations, pairs of a cell (by nominal p) have p_true of mean p; clustered by seed for
    the traits."""
    gaps = []
    for seed in range(12):
        truth = truth_of(world, 200, 200, rng=seed)
        p, p_true = truth.matrix("propensity").ravel(), truth.matrix("true_propensity").ravel()
        cells = np.array_split(np.argsort(p), 4)
        gaps.append([(p_true[c] / p[c]).mean() - 1.0 for c in cells])
    mean, error = np.mean(gaps, axis=0), np.std(gaps, axis=0, ddof=1) / np.sqrt(len(gaps))
    assert (np.abs(mean) <= 4.5 * error + 1e-9).all()
    assert (np.abs(mean) < 0.06).all()


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_weights_lie_in_the_papers_box_with_equality(world: str) -> None:
    truth = truth_of(world, rng=3)
    p, p_true, gamma = (truth.matrix(q) for q in ("propensity", "true_propensity", "gamma"))
    a, b = 1 + (1 / p - 1) / gamma, 1 + (1 / p - 1) * gamma
    assert (1 / p_true >= a * (1 - 1e-9)).all()
    assert (1 / p_true <= b * (1 + 1e-9)).all()
    assert np.minimum(np.abs(1 / p_true / a - 1), np.abs(1 / p_true / b - 1)).max() < 1e-9
    assert truth.matrix("phi") == pytest.approx(logit(p_true) - logit(p), abs=1e-9)


def test_gamma_is_as_strong_as_promised() -> None:
    for world in CONFOUNDED:
        gamma = truth_of(world, rng=2).matrix("gamma")
        assert 1.0 <= gamma.min() < 1.05
        assert 2.5 < gamma.max() < (30.0 if WORLDS[world].heavy else 5.0)
    assert 1.3 < np.median(truth_of("mixed").matrix("gamma")) < 1.6
    assert np.all(truth_of("no-confounding").matrix("gamma") == pytest.approx(1.0, abs=1e-6))
    assert truth_of("mixed", exposure_strength=0.0).matrix("gamma") == pytest.approx(1.0, abs=1e-6)


def test_density_is_met_on_average() -> None:
    for world, density in (("mixed", 0.05), ("proportional", 0.3), ("entity", 0.002)):
        assert truth_of(world, density=density).matrix("propensity").mean() == pytest.approx(
            density, rel=1e-6
        )


@pytest.mark.parametrize("sign", [1, -1])
def test_ratings_have_the_stated_means(sign: int) -> None:
    truth = truth_of("mixed", sign=sign, rng=4)
    rating, utility, expected = (truth.matrix(q) for q in ("rating", "utility", "expected_rating"))
    assert set(np.unique(rating)) == {1, 2, 3, 4, 5}
    assert np.bincount(rating.ravel())[1:].min() > 0.03 * rating.size
    residual = rating - utility
    assert abs(residual.mean()) < 4 * residual.std() / np.sqrt(residual.size)
    for part in np.array_split(np.argsort(utility, axis=None), 10):
        assert abs(residual.flat[part].mean()) < 4.5 / np.sqrt(part.size)
    hidden = utility - expected
    phi = truth.matrix("phi")
    assert np.corrcoef(hidden.ravel(), sign * phi.ravel())[0, 1] > 0.95


def test_rating_variance_is_binomial() -> None:
    truth = truth_of("mixed", rng=4)
    rating, y = truth.matrix("rating").astype(float), truth.matrix("utility")
    q = (y - 1) / 4
    assert ((rating - y) ** 2).mean() == pytest.approx((4 * q * (1 - q)).mean(), rel=0.02)


def test_expected_rating_is_bilinear_in_the_features() -> None:
    """Ordinary least squares on [1, one-hot, numeric] ⊗ [1, one-hot, numeric] fits E[r | x] to the
    last digits."""
    simulation = simulate("half-complete", 120, 90)
    users, items = simulation.data.users, simulation.data.items
    assert users is not None
    assert items is not None
    users = users.with_columns(
        users["mood"].is_null().cast(float).alias("gone"), users["mood"].fill_null(0.0)
    )
    left = users.drop("user_id").to_dummies(["segment", "region"]).to_numpy().astype(float)
    right = items.drop("item_id").to_dummies(["genre"]).to_numpy().astype(float)
    left, right = (np.c_[np.ones(len(x)), (x - x.mean(0)) / x.std(0)] for x in (left, right))
    design = np.einsum("ua,ib->uiab", left, right).reshape(120 * 90, -1)
    target = simulation.truth.matrix("expected_rating").ravel()
    fitted = design @ np.linalg.lstsq(design, target, rcond=None)[0]
    assert np.abs(fitted - target).max() < 1e-3  # features are rounded to three digits


def test_half_complete_hides_nothing_from_complete_users() -> None:
    simulation = simulate("half-complete", 400, 100)
    assert simulation.data.users is not None
    complete = simulation.data.users["mood"].is_not_null().to_numpy()
    assert 0.4 < complete.mean() < 0.6
    phi = simulation.truth.matrix("phi")
    assert np.abs(phi[complete]).max() < 1e-6
    assert np.abs(phi[~complete]).mean() > 0.5


@pytest.mark.parametrize("sign", [1, -1])
def test_a_recorded_confounder_acts_on_complete_users_as_a_hidden_one_does_on_others(
    sign: int,
) -> None:
    """Its effect moves from φ into the features' own parts: exposure by 1.2 logits per unit, rating
    by one star."""
    users = np.arange(400)
    hidden, recorded = (
        truth_of("half-complete", 400, 50, affected_share=share, sign=sign, exposure_strength=1.2)
        for share in (1, 0)
    )
    trait = hidden.population.users.hidden
    assert recorded.population.users.frame["mood"].to_numpy() == pytest.approx(trait)
    assert hidden.population.users.frame["mood"].null_count() == 400
    assert recorded.matrix("utility") == pytest.approx(hidden.matrix("utility"))
    gap = recorded.matrix("expected_rating") - hidden.matrix("expected_rating")
    assert gap == pytest.approx(np.repeat(sign * trait[:, None], 50, axis=1))
    items = np.zeros(400, int)
    shift = logit(recorded.true_propensity(users, items)) - logit(
        hidden.true_propensity(users, items)
    )
    assert np.ptp(shift) < 1e-9  # only the intercept differs


def test_pair_world_is_stronger_for_half_of_the_users() -> None:
    strength = np.abs(truth_of("pair", 400, 200).matrix("phi")).mean(axis=1)
    assert 0.4 < (strength > 0.5).mean() < 0.6
    assert np.abs(strength - 0.5).min() > 0.1


def test_proportional_world_is_strong_where_features_inform() -> None:
    truth = truth_of("proportional", 500, 300)
    effect = truth.population.users.logit
    ratio = np.exp(effect) / np.exp(effect).mean()
    gain = ratio * np.log(ratio) - ratio + 1
    sides = truth.population
    weight = sides.strengths.user[sides.users.strength_class]
    assert np.corrcoef(np.minimum(gain, np.quantile(gain, 0.9)), weight)[0, 1] > 0.98


def test_affected_share_leaves_the_others_alone() -> None:
    truth = truth_of("entity", 400, 100, affected_share=0.25)
    shift = truth.matrix("utility") - truth.matrix("expected_rating")
    untouched = np.abs(shift).max(axis=1) == 0
    assert untouched.mean() == pytest.approx(0.75, abs=0.08)


def test_answers_do_not_depend_on_how_one_asks() -> None:
    truth = truth_of("mixed", 40, 30)
    users, items = np.divmod(np.random.default_rng(0).permutation(1200), 30)
    for quantity in (
        "propensity",
        "true_propensity",
        "phi",
        "gamma",
        "rating",
        "expected_rating",
    ):
        asked = getattr(truth, quantity)(users.astype(np.int32), items.tolist())
        assert np.array_equal(asked, truth.matrix(quantity)[users, items])  # type: ignore[arg-type]


def test_refusals() -> None:
    truth = truth_of("mixed", 40, 30)
    with pytest.raises(InputError, match="unknown user"):
        truth.gamma(np.array([40]), np.array([0]))
    with pytest.raises(InputError, match="unknown item"):
        truth.rating(np.array([0]), np.array([-1]))
    with pytest.raises(InputError, match="pair up"):
        truth.phi(np.array([0, 1]), np.array([0]))
    with pytest.raises(InputError, match="unknown value of quantity"):
        truth.matrix("options")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="too many pairs"):
        truth_of("mixed", 10_000, 5_000).matrix("gamma")


@pytest.mark.parametrize("amplitude", [0.0, 0.4, 1.2, 4.0])
def test_mean_over_one_trait_equals_the_integral(amplitude: float) -> None:
    m = np.array([-9.0, -3.0, 0.0, 2.5])
    exact = [
        integrate.quad(lambda u, x=x: expit(x + amplitude * np.cos(np.pi * u)), 0, 1)[0] for x in m
    ]
    assert average_over_hidden(expit, m, (amplitude,)) == pytest.approx(exact, rel=1e-8)


def test_mean_over_three_traits_equals_monte_carlo() -> None:
    h = hidden_from_uniform(np.random.default_rng(0).random((3, 400_000)))
    draws = expit(-2.0 + 0.5 * h[0] + 0.3 * h[1] + 0.9 * h[2])
    mean = average_over_hidden(expit, np.array([-2.0]), (0.5, 0.3, 0.9))[0]
    z = (draws.mean() - mean) / (draws.std() / np.sqrt(draws.size))
    assert abs(z) < 4.0


def test_traits_are_bounded_with_mean_zero() -> None:
    h = hidden_from_uniform((np.arange(10_000) + 0.5) / 10_000)
    assert np.abs(h).max() <= 1.0
    assert h.mean() == pytest.approx(0.0, abs=1e-12)
    assert h.var() == pytest.approx(0.5, abs=1e-4)


def test_the_table_interpolates_to_a_millionth_and_mixes_hidden_classes() -> None:
    strengths = Strengths(
        user=np.array([0.1, 0.5, 0.0]),
        gate=np.array([0.3, 1.0, 0.0]),
        pair=np.array([0.2, 0.4, 0.0]),
        group=np.array([0, 0, 1]),
        share=np.array([0.25, 0.75, 1.0]),
        item=np.array([0.5, 0.1]),
        genre=np.array([0.0, 0.3, 0.0]),
    )
    table = HiddenMean(strengths, 2.0, expit, logit)
    m = np.random.default_rng(1).uniform(-12.0, 6.0, 300)
    parts = (0.2, 0.06, 0.0, 0.4), (1.0, 0.2, 0.6, 0.8)
    weak, strong = (average_over_hidden(expit, m, part) for part in parts)
    mixed = table.mean(m, np.zeros(300, int), np.ones(300, int))
    assert mixed == pytest.approx(logit(0.25 * weak + 0.75 * strong), abs=1e-6)
    untouched = table.mean(m, np.ones(300, int), np.zeros(300, int))
    assert untouched == pytest.approx(m, abs=1e-6)


@pytest.mark.parametrize("amplitude", [0.5, 2.0])
def test_the_nodes_of_the_heavy_law_integrate_it(amplitude: float) -> None:
    m = np.array([-4.0, 0.0, 2.5])
    exact = [
        integrate.quad(
            lambda u, x=x: expit(x + amplitude * hidden_from_uniform(u, heavy=True)),
            0,
            1,
            limit=400,
        )[0]
        for x in m
    ]
    assert average_over_hidden(expit, m, (amplitude,), heavy=True) == pytest.approx(exact, abs=1e-5)
    nodes, weights = hidden_nodes(heavy=True)
    assert weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert nodes @ weights == pytest.approx(0.0, abs=1e-9)
    assert np.abs(nodes).max() > 4.0


def test_cut_points_give_the_ratings_that_their_mean_says() -> None:
    taste, rng = np.array([0.5, 2.2, 3.1, 6.0]), np.random.default_rng(0)
    draws = np.array([level_by_cuts(taste, rng.random(4)) for _ in range(4_000)])
    assert np.unique(draws).tolist() == [1, 2, 3, 4, 5]
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - mean_by_cuts(taste)) < 4.5 * spread + 1e-3).all()
    assert np.ptp(np.diff(CUTS)) > 0.2


@pytest.mark.parametrize(
    "world", ["reversed", "mixed-sign", "trait-genre", "heavy-tailed", "ordinal"]
)
def test_expected_ratings_are_the_means_of_realised_ones_given_features(world: str) -> None:
    gaps = []
    for seed in range(8):
        truth = truth_of(world, 200, 200, rng=seed)
        gaps.append((truth.matrix("rating") - truth.matrix("expected_rating")).mean())
        assert (truth.matrix("rating") - truth.matrix("utility")).mean() == pytest.approx(
            0.0, abs=0.03
        )
    assert abs(np.mean(gaps)) < 4.5 * np.std(gaps, ddof=1) / np.sqrt(len(gaps)) + 1e-3


def test_each_new_world_breaks_the_assumption_it_is_named_after() -> None:
    """Correlation of what is hidden in exposure with what is hidden in ratings, over pairs."""

    def related(world: str, by_user: bool = False) -> np.ndarray:
        truth = truth_of(world, rng=1)
        liked = truth.matrix("utility") - truth.matrix("expected_rating")
        phi = truth.matrix("phi")
        if by_user:
            return np.array([np.corrcoef(p, t)[0, 1] for p, t in zip(phi, liked, strict=True)])
        return np.corrcoef(phi.ravel(), liked.ravel())[0, 1]

    assert related("reversed") < -0.9
    assert related("trait-genre") > 0.9
    assert abs(related("mixed-sign")) < 0.25
    signs = np.sign(related("mixed-sign", by_user=True))
    assert 0.4 < (signs > 0).mean() < 0.6
    benign = truth_of("benign-activity", rng=1)
    assert benign.matrix("gamma").mean() > 1.5
    assert np.array_equal(benign.matrix("utility"), benign.matrix("expected_rating"))
    genre = truth_of("trait-genre", rng=1)
    cell = genre.population.items.cell
    effect = genre.hidden_effect(np.zeros(300, int), np.arange(300))
    assert all(np.ptp(effect[cell == g]) == 0.0 for g in range(6))
    assert np.unique(effect).size == 6


def test_awkward_exposure_is_recorded_but_missed_by_main_effects() -> None:
    truth = truth_of("awkward", rng=2)
    np.testing.assert_allclose(
        truth.matrix("propensity"), truth.matrix("true_propensity"), rtol=1e-12
    )
    assert (truth.matrix("gamma") == 1.0).all()
    index, stars = logit(truth.matrix("propensity")), truth.matrix("expected_rating")
    left = [x - x.mean(0) - x.mean(1)[:, None] + x.mean() for x in (index, stars)]
    assert left[0].std() > 0.4
    assert np.corrcoef(left[0].ravel(), left[1].ravel())[0, 1] > 0.5


def grid(n_users: int, n_items: int, first_user: int = 0) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.divmod(np.arange(n_users * n_items), n_items)
    return users + first_user, items


def test_mix64_is_the_published_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * k % 2**64 for k in (1, 2, 3)], dtype=np.uint64)
    expected = [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]  # reference outputs of seed 0
    assert mix64(states).tolist() == expected


def test_draws_are_uniform_along_rows_columns_and_together() -> None:
    draw = pair_uniform(stream_key(0, "test"), *grid(600, 500)).reshape(600, 500)
    assert draw.min() > 0.0
    assert draw.max() < 1.0
    assert stats.kstest(draw.ravel(), "uniform").pvalue > 1e-3
    for means in (draw.mean(axis=0), draw.mean(axis=1)):
        n = draw.size / means.size
        z = (means - 0.5) * np.sqrt(12.0 * n)
        assert stats.kstest(z, "norm").pvalue > 1e-3


def test_neighbouring_pairs_and_streams_are_unrelated() -> None:
    users, items = grid(400, 500)
    draw = pair_uniform(stream_key(0, "a"), users, items)
    others = [
        pair_uniform(stream_key(0, "a"), users, items + 1),
        pair_uniform(stream_key(0, "a"), users + 1, items),
        pair_uniform(stream_key(0, "a"), items, users),
        pair_uniform(stream_key(0, "b"), users, items),
        pair_uniform(stream_key(1, "a"), users, items),
    ]
    for other in others:
        assert abs(np.corrcoef(draw, other)[0, 1]) < 4.0 / np.sqrt(draw.size)


def test_a_draw_depends_on_its_own_pair_only() -> None:
    users, items = grid(50, 40, first_user=999_990)
    draw = pair_uniform(7, users, items)
    order = np.random.default_rng(0).permutation(users.size)
    assert np.array_equal(
        pair_uniform(7, users[order].astype(np.int32), items[order].astype(np.int32)), draw[order]
    )
    assert np.unique(draw).size == draw.size

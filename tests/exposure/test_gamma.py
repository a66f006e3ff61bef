import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.bounds import bounds
from puidrec.exposure.counts import ExposureCounts, information_gains
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import PRESETS, GammaRule, resolve_gamma
from puidrec.testing.propensity import small_exposure


def log_of(seed=0, n_users=120, n_items=70, user_bins=4, item_bins=5, effect=0.5):
    rng = np.random.default_rng(seed)
    user_bin, item_bin = rng.integers(0, user_bins, n_users), rng.integers(0, item_bins, n_items)
    z = (
        -2.3
        + effect * (user_bin[:, None] - 1.5)
        + effect * (user_bin[:, None] % 2) * (item_bin[None] - 2.0)
    )
    seen = rng.random(z.shape) < 1 / (1 + np.exp(-z))
    return ExposureCounts.from_pairs(
        *np.nonzero(seen), user_bin.astype(np.int32), item_bin.astype(np.int32)
    )


def everything(counts):
    return np.divmod(np.arange(counts.n_users * counts.n_items), counts.n_items)


@pytest.fixture(scope="module")
def counts():
    return log_of()


@pytest.fixture(scope="module")
def simulated():
    simulation = simulate("half-complete", n_users=300, n_items=200, rng=1)
    d = simulation.data
    sizes = {"n_users": d.n_users, "n_items": d.n_items}
    return Evidence.from_log(d.logged.user, d.logged.item, users=d.users, items=d.items, **sizes)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_valid_bounds_everywhere(name, counts, simulated):
    for evidence in (counts, simulated):
        gamma = resolve_gamma(name, n_permutations=10).fit(evidence, rng=3)
        users, items = everything(evidence if evidence is counts else evidence.counts)
        values = gamma.at(users, items)
        assert np.isfinite(values).all()
        assert values.min() >= 1.0
        assert values.max() <= gamma.max * (1 + 1e-12) <= gamma.cap * (1 + 1e-12)
        assert bounds(np.full(values.size, 0.1), values).a.min() >= 1.0


@pytest.mark.parametrize("name", PRESETS)
def test_means_and_tables_equal_a_count_over_all_pairs(name, counts):
    gamma = resolve_gamma(name, n_permutations=10).fit(counts, rng=3)
    users, items = everything(counts)
    log_gamma = gamma.log_at(users, items).reshape(counts.n_users, counts.n_items)
    exact = name != "recovered"  # whose means are taken over 64 partners
    tolerance = 1e-12 if exact else 0.02
    assert np.allclose(gamma.user_mean_log(), log_gamma.mean(1), atol=tolerance)
    assert np.allclose(gamma.item_mean_log(), log_gamma.mean(0), atol=tolerance)
    assert gamma.mean_log == pytest.approx(log_gamma.mean(), abs=tolerance)
    table = gamma.bin_table()
    for row in table.sample(min(5, table.height), seed=0).iter_rows(named=True):
        block = log_gamma[gamma.user_bin == row["user_bin"]][:, gamma.item_bin == row["item_bin"]]
        assert block.shape == (row["n_users"], row["n_items"])
        assert np.log(row["gamma"]) == pytest.approx(block.mean(), abs=1e-9 if exact else 0.05)
    assert table["n_users"].dot(table["n_items"]) == counts.n_users * counts.n_items


@pytest.mark.parametrize("name", PRESETS)
def test_additive_parts_add_up(name, counts):
    gamma = resolve_gamma(name, n_permutations=10).fit(counts, rng=3)
    parts = gamma.additive_parts
    assert (parts is not None) == (name in {"paper", "exposure-gap", "global"})
    if parts is not None:
        users, items = everything(counts)
        assert np.allclose(
            parts[0][users] + parts[1][items], gamma.log_at(users, items), atol=1e-12
        )


def test_paper_is_the_printed_equation_raised_to_one(counts):
    gains = information_gains(counts, "plugin")
    printed = 2 * (gains.H - gains.H_u) + 5 * (gains.H_u - gains.H_ui)
    gamma = PRESETS["paper"].fit(counts)
    assert printed < 1
    assert gamma.share_clipped == pytest.approx(1.0)
    assert gamma.max == 1.0
    wide = resolve_gamma("paper", alpha=200.0).fit(counts)
    assert wide.share_clipped == 0.0
    assert wide.max == pytest.approx(200 * gains.plugin_user + 5 * gains.plugin_item)
    assert wide.additive_parts is not None


def test_local_plugin_scores_average_to_the_printed_equation(counts):
    rules = [
        GammaRule(scope=s, entropy="plugin", alpha=2.0, beta=5.0, cap=1e9)
        for s in ("local", "global")
    ]
    local, one = (rule.fit(counts) for rule in rules)
    assert local.mean_log == pytest.approx(one.mean_log, abs=1e-9)
    assert local.max > one.max


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 50),
    scope=st.sampled_from(["local", "global"]),
    entropy=st.sampled_from(["plugin", "permutation"]),
    direction=st.sampled_from(["proportional", "residual"]),
    link=st.sampled_from(["exp", "clip"]),
    weights=st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)),
    cap=st.floats(1.0, 100.0),
)
def test_any_composition_is_valid(seed, scope, entropy, direction, link, weights, cap):
    counts = log_of(seed, n_users=20, n_items=15)
    rule = GammaRule(
        "information", scope, entropy, direction, link, *weights, cap=cap, n_permutations=3
    )
    values = rule.fit(counts).at(*everything(counts))
    assert np.isfinite(values).all()
    assert values.min() >= 1.0
    assert values.max() <= cap * (1 + 1e-12)


@pytest.mark.parametrize("seen", [np.ones((4, 3), bool), np.eye(4, 3, dtype=bool)])
@pytest.mark.parametrize("name", PRESETS)
def test_degenerate_logs_stay_valid(name, seen):
    bins = np.zeros(4, np.int32), np.zeros(3, np.int32)
    gamma = resolve_gamma(name, n_permutations=3).fit(
        ExposureCounts.from_pairs(*np.nonzero(seen), *bins)
    )
    values = gamma.at(*np.divmod(np.arange(12), 3))
    assert np.isfinite(values).all()
    assert values.min() >= 1.0


def test_residual_grows_where_features_leave_exposure_open():
    counts = log_of(effect=1.0)
    gamma = GammaRule(direction="residual", alpha=0.3, beta=0.3).fit(counts)
    rate = counts.cells / counts.pairs
    uncertain = np.minimum(rate, 1 - rate)
    table = gamma.bin_table().sort("user_bin", "item_bin")["gamma"].to_numpy().reshape(rate.shape)
    row = table[0]
    assert np.array_equal(np.argsort(row), np.argsort(uncertain[0]))


def test_info_link_recovers_a_small_odds_ratio():
    # two equal halves of users with odds apart by exp(±0.1): √(2 KL/(p(1-p))) must give 0.1 back
    user_bin = np.repeat([0, 1], 500).astype(np.int32)
    z = -1.0 + np.where(user_bin == 0, -0.1, 0.1)
    degree = np.round(1000 / (1 + np.exp(-z))).astype(int)
    user, item = np.repeat(np.arange(1000), degree), np.concatenate([np.arange(d) for d in degree])
    counts = ExposureCounts.from_pairs(user, item, user_bin, np.zeros(1000, np.int32))
    gamma = GammaRule(link="info", entropy="plugin").fit(counts)
    assert gamma.log_at(np.array([0, 999]), np.array([0, 0])) == pytest.approx([0.1, 0.1], rel=0.05)


def test_random_has_its_mean_and_its_seed(counts):
    users, items = everything(counts)
    a, b, c = (resolve_gamma("random", value=1.7).fit(counts, rng=seed) for seed in (0, 0, 1))
    assert a.mean_log == pytest.approx(np.log(1.7))
    assert np.array_equal(a.at(users, items), b.at(users, items))
    assert not np.array_equal(a.at(users, items), c.at(users, items))
    assert a.log_at(users, items).std() == pytest.approx(
        np.log(1.7) / 3**0.5, rel=0.1
    )  # uniform on [0, 2 log 1.7]


def test_auto_matches_the_shift_of_hiding_a_feature(simulated):
    calibration = simulated.calibration
    expected = calibration.shift("user") + calibration.shift("item")
    for rule in (GammaRule(cap=1e9), GammaRule(direction="residual", cap=1e9)):
        assert rule.fit(simulated).mean_log == pytest.approx(expected, rel=1e-6)
    gap = resolve_gamma("exposure-gap", alpha="auto", beta="auto", cap=1e9).fit(simulated)
    assert gap.mean_log == pytest.approx(expected, rel=1e-6)


def test_exposure_residuals_make_gamma_larger_where_records_are_incomplete(simulated):
    incomplete = simulated.users["mood"].is_null().to_numpy()
    for name, ratio in (("recovered", 1.2), ("exposure-gap", 1.5)):
        mean = resolve_gamma(name).fit(simulated).user_mean_log()
        assert mean[incomplete].mean() > ratio * mean[~incomplete].mean()


@pytest.mark.parametrize(("alpha", "beta"), [(50.0, 50.0), (50.0, 0.1), (0.0, 50.0)])
def test_parts_are_capped_without_losing_separability(alpha, beta):
    counts = small_exposure().counts
    rule = resolve_gamma("exposure-gap", alpha=alpha, beta=beta, cap=5.0)
    gamma, free = rule.fit(counts), resolve_gamma(rule, cap=1e12).fit(counts)
    users, items = everything(counts)
    assert gamma.max == pytest.approx(5.0)
    assert gamma.at(users, items).max() == pytest.approx(5.0)
    smaller = int(beta < alpha)
    assert gamma.additive_parts is not None
    if min(alpha, beta) < 1.0:  # the part that fits in stays as it is
        assert np.allclose(gamma.additive_parts[smaller], free.additive_parts[smaller])


def test_numbers_names_and_changes():
    assert resolve_gamma(1.5) == resolve_gamma("1.5") == GammaRule.constant(1.5)
    assert resolve_gamma("paper", alpha=3.0).alpha == 3.0
    assert resolve_gamma(GammaRule(), cap=5.0).cap == 5.0
    gamma = GammaRule.constant(30.0).fit(log_of())
    assert gamma.at(np.array([0, 1]), np.array([2, 3])).tolist() == pytest.approx([30.0, 30.0])
    assert gamma.mean_log == pytest.approx(np.log(30.0))


@pytest.mark.parametrize(
    "build",
    [
        lambda: resolve_gamma("papper"),
        lambda: resolve_gamma(0.5),
        lambda: resolve_gamma(float("nan")),
        lambda: resolve_gamma("paper", gamma=2),
        lambda: GammaRule(source="stars"),
        lambda: GammaRule(link="tanh"),
        lambda: GammaRule(alpha=-1.0),
        lambda: GammaRule(alpha="many"),
        lambda: GammaRule(cap=0.5),
        lambda: GammaRule(level=1.0),
        lambda: GammaRule(link="info", direction="residual"),
        lambda: GammaRule(link="clip"),
    ],
)
def test_mistakes_are_refused(build):
    with pytest.raises(InputError):
        build()


def test_pairs_must_pair_up(counts):
    for name in ("global", "recovered"):
        with pytest.raises(InputError, match="pair up"):
            PRESETS[name].fit(counts).at(np.array([0, 1]), np.array([0]))

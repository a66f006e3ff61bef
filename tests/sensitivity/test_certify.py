import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.sensitivity.certify import certify, certify_parts


def ratings(path):
    rows = [[int(v) for v in line.split()] for line in path.read_text().splitlines() if line.strip()]
    matrix = np.array(rows)
    user, item = np.nonzero(matrix)
    return user, matrix[user, item], matrix.size


def test_exact_shares_give_the_formula_by_hand():
    # seen: 60 % positive; uniform: 33 %; 10 % seen, so unseen = (.33 - .06)/.9 = .3
    logged, uniform = np.repeat([1.0, 0.0], [60, 40]), np.repeat([1.0, 0.0], [33, 67])
    found = certify(logged, uniform, mean_propensity=0.1, n_bootstrap=50)
    assert (found.levels[0].seen, found.levels[0].unseen) == pytest.approx((0.6, 0.3))
    assert found.gamma == pytest.approx(2.0)
    assert not found.adjusted
    assert 1.0 <= found.lower < found.gamma


def test_weights_remove_what_propensities_explain():
    # the seen shares differ only because positives have propensity .4 and negatives .1
    logged = np.repeat([1.0, 0.0], [400, 100])
    propensity = np.where(logged == 1.0, 0.4, 0.1)
    uniform = np.repeat([1.0, 0.0], [500, 500])
    adjusted = certify(logged, uniform, mean_propensity=0.25, logged_propensity=propensity, n_bootstrap=100)
    plain = certify(logged, uniform, mean_propensity=0.25, n_bootstrap=100)
    assert adjusted.adjusted
    assert adjusted.gamma == pytest.approx(1.0)
    assert plain.gamma == pytest.approx(3.0)  # (1 - .4)/(1 - .8)
    assert plain.lower > 2.0 > adjusted.lower


def test_limit_proves_nothing_without_confounding_and_something_with_it():
    proved = {"no-confounding": 0, "entity": 0}
    for world in proved:
        for seed in range(12):
            simulation = simulate(world, n_users=300, n_items=200, n_uniform=3000, rng=seed)
            data, truth = simulation.data, simulation.truth
            found = certify(
                data.logged.rating >= 4,
                data.uniform.rating >= 4,
                mean_propensity=len(data.logged) / data.n_pairs,
                logged_propensity=truth.propensity(data.logged.user, data.logged.item),
                logged_user=data.logged.user,
                uniform_user=data.uniform.user,
                n_bootstrap=200,
                rng=seed,
            )
            proved[world] += found.lower > 1.0
            assert found.lower <= found.gamma
            if world == "entity":
                assert found.lower <= truth.gamma_bound(data.logged.user, data.logged.item).max()
    assert proved["no-confounding"] <= 2
    assert proved["entity"] >= 11


def test_more_levels_prove_at_least_as_much_and_say_which():
    rng = np.random.default_rng(0)
    logged = rng.choice([1, 2, 3, 4, 5], 4000, p=[0.1, 0.1, 0.2, 0.3, 0.3])
    uniform = rng.choice([1, 2, 3, 4, 5], 4000, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    found = certify(logged, uniform, mean_propensity=0.05, n_bootstrap=200)
    assert [row.level for row in found.levels] == [1, 2, 3, 4, 5]
    assert found.gamma == max(row.gamma for row in found.levels) == found.levels[0].gamma
    assert found.gamma == pytest.approx(4.1, rel=0.15)
    assert found.lower > certify(logged >= 4, uniform >= 4, mean_propensity=0.05, n_bootstrap=200).lower


def test_impossible_unseen_shares_stay_finite():
    found = certify(np.ones(50), np.zeros(20), mean_propensity=0.5, n_bootstrap=20)
    assert np.isfinite(found.gamma)
    assert np.isfinite(found.lower)


def test_same_seed_same_limit():
    rng = np.random.default_rng(1)
    logged, uniform = rng.random(300) < 0.5, rng.random(200) < 0.3
    a, b = (certify(logged, uniform, mean_propensity=0.1, n_bootstrap=50, rng=4) for _ in range(2))
    assert a == b


@pytest.mark.parametrize(
    "change",
    [
        {"mean_propensity": 0.0},
        {"mean_propensity": 1.0},
        {"logged_propensity": np.ones(3)},
        {"logged_propensity": np.zeros(10)},
        {"logged_user": np.zeros(10, int)},
        {"uniform_value": np.zeros(0)},
        {"uniform_value": np.full(10, np.nan)},
        {"uniform_value": np.arange(100.0)},
    ],
)
def test_mistakes_are_refused(change):
    call = {"logged_value": np.ones(10), "uniform_value": np.zeros(10), "mean_propensity": 0.1, "n_bootstrap": 5}
    call.update(change)
    with pytest.raises(InputError):
        certify(call.pop("logged_value"), call.pop("uniform_value"), **call)


@pytest.mark.real_data
def test_coat_proves_a_gamma_far_from_one(data_root):
    user, rating, size = ratings(data_root / "coat" / "train.ascii")
    uniform_user, uniform_rating, _ = ratings(data_root / "coat" / "test.ascii")
    options = {"mean_propensity": rating.size / size, "logged_user": user, "uniform_user": uniform_user}
    binary = certify(rating >= 4, uniform_rating >= 4, **options)
    levels = certify(rating, uniform_rating, **options)
    assert binary.gamma == pytest.approx(1.5, abs=0.15)
    assert levels.gamma == pytest.approx(2.0, abs=0.25)
    assert 1.2 < binary.lower < binary.gamma


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_a_log_in_parts_gives_the_certificate_of_the_whole(adjust, binary) -> None:
    rng = np.random.default_rng(3)
    user, drawn_user = np.sort(rng.choice(np.arange(0, 40, 2), 300)), rng.integers(0, 40, 80)
    value, drawn = (rng.integers(1, 5, n).astype(float) for n in (300, 80))
    if binary:
        value, drawn = (value >= 3).astype(float), (drawn >= 4).astype(float)
    p = rng.uniform(0.05, 1.0, 300)
    options = {"mean_propensity": 0.2, "n_bootstrap": 60, "rng": 5}
    whole = certify(
        value, drawn, logged_propensity=p if adjust else None, logged_user=user, uniform_user=drawn_user, **options
    )
    cuts = [slice(0, 7), slice(7, 200), slice(200, 300)]
    parts = ((value[cut], p[cut] if adjust else None, user[cut]) for cut in cuts)
    found = certify_parts(parts, drawn, drawn_user, n_users=45, logged_levels=np.unique(value), **options)
    assert found.adjusted is adjust
    assert (found.gamma, found.lower) == pytest.approx((whole.gamma, whole.lower), rel=1e-12)
    assert [level.seen for level in found.levels] == pytest.approx([level.seen for level in whole.levels], rel=1e-12)

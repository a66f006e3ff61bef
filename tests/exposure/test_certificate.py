from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.certificate import SeenSums, UniformRows, certificate, certify_values


def ratings(path):
    rows = [
        [int(v) for v in line.split()] for line in path.read_text().splitlines() if line.strip()
    ]
    matrix = np.array(rows)
    user, item = np.nonzero(matrix)
    return user, item, matrix[user, item]


def test_exact_shares_give_the_formula_by_hand():
    logged, uniform = np.repeat([1.0, 0.0], [60, 40]), np.repeat([1.0, 0.0], [30, 70])
    found = certify_values(logged, uniform)
    assert (found.levels[0].seen, found.levels[0].unseen) == pytest.approx((0.6, 0.3))
    assert found.gamma == pytest.approx(2.0)
    assert not found.adjusted
    assert 1.0 <= found.lower < found.gamma


def test_weights_remove_what_propensities_explain():
    # the seen shares differ only because positives have propensity .4 and negatives .1
    logged = np.repeat([1.0, 0.0], [400, 100])
    propensity = np.where(logged == 1.0, 0.4, 0.1)
    uniform = np.repeat([1.0, 0.0], [400, 600])  # of unseen pairs: 1000 (1 - p) of either label
    adjusted = certify_values(logged, uniform, logged_propensity=propensity)
    plain = certify_values(logged, uniform)
    assert adjusted.adjusted
    assert adjusted.gamma == pytest.approx(1.0)
    assert adjusted.lower == 1.0
    assert plain.gamma == pytest.approx(3.0)  # (1 - .4)/(1 - .8)
    assert plain.lower > 2.0


@pytest.mark.parametrize(("levels", "n"), [(1, 20), (5, 50), (5, 1000), (40, 100)])
@pytest.mark.parametrize("clustered", [False, True])
def test_nothing_hidden_is_rarely_called_hidden(levels, n, clustered):
    """Logs with nothing hidden: 50 of them; more than 6 claims happen once in 100 if 5 % are
    wrong."""
    rng, claims = np.random.default_rng([levels, n, clustered]), 0
    for _ in range(50):
        taste = rng.dirichlet(
            np.full(max(levels, 2), 2.0), 60
        )  # every user has tastes of their own

        def draw(user, taste=taste):
            return (
                (rng.random((user.size, 1)) > np.cumsum(taste[user], axis=1))
                .sum(axis=1)
                .astype(float)
            )

        user = np.repeat(np.arange(60), 25)
        asked = np.repeat(rng.permutation(60), 20)[:n] if clustered else rng.integers(60, size=n)
        found = certify_values(
            draw(user),
            draw(asked),
            logged_user=user,
            uniform_user=asked,
            rng=int(rng.integers(9999)),
        )
        claims += found.lower > 1.0
    assert claims <= 6


def test_limit_proves_nothing_without_confounding_and_something_with_it():
    proved = {"no-confounding": 0, "entity": 0}
    for world in proved:
        for seed in range(8):
            simulation = simulate(world, n_users=300, n_items=200, n_uniform=3000, rng=seed)
            data, truth = simulation.data, simulation.truth
            key = data.logged.user.astype(int) * 200 + data.logged.item
            unseen = data.uniform.take(
                ~np.isin(data.uniform.user.astype(int) * 200 + data.uniform.item, key)
            )
            found = certify_values(
                data.logged.rating >= 4,
                unseen.rating >= 4,
                logged_propensity=truth.propensity(data.logged.user, data.logged.item),
                logged_user=data.logged.user,
                uniform_user=unseen.user,
                rng=seed,
            )
            proved[world] += found.lower > 1.0
            assert found.lower <= found.gamma
            if world == "entity":
                assert found.lower <= truth.matrix("gamma").max()
    assert proved["no-confounding"] <= 2
    assert proved["entity"] >= 7


def test_the_limit_rises_towards_the_truth_with_the_rows():
    logged = np.repeat([1.0, 0.0], [12_000, 8_000])
    limits = [
        certify_values(logged, np.repeat([1.0, 0.0], [3 * n, 7 * n])).lower
        for n in (2, 20, 200, 5_000)
    ]
    assert limits == sorted(limits)
    assert 1.9 < limits[-1] < 2.0


def test_more_levels_prove_at_least_as_much_and_say_which():
    rng = np.random.default_rng(0)
    logged = rng.choice([1, 2, 3, 4, 5], 4000, p=[0.1, 0.1, 0.2, 0.3, 0.3])
    uniform = rng.choice([1, 2, 3, 4, 5], 4000, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    found = certify_values(logged, uniform)
    assert [row.name for row in found.levels] == [
        *(f"rating {k}" for k in range(1, 6)),
        "ratings 3 to 5",
        "ratings 4 to 5",
    ]
    assert found.gamma == max(row.gamma for row in found.levels) == found.levels[0].gamma
    assert found.gamma == pytest.approx(4.0, rel=0.15)
    assert found.lower > certify_values(logged >= 4, uniform >= 4).lower
    assert found.levels[2].p_value > 0.05 > found.levels[0].p_value


def test_levels_of_few_seen_rows_are_joined_and_named():
    logged = np.repeat([1.0, 2.0, 3.0, 4.0], [50, 3, 50, 50])
    found = certify_values(logged, np.repeat([1.0, 3.0, 4.0], [40, 30, 30]))
    assert [row.name for row in found.levels] == ["rating 1", "ratings 2 to 3", "rating 4"]


def test_a_level_that_no_uniform_row_has_proves_by_its_absence():
    logged, uniform = np.repeat([1.0, 2.0, 3.0, 4.0], 50), np.repeat([1.0, 3.0, 4.0], [40, 30, 30])
    found = certify_values(logged, uniform)
    absent = found.levels[1]
    assert (absent.name, absent.unseen) == ("rating 2", 0.0)
    assert 4.0 < absent.lower < absent.gamma < np.inf


def test_extreme_shares_stay_finite():
    for logged, uniform in (
        (np.ones(50), np.zeros(20)),
        (np.r_[np.ones(50), np.zeros(50)], np.zeros(20)),
    ):
        found = certify_values(logged, uniform)
        assert np.isfinite(found.gamma)
        assert np.isfinite(found.lower)


def test_same_seed_same_limit():
    rng = np.random.default_rng(1)
    logged, uniform = rng.random(300) < 0.5, rng.random(200) < 0.3
    a, b = (certify_values(logged, uniform, rng=4) for _ in range(2))
    assert a == b


@pytest.mark.parametrize(
    "change",
    [
        {"confidence": 0.0},
        {"confidence": 1.0},
        {"logged_propensity": np.ones(3)},
        {"logged_propensity": np.zeros(10)},
        {"logged_user": np.zeros(10, int)},
        {"uniform_value": np.zeros(0)},
        {"uniform_value": np.full(10, np.nan)},
        {"uniform_value": np.arange(100.0)},
    ],
)
def test_mistakes_are_refused(change):
    call = {"logged_value": np.ones(10), "uniform_value": np.zeros(10)}
    call.update(change)
    with pytest.raises(InputError):
        certify_values(call.pop("logged_value"), call.pop("uniform_value"), **call)


@pytest.mark.real_data
def test_coat_proves_a_gamma_far_from_one(data_root):
    user, item, rating = ratings(data_root / "coat" / "train.ascii")
    uniform_user, uniform_item, uniform_rating = ratings(data_root / "coat" / "test.ascii")
    new = ~np.isin(uniform_user * 300 + uniform_item, user * 300 + item)
    options = {"logged_user": user, "uniform_user": uniform_user[new]}
    binary = certify_values(rating >= 4, uniform_rating[new] >= 4, **options)
    levels = certify_values(rating, uniform_rating[new], **options)
    assert binary.gamma == pytest.approx(1.5, abs=0.15)
    assert levels.gamma == pytest.approx(2.0, abs=0.25)
    assert 1.2 < binary.lower < binary.gamma


@pytest.mark.parametrize("adjust", [False, True])
def test_a_log_in_parts_gives_the_certificate_of_the_whole(adjust) -> None:
    rng = np.random.default_rng(3)
    user, drawn_user = np.sort(rng.choice(np.arange(40), 300)), rng.integers(0, 40, 80)
    value, drawn = rng.integers(0, 4, 300).astype(float), rng.integers(0, 4, 80)
    p = rng.uniform(0.05, 1.0, 300) if adjust else None
    found = []
    for cuts in ([slice(0, 300)], [slice(0, 7), slice(7, 200), slice(200, 300)]):
        sums = SeenSums(np.arange(4.0), 40)
        for cut in cuts:
            sums.add(value[cut], p[cut] if p is not None else None, user[cut])
        found.append(certificate(sums, UniformRows(drawn, drawn_user), adjusted=adjust))
    assert (found[0].gamma, found[0].lower) == pytest.approx(
        (found[1].gamma, found[1].lower), rel=1e-12
    )


def test_many_users_are_resampled_in_groups_with_the_same_result() -> None:
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(6_000), 2)
    value = (rng.random(12_000) < 0.6).astype(float)
    grouped = certify_values(
        value, np.repeat([1.0, 0.0], [300, 700]), logged_user=user, uniform_user=np.arange(1_000)
    )
    rows = certify_values(value[:1_500], np.repeat([1.0, 0.0], [300, 700]))
    assert grouped.gamma == pytest.approx(2.0, rel=0.02)
    assert rows.lower <= grouped.lower < grouped.gamma

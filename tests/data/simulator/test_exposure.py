import numpy as np
import pytest
from scipy import stats

from puidrec.data import synthetic as exposure
from puidrec.data.simulator.truth import Truth
from puidrec.data.synthetic import ExposureSampler, make_buckets, simulation_options


def truth_of(world: str, **options: object) -> Truth:
    return Truth.from_options(simulation_options(world, 60, 50, **options))  # type: ignore[arg-type]


def counts(
    truth: Truth, draws: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, np.ndarray]:
    """How often each pair is drawn, and rows per draw, over independent exposure draws of one
    population."""
    total, rows = np.zeros((truth.options.n_users, truth.options.n_items)), []
    sampler = ExposureSampler(truth)
    for draw in range(draws):
        monkeypatch.setattr(
            exposure, "generator", lambda *_, draw=draw: np.random.default_rng([5, draw])
        )
        users, items = sampler.block(0)
        np.add.at(total, (users, items), 1)
        rows.append(users.size)
    return total, np.array(rows)


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("mixed", {}),
        ("pair", {"density": 0.4}),
        ("entity", {"affected_share": 0.5}),
        ("half-complete", {}),
        ("trait-genre", {}),
        ("awkward", {}),
        ("heavy-tailed", {"density": 0.2}),
    ],
)
def test_every_pair_is_an_independent_bernoulli_of_its_true_propensity(
    world: str, options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, draws = truth_of(world, **options), 400
    seen, rows = counts(truth, draws, monkeypatch)
    p = truth.matrix("true_propensity")
    chi2 = ((seen - draws * p) ** 2 / (draws * p * (1 - p))).sum()
    assert abs(chi2 - p.size) < 5.0 * np.sqrt(2.0 * p.size + (1.0 / (draws * p)).sum())
    assert abs(rows.mean() - p.sum()) < 4.0 * np.sqrt((p * (1 - p)).sum() / draws)
    spread = (
        rows.var(ddof=1) * (draws - 1) / (p * (1 - p)).sum()
    )  # chi-square, if pairs are independent
    assert 1e-4 < stats.chi2.sf(spread, draws - 1) < 1 - 1e-4


def test_rows_are_sorted_and_no_pair_comes_twice() -> None:
    truth = Truth.from_options(simulation_options("mixed", 300, 200, density=0.6))
    users, items = ExposureSampler(truth).block(0)
    key = users.astype(np.int64) * 200 + items
    assert (np.diff(key) > 0).all()


def test_blocks_cover_all_users_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "_ROWS_PER_BLOCK", 500)
    truth = Truth.from_options(simulation_options("pair", 300, 200))
    sampler = ExposureSampler(truth)
    assert sampler.n_blocks == 6
    users = [block[0] for block in sampler.blocks()]
    edges = [(u.min() // 50, u.max() // 50) for u in users]
    assert edges == [(k, k) for k in range(6)]
    expected = truth.matrix("true_propensity").sum()
    assert abs(sum(u.size for u in users) - expected) < 4.5 * np.sqrt(expected)


def test_buckets_hold_every_member_within_one_level() -> None:
    rng = np.random.default_rng(0)
    members, key, logit = rng.permutation(500), rng.integers(0, 4, 500), rng.normal(size=500)
    buckets = make_buckets(members, key, logit)
    assert sorted(buckets.members.tolist()) == list(range(500))
    value = dict(zip(members.tolist(), zip(key.tolist(), logit.tolist(), strict=True), strict=True))
    for start, count, top in zip(buckets.start, buckets.count, buckets.top, strict=True):
        inside = [value[m] for m in buckets.members[start : start + count].tolist()]
        assert len({k for k, _ in inside}) == 1
        assert max(x for _, x in inside) == top
        assert top - min(x for _, x in inside) <= 0.25

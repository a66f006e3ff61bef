import numpy as np
from scipy import stats

from puidrec.data.simulator.truth import mix64, pair_uniform, stream_key


def grid(n_users: int, n_items: int, first_user: int = 0) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.divmod(np.arange(n_users * n_items), n_items)
    return users + first_user, items


def test_mix64_is_the_published_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * k % 2**64 for k in (1, 2, 3)], dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # reference outputs of seed 0
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
    assert np.array_equal(pair_uniform(7, users[order].astype(np.int32), items[order].astype(np.int32)), draw[order])
    assert np.unique(draw).size == draw.size

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.exposure.counts import ExposureCounts


def exposure(seed, n_users=13, n_items=9, user_bins=4, item_bins=3):
    rng = np.random.default_rng(seed)
    seen = rng.random((n_users, n_items)) < 0.4
    user_bin = rng.integers(0, user_bins, n_users).astype(np.int32)
    item_bin = rng.integers(0, item_bins, n_items).astype(np.int32)
    return seen, user_bin, item_bin


def counted(seen, user_bin, item_bin):
    return ExposureCounts.from_pairs(*np.nonzero(seen), user_bin, item_bin)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_counts_equal_a_loop_over_all_pairs(seed):
    seen, user_bin, item_bin = exposure(seed)
    counts = counted(seen, user_bin, item_bin)
    cells, pairs = np.zeros(counts.cells.shape), np.zeros(counts.cells.shape)
    for u in range(seen.shape[0]):
        for i in range(seen.shape[1]):
            cells[user_bin[u], item_bin[i]] += seen[u, i]
            pairs[user_bin[u], item_bin[i]] += 1
    assert np.array_equal(counts.cells, cells)
    assert np.array_equal(counts.pairs, pairs)
    assert np.array_equal(counts.user_degree, seen.sum(1))
    assert np.array_equal(counts.item_degree, seen.sum(0))
    assert counts.rate == pytest.approx(seen.mean())


def test_batches_equal_the_whole():
    seen, user_bin, item_bin = exposure(1)
    user, item = np.nonzero(seen)
    parts = ExposureCounts.from_batches(
        [(user[:5], item[:5]), (user[5:5], item[5:5]), (user[5:], item[5:])], user_bin, item_bin
    )
    assert np.array_equal(parts.by_item, counted(seen, user_bin, item_bin).by_item)
    assert np.array_equal(parts.user_degree, seen.sum(1))


@pytest.mark.parametrize(
    ("user", "item", "message"),
    [
        ([0, 1], [0], "one length"),
        ([0, 13], [0, 0], "13.*0 to 12"),
        ([0, 1], [0, -1], "-1.*0 to 8"),
    ],
)
def test_codes_outside_the_population_are_refused(user, item, message):
    _, user_bin, item_bin = exposure(0)
    with pytest.raises(InputError, match=message):
        ExposureCounts.from_pairs(np.array(user), np.array(item), user_bin, item_bin)


def test_negative_bins_are_refused():
    with pytest.raises(InputError, match="codes from 0"):
        ExposureCounts.from_pairs(np.array([0]), np.array([0]), np.array([-1]), np.array([0]))

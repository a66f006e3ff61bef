from __future__ import annotations

import numpy as np

from puidrec.rng import bootstrap_counts, derive_seed, generator


def test_a_stream_is_a_function_of_seed_and_name() -> None:
    assert generator(7, "split").random() == generator(7, "split").random()
    draws = {
        generator(*key).random()
        for key in ((7,), (7, "split"), (7, "init"), (8, "split"), (7, "split", 1))
    }
    assert len(draws) == 5


def test_order_of_names_matters() -> None:
    assert generator(0, "a", "b").random() != generator(0, "b", "a").random()


def test_a_generator_is_used_as_it_is_or_spawns() -> None:
    own = np.random.default_rng(0)
    assert generator(own) is own
    first, second = generator(own, "x").random(), generator(own, "x").random()
    assert first != second
    assert (
        own.random() == np.random.default_rng(0).random()
    )  # spawning draws nothing from the parent


def test_no_seed_is_fresh_entropy() -> None:
    assert generator(None, "x").random() != generator(None, "x").random()


def test_global_state_is_neither_read_nor_moved() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    generator(3, "x").random(10)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_derived_seeds_fit_torch() -> None:
    seeds = [derive_seed(seed, "init") for seed in range(50)]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, "init") == derive_seed(1, "init")


def test_a_bootstrap_draws_as_many_as_there_are() -> None:
    counts = bootstrap_counts(2_000, 7, np.random.default_rng(0))
    assert counts.shape == (2_000, 7)
    assert (counts.sum(axis=1) == 7).all()
    np.testing.assert_allclose(
        counts.mean(axis=0), 1.0, atol=0.1
    )  # every member is as likely as every other
    one_by_one = np.random.default_rng(0)
    assert np.array_equal(
        counts[:3], np.concatenate([bootstrap_counts(1, 7, one_by_one) for _ in range(3)])
    )

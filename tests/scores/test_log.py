"""The log as an operator: its products against dense matrices, wherever its rows lie and however
many hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from puidrec.data.on_disk import Scratch
from puidrec.scores import log as log_module
from puidrec.scores.log import Log, Stored
from puidrec.world import World

PLACES = ["memory", "blocks", "disk"]


@pytest.fixture
def placed(make_log, tmp_path, monkeypatch):
    """The same log in one block, in blocks of 20 pairs, or with its columns on disk."""

    def make(place: str, world: World | None = None, dtype: torch.dtype = torch.float64) -> Log:
        log, _, _ = make_log(0, dtype=dtype)
        if place != "memory":
            monkeypatch.setattr(log_module, "PAIRS_IN_MEMORY", 20)
            monkeypatch.setattr(log_module, "PAIRS_FROM_DISK", 20)
        log = replace(log, world=world or log.world)  # without the blocks it keeps
        if place == "disk":
            log = replace(log, scratch=lambda kind: Scratch(tmp_path, log.n_rows, kind))
        return log

    return make


def numbers(log: Log, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(log))


@pytest.mark.parametrize("place", PLACES)
def test_products_are_those_of_the_dense_matrix(place, placed, make_log, make_scores) -> None:
    log, mask, factors = placed(place), make_log(0)[2], make_scores(1, 4).detach()
    left, right = factors.lefts[0], factors.rights[0]
    values = numbers(log)
    dense = torch.zeros(mask.shape, dtype=torch.float64)
    dense[mask] = torch.from_numpy(values)
    column = log.filled(lambda rows: values[rows])
    assert isinstance(column.values, Stored) is (place == "disk")
    assert (len(list(log.blocks)) > 1) is (place != "memory")
    torch.testing.assert_close(
        log.scores(left, right).values[slice(0, len(log))], (left @ right.T)[mask]
    )
    torch.testing.assert_close(log.to_users(column, right), dense @ right)
    torch.testing.assert_close(log.to_items(column, left), dense.T @ left)
    two = factors.minus(make_scores(2, 2).detach())
    torch.testing.assert_close(log.scores_of(two).values[slice(0, len(log))], two.tile()[mask])


@pytest.mark.parametrize("place", PLACES)
def test_columns_are_made_of_columns_and_summed(place, placed) -> None:
    log = placed(place)
    one, other = numbers(log), numbers(log, 6)
    columns = [log.filled(lambda rows, x=x: x[rows]) for x in (one, other)]
    product = log.map(torch.mul, *columns)
    np.testing.assert_allclose(product.values[slice(0, len(log))], one * other)
    assert float(log.sum(lambda a, b: (a * b).sum(), *columns)) == pytest.approx(float(one @ other))
    middle = slice(7, 19)
    np.testing.assert_array_equal(columns[0].values[middle], one[middle])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [2, 3])
def test_processes_together_have_the_products_of_one(
    size, place, placed, make_scores, run_together
) -> None:
    alone, factors = placed("memory"), make_scores(1, 4).detach()
    left, right, values = factors.lefts[0], factors.rights[0], numbers(alone)
    column = alone.filled(lambda rows: values[rows])
    expected = alone.to_users(column, right), alone.to_items(column, left), float(values.sum())

    def work(world: World):
        log = placed(place, world)
        assert log.n_rows < len(log)
        own = log.filled(lambda rows: values[rows])
        users, items = log.to_users(own, right), log.to_items(own, log.own(left))
        s = log.scores(log.own(left), right).values[slice(0, log.n_rows)]
        torch.testing.assert_close(s, log.scores_of(factors).values[slice(0, log.n_rows)])
        return log, users, items, float(log.sum(torch.sum, own)), log.gather(users)

    found = run_together(size, work)
    assert [user for log, *_ in found for user in range(log.users.start, log.users.stop)] == list(
        range(37)
    )
    torch.testing.assert_close(torch.cat([users for _, users, *_ in found]), expected[0])
    for _, _, items, total, everyone in found:
        torch.testing.assert_close(items, expected[1])
        assert total == pytest.approx(expected[2])
        torch.testing.assert_close(everyone, expected[0])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 7))
def test_every_user_belongs_to_one_process(degrees, size) -> None:
    row_start = np.concatenate([[0], np.cumsum(degrees)])
    item = np.zeros(row_start[-1], np.int32)
    parts = [Log(row_start, item, 40, World(rank, size)) for rank in range(size)]
    assert [u for log in parts for u in range(log.users.start, log.users.stop)] == list(
        range(len(degrees))
    )
    assert sum(log.n_rows for log in parts) == row_start[-1] == len(parts[0])


def test_processes_get_equal_loads() -> None:
    row_start = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 50, 10_000))])
    item = np.zeros(row_start[-1], np.int32)
    loads = [Log(row_start, item, 40, World(rank, 4)).n_rows for rank in range(4)]
    assert sum(loads) == row_start[-1]
    assert max(loads) < 1.01 * min(loads)


def test_a_process_without_rows_takes_part_in_sums(run_together) -> None:
    """Two users, three processes."""

    def work(world: World):
        log = Log(np.array([0, 3, 4]), np.array([0, 1, 2, 1]), 3, world, dtype=torch.float64)
        column = log.filled(lambda rows: np.ones(rows.stop - rows.start))
        items = log.to_items(column, torch.ones(log.n_users, 1, dtype=torch.float64))
        return log.n_rows, float(log.sum(torch.sum, column)), items[:, 0].tolist()

    found = run_together(3, work)
    assert min(rows for rows, *_ in found) == 0
    assert {total for _, total, _ in found} == {4.0}
    assert all(items == [1.0, 2.0, 1.0] for *_, items in found)


@pytest.mark.parametrize("place", ["disk", "two"])
def test_what_adam_trains_needs_the_log_in_memory_and_one_process(place, placed, refusal) -> None:
    assert len(placed("memory").require_simple("multi-dr")) == len(placed("memory"))
    log = placed("disk") if place == "disk" else placed("memory", World(0, 2))
    found = "a log on disk" if place == "disk" else "several processes"
    refusal(
        lambda: log.require_simple("multi-dr"),
        "multi-dr is trained by adam",
        found,
        "least squares",
    )

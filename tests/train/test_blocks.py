"""A block of users in parts, or divided among processes, has the loss and gradient of the whole block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from puidrec.objective.terms import dr, robust_mean
from puidrec.train import blocks
from puidrec.train.blocks import UserPartition, backward_in_blocks, entity_axes

from puidrec.data.row_matrix import user_blocks
from puidrec.errors import InputError
from puidrec.losses.pointwise import pointwise_error
from puidrec.methods.stages import partition_of, stages_of
from puidrec.optimise.adam import Trainer
from puidrec.scores import make_backbone
from puidrec.world import World

DEGREES = st.lists(st.integers(0, 30), min_size=1, max_size=60)


def row_start_of(degrees) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)


@given(DEGREES, st.integers(1, 70), st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_user_is_in_one_piece_of_one_process(degrees, block, size, max_pairs) -> None:
    row_start = row_start_of(degrees)
    partitions = [UserPartition(row_start, block, World(rank, size), max_pairs) for rank in range(size)]
    for start, stop in partitions[0].blocks:
        users = [u for partition in partitions for a, b in partition.parts(start, stop) for u in range(a, b)]
        assert users == list(range(start, stop))
    for partition in partitions:
        parts = [part for block_ in partition.blocks for part in partition.parts(*block_)]
        assert all(row_start[b] - row_start[a] <= max_pairs or b == a + 1 for a, b in parts)


def test_processes_get_equal_loads() -> None:
    row_start = row_start_of(np.random.default_rng(0).integers(0, 50, 10_000))
    loads = [
        row_start[b] - row_start[a]
        for rank in range(4)
        for a, b in UserPartition(row_start, 10_000, World(rank, 4)).own
    ]
    assert sum(loads) == row_start[-1]
    assert max(loads) < 1.01 * min(loads)


def problem_of(prepared):
    """The method's own problem, after whatever it builds on."""
    all_stages, done = stages_of(prepared), {}
    for stage in all_stages[:-1]:
        done[stage.name] = Trainer(stage.build(done), prepared.settings, None, stage=stage.name, save=None).run()
    return all_stages[-1].build(done)


def gradients(problem, partition, block):
    """Loss and gradients of every step on one block."""
    found = []
    for step in problem.steps:
        step.module.zero_grad(set_to_none=True)
        loss = partition.backward(step, *block)
        found.append((loss, {name: p.grad.clone() for name, p in step.module.named_parameters() if p.grad is not None}))
    return found


METHODS = ["mf", "puid-ips", "puid-dr", "bpuid-dr", "signed-rd", "multi-dr"]
NORMALISED = ["rd-ips", "puid-dr", "brd-dr"]


@pytest.mark.parametrize("block_users", [0, 15])
@pytest.mark.parametrize(
    ("method", "given"), [*((m, {}) for m in METHODS), *((m, {"normalise": True}) for m in NORMALISED)]
)
def test_parts_have_the_gradient_of_the_block(method, given, block_users, prepare) -> None:
    prepared = prepare(method, backbone="mf-linear", block_users=block_users, epochs=2, **given)
    whole = partition_of(prepared)
    small = replace(whole, max_pairs=20)
    block = whole.blocks[-1]
    assert whole.whole(*block)
    assert len(small.parts(*block)) > 1
    problem = problem_of(prepared)
    for (one, expected), (other, found) in zip(
        gradients(problem, whole, block), gradients(problem, small, block), strict=True
    ):
        assert other == pytest.approx(one, abs=2e-6)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=2e-6, rtol=2e-5)
    assert small.total(problem.steps[0]) == pytest.approx(whole.total(problem.steps[0]), abs=2e-6)


class Recording(World):
    """A process that hands its summands to the test instead of adding them up."""

    def sum(self, values):
        self.log.append(values.clone())
        return values


@pytest.mark.parametrize("method", ["dr", "bpuid-dr", "signed-puid", "multi-ips", "multi-dr"])
def test_processes_together_have_the_gradient_of_one(method, prepare) -> None:
    prepared = prepare(method, backbone="mf-linear", epochs=2)
    whole = partition_of(prepared)
    start = problem_of(prepared)
    step = start.steps[0]
    step.penalty().backward()
    penalty = {name: p.grad.clone() for name, p in step.module.named_parameters() if p.grad is not None}
    expected_loss, expected = gradients(start, whole, whole.blocks[0])[0]
    own_rows, total, loss = [], 0, 0.0
    for rank in range(3):
        world = Recording(rank, 3)
        object.__setattr__(world, "log", [])
        partition, problem = replace(whole, world=world), problem_of(prepared)
        partition.drop_other_users(problem)
        step = problem.steps[0]
        axes = entity_axes(step.module)
        (low, high), parameters = partition.own[0], dict(step.module.named_parameters())
        assert all(parameters[name].shape[axis] == high - low < partition.n_users for name, axis in axes.items())
        step.module.zero_grad(set_to_none=True)
        partition.backward(step, 0, partition.n_users)
        bucket, value = world.log
        assert value.dtype == torch.float64
        loss, total = loss + float(value), total + bucket
        own_rows.append({name: parameters[name].grad for name in axes})
    assert loss == pytest.approx(expected_loss, abs=2e-6)
    assert len(axes) == (2 if method.startswith("multi") else 1)
    for name, axis in axes.items():
        together = torch.cat([rows[name] for rows in own_rows], axis)
        torch.testing.assert_close(together, expected[name], atol=2e-6, rtol=2e-5)
    shared = {name: g for name, g in expected.items() if name not in axes}
    for (name, gradient), part in zip(
        shared.items(), torch.split(total, [g.numel() for g in shared.values()]), strict=True
    ):
        own = part.view_as(gradient) + penalty.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(own, gradient, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("method", ["dr", "multi-dr"])
def test_a_process_starts_with_its_own_users_part_of_the_start_of_one(method, prepare) -> None:
    prepared = prepare(method, backbone="mf-linear", block_users=15)
    expected = dict(problem_of(prepared).steps[0].module.named_parameters())
    for rank in range(3):
        partition = replace(partition_of(prepared), world=World(rank, 3))
        problem = stages_of(prepared, partition)[-1].build({})
        partition.drop_other_users(problem)
        module = problem.steps[0].module
        axes = entity_axes(module)
        assert axes
        for name, value in module.named_parameters():
            whole = expected[name]
            assert torch.equal(value, partition.take_own(whole, axes[name]) if name in axes else whole), name


class Channel(World):
    """Processes in one: what is sent waits to be received."""

    def send(self, values):
        self.box.append(values.clone())

    def receive(self, into, rank):
        return into.copy_(self.boxes[rank].pop(0))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_process_collects_the_rows_of_all(axis, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "SENT_ROWS", 3)
    row_start, everyone = row_start_of(np.arange(23)), torch.arange(46.0).view(23, 2).movedim(0, axis)
    boxes = {rank: [] for rank in range(3)}
    for rank in (1, 2, 0):
        world = Channel(rank, 3)
        for name, value in (("box", boxes[rank]), ("boxes", boxes)):
            object.__setattr__(world, name, value)
        partition = UserPartition(row_start, 9, world)
        found = partition.gather_to_first(partition.take_own(everyone, axis), axis)
    assert torch.equal(found, everyone)
    assert not any(boxes.values())


def test_rows_of_all_processes_come_back_in_order(prepare) -> None:
    row_start = row_start_of(np.arange(23))
    rows = torch.arange(46.0).view(23, 2)
    partitions = [UserPartition(row_start, 9, World(rank, 3)) for rank in range(3)]
    whole = torch.zeros(23, 2)
    for partition in partitions:
        for own, (a, b) in zip(
            torch.split(partition.take_own(rows), [b - a for a, b in partition.own]), partition.own, strict=True
        ):
            whole[a:b] = own
    assert torch.equal(whole, rows)
    assert sum(len(partition.take_own(rows)) for partition in partitions) == 23


def test_users_of_another_process_are_out_of_reach(prepare) -> None:
    prepared = prepare("mf", backbone="mf")
    problem = problem_of(prepared)
    partition = replace(partition_of(prepared), world=World(1, 2))
    partition.drop_other_users(problem)
    (a, b) = partition.own[0]
    assert problem.phi.users(slice(a, b)).shape[0] == b - a
    with pytest.raises(IndexError, match="another process"):
        problem.phi.users(slice(a - 1, b))


@pytest.mark.parametrize("max_pairs", [1, 7, 60, 10**6])
def test_blocks_cover_every_user_once_and_respect_the_limit(make_observed, max_pairs):
    observed, mask = make_observed(0)
    blocks = user_blocks(observed.pattern.row_start.numpy(), max_pairs)
    assert [u for start, stop in blocks for u in range(start, stop)] == list(range(len(mask)))
    for start, stop in blocks:
        assert stop == start + 1 or int(mask[start:stop].sum()) <= max_pairs


def test_gradient_in_blocks_is_the_gradient_of_all(make_observed):
    """An exact DR step: parameters behind the factors get the same gradient, whatever the blocks."""
    observed, mask = make_observed(0)
    phi, theta = (make_backbone("mf", *mask.shape, 4, rng=seed).double() for seed in (0, 1))
    error, other = pointwise_error("squared"), theta.factors().detach()
    whole = robust_mean(dr(observed, phi.factors(), other, error), observed.bounds, observed.n_pairs)
    whole.backward()
    expected = [p.grad.clone() for p in phi.parameters()]
    phi.zero_grad()

    def loss(start, stop, factors):
        part = observed.rows(start, stop)
        return robust_mean(dr(part, factors, other.rows(slice(start, stop)), error), part.bounds, observed.n_pairs)

    value = backward_in_blocks(phi.factors(), loss, user_blocks(observed.pattern.row_start.numpy(), 50))
    torch.testing.assert_close(value, whole.detach(), rtol=1e-12, atol=0)
    for parameter, gradient in zip(phi.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_factors_of_several_parts_are_refused(make_scores):
    scores = make_scores(0)
    with pytest.raises(InputError, match="one part"):
        backward_in_blocks(scores.minus(scores), lambda start, stop, f: f.tile().sum(), [(0, 3)])

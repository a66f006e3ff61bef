"""A block in pieces, or cut among processes, is the same block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.train import pieces
from puidrec.train.distributed import World
from puidrec.train.owned import own_axes
from puidrec.train.pieces import Plan
from puidrec.train.stages import plan_of, stages_of
from puidrec.train.trainer import Trainer

DEGREES = st.lists(st.integers(0, 30), min_size=1, max_size=60)


def crow_of(degrees) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)


@given(DEGREES, st.integers(1, 70), st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_user_is_in_one_piece_of_one_process(degrees, block, size, max_pairs) -> None:
    crow = crow_of(degrees)
    plans = [Plan(crow, block, World(rank, size), max_pairs) for rank in range(size)]
    for start, stop in plans[0].blocks:
        users = [u for plan in plans for a, b in plan.pieces(start, stop) for u in range(a, b)]
        assert users == list(range(start, stop))
    for plan in plans:
        pieces = [piece for block_ in plan.blocks for piece in plan.pieces(*block_)]
        assert all(crow[b] - crow[a] <= max_pairs or b == a + 1 for a, b in pieces)


def test_processes_get_equal_loads() -> None:
    crow = crow_of(np.random.default_rng(0).integers(0, 50, 10_000))
    loads = [crow[b] - crow[a] for rank in range(4) for a, b in Plan(crow, 10_000, World(rank, 4)).own]
    assert sum(loads) == crow[-1]
    assert max(loads) < 1.01 * min(loads)


def problem_of(prepared):
    """The method's own problem, after whatever it builds on."""
    all_stages, done = stages_of(prepared), {}
    for stage in all_stages[:-1]:
        done[stage.name] = Trainer(stage.build(done), prepared.settings, None, stage=stage.name, save=None).run()
    return all_stages[-1].build(done)


def gradients(problem, plan, block):
    """Loss and gradients of every step on one block."""
    found = []
    for step in problem.steps:
        step.module.zero_grad(set_to_none=True)
        loss = plan.descend(step, *block)
        found.append((loss, {name: p.grad.clone() for name, p in step.module.named_parameters() if p.grad is not None}))
    return found


METHODS = ["mf", "puid-ips", "puid-dr", "bpuid-dr", "signed-rd", "multi-dr"]
NORMALISED = ["rd-ips", "puid-dr", "brd-dr"]


@pytest.mark.parametrize("block_users", [0, 15])
@pytest.mark.parametrize(
    ("method", "given"), [*((m, {}) for m in METHODS), *((m, {"normalise": True}) for m in NORMALISED)]
)
def test_pieces_have_the_gradient_of_the_block(method, given, block_users, prepare) -> None:
    prepared = prepare(method, backbone="mf-linear", block_users=block_users, epochs=2, **given)
    whole = plan_of(prepared)
    small = replace(whole, max_pairs=20)
    block = whole.blocks[-1]
    assert whole.whole(*block)
    assert len(small.pieces(*block)) > 1
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
    whole = plan_of(prepared)
    start = problem_of(prepared)
    step = start.steps[0]
    step.penalty().backward()
    penalty = {name: p.grad.clone() for name, p in step.module.named_parameters() if p.grad is not None}
    expected_loss, expected = gradients(start, whole, whole.blocks[0])[0]
    own_rows, total, loss = [], 0, 0.0
    for rank in range(3):
        world = Recording(rank, 3)
        object.__setattr__(world, "log", [])
        plan, problem = replace(whole, world=world), problem_of(prepared)
        plan.localise(problem)
        step = problem.steps[0]
        axes = own_axes(step.module)
        (low, high), parameters = plan.own[0], dict(step.module.named_parameters())
        assert all(parameters[name].shape[axis] == high - low < plan.n_users for name, axis in axes.items())
        step.module.zero_grad(set_to_none=True)
        plan.descend(step, 0, plan.n_users)
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
        plan = replace(plan_of(prepared), world=World(rank, 3))
        problem = stages_of(prepared, plan)[-1].build({})
        plan.localise(problem)
        module = problem.steps[0].module
        axes = own_axes(module)
        assert axes
        for name, value in module.named_parameters():
            whole = expected[name]
            assert torch.equal(value, plan.cut(whole, axes[name]) if name in axes else whole), name


class Channel(World):
    """Processes in one: what is sent waits to be received."""

    def send(self, values):
        self.box.append(values.clone())

    def receive(self, into, rank):
        return into.copy_(self.boxes[rank].pop(0))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_process_collects_the_rows_of_all(axis, monkeypatch) -> None:
    monkeypatch.setattr(pieces, "SENT", 3)
    crow, everyone = crow_of(np.arange(23)), torch.arange(46.0).view(23, 2).movedim(0, axis)
    boxes = {rank: [] for rank in range(3)}
    for rank in (1, 2, 0):
        world = Channel(rank, 3)
        for name, value in (("box", boxes[rank]), ("boxes", boxes)):
            object.__setattr__(world, name, value)
        plan = Plan(crow, 9, world)
        found = plan.collect(plan.cut(everyone, axis), axis)
    assert torch.equal(found, everyone)
    assert not any(boxes.values())


def test_rows_of_all_processes_come_back_in_order(prepare) -> None:
    crow = crow_of(np.arange(23))
    rows = torch.arange(46.0).view(23, 2)
    plans = [Plan(crow, 9, World(rank, 3)) for rank in range(3)]
    whole = torch.zeros(23, 2)
    for plan in plans:
        for own, (a, b) in zip(torch.split(plan.cut(rows), [b - a for a, b in plan.own]), plan.own, strict=True):
            whole[a:b] = own
    assert torch.equal(whole, rows)
    assert sum(len(plan.cut(rows)) for plan in plans) == 23


def test_users_of_another_process_are_out_of_reach(prepare) -> None:
    prepared = prepare("mf", backbone="mf")
    problem = problem_of(prepared)
    plan = replace(plan_of(prepared), world=World(1, 2))
    plan.localise(problem)
    (a, b) = plan.own[0]
    assert problem.phi.users(slice(a, b)).shape[0] == b - a
    with pytest.raises(IndexError, match="another process"):
        problem.phi.users(slice(a - 1, b))

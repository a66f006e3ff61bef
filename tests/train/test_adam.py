from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from puidrec.train.adam import Adam


def fresh() -> list[torch.nn.Parameter]:
    """Two parameters that learn and one that has no gradient."""
    return [torch.nn.Parameter(torch.linspace(-1, 2, n)) for n in (4, 5, 6)]


def steps(optimizer, weights, n) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        (weights[1].pow(4).sum() + (weights[0] * 3).exp().sum()).backward()
        optimizer.step()


def test_steps_are_those_of_torch() -> None:
    ours, theirs = fresh(), fresh()
    steps(Adam(ours, 0.1), ours, 12)
    steps(torch.optim.Adam(theirs, lr=0.1, fused=True), theirs, 12)
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))
    assert torch.equal(ours[2], fresh()[2])


def test_it_goes_on_as_if_nothing_had_happened() -> None:
    whole, half, other = fresh(), fresh(), fresh()
    steps(Adam(whole, 0.1), whole, 7)
    first, second = Adam(half, 0.1), Adam(other, 0.1)
    steps(first, half, 3)
    for mine, theirs in zip(other, half, strict=True):
        mine.data.copy_(theirs.data)
    state = {name: tensor.clone() for name, tensor in first.state("adam.phi").items()}
    assert set(state) == {f"adam.phi.{k}.{name}" for k in (0, 1) for name in ("step", "exp_avg", "exp_avg_sq")}
    second.restore(state, "adam.phi")
    steps(first, half, 1)  # must not reach what was restored
    steps(second, other, 4)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(other, whole, strict=True))


def test_moments_of_another_model_are_refused() -> None:
    first = fresh()
    optimizer = Adam(first, 0.1)
    steps(optimizer, first, 1)
    state = optimizer.state("adam")
    with pytest.raises(ValueError, match="shape"):
        Adam(fresh()[::-1], 0.1).restore(state, "adam")
    with pytest.raises(KeyError, match=r"adam\.0\.x"):
        Adam(fresh(), 0.1).restore({**state, "adam.0.x": torch.zeros(4)}, "adam")
    del state["adam.1.exp_avg"]
    with pytest.raises(KeyError):
        Adam(fresh(), 0.1).restore(state, "adam")


def test_training_loads_neither_the_compiler_nor_what_it_does_not_use() -> None:
    code = (
        "import sys; from puidrec.data.synthetic import simulate; from puidrec.model import Recommender\n"
        "Recommender('bpuid-dr', epochs=2, dim=3).fit(simulate('mixed', 40, 25, density=0.2, rng=0).data)\n"
        "print([name for name in ('torch._dynamo', 'sklearn', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.scores import log as sparse
from puidrec.scores.log import LogPattern, has_sparse_kernels, sampled_product, sparse_matmul


def random_log(seed, n_users, n_items, share=0.3):
    mask = np.random.default_rng(seed).random((n_users, n_items)) < share
    return np.nonzero(mask)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 20))
def test_value_and_gradient_equal_dense_autograd(seed, n_users, n_items):
    user, item = random_log(seed, n_users, n_items)
    pattern = LogPattern.from_pairs(user, item, n_users, n_items)
    rng = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randn(n, 5, generator=rng, dtype=torch.float64, requires_grad=True)
        for n in (n_users, n_items)
    )
    values = sampled_product(left, right, pattern)
    dense = (left @ right.T)[user, item]
    torch.testing.assert_close(values, dense)
    upstream = torch.randn(user.size, generator=rng, dtype=torch.float64)
    mine = torch.autograd.grad(values, (left, right), upstream)
    for a, b in zip(mine, torch.autograd.grad(dense, (left, right), upstream), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_look_ups_agree_with_kernels(dtype, monkeypatch):
    monkeypatch.setattr(sparse, "CHUNK", 50)
    user, item = random_log(0, 40, 30)
    rng = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(n, 66, generator=rng, dtype=dtype, requires_grad=True) for n in (40, 30)
    )
    outputs = []
    for there in (has_sparse_kernels("cpu", dtype), False):
        monkeypatch.setattr(sparse, "has_sparse_kernels", lambda *_, there=there: there)
        values = sampled_product(left, right, LogPattern.from_pairs(user, item, 40, 30))
        outputs.append([values, *torch.autograd.grad(values.square().sum(), (left, right))])
    for a, b in zip(*outputs, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(
            a,
            b,
            rtol=2e-5 if dtype == torch.float32 else 1e-10,
            atol=2e-4 if dtype == torch.float32 else 1e-12,
        )


def test_gradcheck():
    user, item = random_log(0, 4, 5)
    pattern = LogPattern.from_pairs(user, item, 4, 5)
    left, right = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    assert torch.autograd.gradcheck(lambda a, b: sampled_product(a, b, pattern), (left, right))


def test_sparse_matmul_and_its_gradient():
    user, item = random_log(1, 12, 7)
    values = torch.randn(user.size, dtype=torch.float64)
    dense = torch.zeros(12, 7, dtype=torch.float64)
    dense[user, item] = values
    weight = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    product = sparse_matmul(LogPattern.from_pairs(user, item, 12, 7), values, weight)
    torch.testing.assert_close(product, dense @ weight)
    torch.testing.assert_close(
        torch.autograd.grad(product.square().sum(), weight)[0], 2 * dense.T @ dense @ weight
    )


def test_empty_log():
    empty = np.zeros(0, np.int64)
    left = torch.randn(3, 2, requires_grad=True)
    sampled_product(
        left, torch.randn(4, 2), LogPattern.from_pairs(empty, empty, 3, 4)
    ).sum().backward()
    assert torch.equal(left.grad, torch.zeros(3, 2))


def test_two_runs_are_bit_identical():
    user, item = random_log(0, 500, 300)
    pattern = LogPattern.from_pairs(user, item, 500, 300)
    left, right = torch.randn(500, 33), torch.randn(300, 33)
    first, second = (pattern.matmul_transposed(pattern.sample(left, right), left) for _ in range(2))
    assert torch.equal(first, second)


def broken(*_, **__):
    raise RuntimeError("no such kernel")


def wrong(matrix, *_, **__):
    matrix.values().fill_(2.0)


def idle(matrix, *_, **__):
    """Leaves the values as they are."""


@pytest.mark.parametrize("kernel", [broken, wrong, idle], ids=["missing", "wrong", "idle"])
def test_where_torch_has_no_kernel_look_ups_stand_in(kernel, monkeypatch):
    monkeypatch.setattr(sparse, "has_sparse_kernels", cache(has_sparse_kernels.__wrapped__))
    monkeypatch.setattr(torch.sparse, "sampled_addmm", kernel)
    assert not sparse.has_sparse_kernels("cpu", torch.float32)
    user, item = random_log(0, 6, 5)
    left, right = torch.randn(6, 3), torch.randn(5, 3)
    values = sampled_product(left, right, LogPattern.from_pairs(user, item, 6, 5))
    torch.testing.assert_close(values, (left @ right.T)[user, item])


def test_kernels_are_found_where_torch_has_them():
    assert not has_sparse_kernels("meta", torch.float32)
    if torch.backends.mkl.is_available():
        assert has_sparse_kernels("cpu", torch.float32)

"""Identity 1: scores of the observed pairs are a sampled product on the log's CSR pattern.

v_k = ⟨l_u(k), r_i(k)⟩ for the pairs k of the log; the gradient is two sparse-dense products, V R
and Vᵀ L. Both run
on compressed rows: no gathered copies of embeddings, an order of magnitude faster than look-ups.

Where torch has no kernel for the first (other platforms, some devices) the same numbers come from
chunked look-ups.
"""

from __future__ import annotations

import warnings
from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

CHUNK = 16_384
"""Pairs per look-up: two gathered blocks of embeddings fit the cache."""
LANES = 8
"""Columns below which MKL multiplies one number at a time: six took 20 times as long as eight."""


class LogPattern:
    """Which pairs are there, as compressed rows, with the transpose made when first asked for.
    Values come and go.

    Rows are the users (or, for a design matrix, the entities). Indices are int32, as MKL wants
    them; a log beyond 2³¹ pairs is worked on in blocks of users.
    """

    def __init__(self, row_start: Tensor, col: Tensor, n_items: int) -> None:
        self.row_start, self.col, self.n_items = row_start, col, n_items
        self.n_users = row_start.numel() - 1

    @classmethod
    def from_pairs(
        cls, user: np.ndarray, item: np.ndarray, n_users: int, n_items: int
    ) -> LogPattern:
        """Codes of a log sorted by user (as `Interactions` are); value k of the pattern belongs to
        row k of the log."""
        row_start = np.searchsorted(user, np.arange(n_users + 1)).astype(np.int32)
        columns = np.array(item, dtype=np.int32)
        return cls(torch.from_numpy(row_start), torch.from_numpy(columns), n_items)

    def __len__(self) -> int:
        return self.col.numel()

    def to(self, device: torch.device | str) -> LogPattern:
        """The pattern on another device."""
        return LogPattern(self.row_start.to(device), self.col.to(device), self.n_items)

    @cached_property
    def _transposed(self) -> tuple[LogPattern, Tensor]:
        """The transpose, and the order that takes values there; linear in the pairs."""
        order = np.arange(len(self), dtype=np.int32)
        parts = (order, self.col.cpu().numpy(), self.row_start.cpu().numpy())
        turned = sp.csr_matrix(parts, shape=(self.n_users, self.n_items)).tocsc()
        device = self.col.device
        row_start, col, order_t = (
            torch.from_numpy(x).to(device) for x in (turned.indptr, turned.indices, turned.data)
        )
        return LogPattern(row_start, col, self.n_users), order_t

    @property
    def user(self) -> Tensor:
        """Row of each pair; made on demand, for look-ups."""
        counts = self.row_start.diff().long()
        return torch.repeat_interleave(
            torch.arange(self.n_users, device=self.row_start.device), counts
        )

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        """⟨l_u, r_i⟩ of each pair."""
        size, like = self.col.numel(), left.dtype
        values = torch.zeros(
            size, dtype=like, device=left.device
        )  # read by kernels if beta = 0 too
        if size and has_sparse_kernels(left.device.type, like):
            if like == torch.float32 and left.shape[1] < LANES:
                left, right = (pad(side, (0, LANES - side.shape[1])) for side in (left, right))
            shape, rows, columns = (self.n_users, self.n_items), self.row_start, self.col
            matrix = torch.sparse_csr_tensor(rows, columns, values, shape, check_invariants=False)
            torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0, out=matrix)
            return values
        user = self.user
        for start in range(0, size, CHUNK):
            part = slice(start, start + CHUNK)
            values[part] = (
                left.index_select(0, user[part]) * right.index_select(0, self.col[part])
            ).sum(1)
        return values

    def matmul(self, values: Tensor, dense: Tensor) -> Tensor:
        """V @ dense, V the matrix of the pattern with these values: weighted sums of bags of rows,
        which torch makes several times as fast as sparse products."""
        if not self.col.numel():
            return dense.new_zeros(self.n_users, dense.shape[1])
        ends = self.row_start[:-1]
        return embedding_bag(self.col, dense, ends, mode="sum", per_sample_weights=values)

    def matmul_transposed(self, values: Tensor, dense: Tensor) -> Tensor:
        """Vᵀ @ dense."""
        turned, order = self._transposed
        return turned.matmul(values.index_select(0, order), dense)


def sampled_product(left: Tensor, right: Tensor, pattern: LogPattern) -> Tensor:
    """Scores ⟨l_u, r_i⟩ of the pattern's pairs (`eq:prediction` on O), differentiable in both
    factors."""
    values: Tensor = _SampledProduct.apply(left, right, pattern)  # type: ignore[no-untyped-call]
    return values


def sparse_matmul(pattern: LogPattern, values: Tensor, dense: Tensor) -> Tensor:
    """X @ W for a constant sparse X, differentiable in W: how features become representations."""
    product: Tensor = _SparseMatmul.apply(dense, values, pattern)  # type: ignore[no-untyped-call]
    return product


class _SampledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, pattern: LogPattern) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.pattern = pattern
        return pattern.sample(left, right)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        upstream = upstream.contiguous()
        grad_left = ctx.pattern.matmul(upstream, right) if ctx.needs_input_grad[0] else None
        grad_right = (
            ctx.pattern.matmul_transposed(upstream, left) if ctx.needs_input_grad[1] else None
        )
        return grad_left, grad_right, None


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, values: Tensor, pattern: LogPattern) -> Tensor:
        ctx.pattern, ctx.values = pattern, values
        return pattern.matmul(values, dense)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.pattern.matmul_transposed(ctx.values, upstream.contiguous()), None, None


@cache
def has_sparse_kernels(device: str, dtype: torch.dtype) -> bool:
    """Try the kernel once on a tiny matrix of 0, so that one that does nothing is found out.

    This also spends torch's one-time notice that CSR is in beta.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            index = torch.tensor([0, 1], dtype=torch.int32, device=device)
            ones = torch.ones(1, 1, dtype=dtype, device=device)
            matrix = torch.sparse_csr_tensor(
                index, index[:1], torch.zeros_like(ones[0]), (1, 1), check_invariants=False
            )
            torch.sparse.sampled_addmm(matrix, ones, ones, beta=0.0, out=matrix)
            return bool((matrix @ ones).item() == 1.0)
        except (RuntimeError, NotImplementedError):
            return False

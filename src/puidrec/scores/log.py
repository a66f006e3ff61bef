"""The logged pairs as an operator between vectors of users and vectors of items.

    scores(P, Q)         ⟨p_u, q_i⟩ of each logged pair          (a sampled product)
    to_users(values, Q)  Σ_i value_ui q_i of each user            (a sparse product)
    to_items(values, P)  Σ_u value_ui p_u of each item, summed over processes

A `Column` holds a number per logged pair. Whether rows are in memory, on disk, or some of several
processes' is known
in this module and nowhere else: on disk a column is a file, products go over blocks of users, and
where several processes work on one model (`torchrun`) each holds the rows of its own users and a
copy of all items.

Products run on compressed rows (`LogPattern`, identity 1): no gathered copies of embeddings, an
order of magnitude faster than look-ups. Where torch has no kernel for the first (other platforms,
some devices) the same numbers come from chunked look-ups.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from puidrec.data.on_disk import Scratch
from puidrec.data.row_matrix import user_blocks
from puidrec.errors import InputError
from puidrec.scores.low_rank import LowRank
from puidrec.world import ALONE, World

PAIRS_IN_MEMORY = 5_000_000
"""Logged pairs of a block: vectors of 20 MB are given back to the allocator and taken again; from
32 MiB on, glibc asks the system for new pages each time."""
PAIRS_FROM_DISK = 2_000_000
"""The same for a log on disk."""
SUMMED, FEW_NUMBERS = 64, 65_536
"""Numbers that are summed in their own precision before float64 takes over, and so few that it need
not."""


class Block(NamedTuple):
    """The logged pairs of some users, by their numbers within this process."""

    users: slice
    rows: slice
    pattern: LogPattern


class Stored:
    """Numbers on disk that are read and written as a tensor's are: a range at a time."""

    def __init__(self, room: Scratch, dtype: torch.dtype, device: str) -> None:
        self.room, self.dtype, self.device = room, dtype, device

    def __getitem__(self, rows: slice) -> Tensor:
        return torch.from_numpy(np.array(self.room.values[rows])).to(self.device, self.dtype)

    def __setitem__(self, rows: slice, values: Tensor) -> None:
        self.room.write(rows.start, values.cpu().numpy())


class Column(NamedTuple):
    """A number per logged pair of this process: a tensor, or `Stored` on disk."""

    values: Any


class Row(SimpleNamespace):
    """The numbers of some logged pairs by name: `r` ratings, `a` and `b` bounds of weights, and
    what a loss adds."""

    r: Tensor
    a: Tensor
    b: Tensor
    g: Tensor
    k0: Tensor
    m: Tensor
    s: Tensor


@dataclass(frozen=True, eq=False)
class Log:
    """Logged pairs sorted by user: `row_start` pairs before each user; the item of each pair."""

    row_start: np.ndarray
    item: np.ndarray
    n_items: int
    world: World = ALONE
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    scratch: Callable[[type], Scratch] | None = None
    """Makes room on disk for a number per row; None: the log is in memory."""

    def __len__(self) -> int:
        """Logged pairs of all processes."""
        return int(self.row_start[-1])

    @property
    def all_users(self) -> int:
        """Users of all processes."""
        return self.row_start.size - 1

    @property
    def n_pairs(self) -> int:
        """Pairs of D: all users × all items."""
        return self.all_users * self.n_items

    @cached_property
    def users(self) -> slice:
        """The users of this process, among all: each has about as many pairs."""
        load = self.row_start + np.arange(self.row_start.size)  # a user costs one for itself
        goals = load[-1] * np.arange(self.world.size + 1) / self.world.size
        cuts = np.searchsorted(load, goals)
        cuts[-1] = self.all_users
        return slice(int(cuts[self.world.rank]), int(cuts[self.world.rank + 1]))

    @property
    def n_users(self) -> int:
        """Users of this process."""
        return int(self.users.stop - self.users.start)

    @cached_property
    def n_rows(self) -> int:
        """Logged pairs of this process."""
        return int(self.row_start[self.users.stop] - self.row_start[self.users.start])

    @property
    def in_memory(self) -> bool:
        """Whether columns are tensors."""
        return self.scratch is None

    def require_simple(self, method: str) -> LogPattern:
        """Where the pairs are, as one pattern: what methods trained by Adam need; refused on disk
        or divided."""
        if self.in_memory and self.world.size == 1:
            return self.pattern
        found = "several processes" if self.in_memory else "a log on disk"
        raise InputError(
            f"{method} is trained by adam, which needs the log in memory and one process",
            found=found,
            expected="a method that is solved by least squares, such as dr or puid-dr",
        )

    @cached_property
    def pattern(self) -> LogPattern:
        """All pairs of a log in memory."""
        return self._pattern(self.users.start, self.users.stop)

    # products

    def scores(self, left: Tensor, right: Tensor) -> Column:
        """⟨l_u, r_i⟩ of each logged pair."""
        out = self.column()
        for users, rows, pattern in self.blocks:
            out.values[rows] = pattern.sample(left[users], right)
        return out

    def scores_of(self, scores: LowRank) -> Column:
        """The same of any low-rank scores of all users."""
        pairs = zip(scores.lefts, scores.rights, strict=True)
        columns = [self.scores(self.own(left), right) for left, right in pairs]
        return columns[0] if len(columns) == 1 else self.map(lambda *s: sum(s), *columns)

    def to_users(self, values: Column, right: Tensor) -> Tensor:
        """Σ over a user's pairs of value × the item's vector, [users, d]."""
        found = [p.matmul(values.values[rows], right) for _, rows, p in self.blocks]
        return torch.cat(found) if len(found) > 1 else found[0]

    def to_items(self, values: Column, left: Tensor) -> Tensor:
        """Σ over an item's pairs of value × the user's vector, [items, d]."""
        total = left.new_zeros(self.n_items, left.shape[1])
        for users, rows, pattern in self.blocks:
            total += pattern.matmul_transposed(values.values[rows], left[users])
        return self.total(total)

    def total(self, values: Tensor) -> Tensor:
        """Σ over processes."""
        return values if self.world.size == 1 else self.world.sum(values)

    # columns

    def column(self) -> Column:
        """Room for a number per row."""
        if self.scratch is None:
            return Column(torch.empty(self.n_rows, dtype=self.dtype, device=self.device))
        kind = np.float64 if self.dtype == torch.float64 else np.float32
        return Column(Stored(self.scratch(kind), self.dtype, self.device))

    def filled(self, values: Callable[[slice], np.ndarray]) -> Column:
        """A column made of what `values` gives for ranges of all rows of the log."""
        out, first = self.column(), int(self.row_start[self.users.start])
        for _, rows, _ in self.blocks:
            found = np.array(values(slice(rows.start + first, rows.stop + first)), dtype=np.float64)
            out.values[rows] = torch.from_numpy(found).to(self.device, self.dtype)
        return out

    def map(
        self,
        function: Callable[..., Tensor],
        *columns: Column,
        row: Mapping[str, Column] | None = None,
    ) -> Column:
        """A column made of others, number by number; those of `row` come as one last argument."""
        out = self.column()
        for parts, rows in self.parts(columns, row):
            out.values[rows] = function(*parts)
        return out

    def sum(
        self,
        function: Callable[..., Tensor],
        *columns: Column,
        row: Mapping[str, Column] | None = None,
    ) -> Tensor:
        """Σ over blocks and processes of what `function` makes of columns: a float64 vector or
        number."""
        found = [function(*parts) for parts, _ in self.parts(columns, row)]
        return self.total(torch.stack(found).sum(0) if len(found) > 1 else found[0])

    def parts(
        self, columns: Sequence[Column], row: Mapping[str, Column] | None
    ) -> Iterator[tuple[list[Any], slice]]:
        """Block by block the numbers of columns, those of `row` by name, and where they are."""
        for _, rows, _ in self.blocks:
            found: list[Any] = [column.values[rows] for column in columns]
            if row is not None:
                found.append(Row(**{name: column.values[rows] for name, column in row.items()}))
            yield found, rows

    @cached_property
    def blocks(self) -> Iterable[Block]:
        """The pairs, some users at a time: kept in memory, or read whenever they are walked."""
        return list(self._read()) if self.in_memory else _Walked(self._read)

    # users of all processes

    @torch.no_grad()
    def gather(self, rows: Tensor) -> Tensor:
        """A row of every user, from those that each process holds, for every process."""
        if self.world.size == 1:
            return rows
        whole = rows.new_zeros((self.all_users, *rows.shape[1:]))
        whole[self.users] = rows
        return self.world.sum(whole)

    def own(self, rows: Tensor) -> Tensor:
        """The rows of this process's users, out of those of all users."""
        return rows if self.world.size == 1 else rows[self.users]

    def _read(self) -> Iterator[Block]:
        low, first = self.users.start, int(self.row_start[self.users.start])
        counts = self.row_start[low : self.users.stop + 1] - first
        most = PAIRS_IN_MEMORY if self.in_memory else PAIRS_FROM_DISK
        # a process without users takes part in all sums with a block of nothing
        for start, stop in user_blocks(counts, most) if counts.size > 1 else [(0, 0)]:
            rows = slice(int(counts[start]), int(counts[stop]))
            whole = self.in_memory and stop - start == self.n_users
            pattern = self.pattern if whole else self._pattern(low + start, low + stop)
            yield Block(slice(start, stop), rows, pattern)

    def _pattern(self, start: int, stop: int) -> LogPattern:
        """Where the pairs of users start..stop−1 are, as a matrix of these users."""
        ends = self.row_start[start : stop + 1]
        item = np.array(self.item[int(ends[0]) : int(ends[-1])], dtype=np.int32)
        row_start = torch.from_numpy((ends - ends[0]).astype(np.int32))
        return LogPattern(row_start, torch.from_numpy(item), self.n_items).to(self.device)


@dataclass(frozen=True)
class _Walked:
    """Starts anew whenever it is walked."""

    read: Callable[[], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:
        return self.read()


def exact_sum(values: Tensor) -> Tensor:
    """Σ in float64 of sums of `SUMMED` numbers in their own precision: a copy of all as float64
    would take longer."""
    if values.dtype == torch.float64 or values.numel() < FEW_NUMBERS:
        return values.sum(dtype=torch.float64)
    flat = values.reshape(-1)
    whole = flat.numel() // SUMMED * SUMMED
    head = flat[:whole].view(-1, SUMMED).sum(1).sum(dtype=torch.float64)
    return head + flat[whole:].sum(dtype=torch.float64)


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

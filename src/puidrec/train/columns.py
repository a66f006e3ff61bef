"""How many columns the vectors need: L2 on both sides is a price per column, and most columns are not worth it.

With E = −½ ∂loss/∂scores, a new column t p qᵀ (|p| = |q| = 1, both sides balanced) changes the objective by

    −2 t (pᵀE q − √(ρ_u ρ_i)) + t² κ,   κ = Σ_O c p_u² q_i² + v,

so columns worth adding are singular vectors of E with σ > √(ρ_u ρ_i), and none is left at the optimum unless all `dim`
columns are in use. The vectors therefore start without columns, from the biases, whatever the seed; columns are added
where the data ask for them, and left out again where L2 shrinks them to nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puidrec.train.quadratic import Objective, Quadratic, Rows, alone, gram
from puidrec.train.sides import Model, Point

NEGLIGIBLE = 1e-3
"""The length, against the longest, below which a shrinking column is left out."""
EMPTY = 1e-6
"""Scores to which a column of a start contributes less than this do not depend on it."""
POWER_STEPS = 3
"""Products with EᵀE from a fixed start, for its leading singular vectors."""
KERNEL_WIDTH = FURTHER = 8
"""Numbers that a processor adds at a time; columns looked for besides those in use."""
CLEARLY = 0.02
"""Share of the largest gain below which a column waits: those added first may explain it too."""
HALVINGS = 8


def without_empty(point: Point) -> Point:
    """The columns that contribute to scores, and the biases."""
    kept = point["users"].abs().amax(0) * point["items"].abs().amax(0) > EMPTY
    kept[-1] = True
    return {name: x if x.ndim == 0 else x[:, kept] for name, x in point.items()}


def widened(objective: Objective, model: Model, point: Point, value: float, worth: float) -> tuple[Point, float] | None:
    """The point with new columns that lower the objective, and its value; None if none lowers it by `worth`.

    model: with all its columns. value: the objective at the point.
    """
    width = point["users"].shape[1]
    room = model.users.penalty.numel() - width
    if width > 1:
        room = min(room, FURTHER)
    if room == 0:
        return None
    prices = [float(side.penalty[0]) for side in (model.users, model.items)]
    p, sigma, q, kappa = _leading(objective.at(model.narrowed(width).scores(point)), point, room, model)
    profit = (sigma - (prices[0] * prices[1]) ** 0.5).clamp_min(0.0)
    length = profit / kappa
    gain = profit * length
    wanted = int((gain > max(worth, CLEARLY * float(gain[0]))).sum())
    if not wanted:
        return None
    chosen = slice(min(_whole(width + wanted) - width, int((gain > 0.0).sum())))
    balance = (prices[1] / prices[0]) ** 0.25 if min(prices) > 0.0 else 1.0
    for _ in range(HALVINGS):
        size = length[chosen].sqrt()
        columns = {"users": p[:, chosen] * (size * balance), "items": q[:, chosen] * (size / balance)}
        wider = {k: torch.cat([columns[k].to(x), x], 1) if k in columns else x for k, x in point.items()}
        wide = model.narrowed(wider["users"].shape[1])
        lower = objective.value(wide.scores(wider)) + wide.penalty(wider)
        if lower < value:
            return wider, lower
        length = 0.5 * length
    return None


def _whole(width: int) -> int:
    """The next width that sparse kernels work on without a remainder: 24 columns take less time than 18."""
    return -(-width // KERNEL_WIDTH) * KERNEL_WIDTH


def _leading(quadratic: Quadratic, point: Point, count: int, model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Leading singular vectors p, values σ, vectors q of E away from the columns in use, and κ of each."""
    users, items = point["users"], point["items"]
    used = _orthonormal(items[:, :-1])
    wide = model.narrowed(count + users.shape[1])

    def rows(side: str, vectors: Tensor) -> Rows:
        """One side with `count` further columns of 0, the other with these vectors there."""
        nothing = vectors.new_zeros(len(point[side]), vectors.shape[1])
        wider = {"users": vectors, "items": vectors} | {side: nothing}
        scores = wide.scores(point | {k: torch.cat([x, point[k]], 1) for k, x in wider.items()})
        return Rows.of_users(quadratic, scores) if side == "users" else Rows.of_items(quadratic, scores)

    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(items), count, generator=generator).to(items)
    for _ in range(POWER_STEPS):
        q = _orthonormal(q - used @ (used.T @ q), count)
        q = rows("items", rows("users", q).slope()[:, :count]).slope()[:, :count]
    q = _orthonormal(q - used @ (used.T @ q), count)
    p = rows("users", q).slope()[:, :count]
    squares, axes = torch.linalg.eigh(model.reduce(gram(p, p)))
    sigma = squares.clamp_min(torch.finfo(torch.float32).tiny).sqrt().flip(0)
    axes = axes.flip(1)
    p, q = p @ (axes / sigma).to(p), q @ axes.to(q)
    kappa = model.reduce((p.square() * rows("users", q).diagonal()[:, :count]).sum(0, dtype=torch.float64))
    return p, sigma.to(p), q, kappa.to(p).clamp_min(torch.finfo(p.dtype).tiny)


def _orthonormal(columns: Tensor, count: int | None = None) -> Tensor:
    """An orthonormal basis, with columns of 0 where there are more columns than rows."""
    basis = torch.linalg.qr(columns.double())[0].to(columns)
    return torch.nn.functional.pad(basis, (0, (count or basis.shape[1]) - basis.shape[1]))


def needed_axes(model: Model, point: Point, direction: Point) -> Tensor | None:
    """Principal axes of the vectors to keep, [columns, fewer]: not those that are negligible and still shrinking.

    Turning the vectors to their axes changes neither scores nor penalty. None if all axes are needed.
    """
    rows, steps = model.scores(point), model.scores(direction, step=True)
    power, growth = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for x, dx, reduce in (
        (rows.lefts[0], steps.lefts[0], model.reduce), (rows.rights[0], steps.rights[0], alone),
    ):  # fmt: skip
        squares, cross = reduce(torch.stack([gram(x, x), gram(x, dx)]))
        scale = squares.diagonal().sum().clamp_min(1e-300)
        power, growth = power + squares[:-2, :-2] / scale, growth + cross[:-2, :-2] / scale
    values, axes = torch.linalg.eigh(power)
    if not len(values):
        return None
    growing = torch.einsum("ik,ij,jk->k", axes, growth, axes) > 0.0
    large = values > NEGLIGIBLE**2 * values[-1].clamp_min(1e-6)  # 1 is the share of all columns, biases among them
    large[-1] = True
    wanted = _whole(int((large | growing).sum()) + 1) - 1
    if wanted >= len(values):
        return None
    order = torch.argsort(values + (large | growing), descending=True, stable=True)
    kept: Tensor = axes[:, order[:wanted]]
    return kept.to(point["users"])


def turned(point: Point, axes: Tensor) -> Point:
    """The vectors along these axes; biases stay."""
    return {k: x if x.ndim == 0 else torch.cat([x[:, :-1] @ axes, x[:, -1:]], 1) for k, x in point.items()}

"""How many columns the vectors need: L2 on both sides is a price per column, and most columns are not worth it.

With E = −½ ∂loss/∂scores, a new column t p qᵀ (|p| = |q| = 1, both sides balanced) changes the objective by

    −2 t (pᵀE q − √(ρ_u ρ_i)) + t² κ,   κ = Σ_O c p_u² q_i² + v,

so columns worth adding are singular vectors of E with σ > √(ρ_u ρ_i), and none is left at the optimum unless all `dim`
columns are in use. The vectors therefore start without columns, from the biases, whatever the seed; columns are added
where the data ask for them, and left out again where L2 shrinks them to nothing.

Where the L2 of an entity's vector is f times ρ, this holds for vectors times √f and E divided by it on both sides.
Where L2 is only a share of the edge of noise, a new column must still be worth the edge: σ > √(ρ_u ρ_i) / share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.train.quadratic import Objective, Quadratic, Reduce, Slopes, alone, gram
from puidrec.train.sides import Model, Point

NEGLIGIBLE = 1e-3
"""The length, against the longest, below which a shrinking column is left out."""
USED = 0.03
"""The length, against the longest, of a column that is in use."""
EMPTY = 1e-6
"""Scores to which a column of a start contributes less than this do not depend on it."""
POWER_STEPS = 4
"""Products with EᵀE from a fixed start, for its leading singular vectors."""
KERNEL_WIDTH = FURTHER = 8
"""Numbers that a processor adds at a time; columns looked for besides those in use."""
CLEARLY = 0.02
"""Share of the largest gain below which a column waits: those added first may explain it too."""
HALVINGS = 8


def without_empty(point: Point, reduce: Reduce) -> Point:
    """The columns that contribute to scores of users of any process, and the biases."""
    kept = reduce((point["users"].abs().amax(0) * point["items"].abs().amax(0) > EMPTY).double()) > 0.0
    kept[-1] = True
    return {name: x if x.ndim == 0 else x[:, kept] for name, x in point.items()}


def without_padding(model: Model, point: Point) -> Point:
    """The point without the columns of 0 that `Model.padded` puts first, but for those that fill a whole width."""
    used = model.scores(point).rights[0][:, :-2].abs().amax(0) > 0.0
    width = 1 + (len(used) - int(used.int().argmax()) if bool(used.any()) else 0)
    width = width if width == 1 else min(_whole(width), model.users.penalty.numel())
    return {name: x if x.ndim == 0 else x[:, -width:] for name, x in point.items()}


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
    prices = _prices(model)
    narrow = model.narrowed(width)
    scores = narrow.scores(point)
    p, sigma, q, kappa = _leading(objective.at(scores), scores, point["items"][:, :-1], room, narrow)
    price = (prices[0] * prices[1]) ** 0.5
    profit = torch.where(sigma > price / model.edge_share, sigma - price, 0.0)
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
        wider = filled(wider, model)
        wide = model.narrowed(wider["users"].shape[1])
        lower = objective.value(wide.scores(wider)) + wide.penalty(wider)
        if lower < value:
            return wider, lower
        length = 0.5 * length
    return None


def filled(point: Point, model: Model) -> Point:
    """The point with columns of 0 up to a whole width, unless it has none but the biases; they stay 0 by their L2."""
    width = point["users"].shape[1]
    missing = min(_whole(width), model.users.penalty.numel()) - width
    if width == 1 or missing <= 0 or min(_prices(model)) <= 0.0:
        return point
    return {k: x if x.ndim == 0 else torch.nn.functional.pad(x, (missing, 0)) for k, x in point.items()}


def _whole(width: int) -> int:
    """The next width at which scores (with a column of ones more) are sampled without a remainder: 31 takes less time
    than 26."""
    return -(-(width + 1) // KERNEL_WIDTH) * KERNEL_WIDTH - 1


def strengths(objective: Objective, model: Model, point: Point) -> Tensor:
    """What columns of ID vectors could gain where there are none: singular values of E at the scores of features and
    biases alone, against the L2 of vectors; falling, some more than the point has columns."""
    used = int((point["users"][:, :-1].abs().amax(0) * point["items"][:, :-1].abs().amax(0) > EMPTY).sum())
    without = {k: torch.cat([torch.zeros_like(x[:, :-1]), x[:, -1:]], 1) if k in ("users", "items") else x
               for k, x in point.items()}  # fmt: skip
    scores, prices = model.scores(without), _prices(model)
    room = min(used + FURTHER, model.users.penalty.numel() - 1)
    sigma = _leading(objective.at(scores), scores, without["items"][:, :0], room, model)[1]
    strength: Tensor = sigma / (prices[0] * prices[1]) ** 0.5
    return strength


def _leading(
    quadratic: Quadratic, scores: LowRank, columns: Tensor, count: int, model: Model
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Leading singular vectors p, values σ, vectors q of E at these scores, away from columns of the items, and κ of
    each; p and q as columns of the model, E in the measure of its L2."""
    slopes, scales = Slopes(quadratic, scores), _scales(model)
    used = kept = _orthonormal(columns / scales[1])
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(columns), count, generator=generator).to(columns)
    products = list[Tensor]()
    lanczos = count <= FURTHER and used.shape[1] + POWER_STEPS * count <= len(columns)
    for _ in range(POWER_STEPS):
        for _ in range(2):  # once leaves rounding where little is left
            q = _orthonormal(q - kept @ (kept.T @ q), count)
        kept = torch.cat([kept, q], 1) if lanczos else kept
        q = slopes.transposed(slopes.times(q * scales[1]) * scales[0].square()) * scales[1]
        products.append(q)
    if lanczos:  # the best of all directions met, not only of the last ones: near the edge of noise they are many
        basis = kept[:, used.shape[1] :]
        inner = gram(basis, torch.cat(products, 1))
        q = basis @ torch.linalg.eigh(inner + inner.T)[1][:, -count:].to(basis)
    q = _orthonormal(q - used @ (used.T @ q), count)
    p = slopes.times(q * scales[1]) * scales[0]
    squares, axes = torch.linalg.eigh(model.reduce(gram(p, p)))
    sigma = squares.clamp_min(torch.finfo(p.dtype).tiny).sqrt().flip(0)
    axes = axes.flip(1)
    p, q = p @ (axes / sigma).to(p), q @ axes.to(q)
    p, q = p * _signs(q) * scales[0], q * _signs(q) * scales[1]
    kappa = model.reduce((p.square() * quadratic.curvature(q)).sum(0, dtype=torch.float64))
    return p, sigma.to(p), q, kappa.to(p).clamp_min(torch.finfo(p.dtype).tiny)


def _orthonormal(columns: Tensor, count: int | None = None) -> Tensor:
    """An orthonormal basis, with columns of 0 where there are more columns than rows."""
    basis = torch.linalg.qr(columns.double())[0].to(columns)
    return torch.nn.functional.pad(basis, (0, (count or basis.shape[1]) - basis.shape[1]))


def _signs(columns: Tensor) -> Tensor:
    """The sign of each column's largest number: a singular vector has two directions, and rounding would choose."""
    return columns.gather(0, columns.abs().argmax(0)[None]).sign()


def in_use(model: Model, point: Point) -> Point:
    """The vectors along their principal axes, without those that say next to nothing of the scores."""
    scores = model.scores(point)
    sides = ((scores.lefts[0], model.reduce), (scores.rights[0], alone))
    squares = [reduce(gram(x[:, :-2], x[:, :-2])) for x, reduce in sides]
    scale = [square.diagonal().sum().clamp_min(1e-300) for square in squares]
    values, axes = torch.linalg.eigh(squares[0] / scale[0] + squares[1] / scale[1])
    axes = axes[:, values > USED**2 * values[-1]].flip(1)
    return turned(point, (axes * _signs(axes)).to(point["users"]))


def needed_axes(objective: Objective, model: Model, point: Point, direction: Point) -> Tensor | None:
    """Principal axes of the vectors to keep, [columns, fewer]: not those that are negligible and still shrinking, nor
    those that would vanish at the optimum if the others stayed. None if all axes are needed.

    Turning the vectors to their axes changes neither scores nor penalty. Columns of 0 fill up the width to what
    kernels like; they stay 0.
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
    needed = large | growing
    fillable = model.by_rows and min(_prices(model)) > 0.0
    if fillable:
        needed &= ~_vanishing(objective, model, turned(point, axes.to(point["users"])))
    needed[-1] = True
    count = int(needed.sum())
    wanted = min(_whole(count + 1) - 1, len(values))
    if wanted == len(values) and (not fillable or bool((values[~needed] <= EMPTY**2 * values[-1]).all())):
        return None
    order = torch.argsort(values + needed * (1.0 + values[-1]), descending=True, stable=True)
    kept: Tensor = axes[:, order[:wanted]]
    kept = kept * _signs(kept)
    if fillable:
        kept[:, count:] = 0.0
    return kept.to(point["users"])


def _prices(model: Model) -> list[float]:
    """L2 of the vectors of users and of items."""
    return [float(side.penalty[0]) for side in (model.users, model.items)]


def _scales(model: Model) -> list[Tensor]:
    """1/√f of users and of items, f what the L2 of an entity's vector is multiplied by."""
    one = model.users.penalty.new_ones(1, 1)
    return [one if side.row_factor is None else side.row_factor.rsqrt() for side in (model.users, model.items)]


def _vanishing(objective: Objective, model: Model, point: Point) -> Tensor:
    """Whether each column t p qᵀ would be best at a t of at most 0: t² κ + t pᵀE q ≤ t √(ρ_u ρ_i), sides balanced."""
    scores = model.scores(point)
    quadratic = objective.at(scores)
    own, items = point["users"][:, :-1], point["items"][:, :-1]
    worth = torch.addcmul(Slopes(quadratic, scores).times(items), own, quadratic.curvature(items))
    worth = (worth * own).sum(0, dtype=torch.float64)
    scales, prices = _scales(model), _prices(model)
    lengths = torch.stack([(own / scales[0]).square().sum(0, dtype=torch.float64), worth])
    squares, worth = model.reduce(lengths)
    of_items = (items / scales[1]).square().sum(0, dtype=torch.float64)
    gone: Tensor = worth <= 0.5 * (prices[0] * squares + prices[1] * of_items)
    return gone


def turned(point: Point, axes: Tensor) -> Point:
    """The vectors along these axes; biases stay."""
    return {k: x if x.ndim == 0 else torch.cat([x[:, :-1] @ axes, x[:, -1:]], 1) for k, x in point.items()}

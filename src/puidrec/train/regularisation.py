"""Automatic regularisation: how strong must L2 be so that noise alone is not learned? Estimated without a fit.

At z = 0 a step of z_u and z_i grows vectors only if the largest singular value of the matrix of slopes E exceeds the
L2 penalty: with a mean loss and mean penalties that is √(users · items) · σ₁(E) > l2. Signs of E flipped at random
keep the size of the noise, pair by pair, and destroy what is to be learned; their σ₁ is the edge of noise. Logs differ
in it: 0.13 on Coat, 0.04 on KuaiRec, where a hundred times more ratings average the noise out.

Where unseen pairs count as low ratings (`all-rank`), who saw what is noise as well; see `exposure_noise`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from puidrec.backbones.base import PenaltyFactors
from puidrec.backbones.features import Design
from puidrec.data.row_matrix import Part, RowMatrix

SHARE = 0.8
"""L2 as a share of the edge of noise where nothing else says it: a stronger L2 would also shrink what is true."""
LEAST_SHARE = 0.1
GROWING = 0.5
"""The part of the L2 of vectors that grows with the number of an entity's rows (Foygel et al., 2011)."""
MOST = 1.25
"""The edge of noise against the reference is taken to be at most this."""
USEFUL = 0.1
"""Excess of a side's features over noise from which their L2 is the one of the settings, and no stronger."""
LARGEST_FACTOR = 100.0
FLIPS, FEW = 5, 500_000
"""Random signs to average over, and the ratings that make one of them enough."""
SWEEPS = 4
CELLS = 4_000_000
"""Cells of a product of features and slopes held at a time (32 MB)."""


class Noise(NamedTuple):
    """What the log says of its own noise."""

    edge: float
    """The l2 per entity at which vectors of IDs cannot grow on noise."""
    user_excess: float | None
    """What users' features explain beyond noise, as a share of what they explain of noise; None without features."""
    item_excess: float | None

    def penalty_factors(
        self, reference: float, noise_weight: float = 1.0, most: float = MOST, share: float = SHARE
    ) -> PenaltyFactors:
        """Factors for the L2 of vectors: for IDs `share` of the edge of noise, at least 1 for features.

        reference: the l2 that the factors refer to. noise_weight: the weight that the method's losses give the noise.
        most: what the edge counts at most, against the reference.
        """
        edge = noise_weight * min(self.edge / reference, most) if self.edge > 0 else 1.0 / share
        users, items = (_of_features(excess, noise_weight) for excess in (self.user_excess, self.item_excess))
        return PenaltyFactors(share * edge, users, items, share, GROWING)


def relaxed_share(strengths: np.ndarray, near: float = 0.0) -> float:
    """How much weaker than the edge of noise L2 should be for columns that rise above it, as a share of the edge.

    strengths: singular values of the slopes, against the edge of noise. A matrix of independent noise with an edge at 2
    turns a true singular value into y > 2, and its best estimate in squared error is η(y) = √(y² − 4) (Shabalin and
    Nobel, 2013). L2 takes the same λ off all of them, y − λ; the best one is the mean of y − η(y).

    near: L2 towards the fit at the edge, as a share of the edge. A column has the strength y − 2 there, its vectors the
    root of that, so this L2 takes 2 near · (1 − √((y − 2)/η)) off a column of strength η; the root is
    ((y − 2)/(y + 2))^¼.
    """
    y = 2.0 * strengths[strengths > 1.0]
    if not y.size:
        return 1.0
    taken = 2.0 / (y + np.sqrt(y**2 - 4.0)) - near * (1.0 - (1.0 - 4.0 / (y + 2.0)) ** 0.25)
    return float(np.clip(taken.mean(), LEAST_SHARE, 1.0))


def measure_noise(
    slopes: RowMatrix,
    user_features: Design | None,
    item_features: Design | None,
    seed: int,
    row_factors: tuple[np.ndarray, np.ndarray] | None = None,
) -> Noise:
    """Compare the log with itself after its signs were flipped.

    slopes: half the derivative of the mean loss by each logged score, at a fit of the biases. row_factors: what the L2
    of each user's and each item's vector is multiplied by.
    """
    slopes = centred(slopes)
    noises = list(noise_like(slopes, seed))
    largest = np.array([largest_singular_value(_in_measure_of(row_factors, noise)) for noise in noises])
    spread = (
        2.0 * float(largest.std(ddof=1)) if largest.size > 2 else 0.0
    )  # else noise itself is above in half of all logs
    edge = float(np.sqrt(slopes.shape[0] * slopes.shape[1])) * (float(largest.mean()) + spread)
    users = feature_excess(slopes, noises, user_features, "user")
    items = feature_excess(slopes, noises, item_features, "item")
    return Noise(edge, users, items)


def _in_measure_of(factors: tuple[np.ndarray, np.ndarray] | None, slopes: RowMatrix) -> RowMatrix:
    """Slopes divided by √(f_u f_i), f what the L2 of each user's and each item's vector is multiplied by."""
    if factors is None:
        return slopes
    users, items = (1.0 / np.sqrt(factor) for factor in factors)
    return slopes.map(lambda part: part.values * part.of_users(users) * items[part.item])


def noise_like(slopes: RowMatrix, seed: int) -> Iterator[RowMatrix]:
    """Noise of the same size for each pair: signs flipped at random, and then centred again."""
    rng = np.random.default_rng(seed)
    for _ in range(int(np.clip(FEW // max(slopes.nnz, 1), 1, FLIPS))):
        yield centred(slopes.map(lambda part: part.values * rng.choice((-1.0, 1.0), part.values.size)))


def feature_excess(
    slopes: RowMatrix, noises: Sequence[RowMatrix], design: Design | None, side: Literal["user", "item"]
) -> float | None:
    """‖XᵀE‖² (users' features) or ‖EX‖² (items') against that of noise, less 1: near 0 where they say nothing of taste.

    Columns of X count alike, as in the penalty.
    """
    if design is None or design.n_columns == 0:
        return None
    pattern = design.pattern
    values, column = design.values.cpu().numpy().astype(np.float64), pattern.col.cpu().numpy()
    power = np.maximum(design.column_power().numpy(), 1e-12)
    x = sp.csr_matrix((values / np.sqrt(power)[column], (pattern.user.cpu().numpy(), column)),
                      shape=(design.n_rows, design.n_columns))  # fmt: skip
    energy = _user_energy if side == "user" else _item_energy
    noise = float(np.mean([energy(x, part) for part in noises]))
    return energy(x, slopes) / noise - 1.0 if noise > 0 else 0.0


def _user_energy(x: sp.csr_matrix, slopes: RowMatrix) -> float:
    """‖XᵀE‖², some items at a time."""
    return sum(
        _square(sum(x[part.users].T @ part.matrix[:, items] for part in slopes.parts()))
        for items in _some(slopes.n_items, x)
    )


def _item_energy(x: sp.csr_matrix, slopes: RowMatrix) -> float:
    """‖EX‖², some users at a time."""
    return sum(_square(part.matrix[users] @ x) for part in slopes.parts() for users in _some(part.matrix.shape[0], x))


def _some(n: int, x: sp.csr_matrix) -> Iterable[slice]:
    """Ranges of the other side for which a product with the features has at most `CELLS` cells."""
    step = max(1, CELLS // max(x.shape[1], 1))
    return (slice(start, start + step) for start in range(0, n, step))


def _square(matrix: sp.csr_matrix) -> float:
    return float(matrix.power(2).sum())


def exposure_noise(ratings: RowMatrix, unseen_weight: float, low: float, l2: float) -> float:
    """L2 per entity where unseen pairs count as rated `low`: the root mean square singular value of noise.

    The loss is Σ_O (s − r)²/|O| + λ Σ_{D∖O} (s − low)²/|D∖O|. At the fit of its own biases half its slope in the score
    of a pair is (s − r)/|O| if the pair was seen, λ (s − low)/|D∖O| if not. A pair is seen by chance p, which is small,
    so its slope has a variance of p times the square of the difference of the two, and Σ_O difference² estimates the
    sum of all variances, ‖N‖², however unevenly noise is spread. The largest singular value of N is no good measure
    here: a few busy users and popular items set it, and an L2 of that size would cost all others their taste.

        l2 = √(users · items) · √(‖N‖² / min(users, items)) = ‖N‖ · √max(users, items)
    """
    n_users, n_items = ratings.shape
    v = unseen_weight / max(n_users * n_items - ratings.nnz, 1)
    users, items = whole_space_biases(ratings, unseen_weight, low, l2)

    def difference(part: Part) -> np.ndarray:
        above = part.of_users(users) + items[part.item]
        return np.asarray((above - (part.values - low)) / ratings.nnz - v * above)

    power = sum(float(np.sum(difference(part) ** 2)) for part in ratings.parts())
    return float(np.sqrt(power * max(n_users, n_items)))


def whole_space_biases(
    ratings: RowMatrix, unseen_weight: float, low: float, l2: float
) -> tuple[np.ndarray, np.ndarray]:
    """b_u and b_i (the mean among them) of the least squares over all pairs of `exposure_noise`, s = low + b_u + b_i.

    Sides take turns. With c = 1/|O| − v and the mean in b_i:

        (c n_u + v · items + l2/users) b_u = Σ_{i∈O_u} ((r − low)/|O| − c b_i) − v Σ_i b_i
    """
    n_users, n_items = ratings.shape
    v = unseen_weight / max(n_users * n_items - ratings.nnz, 1)
    c = 1.0 / ratings.nnz - v
    seen = ratings.map(lambda part: np.ones_like(part.values)).operator
    pulls = ratings.map(lambda part: (part.values - low) / ratings.nnz).operator
    ones_u, ones_i = np.ones(n_users), np.ones(n_items)
    count_u, count_i = seen.matvec(ones_i), seen.rmatvec(ones_u)
    pull_u, pull_i = pulls.matvec(ones_i), pulls.rmatvec(ones_u)
    users, items, mean = np.zeros(n_users), np.zeros(n_items), 0.0
    for _ in range(SWEEPS):
        own = c * count_u + v * n_items
        users = (pull_u - c * seen.matvec(items) - v * items.sum() - mean * own) / (own + l2 / n_users)
        own = c * count_i + v * n_users
        items = (pull_i - c * seen.rmatvec(users) - v * users.sum() - mean * own) / (own + l2 / n_items)
        rest = (pull_i - c * seen.rmatvec(users) - v * users.sum() - own * items).sum()
        mean = float(rest / own.sum())
    return users + mean, items


def centred(slopes: RowMatrix) -> RowMatrix:
    """The slopes less their means by user and by item, which biases would fit."""
    for _ in range(SWEEPS):
        mean = slopes.sum_by_item(lambda part: part.values) / np.maximum(slopes.item_count, 1)
        slopes = slopes.map(lambda part, mean=mean: _less_user_means(part, part.values - mean[part.item]))  # type: ignore[misc]
    return slopes


def _less_user_means(part: Part, values: np.ndarray) -> np.ndarray:
    count = np.diff(part.matrix.indptr)
    return np.asarray(values - np.repeat(part.sum_by_user(values) / np.maximum(count, 1), count))


def half_slope(residual: np.ndarray, loss: str, *, signed: bool) -> np.ndarray:
    """½ ∂e/∂r̂ of a loss, given prediction − target on the scale of targets; half, as the penalty's is z and not 2z."""
    if loss == "squared":
        return residual
    if loss == "absolute":
        return np.asarray(0.5 * np.sign(residual))
    factor = 0.25 if signed else 0.5
    return factor * residual


def largest_singular_value(matrix: RowMatrix) -> float:
    """σ₁ of a sparse matrix."""
    if not matrix.any():
        return 0.0
    if min(matrix.shape) < 4:
        return float(np.linalg.norm(np.concatenate([part.matrix.toarray() for part in matrix.parts()]), 2))
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    return float(svds(matrix.operator, k=1, v0=start, tol=1e-3, return_singular_vectors=False)[0])


def _of_features(excess: float | None, noise_weight: float) -> float:
    """The less features explain beyond noise, the larger their factor; from `USEFUL` on it is 1."""
    if excess is None:
        return 1.0
    weakness = min(USEFUL / max(excess, 1e-12), LARGEST_FACTOR)
    return weakness * float(np.clip(noise_weight, 1.0, weakness)) if weakness > 1.0 else 1.0

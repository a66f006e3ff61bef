"""Exposure as representation: `dcf` adds the reconstructed exposure to the score, `idcf` describes users by it.

`dcf`, the deconfounded recommender (Wang, Liang, Charlin, Blei, RecSys 2020), fits

    r̂_ui = x_uᵀ y_i + b_u + b_i + μ + γ_u â_ui      to the logged ratings,

â the reconstruction of exposure by `features.exposure_factors`: a user who rates high what people like her see has
γ_u > 0. γ costs no parameters of its own: for given x, y it is a ridge regression per user, so that it is put in by its
closed form, and the loss in x, y alone,

    J = min_γ mean_O (s + γ_u â − r)² + l2 · mean_u γ_u²,

is below, and touches at s, the quadratic with γ held at its value there. Both solvers use just that.

`idcf` (Zhang et al., KDD 2023) is x_uᵀ y_i + z_uᵀ v_i with z_u from the user's exposure row and features: the columns z
join the features of users, so that they go through the backbone, cold start and files like any other feature.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl
import torch
from torch import Tensor

from puidrec.backbones.base import Backbone
from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError
from puidrec.features.encode import exposure_design
from puidrec.features.exposure_factors import ExposureFactors
from puidrec.objective.terms import Observed
from puidrec.settings import Settings
from puidrec.train.blocks import UserPartition
from puidrec.train.least_squares import LeastSquares
from puidrec.train.log_losses import LogBlocks, Majorised
from puidrec.train.prepare import Prepared, TrainingLog
from puidrec.train.problem import Log, Stage, Step, backbone_penalty
from puidrec.train.quadratic import Quadratic
from puidrec.train.robust import robust_problem


@dataclass
class DeconfoundedProblem:
    """Matrix factorisation with γ_u â_ui beside it, γ at its optimum."""

    settings: Settings
    observed: Log
    phi: Backbone
    exposure: LowRank
    """â of all users, scaled to a mean square of 1 on the log."""
    gamma_scale: float = 1.0
    _columns: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def n_users(self) -> int:
        """Users to divide into blocks."""
        return self.phi.n_users

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ alone: γ follows from it."""
        return (Step("phi", self.phi, self.loss, lambda: backbone_penalty(self.phi, self.settings)),)

    @property
    def benchmarked(self) -> bool:
        """There is no benchmark to fall behind."""
        return False

    @torch.no_grad()
    def factors(self, rows: slice = slice(None)) -> LowRank:
        """Scores of a range of users: columns of γ_u â_ui first, then those of φ."""
        start, stop, _ = rows.indices(self.n_users)
        phi, own = self.phi.factors(rows), self.exposure.rows(slice(start, stop))
        gamma = self._gamma(self.observed.rows(start, stop), phi, slice(start, stop))[0]
        left = torch.cat([gamma[:, None] * own.lefts[0], phi.lefts[0]], 1)
        return LowRank.of(left, torch.cat([own.rights[0], phi.rights[0]], 1))

    def imputation(self, rows: slice = slice(None)) -> LowRank | None:
        """There is none."""
        return None

    def loss(self, start: int, stop: int, phi: LowRank | None = None) -> Tensor:
        """J of a block of users; its gradient is that at γ held constant."""
        observed = self.observed.rows(start, stop)
        phi = self.phi.factors(slice(start, stop)) if phi is None else phi
        gamma, added = self._gamma(observed, phi.detach(), slice(start, stop))
        share = len(self.observed) * (stop - start) / self.n_users
        fit = torch.sum((observed.scores(phi) + added - observed.target).square(), dtype=torch.float64) / share
        return fit + self.settings.l2 * torch.sum(gamma.square(), dtype=torch.float64) / (stop - start)

    def least_squares(self, partition: UserPartition) -> list[LeastSquares]:
        """J by quadratics above it."""
        log, unit = LogBlocks(self.observed, partition), 1.0 / len(self.observed)

        def above(scores: LowRank) -> Quadratic:
            def weigh(observed: Observed, rows: slice) -> tuple[float, Tensor]:
                _, added = self._gamma(observed, log.own(scores, rows), rows)
                return unit, unit * (observed.target - added)

            return log.quadratic(weigh)

        return [LeastSquares("phi", self.phi, lambda: Majorised(log, self.loss, above))]

    @torch.no_grad()
    def _gamma(self, observed: Observed, phi: LowRank, users: slice) -> tuple[Tensor, Tensor]:
        """γ of each user, a ridge regression of r − s on â; and γ_u â_ui of each logged pair."""
        pattern, (column, square) = observed.pattern, self._column(observed, users)
        rest = observed.target - observed.scores(phi)
        product = pattern.matmul(column * rest, column.new_ones(pattern.n_items, 1))[:, 0]
        gamma = product / (square + self.settings.l2 * len(self.observed) / self.n_users).clamp_min(1e-12)
        return gamma, torch.repeat_interleave(gamma, pattern.row_start.diff().long()) * column

    def _column(self, observed: Observed, users: slice) -> tuple[Tensor, Tensor]:
        """â of logged pairs and Σ â² of each user: constants, computed once where the log is in memory."""
        key = (users.start, users.stop)
        if key in self._columns:
            return self._columns[key]
        column = observed.scores(self.exposure.rows(users))
        square = observed.pattern.matmul(column.square(), column.new_ones(observed.pattern.n_items, 1))[:, 0]
        if isinstance(self.observed, Observed):  # a log read block by block may not fit in memory
            self._columns[key] = column, square
        return column, square


def deconfounded_stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """`dcf`."""

    def build() -> DeconfoundedProblem:
        settings, observed = prepared.settings, prepared.logged("unit")
        phi = prepared.backbone("main phi", shard=partition.shard)
        left, right = (prepared.log.tensor(side) for side in prepared.log.exposure_factors.reconstruction)
        exposure = LowRank.of(left, right)
        squares = LogBlocks(observed, UserPartition.undivided(prepared.data.n_users)).total(
            lambda rows, users: torch.sum(rows.scores(exposure.rows(users)).square(), dtype=torch.float64)
        )
        scale = (squares / len(observed)) ** -0.5 if squares > 0 else 1.0
        return DeconfoundedProblem(settings, observed, phi, LowRank.of(left * scale, right))

    return [Stage("main", lambda done: build())]


def identified_stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """`idcf`: the naive loss; what is new are the columns of users."""
    if prepared.settings.backbone == "mf":
        raise InputError(
            "idcf describes users by columns made from exposure, which the backbone must read", found="backbone mf",
            expected="mf-linear or mf-mlp", hint="Leave the backbone out, or choose dcf.",
        )  # fmt: skip
    return [Stage("main", lambda done: robust_problem(prepared, "main", partition))]


def exposure_columns(log: TrainingLog) -> pl.DataFrame:
    """The users' exposure factors given their features, one column each."""
    factors: ExposureFactors = log.exposure_factors
    z = factors.given_features(exposure_design(log.data.users, "user_id"))
    return pl.DataFrame({f"exposure factor {k + 1}": z[:, k] for k in range(z.shape[1])})

"""Signed and sharp methods: fit what was seen, and for the unseen pairs an end of the interval that Γ allows.

mean_O (r̂ − r)² + λ · mean_{D∖O} (r̂ − m)², where m is q/Γ (`signed`: people pick what they like) or the worse end of
the sharp interval (`worst`). q, the expected rating where seen, comes from a naive fit. With Γ_ui = exp(s_u + s_i),
q/Γ is as low-rank as q, so `signed` costs what DR costs; `worst` has no identity and visits all pairs,
some users at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.base import Backbone, PenaltyFactors
from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError
from puidrec.objective import signed
from puidrec.objective.majorise import BentInterval
from puidrec.objective.sharp import unseen_interval, worst_unseen_sum
from puidrec.objective.terms import Observed
from puidrec.objective.whole_space import linear_sum, square_sum
from puidrec.sensitivity.fitted import Gamma
from puidrec.settings import Settings
from puidrec.train.blocks import UserPartition
from puidrec.train.least_squares import LeastSquares
from puidrec.train.log_losses import EveryPair, LogBlocks, PairBlocks, WorstCase
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Log, Stage, Step, backbone_penalty
from puidrec.train.quadratic import Quadratic
from puidrec.train.robust import robust_problem

ID_SWEEPS = 15
"""Sweeps of `all-rank` where all parameters belong to IDs: what is left are columns of noise, which turn slowly."""
LEAST_GAP = 1e-3
"""1 − m below which seen and unseen pairs are alike: Γ is next to 1."""
SMALL_POPULATION = 16_000_000
"""Pairs up to which the tiles of Γ are kept (64 MB)."""


@dataclass
class UnseenProblem:
    """The loss over D with unseen ratings at an end of their interval. Weights of seen pairs average to 1."""

    settings: Settings
    observed: Log
    phi: Backbone
    seen: LowRank
    """q, from a fit to the seen pairs; constant."""
    gamma: Gamma
    log_users: Tensor
    """Users' part of log Γ, as `signed` uses it."""
    log_items: Tensor
    gamma_scale: float = 1.0
    """κ: Γ_ui^κ is what counts."""
    _tiles: dict[tuple[int, int, int, int], Tensor] = field(default_factory=dict, repr=False)

    @property
    def n_users(self) -> int:
        """Users to divide into blocks."""
        return self.phi.n_users

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ alone."""
        return (
            Step(
                "phi",
                self.phi,
                self.loss,
                lambda: backbone_penalty(self.phi, self.settings),
            ),
        )

    def factors(self, rows: slice = slice(None)) -> LowRank:
        """φ of a range of users."""
        return self.phi.factors(rows)

    def imputation(self, rows: slice = slice(None)) -> LowRank | None:
        """There is none: m is fixed."""
        return None

    @property
    def benchmarked(self) -> bool:
        """There is no benchmark to fall behind."""
        return False

    def loss(self, start: int, stop: int, phi: LowRank | None = None) -> Tensor:
        """Seen part and unseen part of a block of users, each a mean of its own."""
        observed = self.observed.rows(start, stop)
        phi = self.phi.factors(slice(start, stop)) if phi is None else phi
        scores = observed.scores(phi)
        weight = observed.bounds.a
        fit = torch.sum(weight * (scores - observed.target).square(), dtype=torch.float64)
        n_seen = max(len(self.observed) * (stop - start) / self.n_users, 1.0)
        n_unseen = max(observed.n_pairs - n_seen, 1.0)
        worst = self.settings.spec.end == "worst"
        unseen = (self._worst if worst else self._signed)(start, stop, observed, phi, scores)
        return fit / n_seen + self.settings.unseen_weight * unseen / n_unseen

    def least_squares(self, partition: UserPartition) -> list[LeastSquares]:
        """The signed loss is quadratic; the worse end of an interval is a square and a bend, over all pairs."""
        if self.settings.spec.end == "worst":
            pairs = PairBlocks(EveryPair(self.seen), partition)
            return [LeastSquares("phi", self.phi, lambda: self._worst_case(pairs))]
        log = LogBlocks(self.observed, partition)
        return [LeastSquares("phi", self.phi, lambda: self._quadratic(log))]

    def _worst_case(self, pairs: PairBlocks) -> WorstCase:
        """Σ_O w (s − r)²/seen + λ Σ_{D∖O} max_m (s − m)²/unseen, pair by pair."""
        n_seen = max(float(len(self.observed)), 1.0)
        share = self.settings.unseen_weight / max(self.seen.n_pairs - n_seen, 1.0)
        known: dict[int, BentInterval] = {}

        def bent(_: Observed, rows: slice) -> BentInterval:
            if rows.start in known:
                return known[rows.start]
            q = self.seen.rows(rows).tile()
            low, high = unseen_interval(q, self._gamma_tile((rows.start, 0), q))
            middle, half = (0.5 * (low + high)).view(-1), (0.5 * (high - low)).view(-1)
            weight = torch.full_like(middle, share)
            logged = self.observed.rows(rows.start, rows.stop)
            at = logged.pattern.user * self.seen.n_items + logged.pattern.col
            middle[at], half[at], weight[at] = logged.target, 0.0, logged.bounds.a / n_seen
            found = BentInterval(weight, middle, half)
            if pairs.in_memory:
                known[rows.start] = found
            return found

        return WorstCase(pairs, bent)

    def _quadratic(self, log: LogBlocks) -> Quadratic:
        """Σ_O w (s − r)²/seen + λ (Σ_D − Σ_O)(s − m)²/unseen."""
        n_seen = max(float(len(self.observed)), 1.0)
        share = self.settings.unseen_weight / max(self.seen.n_pairs - n_seen, 1.0)
        log_users, log_items = self.gamma_scale * self.log_users, self.gamma_scale * self.log_items
        m = signed.unseen_scores(self.seen, log_users, log_items, liked=self.settings.picks_liked).detach()
        unit = None if self.settings.adjusts else 1.0 / n_seen - share

        def weigh(observed: Observed, rows: slice) -> tuple[Tensor | float, Tensor]:
            weight = observed.bounds.a / n_seen
            pull = weight * observed.target - share * observed.scores(m.rows(rows))
            return weight - share if unit is None else unit, pull

        def constant(observed: Observed, rows: slice) -> Tensor:
            fit = torch.sum(observed.bounds.a * observed.target.square(), dtype=torch.float64) / n_seen
            return fit - share * torch.sum(observed.scores(m.rows(rows)).square(), dtype=torch.float64)

        return log.quadratic(weigh, log.total(constant) + share * float(square_sum(m)), share, m)

    def _signed(self, start: int, stop: int, observed: Observed, phi: LowRank, scores: Tensor) -> Tensor:
        log_users, log_items = self.gamma_scale * self.log_users[start:stop], self.gamma_scale * self.log_items
        q = self.seen.rows(slice(start, stop))
        m = signed.unseen_scores(q, log_users, log_items, liked=self.settings.picks_liked)
        return signed.signed_unseen_sum(observed, phi, scores, m)

    def _worst(self, start: int, stop: int, observed: Observed, phi: LowRank, scores: Tensor) -> Tensor:
        def gamma_tile(rows: slice, columns: slice, like: Tensor) -> Tensor:
            return self._gamma_tile((rows.start + start, columns.start), like)

        pattern = observed.pattern
        at_seen = self._gamma_at(pattern.user.cpu().numpy() + start, pattern.col.cpu().numpy().astype(np.int64))
        q = self.seen.rows(slice(start, stop))
        return worst_unseen_sum(observed, phi, scores, q, gamma_tile, torch.from_numpy(at_seen).to(scores))

    def _gamma_tile(self, corner: tuple[int, int], like: Tensor) -> Tensor:
        """Γ of a tile from the small tables; kept from epoch to epoch where D itself is small."""
        n_rows, n_columns = like.shape
        key = (*corner, n_rows, n_columns)
        if key not in self._tiles:
            users, items = np.arange(n_rows) + corner[0], np.arange(n_columns) + corner[1]
            values = self._gamma_at(np.repeat(users, n_columns), np.tile(items, n_rows)).reshape(n_rows, n_columns)
            tile = torch.from_numpy(values).to(like)
            if self.seen.n_pairs > SMALL_POPULATION:
                return tile
            self._tiles[key] = tile
        return self._tiles[key]

    def _gamma_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self.gamma.at(users, items) ** self.gamma_scale


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """First q from the seen pairs, then the model that also fits the unseen ones."""
    if prepared.data.positives_only:
        return [Stage("main", lambda done: _unseen_problem(prepared, _certain(prepared), partition))]
    first = prepared.first_stage("ips" if prepared.settings.adjusts else "mf")
    return [
        Stage("seen", lambda done: robust_problem(first, "seen", partition)),
        Stage("main", lambda done: _unseen_problem(prepared, done["seen"].phi, partition), after="seen"),
    ]


def _certain(prepared: Prepared) -> LowRank:
    """q = 1: where the log holds likes only, what is seen is liked, and nothing is left to fit."""
    return LowRank.of(*(prepared.log.tensor(np.ones((n, 1))) for n in (prepared.data.n_users, prepared.data.n_items)))


def all_rank_stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """`all-rank`: unseen pairs are pulled to the lowest rating, which is q/Γ at Γ = ∞; no q is needed.

    With features it is solved to its optimum. Without, `ID_SWEEPS` are as good and a tenth of the work, and from a
    start without columns they lead to the same scores on every machine; `epochs` asks for more.
    """
    few = not prepared.log.designs and prepared.settings.epochs == Settings.model_fields["epochs"].default
    sweeps = ID_SWEEPS if few else None
    return [Stage("main", lambda done: all_rank_problem(prepared, "main", partition), sweeps=sweeps, chooses_l2=False)]


def all_rank_problem(prepared: Prepared, stage: str, partition: UserPartition) -> UnseenProblem:
    """mean_O (r̂ − r)² + λ · mean_{D∖O} (r̂ − r_m)², r_m the lowest rating (the highest where `liked` is False).

    L2 is set by the noise of who saw what (`train.regularisation.exposure_noise`).
    """
    settings, data = prepared.settings, prepared.data
    end = 0.0 if settings.picks_liked else 1.0
    low = LowRank.of(*(prepared.log.tensor(np.full((n, 1), x)) for n, x in ((data.n_users, end), (data.n_items, 1.0))))
    factors = prepared.penalty_factors_unseen(end)
    phi = prepared.backbone(f"{stage} phi", shard=partition.shard, factors=factors)
    of_users, of_items = (prepared.log.tensor(np.zeros(n)) for n in (data.n_users, data.n_items))
    return UnseenProblem(settings, prepared.logged("unit"), phi, low, prepared.gamma, of_users, of_items)


def signed_problem(
    prepared: Prepared, stage: str, partition: UserPartition, q: LowRank, gamma: float, unseen_weight: float
) -> UnseenProblem:
    """`signed-rd` at one (Γ, λ), given q: a point of a path along Γ."""
    settings = prepared.settings.replace(unseen_weight=unseen_weight)
    level = (1.0 + unseen_weight / gamma) / (1.0 + unseen_weight)
    phi = prepared.backbone(f"{stage} phi", shard=partition.shard, factors=prepared.penalty_factors_between(level))
    like = q.lefts[0]
    logs = like.new_full((q.n_users,), float(np.log(gamma))), like.new_zeros(q.n_items)
    observed = prepared.logged("inverse" if settings.adjusts else "unit")
    return UnseenProblem(settings, observed, phi, q, prepared.gamma, *logs)


def path_problem(
    prepared: Prepared, stage: str, partition: UserPartition, q: LowRank, gamma: float, unseen_weight: float
) -> UnseenProblem:
    """The method's own Γ rule, scaled so that the mean of log Γ is that of one Γ, at one λ."""
    problem = signed_problem(prepared, stage, partition, q, gamma, unseen_weight)
    problem.log_users, problem.log_items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    problem.gamma_scale = float(np.log(gamma)) / prepared.gamma.mean_log
    return problem


def _unseen_problem(prepared: Prepared, q: LowRank, partition: UserPartition) -> UnseenProblem:
    settings = prepared.settings
    observed = prepared.logged("inverse" if settings.adjusts else "unit")
    users, items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    scale = _gamma_scale(prepared, q, users, items)
    factors = None
    if prepared.data.positives_only:
        m = signed.unseen_scores(q, scale * users, scale * items, liked=settings.picks_liked)
        factors = _factors_of_likes(prepared, float(linear_sum(m)) / q.n_pairs)
    phi = prepared.backbone("main phi", shard=partition.shard, factors=factors)
    return UnseenProblem(settings, observed, phi, q, prepared.gamma, users, items, scale)


def _factors_of_likes(prepared: Prepared, mean: float) -> PenaltyFactors:
    """L2 factors where seen pairs are 1 and unseen ones m: those of `all-rank`, times 1 − m.

    r̂ = m + (1 − m)·s turns the loss into (1 − m)² times that of `all-rank` for s, and vectors shrink by √(1 − m), their
    L2 by 1 − m: with the same factor, a mild Γ would leave no vector at all.
    """
    settings = prepared.settings
    if 1.0 - mean < LEAST_GAP:
        raise InputError(
            f"{settings.method} has nothing to learn from likes only: with Γ = 1 unseen pairs are liked like seen ones",
            found=f"gamma={settings.gamma}", expected="Γ above 1", hint="Set gamma to a number, or use all-rank.",
        )  # fmt: skip
    own = prepared.penalty_factors_unseen(0.0)
    return own._replace(ids=own.ids * (1.0 - mean)) if settings.l2_vectors == "auto" else own


def _gamma_scale(prepared: Prepared, q: LowRank, users: Tensor, items: Tensor) -> float:
    """κ: 1 where the caller chose Γ; else what uniform ratings ask for, or a mild default."""
    settings, uniform = prepared.settings, prepared.uniform_target()
    if settings.gamma == "certified":
        signed.require_uniform(uniform.size, prepared.data.name)
    elif settings.gamma != "auto":
        return 1.0
    if uniform.size < signed.MIN_UNIFORM:
        return signed.default_scale(prepared.gamma.mean_log)
    log, overlap = prepared.log, prepared.split.overlap
    means = float(uniform.mean()), log.target_mean, len(prepared.rows) / q.n_pairs
    if settings.adjusts and settings.unseen_weight > 0:
        everywhere = overlap.population_mean(*means)
        mean = signed.unseen_mean_for_shared_model(log.reweighted_mean, everywhere, settings.unseen_weight)
    else:
        mean = overlap.unseen_mean(*means)
    return signed.calibrated_scale(q, users, items, mean, liked=settings.picks_liked)

"""Signed and sharp methods: fit what was seen, and for the unseen pairs an end of the interval that Γ allows.

mean_O (r̂ − r)² + λ · mean_{D∖O} (r̂ − m)², where m is q/Γ (`signed`: people pick what they like) or the worse end of
the sharp interval (`worst`). q, the expected rating where seen, comes from a naive fit. With Γ_ui = exp(s_u + s_i),
q/Γ is as low-rank as q, so `signed` costs what DR costs; `worst` has no identity and goes tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.base import Backbone
from puidrec.objective.estimators import Observed
from puidrec.objective.low_rank import LowRank
from puidrec.objective.sharp import unseen_interval
from puidrec.objective.tiles import tiled_sum
from puidrec.objective.whole_space import unseen_square_sum
from puidrec.sensitivity.gamma import Gamma
from puidrec.settings import Settings
from puidrec.train.problem import Log, Step, backbone_penalty

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
    """Users' part of κ log Γ, as `signed` uses it."""
    log_items: Tensor
    strength: float = 1.0
    """κ: Γ_ui^κ is what counts (`strength.py`)."""
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
        signed = self.settings.spec.end == "signed"
        unseen = (self._signed if signed else self._worst)(start, stop, observed, phi, scores)
        return fit / n_seen + self.settings.unseen_weight * unseen / n_unseen

    def _signed(self, start: int, stop: int, observed: Observed, phi: LowRank, scores: Tensor) -> Tensor:
        """Σ_{D∖O} (r̂ − q/Γ)²; for `liked=False` the mirror image, 1 − (1 − q)/Γ."""
        shrink_users = torch.exp(-self.strength * self.log_users[start:stop])
        shrink_items = torch.exp(-self.strength * self.log_items)
        q = self.seen.rows(slice(start, stop))
        if not self.settings.liked:
            one = LowRank.of(torch.ones_like(shrink_users)[:, None], torch.ones_like(shrink_items)[:, None])
            m = one.minus(one.minus(q).scaled(shrink_users, shrink_items))
        else:
            m = q.scaled(shrink_users, shrink_items)
        return unseen_square_sum(phi.minus(m), scores - observed.scores(m))

    def _worst(self, start: int, stop: int, observed: Observed, phi: LowRank, scores: Tensor) -> Tensor:
        """Σ_{D∖O} of the larger of the two ends' squared distances."""
        q = self.seen.rows(slice(start, stop))

        def farther(prediction: Tensor, q_hat: Tensor, gamma: Tensor) -> Tensor:
            low, high = unseen_interval(q_hat, gamma)
            return torch.maximum((prediction - low).square(), (prediction - high).square())

        def tile(rows: slice, columns: slice, prediction: Tensor, q_hat: Tensor) -> Tensor:
            corner = (rows.start + start, columns.start)
            return farther(prediction, q_hat, self._gamma_tile(corner, prediction))

        everywhere = tiled_sum(tile, phi, q.detach())
        pattern = observed.pattern
        gamma = self._gamma_at(pattern.user.cpu().numpy() + start, pattern.col.cpu().numpy().astype(np.int64))
        at_seen = farther(scores, observed.scores(q), torch.from_numpy(gamma).to(scores))
        return everywhere - torch.sum(at_seen, dtype=torch.float64)

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
        return self.gamma.at(users, items) ** self.strength


def log_parts(gamma: Gamma, like: Tensor) -> tuple[Tensor, Tensor]:
    """log Γ as users' part + items' part; a rule that is not separable is replaced by its additive fit."""
    if gamma.separable:
        users, items = gamma.log_user, gamma.log_item
    else:
        half = 0.5 * gamma.mean_log
        users, items = (np.maximum(x - half, 0.0) for x in (gamma.user_mean_log(), gamma.item_mean_log()))
    return tuple(torch.from_numpy(np.array(part)).to(like) for part in (users, items))  # type: ignore[return-value]

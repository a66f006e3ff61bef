"""Signed methods and `all-rank`: fit what was seen, and put a value on what was not.

    mean_O w (s − r)² + λ · mean_{D∖O} (s − m)²

m is q/Γ (`signed-*`: people pick what they like), with q, the expected rating where seen, from a naive fit; or the
lowest rating (`all-rank`: Γ = ∞). With Γ_ui = exp(s_u + s_i), q/Γ is as low-rank as q, so all of it is exact over D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from puidrec.errors import InputError
from puidrec.losses import signed
from puidrec.losses.pair_loss import Objective, Row, UnseenLoss, pair_sum
from puidrec.losses.whole_space import linear_sum, square_sum
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Part, Stage, backbone_penalty
from puidrec.methods.robust import robust_problem
from puidrec.optimise.adam import Step
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import sampled_product
from puidrec.scores.towers import Backbone
from puidrec.settings import Settings

LEAST_GAP = 1e-3
"""1 − m below which seen and unseen pairs are alike: Γ is next to 1."""


@dataclass
class UnseenProblem:
    """The loss over D with unseen ratings at m. Weights of seen pairs average to 1."""

    settings: Settings
    prepared: Prepared
    phi: Backbone
    m: LowRank
    gamma_scale: float = 1.0
    """κ: Γ_ui^κ is what counts."""
    benchmarked: bool = False

    def objective(self) -> Objective:
        """`eq:signed` of the documentation, with the seen part of the sum over D taken off pair by pair."""
        log = self.prepared.log.operator
        seen = float(len(log))
        share = self.settings.unseen_weight / max(log.n_pairs - seen, 1.0)
        columns = self.prepared.columns("inverse" if self.settings.adjusts and self._adjustable else "unit")
        columns["m"] = log.scores_of(self.m)
        return Objective(log, UnseenLoss(1.0 / max(seen, 1.0), share), columns, 1.0, share, self.m)

    @property
    def _adjustable(self) -> bool:
        return self.settings.spec.uses_propensity == "without ids"

    @property
    def parts(self) -> Sequence[Part]:
        """φ alone."""
        return (Part("phi", self.phi, self.objective),)

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ alone."""
        pattern, objective = self.prepared.log.operator.require_simple(self.settings.method), self.objective()
        row = Row(**{name: column.values for name, column in objective.columns.items()})

        def loss() -> Tensor:
            phi = self.phi.factors()
            s = sampled_product(phi.lefts[0], phi.rights[0], pattern)
            return pair_sum(objective.loss, s, row) + objective.v * square_sum(phi.minus(self.m))

        return (Step("phi", self.phi, loss, lambda: backbone_penalty(self.phi, self.settings)),)

    def factors(self) -> LowRank:
        """φ."""
        return self.phi.factors()

    def imputation(self) -> LowRank | None:
        """There is none: m is fixed."""
        return None


def stages(prepared: Prepared) -> list[Stage]:
    """`signed-*`: first q from the seen pairs, then the model that also fits the unseen ones."""
    if prepared.data.positives_only:
        return [Stage("main", lambda done: _signed(prepared, constant(prepared, 1.0)))]
    first = prepared.first_stage("ips" if prepared.settings.adjusts else "mf")
    return [
        Stage("seen", lambda done: robust_problem(first, "seen")),
        Stage("main", lambda done: _signed(prepared, done["seen"].phi), start="seen"),
    ]


def constant(prepared: Prepared, value: float) -> LowRank:
    """One value for all pairs. Where the log holds likes only, q = 1: what is seen is liked."""
    users, items = prepared.data.n_users, prepared.data.n_items
    return LowRank.of(*(prepared.log.tensor(np.full((n, 1), x)) for n, x in ((users, value), (items, 1.0))))


def all_rank_stages(prepared: Prepared) -> list[Stage]:
    """`all-rank`: unseen pairs are pulled to the lowest rating, which is q/Γ at Γ = ∞; no q is needed."""
    return [Stage("main", lambda done: all_rank_problem(prepared, "main"))]


def all_rank_problem(prepared: Prepared, stage: str) -> UnseenProblem:
    """m is the lowest rating (the highest where `liked` is False)."""
    end = constant(prepared, 0.0 if prepared.settings.picks_liked else 1.0)
    return UnseenProblem(prepared.settings, prepared, prepared.backbone(f"{stage} phi"), end)


def signed_problem(prepared: Prepared, stage: str, q: LowRank, gamma: float, unseen_weight: float) -> UnseenProblem:
    """`signed-rd` at one (Γ, λ), given q: a point of a path along Γ."""
    settings = prepared.settings.replace(unseen_weight=unseen_weight)
    like = q.lefts[0]
    logs = like.new_full((q.n_users,), float(np.log(gamma))), like.new_zeros(q.n_items)
    m = signed.unseen_scores(q, *logs, liked=settings.picks_liked).detach()
    return UnseenProblem(settings, prepared, prepared.backbone(f"{stage} phi"), m)


def path_problem(prepared: Prepared, stage: str, q: LowRank, gamma: float, unseen_weight: float) -> UnseenProblem:
    """The method's own Γ rule, scaled so that the mean of log Γ is that of one Γ, at one λ."""
    problem = signed_problem(prepared, stage, q, gamma, unseen_weight)
    users, items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    scale = problem.gamma_scale = float(np.log(gamma)) / prepared.gamma.mean_log
    problem.m = signed.unseen_scores(q, scale * users, scale * items, liked=problem.settings.picks_liked).detach()
    return problem


def _signed(prepared: Prepared, q: LowRank) -> UnseenProblem:
    settings = prepared.settings
    users, items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    scale = _gamma_scale(prepared, q, users, items)
    m = signed.unseen_scores(q, scale * users, scale * items, liked=settings.picks_liked).detach()
    if prepared.data.positives_only and 1.0 - float(linear_sum(m)) / q.n_pairs < LEAST_GAP:
        raise InputError(
            f"{settings.method} has nothing to learn from likes only: with Γ = 1 unseen pairs are liked like seen ones",
            found=f"gamma={settings.gamma}",
            expected="Γ above 1",
            hint="Set gamma to a number, or use all-rank.",
        )
    return UnseenProblem(settings, prepared, prepared.backbone("main phi"), m, scale)


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

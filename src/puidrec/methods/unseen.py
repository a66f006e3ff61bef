"""Signed methods and `all-rank`: fit what was seen, and put a value on what was not.

    mean_O w (s − r)² + λ · mean_{D∖O} (s − m)²

m is q/Γ (`signed-*`: people pick what they like), with q, the expected rating where seen, from a
naive fit; or the lowest rating (`all-rank`: Γ = ∞). With Γ_ui = exp(s_u + s_i), q/Γ is as low-rank
as q, so all of it is exact over D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.metrics import placements
from puidrec.losses import signed
from puidrec.losses.pair_loss import Objective, UnseenLoss
from puidrec.losses.whole_space import linear_sum
from puidrec.methods.prepare import Prepared, UniformRows
from puidrec.methods.problem import Done, Fitted, LossProblem, Stage
from puidrec.methods.robust import robust_problem
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings

LEAST_GAP = 1e-3
"""1 − m below which seen and unseen pairs are alike: Γ is next to 1."""
SWEEPS = 8
"""Sweeps of a point of a path, which starts from its neighbour."""
ENOUGH = 500
"""Uniform rows from which they choose Γ and λ of the signed methods."""
CLEAR_AUC = 2.33
"""Standard errors by which a point of the path must order better: one in a hundred logs by
chance."""
POINTS = ((3.0, 1.0), (10.0, 1.0), (30.0, 3.0), (10.0, 5.0), (3.0, 3.0))
"""(Γ, λ) that they choose among, beside the Γ of their mean with λ = 1."""


def unseen_problem(
    prepared: Prepared, stage: str, m: LowRank, unseen_weight: float | None = None
) -> LossProblem:
    """The loss over D with unseen ratings at m, the seen part of the sum over D taken off pair by
    pair. Weights of seen pairs average to 1."""
    settings, log = prepared.settings, prepared.log.operator
    seen = max(float(len(log)), 1.0)
    weight = settings.unseen_weight if unseen_weight is None else unseen_weight
    share = weight / max(log.n_pairs - seen, 1.0)

    @cache
    def objective() -> Objective:
        inverse = settings.adjusts and settings.spec.uses_propensity == "without ids"
        columns = prepared.columns("inverse" if inverse else "unit")
        columns = {**columns, "m": log.scores_of(m)}
        return Objective(log, UnseenLoss(1.0 / seen, share), columns, 1.0, share, m)

    return LossProblem(settings, prepared.backbone(f"{stage} phi"), objective)


def stages(prepared: Prepared) -> Sequence[Stage]:
    """`signed-rd`, `signed-puid`: unseen ratings get the mean that uniform rows show, or, where
    many rows favour one, another point of a path along (Γ, λ)."""
    usual, settings = _one_point(prepared), prepared.settings
    open_to_choice = (
        settings.gamma == "auto"
        and settings.unseen_weight == Settings.model_fields["unseen_weight"].default
    )
    if (
        not open_to_choice
        or not settings.is_linear
        or prepared.data.positives_only
        or prepared.gamma.mean_log <= 0.0
    ):
        return usual
    rows = prepared.calibration_rows()
    if rows.user.size < ENOUGH or rows.liked.all() or not rows.liked.any():
        return usual
    found = [*usual[:-1], replace(usual[-1], name="Γ of the mean")]
    for gamma, weight in POINTS:
        name, start = f"Γ {gamma:g}, λ {weight:g}", found[-1].name
        build = partial(_point, prepared, name, gamma, weight)
        found.append(Stage(name, build, start=start, sweeps=SWEEPS))
    names = [stage.name for stage in found[len(usual) - 1 :]]
    return [
        *found,
        Stage("main", lambda done: _chosen(prepared, [(name, done[name]) for name in names], rows)),
    ]


def _chosen(prepared: Prepared, points: Sequence[tuple[str, Fitted]], rows: UniformRows) -> Fitted:
    """The first point whose AUC on uniform rows is not clearly below the best one's.

    The Γ of the mean comes first: another point may order a little better and be far off the
    ratings.
    """
    liked = rows.liked
    values = [
        placements(pair_scores(fitted.phi, rows.user, rows.item), liked) for _, fitted in points
    ]
    best = max(range(len(points)), key=lambda k: float(values[k][liked].mean()))
    lacks = (values[best] - value for value in values)
    near = (
        lack[liked].mean()
        <= CLEAR_AUC * np.sqrt(sum(lack[p].var() / p.sum() for p in (liked, ~liked)))
        for lack in lacks
    )
    name, fitted = points[next(k for k, bearable in enumerate(near) if bearable)]
    words = f"the AUC of {rows.user.size:,} uniform ratings along a path: {name}"
    validator, notes = (
        prepared.validator(),
        {
            "gamma_set_by": words,
            "uniform_rows_used": "scale of Γ, λ",
            "uniform_parts": {"calibration": rows.user.size},
        },
    )
    score = None if validator is None else validator.score(fitted.phi)
    # a point of the path takes few sweeps on purpose
    return replace(fitted, history=[], best_score=score, notes=notes, unfinished=())


def _one_point(prepared: Prepared) -> list[Stage]:
    """First q from the seen pairs, then the model that also fits the unseen ones."""
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
    return LowRank.of(
        *(prepared.log.tensor(np.full((n, 1), x)) for n, x in ((users, value), (items, 1.0)))
    )


def all_rank_stages(prepared: Prepared) -> list[Stage]:
    """`all-rank`: unseen pairs are pulled to the lowest rating, which is q/Γ at Γ = ∞; no q is
    needed."""
    return [Stage("main", lambda done: all_rank_problem(prepared, "main"))]


def all_rank_problem(prepared: Prepared, stage: str) -> LossProblem:
    """m is the lowest rating (the highest where `liked` is False)."""
    end = constant(prepared, 0.0 if prepared.settings.picks_liked else 1.0)
    return unseen_problem(prepared, stage, end)


def signed_problem(
    prepared: Prepared, stage: str, q: LowRank, gamma: float, unseen_weight: float
) -> LossProblem:
    """`signed-rd` at one (Γ, λ), given q: a point of a path along Γ."""
    like = q.lefts[0]
    logs = like.new_full((q.n_users,), float(np.log(gamma))), like.new_zeros(q.n_items)
    m = signed.unseen_scores(q, *logs, liked=prepared.settings.picks_liked).detach()
    return unseen_problem(prepared, stage, m, unseen_weight)


def _scaled(
    prepared: Prepared, stage: str, q: LowRank, kappa: float, unseen_weight: float | None = None
) -> tuple[LossProblem, LowRank]:
    """The method's own Γ rule to the power κ, and where that puts unseen ratings."""
    users, items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    liked = prepared.settings.picks_liked
    m = signed.unseen_scores(q, kappa * users, kappa * items, liked=liked).detach()
    return replace(unseen_problem(prepared, stage, m, unseen_weight), gamma_scale=kappa), m


def _point(prepared: Prepared, name: str, gamma: float, weight: float, done: Done) -> LossProblem:
    """The Γ rule, scaled so that the mean of log Γ is that of one Γ, at one λ."""
    kappa = float(np.log(gamma)) / prepared.gamma.mean_log
    return _scaled(prepared, name, done["seen"].phi, kappa, weight)[0]


def _signed(prepared: Prepared, q: LowRank) -> LossProblem:
    settings = prepared.settings
    problem, m = _scaled(prepared, "main", q, _gamma_scale(prepared, q))
    if not prepared.data.positives_only:
        return problem
    # From 1/Γ to 1 scores are those of all-rank, scaled and moved. L2 that scales with them leaves
    # it so.
    gap = 1.0 - float(linear_sum(m)) / q.n_pairs
    if gap < LEAST_GAP:
        raise InputError(
            f"{settings.method} has nothing to learn from likes only: with Γ = 1 unseen pairs are "
            "liked like seen ones",
            found=f"gamma={settings.gamma}",
            expected="Γ above 1",
            hint="Set gamma to a number, or use all-rank.",
        )
    return replace(problem, l2_factor=gap)


def _gamma_scale(prepared: Prepared, q: LowRank) -> float:
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
        mean = signed.unseen_mean_for_shared_model(
            log.reweighted_mean, everywhere, settings.unseen_weight
        )
    else:
        mean = overlap.unseen_mean(*means)
    logs = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    return signed.calibrated_scale(q, *logs, mean, liked=settings.picks_liked)

"""Signed methods and `all-rank`: fit what was seen, and put a value on what was not.

    mean_O w (s − r)² + λ · mean_{D∖O} (s − m)²

m is q/Γ (`signed-*`: people pick what they like), with q, the expected rating where seen, from a
naive fit; or the lowest rating (`all-rank`: Γ = ∞). With Γ_ui = exp(s_u + s_i), q/Γ is as low-rank
as q, so all of it is exact over D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from puidrec.evaluation.metrics import placements
from puidrec.losses import signed
from puidrec.losses.pair_loss import Objective, UnseenLoss
from puidrec.methods.prepare import Prepared, UniformRows
from puidrec.methods.problem import Done, Fitted, LossProblem, Stage
from puidrec.methods.robust import robust_problem
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Settings

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
    inverse = settings.adjusts and settings.spec.uses_propensity == "without ids"
    columns = {**prepared.columns("inverse" if inverse else "unit"), "m": log.scores_of(m)}
    objective = Objective(log, UnseenLoss(1.0 / seen, share), columns, 1.0, share, m)
    return LossProblem(settings, prepared.backbone(f"{stage} phi"), lambda: objective)


def constant(prepared: Prepared, value: float) -> LowRank:
    """One value for all pairs."""
    users, items = prepared.data.n_users, prepared.data.n_items
    left, right = np.full((users, 1), value), np.ones((items, 1))
    return LowRank.of(prepared.log.tensor(left), prepared.log.tensor(right))


def all_rank_stages(prepared: Prepared) -> list[Stage]:
    """`all-rank`: unseen pairs are pulled to the lowest rating, which is q/Γ at Γ = ∞; no q is
    needed."""
    return [Stage("main", lambda done: all_rank_problem(prepared, "main"))]


def all_rank_problem(prepared: Prepared, stage: str) -> LossProblem:
    """m is the lowest rating (the highest where `liked` is False)."""
    end = constant(prepared, 0.0 if prepared.settings.picks_liked else 1.0)
    return unseen_problem(prepared, stage, end)


def signed_problem(
    prepared: Prepared,
    stage: str,
    q: LowRank,
    gamma: float | tuple[Tensor, Tensor],
    unseen_weight: float | None = None,
) -> LossProblem:
    """Unseen ratings at q/Γ: one Γ, or log Γ of users and of items."""
    if isinstance(gamma, float):
        like = q.lefts[0]
        gamma = like.new_full((q.n_users,), float(np.log(gamma))), like.new_zeros(q.n_items)
    m = signed.unseen_scores(q, *gamma, liked=prepared.settings.picks_liked).detach()
    return unseen_problem(prepared, stage, m, unseen_weight)


def _scaled(
    prepared: Prepared, stage: str, q: LowRank, kappa: float, unseen_weight: float | None = None
) -> LossProblem:
    """The method's own Γ rule to the power κ."""
    users, items = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    problem = signed_problem(prepared, stage, q, (kappa * users, kappa * items), unseen_weight)
    return replace(problem, gamma_scale=kappa)


def stages(prepared: Prepared) -> Sequence[Stage]:
    """`signed-rd`, `signed-puid`: first q from the seen pairs, then the model that also fits the
    unseen ones. These get the mean that uniform rows show, or, where many rows favour one, another
    point of a path along (Γ, λ)."""
    settings = prepared.settings
    first = prepared.first_stage("ips" if settings.adjusts else "mf")

    def usual(done: Done) -> LossProblem:
        q = done["seen"].phi
        return _scaled(prepared, "main", q, _gamma_scale(prepared, q))

    seen = Stage("seen", lambda done: robust_problem(first, "seen"))
    weight_is_open = settings.unseen_weight == Settings.model_fields["unseen_weight"].default
    is_open = settings.gamma == "auto" and weight_is_open and settings.is_linear
    rows = prepared.calibration_rows() if is_open and prepared.gamma.mean_log > 0.0 else None
    if rows is None or rows.user.size < ENOUGH or rows.liked.all() or not rows.liked.any():
        return [seen, Stage("main", usual, start="seen")]
    names = ["Γ of the mean", *(f"Γ {gamma:g}, λ {weight:g}" for gamma, weight in POINTS)]
    path = [Stage(names[0], usual, start="seen")]
    for name, start, point in zip(names[1:], names, POINTS, strict=False):
        path.append(Stage(name, partial(_point, prepared, name, *point), start, sweeps=SWEEPS))

    def choose(done: Done) -> Fitted:
        return _chosen(prepared, [(name, done[name]) for name in names], rows)

    return [seen, *path, Stage("main", choose)]


def _point(prepared: Prepared, name: str, gamma: float, weight: float, done: Done) -> LossProblem:
    """The Γ rule, scaled so that the mean of log Γ is that of one Γ, at one λ."""
    kappa = float(np.log(gamma)) / prepared.gamma.mean_log
    return _scaled(prepared, name, done["seen"].phi, kappa, weight)


def _chosen(prepared: Prepared, points: Sequence[tuple[str, Fitted]], rows: UniformRows) -> Fitted:
    """The first point whose AUC on uniform rows is not clearly below the best one's.

    The Γ of the mean comes first: another point may order a little better and be far off the
    ratings.
    """
    liked, validator = rows.liked, prepared.validator()
    values = [
        placements(pair_scores(fitted.phi, rows.user, rows.item), liked) for _, fitted in points
    ]
    best = max(values, key=lambda value: float(value[liked].mean()))

    def bearable(lack: np.ndarray) -> bool:
        spread = np.sqrt(sum(lack[part].var() / part.sum() for part in (liked, ~liked)))
        return bool(lack[liked].mean() <= CLEAR_AUC * spread)

    name, fitted = next(
        point for point, value in zip(points, values, strict=True) if bearable(best - value)
    )
    notes = {
        "gamma_set_by": f"the AUC of {rows.user.size:,} uniform ratings along a path: {name}",
        "uniform_rows_used": "scale of Γ, λ",
        "uniform_parts": {"calibration": rows.user.size},
    }
    score = None if validator is None else validator.score(fitted.phi)
    # a point of the path takes few sweeps on purpose
    return replace(fitted, history=[], best_score=score, notes=notes, unfinished=())


def _gamma_scale(prepared: Prepared, q: LowRank) -> float:
    """κ: 1 where the caller chose Γ; else what uniform ratings ask for, or a mild default."""
    settings, log, held_out = prepared.settings, prepared.log, prepared.split.propensity
    rows = 0 if held_out is None else len(held_out)
    if settings.gamma == "certified":
        signed.require_uniform(rows, prepared.data.name)
    elif settings.gamma != "auto":
        return 1.0
    if held_out is None or rows < signed.MIN_UNIFORM:
        return signed.default_scale(prepared.gamma.mean_log)
    uniform, overlap = (
        float(np.mean(log.target(held_out), dtype=np.float64)),
        prepared.split.overlap,
    )
    means = uniform, log.target_mean, len(prepared.rows) / q.n_pairs
    mean = overlap.unseen_mean(*means)
    if settings.adjusts and settings.unseen_weight > 0:
        weighted = log.total(lambda part: log.target(part) * log.inverse(part))
        seen = weighted / (log.inverse_mean * len(log.rows))
        everywhere = overlap.population_mean(*means)
        mean = signed.unseen_mean_for_shared_model(seen, everywhere, settings.unseen_weight)
    logs = signed.additive_log_gamma(prepared.gamma, q.lefts[0])
    return signed.calibrated_scale(q, *logs, mean, liked=settings.picks_liked)

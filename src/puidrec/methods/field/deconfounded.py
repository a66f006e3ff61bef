"""Exposure as representation: `dcf` adds the reconstructed exposure to the score, `idcf` describes
users by it.

`dcf`, the deconfounded recommender (Wang, Liang, Charlin, Blei, RecSys 2020), fits

    r̂_ui = x_uᵀ y_i + b_u + b_i + μ + γ_u â_ui      to the logged ratings,

â the reconstruction of exposure by `features.factors`: a user who rates high what people
like her see has γ_u > 0. For given x, y each γ_u is a ridge regression of what they leave; x, y and
γ take turns until γ stays,

    min over x, y, b, γ of mean_O (s + γ_u â − r)² + L2 + l2 · mean_u γ_u².

`idcf` (Zhang et al., KDD 2023) is x_uᵀ y_i + z_uᵀ v_i with z_u from the user's exposure row and
features: the columns z join the features of users, so that they go through the backbone, cold start
and files like any other feature.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import torch

from puidrec.data.row_matrix import with_values
from puidrec.errors import InputError
from puidrec.features.encode import exposure_design
from puidrec.features.factors import ExposureFactors
from puidrec.methods.dim_and_l2 import spectral_start
from puidrec.methods.prepare import Prepared, TrainingLog
from puidrec.methods.problem import Done, Fitted, Stage
from puidrec.methods.robust import robust_problem
from puidrec.methods.stages import model_for
from puidrec.optimise.least_squares import LeastSquares, Outcome
from puidrec.optimise.model import Point, load_point, point_of
from puidrec.scores.log import Column, exact_sum
from puidrec.scores.low_rank import LowRank

ROUNDS, TURN, STILL = 200, 8, 1e-6
"""Most turns of x, y and γ, sweeps of a turn; a change of γ, as it enters scores, below which it
stays."""


def deconfounded(prepared: Prepared) -> Fitted:
    """`dcf`, by turns: least squares for x, y given γ, then γ of every user in closed form."""
    settings, log = prepared.settings, prepared.log.operator
    problem, exposure = robust_problem(prepared, "main"), _exposure(prepared)
    (part,), r = problem.parts, problem.columns["r"]
    whole, right = exposure.lefts[0], exposure.rights[0]
    left, model = log.own(whole), model_for(part, settings, log)

    def by_user(column: Column) -> torch.Tensor:
        """Σ_i â_ui x_ui of each user."""
        return (left * log.to_users(column, right)).sum(1)

    square = by_user(log.scores(left, right))
    price = settings.l2_number * len(log) / log.all_users
    gamma, point, metric = torch.zeros_like(square), Point(), None
    history, unfinished = list[dict[str, float]](), ["phi of stage main"]
    for turn in range(ROUNDS):
        rest = log.map(torch.sub, r, log.scores(gamma[:, None] * left, right))
        objective = replace(problem.phi_objective(), columns={**problem.columns, "r": rest})
        start = point or spectral_start(objective, model, point_of(part.backbone, log.users))
        found = LeastSquares(max_sweeps=TURN).minimise(objective, model, start, metric=metric)
        point, metric, before = found.point, found.metric, gamma
        history.append({"epoch": turn + 1, "loss_phi": found.objective})
        missed = log.map(torch.sub, r, log.scores(*model.factors(point)))
        gamma = by_user(missed) / (square + price).clamp_min(1e-12)
        moved = float(log.total(exact_sum((gamma - before).square() * square))) / len(log)
        if moved**0.5 <= STILL and found.outcome is Outcome.CONVERGED:
            unfinished = []
            break
    load_point(part.backbone, {**point, "users": log.gather(point["users"])})
    with torch.no_grad():
        phi = part.backbone.factors().detach()
    scores = LowRank.of(
        torch.cat([log.gather(gamma)[:, None] * whole, phi.lefts[0]], 1),
        torch.cat([right, phi.rights[0]], 1),
    )
    state = part.backbone.state_dict()
    parameters = {f"phi.{key}": value.detach().clone() for key, value in state.items()}
    return Fitted(
        scores,
        parameters=parameters,
        history=history,
        best_epoch=len(history),
        solver="least-squares",
        unfinished=tuple(unfinished),
    )


def _exposure(prepared: Prepared) -> LowRank:
    """â, scaled to a mean square of 1 on the log."""
    log, factors = prepared.log, exposure_factors(prepared.log)
    exposure = LowRank.of(*(log.tensor(side) for side in factors.reconstruction))
    squares = float(
        log.operator.sum(lambda a: exact_sum(a.square()), log.operator.scores_of(exposure))
    )
    scale = (squares / len(log.rows)) ** -0.5 if squares > 0 else 1.0
    return LowRank.of(scale * exposure.lefts[0], exposure.rights[0])


def exposure_factors(log: TrainingLog) -> ExposureFactors:
    """What users saw, as at most `dim` factors."""
    ones = with_values(log.ratings, np.ones(len(log.rows)))
    return ExposureFactors.fit(ones, log.settings.dim_number, log.settings.seed)


def deconfounded_stages(prepared: Prepared) -> list[Stage]:
    """`dcf`."""
    if not prepared.settings.is_linear:
        raise InputError(
            "dcf is solved by least squares",
            found=f"backbone {prepared.settings.backbone}, solver {prepared.settings.solver}",
            expected="backbone mf or mf-linear, solver auto or least-squares",
        )

    def build(done: Done) -> Fitted:
        return deconfounded(prepared)

    return [Stage("main", build)]


def identified_stages(prepared: Prepared) -> list[Stage]:
    """`idcf`: the naive loss; what is new are the columns of users."""
    if prepared.settings.backbone == "mf":
        raise InputError(
            "idcf describes users by columns made from exposure, which the backbone must read",
            found="backbone mf",
            expected="mf-linear or mf-mlp",
            hint="Leave the backbone out, or choose dcf.",
        )
    return [Stage("main", lambda done: robust_problem(prepared, "main"))]


def exposure_columns(log: TrainingLog) -> pl.DataFrame:
    """The users' exposure factors given their features, one column each."""
    z = exposure_factors(log).given_features(exposure_design(log.data.users, "user_id"))
    return pl.DataFrame({f"exposure factor {k + 1}": z[:, k] for k in range(z.shape[1])})

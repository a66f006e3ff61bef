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

import numpy as np
import polars as pl
import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.features.encode import exposure_design
from puidrec.features.factors import ExposureFactors
from puidrec.losses.pair_loss import Objective, RobustLoss
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
    problem = robust_problem(prepared, "main")
    part, r = problem.parts[0], problem.columns["r"]
    model, exposure = model_for(part, settings, log), _exposure(prepared)
    column = log.scores_of(exposure)
    square = log.to_users(log.map(torch.square, column), _ones(prepared))[:, 0]
    price = settings.l2_number * len(log) / log.all_users
    gamma = torch.zeros_like(square)
    point, metric, history = Point(), None, list[dict[str, float]]()
    outcome = Outcome.LIMIT
    for _ in range(ROUNDS):
        added = _by_user(prepared, gamma, column)
        rest = log.map(torch.sub, r, added)
        columns = {**problem.columns, "r": rest}
        objective = Objective(log, RobustLoss(prepared.error), columns, 1.0 / len(log))
        start = point or spectral_start(objective, model, point_of(part.backbone, log.users))
        found = LeastSquares(max_sweeps=TURN).minimise(objective, model, start, metric=metric)
        point, metric = found.point, found.metric
        history.append({"epoch": len(history) + 1, "loss_phi": found.objective})
        left = log.map(torch.sub, r, log.scores(*model.factors(point)))
        before = gamma
        product = log.to_users(log.map(torch.mul, column, left), _ones(prepared))[:, 0]
        gamma = product / (square + price).clamp_min(1e-12)
        moved = log.total(torch.sum((gamma - before).square() * square, dtype=torch.float64)) / len(
            log
        )
        if float(moved) ** 0.5 <= STILL and found.outcome is Outcome.CONVERGED:
            outcome = found.outcome
            break
    load_point(part.backbone, {**point, "users": log.gather(point["users"])})
    with torch.no_grad():
        phi = part.backbone.factors().detach()
    whole = log.gather(gamma)
    scores = LowRank.of(
        torch.cat([whole[:, None] * exposure.lefts[0], phi.lefts[0]], 1),
        torch.cat([exposure.rights[0], phi.rights[0]], 1),
    )
    parameters = {
        f"phi.{key}": value.detach().clone() for key, value in part.backbone.state_dict().items()
    }
    unfinished = () if outcome is Outcome.CONVERGED else ("phi of stage main",)
    return Fitted(
        scores,
        None,
        parameters,
        history,
        len(history),
        solver="least-squares",
        unfinished=unfinished,
    )


def _ones(prepared: Prepared) -> Tensor:
    return prepared.log.tensor(np.ones((prepared.data.n_items, 1)))


def _by_user(prepared: Prepared, gamma: Tensor, column: Column) -> Column:
    """γ_u â_ui of each logged pair."""
    log = prepared.log.operator
    ones = _ones(prepared)
    return log.map(torch.mul, log.scores(gamma[:, None], ones), column)


def _exposure(prepared: Prepared) -> LowRank:
    """â, scaled to a mean square of 1 on the log."""
    log = prepared.log.operator
    left, right = (
        prepared.log.tensor(side) for side in prepared.log.exposure_factors.reconstruction
    )
    squares = float(
        log.sum(lambda a: exact_sum(a.square()), log.scores_of(LowRank.of(left, right)))
    )
    scale = (squares / len(log)) ** -0.5 if squares > 0 else 1.0
    return LowRank.of(left * scale, right)


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
    factors: ExposureFactors = log.exposure_factors
    z = factors.given_features(exposure_design(log.data.users, "user_id"))
    return pl.DataFrame({f"exposure factor {k + 1}": z[:, k] for k in range(z.shape[1])})

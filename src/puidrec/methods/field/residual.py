"""Residual corrections learned from uniform rows: `res-ips`, `res-dr`.

"Removing hidden confounding in recommendation: a unified multi-task learning approach" (NeurIPS
2023) adds to the nominal propensity and to the imputation a residual each, logit p̃ = logit p +
δ_p(x) and ẽ = ê + δ_e(x), trained so that the loss of the log agrees with that of uniform rows. Its
δ are networks. Assumed here, so that all stays exact:

* δ_p = δ₀ + δ₁ z_u + δ₂ z_i, z the standardised log number of rows of a user or item. With errors e of a first fit and
  w̃ = 1 + (1/p − 1) exp(−δ_p), four means must agree: Σ_O w̃ e b/|D| with mean_U e b for b = 1, z_u
  and z_i, and Σ_O w̃ with |D|. δ is their least-squares solution, each in units of its sampling
  error, with a standard normal prior.
* δ_e acts on the pseudo-label, g̃ = g + δ_e with ê = (r̂ − g̃)², and is additive in users and items: shrunk means of what
  the imputation model misses on the uniform rows.

The second stage is IPS, or DR with the imputation model held at g̃, under the weights w̃.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import least_squares

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.methods.baselines import closed_form
from puidrec.methods.field.balanced import uniform_errors, with_weights
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Stage
from puidrec.methods.robust import RobustProblem, robust_problem, shrunk_to, weighted_stages
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank


def log_odds_shift(
    inverse: np.ndarray, basis: np.ndarray, errors: np.ndarray, uniform: np.ndarray, n_pairs: int
) -> np.ndarray:
    """δ of w̃ = 1 + (1/p − 1) exp(−basis δ), [terms], so that the weighted log agrees with uniform
    rows.

    inverse, errors: 1/p and e of logged pairs. basis: 1, z_u, z_i of each, [pairs, terms]. uniform:
    e·(1, z_u, z_i) of the uniform rows, [rows, terms].
    """
    target, spread = uniform.mean(0), uniform.std(0, ddof=1) / np.sqrt(len(uniform))
    chance = np.sqrt(np.sum(inverse * (inverse - 1.0))) / n_pairs  # sampling error of Σ_O 1/p / |D|
    scale = np.maximum(np.append(spread, chance), 1e-9)

    def gaps(delta: np.ndarray) -> np.ndarray:
        weight = 1.0 + (inverse - 1.0) * np.exp(-np.clip(basis @ delta, -20.0, 20.0))
        means = (
            np.append((weight * errors) @ basis - target * n_pairs, weight.sum() - n_pairs)
            / n_pairs
        )
        return np.concatenate([means / scale, delta])

    return np.asarray(least_squares(gaps, np.zeros(basis.shape[1])).x)


def residual_stages(prepared: Prepared) -> list[Stage]:
    """A plain fit, then one with residuals."""
    spec, head = prepared.settings.spec, prepared.settings.head
    if spec.imputes and not head.startswith("label"):
        raise InputError(
            f"{spec.name} corrects pseudo-labels", found=f"head {head}", expected="head label"
        )
    base, rows = prepared.first_stage(prepared.settings.spec.estimator), prepared.uniform_rows()
    return [
        *weighted_stages(prepared, base, "first"),
        Stage(
            "main",
            lambda done: _corrected(prepared, done["first"], rows),
            shrink_to=shrunk_to(prepared.settings),
        ),
    ]


def _corrected(prepared: Prepared, first: Fitted, uniform: Interactions) -> RobustProblem:
    """IPS or DR in which only φ is trained, the imputation held at g̃."""
    problem = robust_problem(prepared, "main")
    problem.columns = with_weights(prepared, problem, corrected_weights(prepared, first, uniform))
    if first.theta is not None:
        labels = corrected_labels(prepared, first.theta, uniform)
        problem.imputed, problem.theta = (problem.log.scores_of(labels), labels), None
    return problem


def corrected_labels(prepared: Prepared, theta: LowRank, uniform: Interactions) -> LowRank:
    """g + δ_e: user and item means of what g misses on uniform rows, shrunk."""
    missed = prepared.log.target(uniform).astype(np.float64) - pair_scores(
        theta, uniform.user, uniform.item
    )
    shape = (prepared.data.n_users, prepared.data.n_items)
    matrix = sp.csr_array((missed, (uniform.user, uniform.item)), shape=shape)
    shift = closed_form("bias", matrix, 1, 0)
    device = prepared.settings.device
    left = torch.cat([theta.lefts[0], shift.lefts[0].to(device)], 1)
    return LowRank.of(left, torch.cat([theta.rights[0], shift.rights[0].to(device)], 1))


def corrected_weights(prepared: Prepared, first: Fitted, uniform: Interactions) -> np.ndarray:
    """w̃ of every training row."""
    log, sides = prepared.log, activity(prepared)

    def basis(rows: Interactions) -> np.ndarray:
        return np.column_stack([np.ones(len(rows)), sides[0][rows.user], sides[1][rows.item]])

    parts = [
        (log.inverse(p), basis(p), uniform_errors(prepared, first.phi, p)) for p in log.rows.parts()
    ]
    inverse, own, errors = (np.concatenate(column) for column in zip(*parts, strict=True))
    at_uniform = uniform_errors(prepared, first.phi, uniform)[:, None] * basis(uniform)
    delta = log_odds_shift(inverse, own, errors, at_uniform, first.phi.n_pairs)
    return np.asarray(1.0 + (inverse - 1.0) * np.exp(-np.clip(own @ delta, -20.0, 20.0)))


def activity(prepared: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """z of users and of items: log(1 + rows), standardised."""
    counts = prepared.log.nominal.exposure.counts
    logs = (np.log1p(counts.user_degree), np.log1p(counts.item_degree))
    users, items = ((x - x.mean()) / (x.std() or 1.0) for x in logs)
    return users, items

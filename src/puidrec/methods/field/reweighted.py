"""Methods that train again after a first fit, with other weights of the log.

**`stable-dr`, `bal-ips`, `bal-dr`** balance these weights.

A first stage, IPS or DR, gives errors e and imputed errors ê of all logged pairs. The second is
trained with weights tilted just so far from 1/p that a mean over the log equals one that is known
otherwise (`exposure.balancing.entropy_balance`):

| method | of logged pairs | equals | second stage |
|---|---|---|---|
| `stable-dr` | mean_w ê | mean_D ê, exact by Gram matrices | Σ_O w e/Σ_O w |
| `bal-ips` | mean_w e | mean_U e over uniform rows held out for training | Σ_O w e/Σ_O w |
| `bal-dr` | mean_D ê + mean_w (e − ê) | mean_U e | mean_D ê + Σ_O w (e − ê)/Σ_O w |

*StableDR* (Li, Zheng, Wu, ICLR 2023) minimises the normalised IPS loss under Σ_D (o/p)(ê − mean_D
ê) = 0, which makes
it doubly robust: then Σ_O w e/Σ_O w = mean_D ê + Σ_O w (e − ê)/Σ_O w. Assumed here: the
propensities may move by a tilt exp(−η ê), the constraint holds at the first stage's ê, and one
cycle of first fit and second fit is run (the paper repeats it).

*Bal* (Li et al., "Balancing unobserved confounding with a few unbiased ratings in debiased
recommendations", WWW 2023) asks for weights of large entropy under which the loss of the log is
that of the uniform rows. Assumed here: the entropy is relative to 1/p, the square of the difference
counts in units of the sampling variance of mean_U e, the weights of pairs over D stay 1, and the
constraint holds at the first stage's errors. Note that errors on the log are those of rows that
were fitted, and on uniform rows those of new rows: part of the difference is overfitting, not
confounding.

**`res-ips`, `res-dr`** learn residual corrections from uniform rows.

"Removing hidden confounding in recommendation: a unified multi-task learning approach" (NeurIPS
2023) adds to the nominal propensity and to the imputation a residual each, logit p̃ = logit p +
δ_p(x) and ẽ = ê + δ_e(x), trained so that the loss of the log agrees with that of uniform rows. Its
δ are networks. Assumed here, so that all stays exact:

* δ_p = δ₀ + δ₁ z_u + δ₂ z_i, z the standardised log number of rows of a user or item. With errors e
  of a first fit and w̃ = 1 + (1/p − 1) exp(−δ_p), four means must agree: Σ_O w̃ e b/|D| with mean_U
  e b for b = 1, z_u and z_i, and Σ_O w̃ with |D|. δ is their least-squares solution, each in units
  of its sampling error, with a standard normal prior.
* δ_e acts on the pseudo-label, g̃ = g + δ_e with ê = (r̂ − g̃)², and is additive in users and
  items: shrunk means of what the imputation model misses on the uniform rows.

The second stage is IPS, or DR with the imputation model held at g̃, under the weights w̃.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import least_squares
from torch import Tensor

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.exposure.balancing import entropy_balance
from puidrec.losses.pair_loss import RobustLoss, Row
from puidrec.methods.baselines import closed_form
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted, Stage
from puidrec.methods.robust import RobustProblem, robust_problem, shrunk_to, weighted_stages
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.log import Column
from puidrec.scores.low_rank import LowRank

NEGLIGIBLE = 1e-5**2
"""Imputed errors, of ratings that span 1 or 2, whose balance is rounding: both models are the same
to 1e-5, as they are where the imputation model has the weights and the L2 of the prediction model;
then nothing is to be balanced."""
Moment = Callable[[RobustLoss, Tensor, Row], Tensor]
"""(the loss, scores of logged pairs, their numbers) → a number per pair."""


def stable_stages(prepared: Prepared) -> list[Stage]:
    """`stable-dr`."""

    def balance(problem: RobustProblem, first: Fitted) -> tuple[Moment, float, float]:
        return _imputed, _imputed_mean(problem, first), NEGLIGIBLE**2

    return _stages(prepared, "dr", balance)


def uniform_stages(prepared: Prepared) -> list[Stage]:
    """`bal-ips` and `bal-dr`."""
    rows = prepared.uniform_rows()

    def balance(problem: RobustProblem, first: Fitted) -> tuple[Moment, float, float]:
        errors = uniform_errors(prepared, first.phi, rows)
        mean, variance = float(errors.mean()), float(errors.var(ddof=1)) / errors.size
        if first.theta is None:
            return _coefficient, mean, variance
        return _coefficient, mean - _imputed_mean(problem, first), variance

    return _stages(prepared, prepared.settings.spec.estimator, balance)


def uniform_errors(prepared: Prepared, phi: LowRank, rows: Interactions) -> np.ndarray:
    """e of uniform rows, float64."""
    scores = torch.from_numpy(pair_scores(phi, rows.user, rows.item)).double()
    target = torch.from_numpy(np.asarray(prepared.log.target(rows), dtype=np.float64))
    return np.asarray(prepared.error.value(scores, target).numpy())


def _stages(
    prepared: Prepared,
    first: str,
    balance: Callable[[RobustProblem, Fitted], tuple[Moment, float, float]],
) -> list[Stage]:
    def main(base: Prepared, done: Fitted) -> RobustProblem:
        moment = balance(robust_problem(base, "first"), done)
        return _weighted(prepared, balanced_weights(prepared, done, *moment))

    return _two_stages(prepared, first, main)


def _two_stages(
    prepared: Prepared, first: str, main: Callable[[Prepared, Fitted], RobustProblem]
) -> list[Stage]:
    """A plain fit, then the problem that is made of it."""
    base = prepared.first_stage(first)
    return [
        *weighted_stages(prepared, base, "first"),
        Stage(
            "main", lambda done: main(base, done["first"]), shrink_to=shrunk_to(prepared.settings)
        ),
    ]


def _weighted(prepared: Prepared, weights: np.ndarray) -> RobustProblem:
    """The problem of the method with other weights, one per row."""
    problem, own = robust_problem(prepared, "main"), prepared.log.wrap(weights)
    problem.columns = {**problem.columns, "a": own, "b": own}
    return problem


@torch.no_grad()
def balanced_weights(
    prepared: Prepared, first: Fitted, moment: Moment, target: float, variance: float = 0.0
) -> np.ndarray:
    """Weights tilted from 1/p until the weighted mean of the moment over the log is the target; Σ_O
    w = |D|."""
    log, head = prepared.log.operator, None if first.theta is None else prepared.settings.head
    loss = RobustLoss(prepared.error, head)
    columns = {"r": prepared.log.column(prepared.log.target)}
    if first.theta is not None:
        columns["g"] = log.scores_of(first.theta)
    found = log.map(lambda s, row: moment(loss, s, row), log.scores_of(first.phi), row=columns)
    moments = numbers_of(prepared, found)
    inverse = [prepared.log.inverse(part) for part in prepared.log.rows.parts()]
    weights = np.concatenate(inverse)
    weights *= entropy_balance(weights, moments, target, variance).factor(moments)
    return np.asarray(weights * (first.phi.n_pairs / weights.sum()))


def numbers_of(prepared: Prepared, column: Column) -> np.ndarray:
    """A column as an array of all rows, float64."""
    log = prepared.log.operator
    if log.world.size > 1:
        raise InputError(
            f"{prepared.settings.method} runs in one process", found=f"{log.world.size} processes"
        )
    parts = [column.values[block.rows].cpu().double().numpy() for block in log.blocks]
    return np.concatenate(parts)


def _coefficient(loss: RobustLoss, s: Tensor, row: Row) -> Tensor:
    """e, or e − ê where there is an imputation."""
    return loss.coefficient(s, row).value


def _imputed(loss: RobustLoss, s: Tensor, row: Row) -> Tensor:
    """ê."""
    return loss.error.value(s, row.r) - loss.coefficient(s, row).value


def _imputed_mean(problem: RobustProblem, first: Fitted) -> float:
    """mean_D ê."""
    assert first.theta is not None  # noqa: S101 (asked of DR only)
    return float(problem.imputed_sum(first.phi, first.theta)) / first.phi.n_pairs


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
    rows = prepared.uniform_rows()

    def main(base: Prepared, first: Fitted) -> RobustProblem:
        problem = _weighted(prepared, corrected_weights(prepared, first, rows))
        if first.theta is not None:  # only φ is trained, the imputation held at g̃
            labels = corrected_labels(prepared, first.theta, rows)
            problem.imputed, problem.theta = (problem.log.scores_of(labels), labels), None
        return problem

    return _two_stages(prepared, spec.estimator, main)


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

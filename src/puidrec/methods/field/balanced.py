"""Methods that balance the weights of the log after a first fit: `stable-dr`, `bal-ips`, `bal-dr`.

A first stage, IPS or DR, gives errors e and imputed errors ê of all logged pairs. The second is
trained with weights tilted just so far from 1/p that a mean over the log equals one that is known
otherwise (`propensity.entropy_balance`):

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
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.exposure.balancing import entropy_balance
from puidrec.losses.pair_loss import RobustLoss, Row
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
    base = prepared.first_stage(first)

    def main(done: Fitted) -> RobustProblem:
        problem = robust_problem(prepared, "main")
        weights = balanced_weights(prepared, done, *balance(robust_problem(base, "first"), done))
        problem.columns = with_weights(prepared, problem, weights)
        return problem

    return [
        *weighted_stages(prepared, base, "first"),
        Stage("main", lambda done: main(done["first"]), shrink_to=shrunk_to(prepared.settings)),
    ]


def with_weights(
    prepared: Prepared, problem: RobustProblem, weights: np.ndarray
) -> dict[str, Column]:
    """The columns of a problem with other weights, one per row."""
    own = prepared.log.wrap(weights)
    return {**problem.columns, "a": own, "b": own}


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

"""Methods that balance the weights of the log after a first fit: `stable-dr`, `bal-ips`, `bal-dr`.

A first stage, IPS or DR, gives errors e and imputed errors ê of all logged pairs. The second is trained with weights
tilted just so far from 1/p that a mean over the log equals one that is known otherwise (`propensity.entropy_balance`):

| method | of logged pairs | equals | second stage |
|---|---|---|---|
| `stable-dr` | mean_w ê | mean_D ê, exact by Gram matrices | Σ_O w e/Σ_O w |
| `bal-ips` | mean_w e | mean_U e over uniform rows held out for training | Σ_O w e/Σ_O w |
| `bal-dr` | mean_D ê + mean_w (e − ê) | mean_U e | mean_D ê + Σ_O w (e − ê)/Σ_O w |

*StableDR* (Li, Zheng, Wu, ICLR 2023) minimises the normalised IPS loss under Σ_D (o/p)(ê − mean_D ê) = 0, which makes
it doubly robust: then Σ_O w e/Σ_O w = mean_D ê + Σ_O w (e − ê)/Σ_O w. Assumed here: the propensities may move by a
tilt exp(−η ê), the constraint holds at the first stage's ê, and one cycle of first fit and second fit is run (the paper
repeats it).

*Bal* (Li et al., "Balancing unobserved confounding with a few unbiased ratings in debiased recommendations", WWW 2023)
asks for weights of large entropy under which the loss of the log is that of the uniform rows. Assumed here: the entropy
is relative to 1/p, the square of the difference counts in units of the sampling variance of mean_U e, the weights of
pairs over D stay 1, and the constraint holds at the first stage's errors. Note that errors on the log are those of rows
that were fitted, and on uniform rows those of new rows: part of the difference is overfitting, not confounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.data.dataset import Interactions
from puidrec.objective.heads import head_named
from puidrec.objective.terms import Observed
from puidrec.objective.worst_case import Box
from puidrec.propensity.entropy_balance import entropy_balance
from puidrec.train.blocks import UserPartition
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Fitted, Log, Stage
from puidrec.train.robust import RobustProblem, robust_problem, unweighted_first
from puidrec.train.stopping import pair_scores

NEGLIGIBLE = 1e-5**2
"""Imputed errors, of ratings that span 1 or 2, whose balance is rounding: both models are the same to 1e-5, as they are
where the imputation model has the weights and the L2 of the prediction model; then nothing is to be balanced."""
Moment = Callable[[Observed, LowRank, LowRank | None], Tensor]
"""(logged pairs of some users, φ and θ of these users) → a number per pair."""


@dataclass(frozen=True, eq=False)
class WeightedLog:
    """A log with other weights, one per row; for a log on disk, block by block."""

    log: Log
    weights: Tensor
    row_start: np.ndarray

    def __len__(self) -> int:
        return len(self.log)

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""
        own = self.weights[int(self.row_start[start]) : int(self.row_start[stop])]
        return replace(self.log.rows(start, stop), bounds=Box.exactly(own))


def weighted(log: Log, weights: np.ndarray, prepared: Prepared) -> Log:
    """The same pairs with these weights."""
    tensor = prepared.log.tensor(weights)
    if isinstance(log, Observed):
        return replace(log, bounds=Box.exactly(tensor))
    return WeightedLog(log, tensor, prepared.log.row_start)


def stable_stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """`stable-dr`."""

    def balance(first: Fitted) -> tuple[Moment, float, float]:
        assert first.theta is not None  # noqa: S101 (DR has an imputation model)
        head, error = head_named(prepared.settings.head), prepared.error
        mean = float(head.imputed_sum(first.phi, first.theta, error)) / first.phi.n_pairs
        return _imputed(prepared), mean, NEGLIGIBLE**2

    return _stages(prepared, partition, "dr", balance)


def uniform_stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """`bal-ips` and `bal-dr`."""
    rows = prepared.uniform_rows()

    def balance(first: Fitted) -> tuple[Moment, float, float]:
        errors = uniform_errors(prepared, first.phi, rows)
        mean, variance = float(errors.mean()), float(errors.var(ddof=1)) / errors.size
        if first.theta is None:
            return _error(prepared), mean, variance
        head = head_named(prepared.settings.head)
        imputed = float(head.imputed_sum(first.phi, first.theta, prepared.error)) / first.phi.n_pairs
        return _gap(prepared), mean - imputed, variance

    return _stages(prepared, partition, prepared.settings.spec.estimator, balance)


def uniform_errors(prepared: Prepared, phi: LowRank, rows: Interactions) -> np.ndarray:
    """e of uniform rows, float64."""
    scores = torch.from_numpy(pair_scores(phi, rows.user, rows.item)).double()
    target = torch.from_numpy(np.asarray(prepared.log.target(rows), dtype=np.float64))
    return np.asarray(prepared.error(scores, target).numpy())


def _stages(
    prepared: Prepared,
    partition: UserPartition,
    first: str,
    balance: Callable[[Fitted], tuple[Moment, float, float]],
) -> list[Stage]:
    base = prepared.first_stage(first)

    def main(done: Fitted) -> RobustProblem:
        problem = robust_problem(prepared, "main", partition)
        problem.observed = balanced_log(prepared, problem.observed, done, *balance(done))
        return problem

    unweighted, anchor = unweighted_first(prepared, partition)
    return [
        *unweighted,
        Stage("first", lambda done: robust_problem(base, "first", partition), anchor=anchor),
        Stage("main", lambda done: main(done["first"]), anchor=anchor),
    ]


@torch.no_grad()
def balanced_log(
    prepared: Prepared, log: Log, first: Fitted, moment: Moment, target: float, variance: float = 0.0
) -> Log:
    """The log with weights tilted from its own until the weighted mean of the moment is the target; Σ_O w = |D|."""
    partition = UserPartition.undivided(prepared.data.n_users)
    base, values = list[np.ndarray](), list[np.ndarray]()
    for start, stop in partition.parts(0, partition.n_users):
        observed, rows = log.rows(start, stop), slice(start, stop)
        theta = None if first.theta is None else first.theta.rows(rows)
        base.append(observed.bounds.b.cpu().double().numpy())
        values.append(moment(observed, first.phi.rows(rows), theta).cpu().double().numpy())
    weights, moments = np.concatenate(base), np.concatenate(values)
    weights *= entropy_balance(weights, moments, target, variance).factor(moments)
    return weighted(log, weights * (first.phi.n_pairs / weights.sum()), prepared)


def _error(prepared: Prepared) -> Moment:
    return lambda observed, phi, theta: prepared.error(observed.scores(phi), observed.target)


def _imputed(prepared: Prepared) -> Moment:
    head, error = head_named(prepared.settings.head), prepared.error

    def moment(observed: Observed, phi: LowRank, theta: LowRank | None) -> Tensor:
        assert theta is not None  # noqa: S101 (asked of DR only)
        return head.imputed(observed.scores(phi), observed.scores(theta), error)

    return moment


def _gap(prepared: Prepared) -> Moment:
    head, error = head_named(prepared.settings.head), prepared.error

    def moment(observed: Observed, phi: LowRank, theta: LowRank | None) -> Tensor:
        assert theta is not None  # noqa: S101 (asked of DR only)
        return head.gap(observed.scores(phi), observed.scores(theta), observed.target, error)

    return moment

"""IPS and DR with weights of their own: what these rows of the field change, and nothing else.

**Other functions of the propensity.** With errors e, imputed errors ê and w = 1/p, DR is mean_D ê +
Σ_O w (e − ê)/|D|. Given the truth p its variance is Σ_D (1 − p)/p (e − ê)²/|D|². Two families of
variants start from there:

* other weights for the *imputation* model, so that its errors are small where they hurt DR most:
  `mrdr`, `dr-mse`; only their ratios count;
* other weights for the *log* itself: `d-ips`, `d-dr` (smaller, to trade bias for variance), `tdr`
  (calibrated).

**A second fit.** The others train again after a first fit, with other weights of the log.

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
from pydantic import Field
from scipy.optimize import least_squares

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.exposure.balancing import entropy_balance
from puidrec.losses.pair_loss import RobustLoss
from puidrec.methods.baselines import closed_form
from puidrec.methods.prepare import Columns, Prepared
from puidrec.methods.problem import Done, Fitted, Stage
from puidrec.methods.robust import (
    RobustProblem,
    imputed_sum,
    robust_problem,
    shrunk_to,
    weighted_stages,
)
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.log import Row
from puidrec.scores.low_rank import LowRank
from puidrec.settings import MethodParams

Rule = Callable[[np.ndarray], np.ndarray]
"""Propensities of logged pairs → weights."""
LEAST = 1e-12
"""A weight is at least this: where all would be 0 (p = 1 everywhere), all are equal."""
DYNAMIC_RATIO = 0.1
"""w₂/w₁ of the dynamic estimators: weight of variance against bias, as their paper sets it."""
NEGLIGIBLE = 1e-5**2
"""Imputed errors, of ratings that span 1 or 2, whose balance is rounding: both models are the same
to 1e-5, as they are where the imputation model has the weights and the L2 of the prediction model;
then nothing is to be balanced."""


class DrMseParams(MethodParams):
    """What only `dr-mse` has."""

    bias_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the bias in what the imputation minimises; 0: variance only.",
    )


def variance_weight(p: np.ndarray) -> np.ndarray:
    """(1 − p)/p²: Σ_O of it times (e − ê)² estimates the variance of DR without bias.

    More robust doubly robust learning (MRDR; Guo et al., "Enhanced doubly robust learning for
    debiasing post-click conversion rate estimation", SIGIR 2021).
    """
    return np.asarray((1.0 - p) / np.square(p))


def bias_weight(p: np.ndarray) -> np.ndarray:
    """(1 − p)²/p³: Σ_O of it times (e − ê)² bounds the squared bias of DR on the pairs that were
    seen.

    The error of DR is Σ_D (1 − o/p)(e − ê)/|D|. A seen pair adds the square (1 − 1/p)² (e − ê)²,
    and 1/p pairs like it
    are in D: together (1 − p)²/p³. (Dai et al., "A generalized doubly robust learning framework for
    debiasing post-click conversion rate prediction", KDD 2022; derived anew here, from o in place
    of the unknown propensity.)
    """
    return np.asarray(np.square(1.0 - p) / np.power(p, 3.0))


def mean_square_weight(p: np.ndarray, bias_share: float) -> np.ndarray:
    """λ · `bias_weight` + (1 − λ) · `variance_weight`: DR-MSE of the same paper; λ = 0 is MRDR."""
    return bias_share * bias_weight(p) + (1.0 - bias_share) * variance_weight(p)


def dynamic_weight(p: np.ndarray, ratio: float = DYNAMIC_RATIO) -> np.ndarray:
    """1/f^α with f = log₂(1 + p) and α = clip(ln(2 · ratio · (1 − p))/ln f, 0, 1), pair by pair.

    The dynamic estimators of "Fine-grained dynamic framework for bias-variance joint optimization
    on data missing not at random" (NeurIPS 2024): α minimises a sum of squared bias and `ratio`
    times variance. Inside the clip f^α is 2 · ratio · (1 − p), so that the weight of a rare pair is
    1/(2 · ratio · (1 − p)): about 5 whatever its propensity. There the method is nearly the
    unweighted one; propensities matter only above about 0.12, where α = 1.
    """
    f = np.log2(1.0 + p)
    log_f = np.log(np.minimum(f, 1.0 - 1e-12))
    with np.errstate(divide="ignore"):  # p = 1: ln 0, which the clip turns into α = 1
        alpha = np.clip(np.log(2.0 * ratio * (1.0 - p)) / log_f, 0.0, 1.0)
    return np.asarray(np.power(f, -alpha))


def targeting_slope(
    mean_everywhere: float, log_sum: float, square_sum: float, n_pairs: int
) -> float:
    """κ = (Σ_D h − Σ_O w h)/Σ_O w h², with h = w − 1: how far the log must move to reproduce what
    is known of D.

    mean_everywhere: mean_D h. log_sum, square_sum: Σ_O w h and Σ_O w h². 0 where all weights are 1.
    """
    return (mean_everywhere * n_pairs - log_sum) / square_sum if square_sum > 0.0 else 0.0


def targeted_weight(p: np.ndarray, slope: float) -> np.ndarray:
    """w (1 + κ (w − 1)): targeted doubly robust learning as calibrated weights.

    TDR ("TDR-CL: Targeted doubly robust collaborative learning for debiased recommendations", ICLR
    2023) moves every
    imputed error by one number: ẽ = ê + ε h, and takes ε from the weighted imputation loss on the
    log, min_ε Σ_O w (e − ê − ε h)². Assumed here: h = 1/p − 1 for every pair, seen or not (with o/p
    in place of 1/p the estimate would no longer be unbiased). Put into DR, ε = Σ_O w h (e − ê)/Σ_O
    w h² gives

        mean_D ẽ + Σ_O w (e − ẽ)/|D| = mean_D ê + Σ_O w̃ (e − ê)/|D|,   w̃ = w (1 + κ h),

    with κ of `targeting_slope`: DR with weights that are calibrated, Σ_O w̃ h = Σ_D h. Since κ is
    known before training, so are the weights. A weight is at least 1: a seen pair stands for
    itself.
    """
    w = 1.0 / p
    return np.asarray(np.maximum(w * (1.0 + slope * (w - 1.0)), 1.0))


def _weighted(
    prepared: Prepared, log: Rule | None = None, imputation: Rule | None = None
) -> list[Stage]:
    """The stages of IPS or DR with a function of p as the weights of the log, or of θ alone.

    Weights are not rescaled: where they add up to less than |D|, L2 counts for more.
    """

    def columns(base: Prepared, rule: Rule | None) -> Columns | None:
        if rule is None:
            return None
        nominal = base.log.nominal
        own = base.log.column(lambda rows: np.maximum(rule(nominal.propensity_of(rows)), LEAST))
        return base.weighted(own)

    def make(base: Prepared, stage: str) -> RobustProblem:
        return robust_problem(base, stage, columns(base, log), columns(base, imputation))

    return weighted_stages(prepared, prepared, "main", make)


def least_variance(prepared: Prepared) -> list[Stage]:
    """`mrdr`: the imputation model is most exact where its errors make DR vary."""
    return _weighted(prepared, imputation=variance_weight)


def least_squared_error(prepared: Prepared) -> list[Stage]:
    """`dr-mse`: between bias and variance, as its parameter `bias_share` says."""
    share = prepared.settings.own(DrMseParams).bias_share
    return _weighted(prepared, imputation=lambda p: mean_square_weight(p, share))


def dynamic(prepared: Prepared) -> list[Stage]:
    """`d-ips`, `d-dr`."""
    return _weighted(prepared, log=dynamic_weight)


def targeted(prepared: Prepared) -> list[Stage]:
    """`tdr`: weights that reproduce the mean of 1/p − 1 over all pairs."""
    log, w = prepared.log, prepared.log.inverse
    log_sum = log.total(lambda rows: w(rows) * (w(rows) - 1.0))
    square_sum = log.total(lambda rows: w(rows) * np.square(w(rows) - 1.0))
    everywhere = log.nominal.mean_over_pairs(lambda p: 1.0 / p - 1.0)
    slope = targeting_slope(everywhere, log_sum, square_sum, log.operator.n_pairs)
    return _weighted(prepared, log=lambda p: targeted_weight(p, slope))


# a second fit, with weights that a first one gave


def _second_fit(
    prepared: Prepared,
    first: str,
    weigh: Callable[[Fitted], np.ndarray],
    relabel: Callable[[LowRank], LowRank] | None = None,
) -> list[Stage]:
    """A plain fit, then the method with the weights, one per row, and pseudo-labels made of it."""

    def main(done: Done) -> RobustProblem:
        base, log = done["first"], prepared.log
        own = prepared.weighted(log.wrap(weigh(base)))
        problem = robust_problem(prepared, "main", own)
        if relabel is not None and base.theta is not None:  # only φ is trained, g̃ held
            labels = relabel(base.theta)
            problem.imputed, problem.theta = (log.operator.scores_of(labels), labels), None
        return problem

    shrink_to = shrunk_to(prepared)
    before = weighted_stages(prepared, prepared.first_stage(first), "first")
    return [*before, Stage("main", main, shrink_to=shrink_to)]


@torch.no_grad()
def errors_of(
    prepared: Prepared, first: Fitted, rows: Interactions
) -> tuple[np.ndarray, np.ndarray]:
    """e and ê of rows, float64; ê = 0 where there is no imputation."""

    def scores(factors: LowRank) -> torch.Tensor:
        return torch.from_numpy(pair_scores(factors, rows.user, rows.item)).double()

    r = torch.from_numpy(np.asarray(prepared.log.target(rows), dtype=np.float64))
    s, imputed = scores(first.phi), torch.zeros(len(r), dtype=torch.float64)
    error = prepared.error.value(s, r)
    if first.theta is not None:
        loss = RobustLoss(prepared.error, prepared.settings.head)
        imputed = error - loss.coefficient(s, Row(r=r, g=scores(first.theta))).value
    return error.numpy(), imputed.numpy()


def _imputed_mean(prepared: Prepared, first: Fitted) -> float:
    """mean_D ê."""
    if first.theta is None:
        return 0.0
    return float(imputed_sum(prepared, first.phi, first.theta)) / first.phi.n_pairs


def stable_stages(prepared: Prepared) -> list[Stage]:
    """`stable-dr`."""

    def weigh(first: Fitted) -> np.ndarray:
        imputed = [errors_of(prepared, first, part)[1] for part in prepared.rows.parts()]
        target = _imputed_mean(prepared, first)
        return balanced_weights(prepared, np.concatenate(imputed), target, NEGLIGIBLE**2)

    return _second_fit(prepared, "dr", weigh)


def uniform_stages(prepared: Prepared) -> list[Stage]:
    """`bal-ips` and `bal-dr`."""
    rows = prepared.uniform_rows()

    def weigh(first: Fitted) -> np.ndarray:
        uniform = errors_of(prepared, first, rows)[0]
        parts = [errors_of(prepared, first, part) for part in prepared.rows.parts()]
        gaps = np.concatenate([error - imputed for error, imputed in parts])
        target = float(uniform.mean()) - _imputed_mean(prepared, first)
        variance = float(uniform.var(ddof=1)) / uniform.size
        return balanced_weights(prepared, gaps, target, variance)

    return _second_fit(prepared, prepared.settings.spec.estimator, weigh)


def balanced_weights(
    prepared: Prepared, moments: np.ndarray, target: float, variance: float
) -> np.ndarray:
    """Weights tilted from 1/p until the weighted mean of the moments over the log is the target;
    Σ_O w = |D|."""
    weights = np.concatenate([prepared.log.inverse(part) for part in prepared.rows.parts()])
    weights *= entropy_balance(weights, moments, target, variance).factor(moments)
    return np.asarray(weights * (prepared.log.operator.n_pairs / weights.sum()))


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
    """`res-ips` and `res-dr`."""
    spec, head, rows = prepared.settings.spec, prepared.settings.head, prepared.uniform_rows()
    if spec.imputes and not head.startswith("label"):
        raise InputError(
            f"{spec.name} corrects pseudo-labels", found=f"head {head}", expected="head label"
        )
    return _second_fit(
        prepared,
        spec.estimator,
        lambda first: corrected_weights(prepared, first, rows),
        lambda theta: corrected_labels(prepared, theta, rows),
    )


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
    log, sides = prepared.log, prepared.log.activity

    def basis(rows: Interactions) -> np.ndarray:
        return np.column_stack([np.ones(len(rows)), sides[0][rows.user], sides[1][rows.item]])

    parts = [(log.inverse(p), basis(p), errors_of(prepared, first, p)[0]) for p in log.rows.parts()]
    inverse, own, errors = (np.concatenate(column) for column in zip(*parts, strict=True))
    at_uniform = errors_of(prepared, first, uniform)[0][:, None] * basis(uniform)
    delta = log_odds_shift(inverse, own, errors, at_uniform, first.phi.n_pairs)
    return np.asarray(1.0 + (inverse - 1.0) * np.exp(-np.clip(own @ delta, -20.0, 20.0)))

"""Weights of logged pairs other than 1/p: what variants of IPS and DR change, as functions of the
propensity p.

With errors e, imputed errors ê and w = 1/p, DR is mean_D ê + Σ_O w (e − ê)/|D|. Given the truth p
its variance is Σ_D (1 − p)/p (e − ê)²/|D|². Two families of variants start from there:

* other weights for the *imputation* model, so that its errors are small where they hurt DR most:
  `mrdr`, `dr-mse`. They are relative: training scales them to the mean of 1/p, so that L2 means the
  same as for DR;
* other weights for the *log* itself: `d-ips`, `d-dr` (smaller, to trade bias for variance), `tdr`
  (calibrated).

A row of the table of methods names one of the functions at the end (`MethodSpec.log_weights`,
`MethodSpec.imputation_weights`): each takes the prepared log and returns a function of
propensities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from puidrec.settings import MethodParams

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared

WeightRule = Callable[[np.ndarray], np.ndarray]
"""Propensities of logged pairs → weights, not all of them 0."""
DYNAMIC_RATIO = 0.1
"""w₂/w₁ of the dynamic estimators: weight of variance against bias, as their paper sets it."""


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


def least_variance(prepared: Prepared) -> WeightRule:
    """`mrdr`: the imputation model is most exact where its errors make DR vary."""
    return variance_weight


def least_squared_error(prepared: Prepared) -> WeightRule:
    """`dr-mse`: between bias and variance, as its parameter `bias_share` says."""
    share = prepared.settings.own(DrMseParams).bias_share
    return lambda p: mean_square_weight(p, share)


def dynamic(prepared: Prepared) -> WeightRule:
    """`d-ips`, `d-dr`."""
    return dynamic_weight


def targeted(prepared: Prepared) -> WeightRule:
    """`tdr`: weights that reproduce the mean of 1/p − 1 over all pairs."""
    log = prepared.log
    w = log.inverse
    log_sum = log.total(lambda rows: w(rows) * (w(rows) - 1.0))
    square_sum = log.total(lambda rows: w(rows) * np.square(w(rows) - 1.0))
    everywhere = log.nominal.mean_over_pairs(lambda p: 1.0 / p - 1.0)
    slope = targeting_slope(everywhere, log_sum, square_sum, log.nominal.exposure.n_pairs)
    return lambda p: targeted_weight(p, slope)

"""Weights of logged pairs other than 1/p: what variants of IPS and DR change, as functions of the
propensity p.

With errors e, imputed errors ê and w = 1/p, DR is mean_D ê + Σ_O w (e − ê)/|D|. Given the truth p
its variance is Σ_D (1 − p)/p (e − ê)²/|D|². Two families of variants start from there:

* other weights for the *imputation* model, so that its errors are small where they hurt DR most: `mrdr`, `dr-mse`.
  They are relative: training scales them to the mean of 1/p, so that L2 means the same as for DR;
* other weights for the *log* itself: `d-ips`, `d-dr` (smaller, to trade bias for variance), `tdr` (calibrated).
"""

from __future__ import annotations

import numpy as np

DYNAMIC_RATIO = 0.1
"""w₂/w₁ of the dynamic estimators: weight of variance against bias, as their paper sets it."""


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

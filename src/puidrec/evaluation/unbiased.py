"""What a biased log can say of a metric over all pairs: IPS, SNIPS and DR, with intervals over users.

Rows come from the log itself (held out of training), each with the propensity that it had to be there. They allow
evaluation and model selection where no uniform rows exist, as far as the propensities are right: hidden
confounding biases these figures too, which is what an audit bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from puidrec.data.schema import RatingScale
from puidrec.errors import InputError
from puidrec.evaluation.evaluator import Evaluation, Target, evaluate_scores
from puidrec.evaluation.ndcg import Users
from puidrec.evaluation.per_user import Estimate, PerUser, mean_interval
from puidrec.evaluation.ranking import check_rows

Estimator = Literal["ips", "snips", "dr"]


def ips_error(user: np.ndarray, error: np.ndarray, propensity: np.ndarray, n_users: int, n_items: int) -> PerUser:
    """IPS of each user's mean error over all items: Σ_O e / p / |I|. Unbiased; users without rows count as 0."""
    return dr_error(user, error, propensity, np.zeros_like(error), np.zeros(n_users), n_items)


def snips_error(user: np.ndarray, error: np.ndarray, propensity: np.ndarray) -> PerUser:
    """SNIPS: Σ_O e/p over Σ_O 1/p, as a mean over users sized by their Σ 1/p. Propensities matter up to a factor."""
    weight = inverse(propensity, error.size)
    users, code = np.unique(user, return_inverse=True)
    size = np.bincount(code, weights=weight)
    return PerUser(users, np.bincount(code, weights=weight * error) / size, size)


def dr_error(
    user: np.ndarray,
    error: np.ndarray,
    propensity: np.ndarray,
    imputed: np.ndarray,
    imputed_by_user: np.ndarray,
    n_items: int,
) -> PerUser:
    """DR of each user's mean error over all items: (Σ_I ê + Σ_O (e − ê)/p) / |I|.

    Unbiased if either p or ê is right. imputed: ê of the rows. imputed_by_user: Σ_I ê of every user of the
    population, which a low-rank model sums without visiting pairs. `user` holds codes 0..n_users − 1.
    """
    n_users, weight = imputed_by_user.size, inverse(propensity, error.size)
    check_rows("imputed error", imputed, error.size)
    if user.size and not (user.min() >= 0 and user.max() < n_users):
        raise InputError("user code out of range", found=int(user.max()), expected=f"0..{n_users - 1}")
    corrected = np.bincount(user, weights=weight * (error - imputed), minlength=n_users)
    return PerUser(np.arange(n_users), (imputed_by_user + corrected) / n_items)


def unbiased_error(
    user: np.ndarray,
    error: np.ndarray,
    propensity: np.ndarray,
    *,
    estimator: Estimator = "snips",
    n_users: int | None = None,
    n_items: int | None = None,
    imputed: np.ndarray | None = None,
    imputed_by_user: np.ndarray | None = None,
    level: float = 0.95,
) -> Estimate:
    """The mean of a pointwise error (see `POINTWISE`) over all pairs, from rows of the log, with an interval.

    propensity: of the row being among those given; for a held-out share of the log, the log's times that share.
    `ips` needs the size of the population, `dr` also the imputed errors of the rows and their sums per user.
    """
    if estimator == "snips":
        return mean_interval(snips_error(user, error, propensity), level)
    if estimator == "ips" and n_users is not None and n_items is not None:
        return mean_interval(ips_error(user, error, propensity, n_users, n_items), level)
    if estimator == "dr" and n_items is not None and imputed is not None and imputed_by_user is not None:
        return mean_interval(dr_error(user, error, propensity, imputed, imputed_by_user, n_items), level)
    if estimator not in ("ips", "dr"):
        raise InputError("unknown estimator", found=estimator, expected="ips, snips or dr")
    needs = {"ips": "n_users and n_items", "dr": "n_items, imputed and imputed_by_user"}
    raise InputError(f"estimator {estimator} lacks an input", expected=needs[estimator], hint="snips needs none.")


def evaluate_biased(
    user: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    propensity: np.ndarray,
    rating: np.ndarray | None = None,
    *,
    metrics: Sequence[str] = ("uauc", "ndcg@5", "mse"),
    users: Users = "both-labels",
    scale: RatingScale | None = None,
    target: Target = "rating",
) -> Evaluation:
    """All metrics in their SNIPS form from rows of a biased log; `.interval(name)` of the result gives intervals.

    In ranking metrics a row stands for 1/p rows of its user: pairs of AUC weigh w·w′, and positions of NDCG,
    recall and precision are measured in weight, scaled so that a list keeps its length. Self-normalising per user
    is consistent, not unbiased: its bias is of order 1 / (rows of the user), which intervals do not cover. It is
    meant for comparing models on the same rows.
    """
    weight = inverse(propensity, np.size(score))
    return evaluate_scores(
        user, score, label, rating, metrics=metrics, users=users, scale=scale, target=target, weight=weight
    )


def inverse(propensity: np.ndarray, n: int) -> np.ndarray:
    """1/p of each row; refuses p outside (0, 1]."""
    p = np.asarray(propensity, dtype=np.float64)
    check_rows("propensity", p, n, kind="a probability above 0", positive=True)
    if p.max() > 1:
        row = int(p.argmax())
        raise InputError("propensity above 1", row=row + 1, found=float(p[row]), expected="(0, 1]")
    weight: np.ndarray = 1.0 / p
    return weight

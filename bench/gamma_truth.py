"""Γ rules against the truth of simulated worlds: the figures of one rule in one world, for the page
of bench/truth.py."""

from __future__ import annotations

import numpy as np
from scipy.special import logit
from scipy.stats import rankdata

from puidrec.data.synthetic import Simulation
from puidrec.exposure.bounds import bounds
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import PRESETS

RULES = {name: rule for name, rule in PRESETS.items() if name != "global"}
COVERAGE = 0.95
NOTHING = 1e-6


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; 0 for a constant Γ, undefined where nothing is hidden."""
    if np.ptp(b) < NOTHING:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]) if np.ptp(a) > 0 else 0.0


def width(p: np.ndarray, log_gamma: np.ndarray | float) -> float:
    """Mean log-width of the bounds over D."""
    box = bounds(p, np.exp(np.broadcast_to(log_gamma, p.shape)))
    return float(np.log(box.b / box.a).mean())


def judge(log_gamma: np.ndarray, p: np.ndarray, p_true: np.ndarray) -> dict[str, float]:
    """All figures of one rule in one simulation."""
    needed = np.abs(logit(p_true) - logit(p))
    covered = float(bounds(p, np.exp(log_gamma)).contains(1.0 / p_true).mean())
    own, same = width(p, log_gamma), width(p, float(np.quantile(needed, covered)))
    kappa = float(
        np.quantile(
            np.where(needed > NOTHING, needed / np.maximum(log_gamma, 1e-12), 0.0), COVERAGE
        )
    )
    reached = (
        kappa * float(log_gamma.max()) < 20.0
    )  # else some Γ must exceed e^20: the rule is blind where it matters
    possible = reached and kappa > 0.0 and float(log_gamma.max()) > 0.0
    scaled = width(p, kappa * log_gamma) if possible else float("inf")
    tuned = width(p, float(np.quantile(needed, COVERAGE)))
    return {
        "spearman": spearman(log_gamma, needed),
        "gamma": float(np.exp(log_gamma.mean())),
        "coverage": covered,
        "width": own,
        "same": own / same if min(own, same) > NOTHING else float("nan"),
        "kappa": kappa if possible else float("inf"),
        "at95": scaled / tuned if tuned > NOTHING else float("nan"),
    }


def one(simulation: Simulation, seed: int) -> dict[str, dict[str, float]]:
    """Every rule in one simulation, around the exact nominal propensity."""
    data, truth = simulation.data, simulation.truth
    evidence = Evidence.of_rows(data, data.logged)
    pairs = np.divmod(np.arange(data.n_pairs), data.n_items)
    p, p_true = truth.propensity(*pairs), truth.true_propensity(*pairs)
    return {
        name: judge(rule.fit(evidence, rng=seed).log_at(*pairs), p, p_true)
        for name, rule in RULES.items()
    }

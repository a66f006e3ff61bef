"""Γ rules against the truth of simulated worlds: the figures of one rule in one world, for the page
of bench/truth.py."""

from __future__ import annotations

import numpy as np
from scipy.special import logit
from scipy.stats import rankdata

from puidrec.data.synthetic import Simulation
from puidrec.exposure.bounds import bounds
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import PRESETS, GammaRule, resolve_gamma
from puidrec.exposure.rates import smoothed_rates

RULES: dict[str, GammaRule] = {
    **{name: rule for name, rule in PRESETS.items() if name != "global"},
    "recovered, even spread": resolve_gamma("recovered", spread="even"),
}
AROUND_CELLS: dict[str, GammaRule] = {
    "recovered": resolve_gamma("recovered", around="cells"),
    "recovered (around features)": PRESETS["recovered"],
    "exposure-gap": resolve_gamma("exposure-gap", around="cells"),
    "information": PRESETS["information"],
}
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


def one(simulation: Simulation, seed: int) -> dict[tuple[str, str], dict[str, float]]:
    """Every rule in one simulation, around the exact nominal propensity and around fitted cells."""
    data, truth = simulation.data, simulation.truth
    sizes = {"n_users": data.n_users, "n_items": data.n_items}
    evidence = Evidence.from_log(
        data.logged.user, data.logged.item, users=data.users, items=data.items, **sizes
    )
    users, items = np.divmod(np.arange(data.n_pairs), data.n_items)
    p, p_true = truth.propensity(users, items), truth.true_propensity(users, items)
    counts = evidence.counts
    cells = np.clip(smoothed_rates(counts)[0], 1e-6, 1.0)[
        counts.user_bin[users], counts.item_bin[items]
    ]
    results = {
        ("nominal", name): judge(rule.fit(evidence, rng=seed).log_at(users, items), p, p_true)
        for name, rule in RULES.items()
    }
    for name, rule in AROUND_CELLS.items():
        results["cells", name] = judge(
            rule.fit(evidence, rng=seed).log_at(users, items), cells, p_true
        )
    return results

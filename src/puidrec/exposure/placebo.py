"""A richer propensity, to tell what is hidden from what a propensity misses: boosted trees,
cross-fitted.

A certificate is relative to a propensity. If recorded features drive exposure in a form that the
propensity cannot follow (interactions, thresholds), uniform ratings refute it although nothing is
hidden. Gradient-boosted trees on the features of user and item, their activity and popularity, and
the nominal propensity itself follow such forms. A certificate that vanishes around them was misfit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from puidrec.data.dataset import Interactions
from puidrec.exposure.certificate import Certificate, SeenSums, all_levels, certificate, level_index
from puidrec.exposure.clip import clip
from puidrec.exposure.melding import UniformRows
from puidrec.exposure.nominal import NominalExposure, Outcome
from puidrec.features.encode import exposure_design
from puidrec.rng import Rng, generator

FOLDS = 4
MAX_ROWS = 60_000
"""Seen rows that the trees learn from and are asked for; of more, a random sample."""
UNSEEN_PER_SEEN = 3
"""Pairs of D drawn at random for each seen row: trees learn odds, and the rate of drawing is taken
out again."""
MAX_COLUMNS = 64
"""Most feature columns of a side: the ones that vary most."""


def sample_of(rows: Interactions, rng: Rng) -> Interactions:
    """All seen rows, or `MAX_ROWS` of them at random; in memory."""
    if len(rows) <= MAX_ROWS:
        return rows.take(np.arange(len(rows)))
    return rows.take(
        np.sort(generator(rng, "placebo-rows").choice(len(rows), MAX_ROWS, replace=False))
    )


def tree_propensity(nominal: NominalExposure, rows: Interactions, rng: Rng = 0) -> np.ndarray:
    """Propensities of (a sample of) the seen rows by boosted trees that did not see the fold of the
    pair.

    A pair belongs to one fold by chance, seen or not, and is predicted by trees of the other folds.
    They tell seen rows from pairs of D drawn at random, so their odds are p · |D| / |O| · (seen
    rows / pairs drawn).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    draw = generator(rng, "placebo")
    data, n = nominal.data, len(rows)
    n_drawn = max(UNSEEN_PER_SEEN * n, 2_000)
    user = np.concatenate([rows.user, draw.integers(data.n_users, size=n_drawn)]).astype(np.int64)
    item = np.concatenate([rows.item, draw.integers(data.n_items, size=n_drawn)]).astype(np.int64)
    seen = np.arange(user.size) < n
    fold = _fold(user, item, data.n_items, draw)
    scale = nominal.exposure.rate * n_drawn / n
    found = np.empty(n)
    table = _table(nominal, user, item)
    for k in range(FOLDS):
        other = fold != k
        trees = HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.1,
            max_leaf_nodes=15,
            min_samples_leaf=40,
            l2_regularization=1.0,
            early_stopping=True,
            validation_fraction=0.15,
            n_iter_no_change=10,
            random_state=int(draw.integers(2**31 - 1)),
        )
        trees.fit(table[other], seen[other])
        mine = np.flatnonzero(~other & seen)
        share = trees.predict_proba(table[mine])[:, 1] if mine.size else np.zeros(0)
        found[mine] = share / np.maximum(1.0 - share, 1e-9) * scale
    return clip(np.clip(found, 0.0, 1.0), min(0.01, 0.1 * nominal.exposure.rate)).values


def _fold(
    user: np.ndarray, item: np.ndarray, n_items: int, draw: np.random.Generator
) -> np.ndarray:
    """A fold for every pair, the same wherever the pair occurs."""
    _, code = np.unique(user * n_items + item, return_inverse=True)
    return draw.integers(FOLDS, size=int(code.max()) + 1)[code]


def _design(features: sparse.csr_array | None) -> np.ndarray | None:
    if features is None:
        return None
    dense = features.toarray().astype(np.float32)
    return dense[:, np.argsort(-dense.var(axis=0), kind="stable")[:MAX_COLUMNS]]


def _table(nominal: NominalExposure, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Features of user and item, activity, popularity, and the log odds of the nominal propensity.

    Counts of all seen rows are the same for every pair of a user (or item), so no pair gives its
    own exposure away.
    """
    data, counts = nominal.data, nominal.exposure.counts
    sides = [
        _design(exposure_design(data.users, "user_id")),
        _design(exposure_design(data.items, "item_id")),
    ]
    columns = [
        side[code] for side, code in zip(sides, (user, item), strict=True) if side is not None
    ]
    for code, degree in ((user, counts.user_degree), (item, counts.item_degree)):
        columns.append(np.log1p(degree)[code][:, None])
    if not nominal.propensity.uses_uniform and nominal.propensity_name != "given":
        known = np.clip(nominal.propensity.predict(user, item), 1e-6, 1.0 - 1e-6)
        columns.append(np.log(known / (1.0 - known))[:, None])
    return np.concatenate(columns, axis=1).astype(np.float32)


def placebo_certificate(
    nominal: NominalExposure, outcome: Outcome, uniform: Interactions, confidence: float
) -> Certificate:
    """The certificate around boosted trees."""
    rows, drawn = sample_of(nominal.seen, nominal.seed), nominal.unseen(uniform)
    value, own = (getattr(part, outcome).astype(np.float64) for part in (drawn, rows))
    levels = all_levels(value, own)
    sums = SeenSums(levels, nominal.data.n_users, rng=nominal.seed)
    sums.add(own, tree_propensity(nominal, rows, nominal.seed), rows.user)
    unseen = UniformRows(level_index(value, levels), drawn.user, nominal.data.n_users)
    found = certificate(sums, unseen, adjusted=True, confidence=confidence, rng=nominal.seed)
    return replace(found, propensity="boosted trees")

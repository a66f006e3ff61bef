"""Rating models as representations of users and items. A new backbone is a tower, a line in the
table, a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from puidrec.errors import InputError
from puidrec.plugins import Registry
from puidrec.rng import Rng, derive_seed
from puidrec.scores.towers import Backbone, Design, IdTower, LinearTower, MlpTower, Tower

Ids = bool | Literal["bias"]
"""Parameters of single entities: embedding and bias (True), bias only (`bias`, as `eq:prediction`
prints), none."""
FeatureTower = Callable[[Design, int, torch.Generator, int], Tower]

_BUILT_IN: dict[str, FeatureTower | None] = {
    "mf": None,
    "mf-linear": lambda design, dim, generator, hidden: LinearTower(design, dim, generator),
    "mf-mlp": MlpTower,
}
BACKBONES = Registry(
    "puidrec.backbones",
    _BUILT_IN,
    lambda _, tower: tower if callable(tower) else None,
    "a tower: (design, dim, generator, hidden) -> Tower",
)
"""Name → what it does with features (None: it does not look at them)."""


def make_backbone(
    name: str,
    n_users: int,
    n_items: int,
    dim: int,
    *,
    user_features: Design | None = None,
    item_features: Design | None = None,
    ids: Ids = True,
    hidden: int = 64,
    mean: float = 0.0,
    rng: Rng = 0,
) -> Backbone:
    """Build a backbone by name; the same seed gives the same parameters, and no global state is
    touched.

    A side without features falls back to IDs, even when `ids=False`: there is nothing else to tell
    entities apart.
    mean: where the global mean starts, best at the mean of the targets.
    """
    if name not in BACKBONES:
        raise InputError("unknown backbone", found=name, expected=f"one of {BACKBONES.names()}")
    if dim < 1 or hidden < 1:
        raise InputError("dim and hidden must be positive", found=(dim, hidden))
    generator = torch.Generator().manual_seed(derive_seed(rng, "backbone"))
    build = BACKBONES[name]
    users = _towers(build, n_users, dim, user_features, ids, hidden, generator)
    items = _towers(build, n_items, dim, item_features, ids, hidden, generator)
    return Backbone(users, items, mean)


def _towers(
    build: FeatureTower | None,
    n_rows: int,
    dim: int,
    features: Design | None,
    ids: Ids,
    hidden: int,
    generator: torch.Generator,
) -> list[Tower]:
    if build is None or features is None or features.n_columns == 0:
        return [IdTower(n_rows, dim, generator)]
    if features.n_rows != n_rows:
        raise InputError(
            "features need one row per entity", found=features.n_rows, expected=str(n_rows)
        )
    own = [IdTower(n_rows, dim, generator, vectors=ids != "bias")] if ids else []
    return [*own, build(features, dim, generator, hidden)]

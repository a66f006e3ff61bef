"""RQ4: the gain of hidden features against their number, beside the gain of equally fine noise."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from puidrec.experiments.reproduce.chain import PERMUTATIONS, Exposed, item_gain, user_gain
from puidrec.features.bins import cross
from puidrec.rng import generator

SideName = Literal["user", "item"]


def run_rq4(exposed: Exposed, seed: int, n_permutations: int = PERMUTATIONS) -> list[dict[str, Any]]:
    """`eq:delta-h-user` and `eq:delta-h-item` as features move, in one random order, from observed to hidden.

    The other side is observed in full. Observed and hidden features together are always all of them, so the entropy
    given both stays and the entropy given the observed ones can only rise: a plug-in gain rises by construction.
    """
    rng = generator(seed, "rq4")
    rows = []
    for side in ("user", "item"):
        table = exposed.users if side == "user" else exposed.items
        order = rng.permutation(len(table))
        for hidden in range(1, len(table) + 1):
            row = _step(exposed, side, order, hidden, rng, n_permutations)
            rows.append({"experiment": "rq4", "seed": seed, "side": side, "hidden": hidden, "of": len(table), **row})
    return rows


def _step(
    exposed: Exposed, side: SideName, order: np.ndarray, hidden: int, rng: np.random.Generator, n: int
) -> dict[str, Any]:
    table, other = (exposed.users, exposed.items) if side == "user" else (exposed.items, exposed.users)
    h, x = table.block(order[:hidden].tolist()), table.block(order[hidden:].tolist())
    rest = other.block(range(len(other)))
    gain = user_gain(exposed, x, h, rest, rng, n) if side == "user" else item_gain(exposed, rest, x, h, rng, n)
    bins = {"observed_bins": int(x.max()) + 1, "all_bins": int(cross(x, h).max()) + 1}
    return {**gain.row(), **bins}

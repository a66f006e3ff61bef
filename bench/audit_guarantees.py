"""Does an audit ever call the lead of a worse model robust? Logs with nothing hidden, where the truth is known.

Usage: python bench/audit_guarantees.py [--logs 200] [--trained 40] [--world nothing] [--json FILE]

In every log the audited model is truly worse (its error over all pairs is higher). It is one of
    noisy       scores made from the truth with more noise than the other's: rows that neither has seen
    close       the same with nearly equal noise
    memoriser   every logged rating by heart, and the mean elsewhere; its owner claims that it has seen none
    fitted      80 % of every logged rating by heart, noise on top; the same claim
    overfit     matrix factorisation without regularisation, trained here, against user and item means
`robust` must never be the verdict, by error or by ranking; a lead beyond chance (fragile) in 2.5 % of logs at most,
where the rows are truly unseen.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.auditing.audit import audit
from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from worlds import Truth, make_world

KINDS = {
    "noisy": "scores with 50 % more noise, rows unseen", "close": "scores with 5 % more noise, rows unseen",
    "memoriser": "every logged rating by heart", "fitted": "80 % of every logged rating by heart",
    "overfit": "factorisation without regularisation, cross-fitted",
}  # fmt: skip
METRICS = ("error", "ranking", "ndcg")


def table(scores: np.ndarray) -> Callable[[Any, Any], np.ndarray]:
    """A model that looks its scores up; ids are positions."""
    return lambda users, items: scores[np.asarray(users), np.asarray(items)]


def models(kind: str, truth: Truth, data: Dataset, rng: np.random.Generator) -> tuple[Any, Any]:
    """The worse model and the better one."""
    spread = {"noisy": (0.15, 0.10), "close": (0.105, 0.10)}
    if kind in spread:
        worse, better = (truth.mean + rng.normal(0.0, s, truth.mean.shape) for s in spread[kind])
        return table(worse), table(better)
    unit = (truth.rating - 1.0) / (truth.rating.max() - 1.0)
    if kind in ("memoriser", "fitted"):
        middle = float(unit[truth.seen].mean())
        share, noise = (1.0, 0.0) if kind == "memoriser" else (0.8, 0.05)
        scores = np.where(truth.seen, middle + share * (unit - middle), middle + rng.normal(0.0, 0.2, unit.shape))
        return table(scores + rng.normal(0.0, noise, unit.shape)), table(truth.mean)
    settings = {"rng": 0, "select": "none", "backbone": "mf"}
    worse_model = Recommender("mf", l2=1e-4, l2_vectors=1.0, dim=24, patience=0, epochs=150, **settings)
    return worse_model.fit(data), Recommender("bias", **settings).fit(data)


def verdicts(kind: str, world: str, seed: int) -> dict[str, str]:
    """The verdict on the worse model's lead by each metric, in one log."""
    truth = make_world(world, seed, n_users=200, n_items=120, density=0.12)
    rng = np.random.default_rng([seed, 7])
    data = truth.dataset(0, rng)
    worse, better = models(kind, truth, data, rng)
    asked: dict[str, Any] = {"unseen": True}
    if kind == "overfit":
        asked = {"split": everything(data)}
    found = audit(worse, data, against=better, replicates=0, gamma="information", **asked)
    return {name: lead.verdict for name in METRICS if (lead := getattr(found, name)) is not None}


def everything(data: Dataset) -> Any:
    """A split that holds no logged row out, so that the audit has to train the models again."""
    from dataclasses import replace

    split = data.split("rd", 0)
    logged, nothing = data.logged.labelled(split.protocol), split.test.take(np.zeros(0, np.int64))
    return replace(split, train=logged, validation=nothing, test=nothing)


def count(kind: str, world: str, logs: int, first: int = 0) -> dict[str, Counter[str]]:
    """How often each verdict is given to the worse model, by metric."""
    found = [verdicts(kind, world, first + k) for k in range(logs)]
    return {name: Counter(one[name] for one in found if name in one) for name in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--trained", type=int, default=40, help="logs of the kind that trains models")
    parser.add_argument("--world", default="nothing")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for kind in options.kinds.split(","):
        results[kind] = count(kind, options.world, options.trained if kind == "overfit" else options.logs)
        shown = "; ".join(
            f"{name}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(found.items()))
            for name, found in results[kind].items()
        )
        print(f"{kind:>10}: {shown}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    wrong = sum(found["robust"] for kind in results.values() for found in kind.values())
    print(f"robust for a worse model: {wrong}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()

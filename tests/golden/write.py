"""Thirty rounded scores of every method on two small logs; `python tests/golden/write.py`
writes them anew, on purpose; with names, those of these methods only.

A change of a golden score is a change of what users get: it needs a line in CHANGELOG.md that says
which methods, and why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods import METHODS
from puidrec.model import Recommender

FOLDER = Path(__file__).parent
OPTIONS = {"dim": 4, "l2": 0.1, "epochs": 60, "rng": 0}
"""Small fits: optima of these logs are reached in less; Adam is stopped after 60 epochs."""
DIGITS = 4


def logs() -> dict[str, Dataset]:
    """Ratings with features and uniform rows; the same of another world without features."""
    features = simulate("mixed", 40, 25, density=0.3, n_uniform=600, rng=0).data
    other = simulate("trait-genre", 40, 25, density=0.3, n_uniform=600, rng=1).data
    tables = (
        other.logged.to_frame(),
        other.uniform.to_frame() if other.uniform is not None else None,
    )
    return {
        "features": features,
        "plain": Dataset.from_frame(tables[0], uniform=tables[1], scale=(1, 5)),
    }


def scores(method: str, data: Dataset) -> list[float]:
    """Scores of thirty pairs spread over users and items, of a model trained on the data."""
    model = Recommender(method, **OPTIONS).fit(data)
    k = np.arange(30)
    found = model.predict(k % data.n_users, (7 * k) % data.n_items, scale="unit")
    return [round(float(score), DIGITS) for score in found]


def golden(changed: Container[str]) -> Iterator[tuple[Path, dict[str, list[float]]]]:
    """Each file, and what belongs into it."""
    for name, data in logs().items():
        path = FOLDER / f"{name}.json"
        kept = json.loads(path.read_text(encoding="utf-8"))
        yield (
            path,
            {
                method: scores(method, data)
                if method in changed or method not in kept
                else kept[method]
                for method in METHODS
            },
        )


def main() -> None:
    """Write all of them: a method per line, so that a change shows which methods it changed."""
    for path, found in golden(sys.argv[1:] or METHODS):
        lines = ",\n".join(
            f"  {json.dumps(method)}: {json.dumps(values)}" for method, values in found.items()
        )
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

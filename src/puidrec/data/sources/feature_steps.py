"""Features that a source does not read but asks to have made, such as pseudo-features from the log.

The steps live in a layer above this one, so they are known here by name only and looked up when asked for.
"""

from __future__ import annotations

from importlib import import_module

from puidrec.data.dataset import Dataset
from puidrec.rng import Rng

PSEUDO_STEP = ("puidrec.features.pseudo", "with_pseudo_features")
"""Module and function with the signature `(data, dim, bins=4, rng=0) -> Dataset`."""


def add_pseudo_features(data: Dataset, dim: int, bins: int, rng: Rng) -> Dataset:
    """Give an ID-only data set the paper's MF pseudo-features, made from its log alone."""
    module, function = PSEUDO_STEP
    made: Dataset = getattr(import_module(module), function)(data, dim, bins=bins, rng=rng)
    return made

"""Features that a source does not read but asks to have made, such as pseudo-features from the log.

Sources compose data with the processing of features, so this folder sits above `features`; it is imported when asked.
"""

from __future__ import annotations

from puidrec.data.dataset import Dataset
from puidrec.rng import Rng


def add_pseudo_features(data: Dataset, dim: int, bins: int, rng: Rng) -> Dataset:
    """Give an ID-only data set the paper's MF pseudo-features, made from its log alone."""
    from puidrec.features.pseudo import with_pseudo_features

    return with_pseudo_features(data, dim, bins=bins, rng=rng)

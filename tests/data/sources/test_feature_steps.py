from __future__ import annotations

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.sources.feature_steps import add_pseudo_features
from puidrec.features.pseudo import with_pseudo_features


def test_the_step_known_by_name_is_the_step() -> None:
    log = pl.DataFrame({"user_id": [0, 0, 1, 2, 2], "item_id": [0, 1, 1, 0, 2], "rating": [1.0, 2, 3, 4, 5]})
    data = Dataset.from_frame(log)
    assert add_pseudo_features(data, 2, 2, 0).sha256 == with_pseudo_features(data, 2, bins=2, rng=0).sha256

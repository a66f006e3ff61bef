"""Yahoo!R3 music: 15,400 users × 1,000 songs, self-selected ratings, and ten songs shown at random
to 5,400 users.

Files: the Webscope pair `ydata-ymusic-rating-study-v1_0-{train,test}.txt` (tab separated, ids from
1), or the `user.txt` and `random.txt` of public code (comma separated, ids from 0). Ids are kept as
the files write them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import Origin, check_number, check_range
from puidrec.data.sources.reading import IDS, AnyPath, data_folder, first_file, read_ratings
from puidrec.data.tables import OverlapRule
from puidrec.errors import InputError
from puidrec.features.factors import with_pseudo_features

WEBSCOPE = "ydata-ymusic-rating-study-v1_0"
FORMS = {
    "logged": (f"{WEBSCOPE}-train.txt", "user.txt"),
    "uniform": (f"{WEBSCOPE}-test.txt", "random.txt"),
}
SCALE = (1.0, 5.0)


def load(
    path: AnyPath | None,
    *,
    features: Literal["pseudo", "none"] = "none",
    dim: int = 64,
    overlap: OverlapRule = "drop",
) -> Dataset:
    """Load Yahoo!R3. It has ids only; `features="pseudo"` makes the paper's 64 pseudo-features from
    the log."""
    folder = data_folder(path, "yahoo-r3")
    files = {part: first_file(folder, names, "yahoo-r3") for part, names in FORMS.items()}
    forms = {FORMS[part].index(file.name) for part, file in files.items()}
    if len(forms) > 1:
        raise InputError(
            "files of two forms, whose ids start from different numbers",
            file=folder,
            found=", ".join(file.name for file in files.values()),
        )
    webscope = forms == {0}
    frames = {part: _ratings(file, webscope=webscope) for part, file in files.items()}
    data = Dataset.from_frame(
        frames["logged"],
        frames["uniform"],
        scale=SCALE,
        overlap=overlap,
        name="yahoo-r3",
        origins=files,
        notes={
            "files": [file.name for file in files.values()],
            "ids": f"from {1 if webscope else 0}",
            "features": features,
        },
    )
    return with_pseudo_features(data, dim) if features == "pseudo" else data


def _ratings(path: Path, *, webscope: bool) -> pl.DataFrame:
    """The triples of a file; its ids must start where its form says, or two forms were mixed up."""
    frame, origin = read_ratings(path, separator="\t" if webscope else None), Origin(path)
    ids = [check_number(frame[name], origin, kind=pl.Int64) for name in IDS]
    for column in ids:
        hint = "Ids from 0 belong in user.txt and random.txt."
        check_range(column, int(webscope), float("inf"), origin, hint=hint)
    return frame.with_columns(ids)

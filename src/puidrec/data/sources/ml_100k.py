"""MovieLens-100K: 943 users × 1,682 films, 100,000 chosen ratings, no uniform rows.

Files of GroupLens: `u.data` (tab), `u.user` and `u.item` (bar separated, the latter in ISO-8859-1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import Origin, check_number
from puidrec.data.sources.reading import (
    AnyPath,
    data_folder,
    first_file,
    read_bytes,
    read_delimited,
    read_ratings,
    typed_columns,
)
from puidrec.features.factors import with_pseudo_features

SCALE = (1.0, 5.0)
GENRES = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
"""In the order of the flags of `u.item`."""


def load(
    path: AnyPath | None,
    *,
    features: Literal["real", "pseudo", "none"] = "real",
    dim: int = 32,
) -> Dataset:
    """Load MovieLens-100K with age, gender, occupation and region of users, and release year and
    genres of films."""
    folder = data_folder(path, "ml-100k")
    ratings = first_file(folder, ("u.data",), "ml-100k")
    names = ("user_id", "item_id", "rating", "timestamp")
    logged = read_ratings(ratings, names, separator="\t", quoted=False)
    real = features == "real"
    data = Dataset.from_frame(
        logged,
        users=_users(folder / "u.user") if real else None,
        items=_items(folder / "u.item") if real else None,
        scale=SCALE,
        unknown_ids="keep",
        name="ml-100k",
        origins={"logged": ratings, "users": folder / "u.user", "items": folder / "u.item"},
        notes={
            "files": ["u.data", "u.user", "u.item"] if real else ["u.data"],
            "features": features,
        },
    )
    return with_pseudo_features(data, dim) if features == "pseudo" else data


def _users(path: Path) -> pl.DataFrame:
    """Age is a number; of the zip code only its first digit is kept (ten regions; `other` outside
    the US)."""
    names = ("user_id", "age", "gender", "occupation", "zip")
    frame = typed_columns(
        read_delimited(path, names=names, separator="|", quoted=False), keep_text=names[2:]
    )
    region = pl.col("zip").str.extract(r"^([0-9])").fill_null("other")
    return frame.select(
        "user_id",
        check_number(frame["age"], Origin(path)),
        "gender",
        "occupation",
        pl.when(pl.col("zip").is_not_null()).then(region).alias("region"),
    )


def _items(path: Path) -> pl.DataFrame:
    """Release year and genres. A title is an id in words, so it is no feature."""
    names = ("item_id", "title", "released", "video_released", "url", *GENRES)
    content = read_bytes(path).decode("iso-8859-1").encode()
    frame = read_delimited(path, content=content, names=names, separator="|", quoted=False)
    frame = typed_columns(frame, keep_text=names[1:])
    flags = [pl.when(pl.col(name) == "1").then(pl.lit(name)) for name in GENRES]
    return frame.select(
        "item_id",
        pl.col("released").str.extract(r"([0-9]{4})$").cast(pl.Float64).alias("release_year"),
        pl.concat_list(flags).list.drop_nulls().alias("genres"),
    )

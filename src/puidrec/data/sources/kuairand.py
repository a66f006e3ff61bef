"""KuaiRand-Pure: impressions of a short-video app, and videos inserted at random among them.

Files of the published folder `KuaiRand-Pure/data`: `log_standard_4_08_to_4_21_pure.csv` and
`log_standard_4_22_to_5_08_pure.csv` (the log), `log_random_4_22_to_5_08_pure.csv` (uniform rows),
and, where present, `user_features_pure.csv` and `video_features_basic_pure.csv`. Every row is an
impression with the answers of the user.

What one stumbles over, and what is done:

* About 3 % of rows repeat a pair, up to 12 times: the first impression counts (`duplicates="max"`:
  any answer).
* About .7 % of rows have the next day's `date`: days are those of `date`, as published figures cut
  them; times are kept within their day (`day="time"`: the day of `time_ms`, in China).
* `is_live_streamer` is −124 where unknown; `is_lowactive_period` and `visible_status` are constant;
  author and music are ids: none of the latter is a feature. `tag` holds up to three codes. Gaps
  stay unknown values.
* `video_features_statistic_pure.csv` holds averages over the month, made after exposure: it is not
  read.

Protocols: `kuairand-random` (click; log before 1 May trains, random rows up to 30 April calibrate,
of 1 to 4 May validate, of 5 to 8 May test) and `kuairand-standard` (long view; log of 8 to 21 April
trains, 22 to 28 April validates, 29 April to 8 May tests).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import Duplicates
from puidrec.data.sources.reading import (
    AnyPath,
    Types,
    data_folder,
    first_file,
    has_file,
    read_columns,
)
from puidrec.data.tables import OverlapRule
from puidrec.errors import InputError

STANDARD = ("log_standard_4_08_to_4_21_pure.csv", "log_standard_4_22_to_5_08_pure.csv")
RANDOM = "log_random_4_22_to_5_08_pure.csv"
USERS, VIDEOS = "user_features_pure.csv", "video_features_basic_pure.csv"
Label = Literal[
    "is_click", "long_view", "is_like", "is_follow", "is_comment", "is_forward", "is_hate"
]
USER_FEATURES = (
    "user_active_degree",
    "is_live_streamer",
    "is_video_author",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
    *(f"onehot_feat{k}" for k in range(18)),
)
VIDEO_FEATURES = ("video_type", "upload_type", "music_type")
DAY = 86_400_000
CHINA = 8 * 3_600_000
"""Hours by which China is ahead, in milliseconds."""


def load(
    path: AnyPath | None,
    *,
    label: Label = "is_click",
    features: Literal["real", "none"] = "real",
    duplicates: Duplicates = "first",
    day: Literal["date", "time"] = "date",
    overlap: OverlapRule = "drop",
) -> Dataset:
    """Load KuaiRand-Pure: `label` is the rating, 0 or 1; uniform rows are those of the random
    log."""
    folder = _folder(path)
    first_file(folder, STANDARD, "kuairand")
    logs = [folder / name for name in STANDARD if has_file(folder / name)]
    random = folder / RANDOM if has_file(folder / RANDOM) else None
    files = {"users": folder / USERS, "items": folder / VIDEOS}
    sides = {key: file for key, file in files.items() if features == "real" and has_file(file)}
    logged = pl.concat([_log(file, label, day, inserted=False) for file in logs])
    return Dataset.from_frame(
        logged,
        None if random is None else _log(random, label, day, inserted=True),
        users=_users(sides["users"]) if "users" in sides else None,
        items=_videos(sides["items"]) if "items" in sides else None,
        scale=(0.0, 1.0),
        duplicates=duplicates,
        unknown_ids="drop",
        overlap=overlap,
        name="kuairand",
        origins={"logged": logs[0], "uniform": random or RANDOM, **sides},
        notes={
            "log": f"kuairand, standard, label {label}",
            "files": [
                file.name for file in (*logs, *([random] if random else []), *sides.values())
            ],
            "duplicates": duplicates,
            "day": day,
        },
    )


def _folder(path: AnyPath | None) -> Path:
    """The folder of the logs: as given, or its `data`, or that of the unpacked archive."""
    folder = data_folder(path, "kuairand")
    for inner in (folder, folder / "data", folder / "KuaiRand-Pure" / "data"):
        if any(has_file(inner / name) for name in STANDARD):
            return inner
    return folder


def _log(file: Path, label: str, day: str, *, inserted: bool) -> pl.DataFrame:
    """Impressions of one file: ids, label, and a time within the row's day."""
    columns = ("user_id", "video_id", "date", "time_ms", label, "is_rand")
    types: Types = dict.fromkeys(columns, pl.Int64)
    start = (
        pl.col("date")
        .cast(pl.String)
        .str.to_date("%Y%m%d", strict=False)
        .cast(pl.Datetime("ms"))
        .to_physical()
    ) - CHINA
    time = pl.col("time_ms").clip(start, start + (DAY - 1)) if day == "date" else pl.col("time_ms")
    frame = read_columns(file, types).select(
        "user_id",
        pl.col("video_id").alias("item_id"),
        pl.col(label).alias("rating"),
        time.alias("timestamp"),
        "is_rand",
    )
    other = frame.filter(pl.col("is_rand") != int(inserted)).height
    if other:
        raise InputError(
            f"{other:,} rows of the other log",
            file=file,
            column="is_rand",
            expected=f"{int(inserted)} in every row",
            hint="Download the file again.",
        )
    return frame.drop("is_rand")


def _users(file: Path) -> pl.DataFrame:
    """Features of users as categories; −124 means unknown."""
    types: Types = {"user_id": pl.Int64, **dict.fromkeys(USER_FEATURES, pl.String)}
    frame = read_columns(file, types)
    return frame.with_columns(pl.col("is_live_streamer").replace("-124", None))


def _videos(file: Path) -> pl.DataFrame:
    """Features of videos: kinds as categories, length in seconds, tags as a list."""
    types: Types = {
        "video_id": pl.Int64,
        **dict.fromkeys((*VIDEO_FEATURES, "tag"), pl.String),
        "video_duration": pl.Float64,
    }
    frame = read_columns(file, types)
    return frame.select(
        pl.col("video_id").alias("item_id"),
        *VIDEO_FEATURES,
        (pl.col("video_duration") / 1000.0).alias("seconds"),
        pl.col("tag").str.split(",").alias("tags"),
    )

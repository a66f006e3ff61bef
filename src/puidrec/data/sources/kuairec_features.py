"""KuaiRec's features as the paper's appendix prepares them: representatives of correlated groups, mapped and binned.

The groups and their representatives are the appendix's lists; `features.select` finds such groups in any table.
Item rows are daily; a video's bin is the one it has on most of its days. Four of the appendix's quantile recipes
end, by their printed counts, in halves of the daily rows, so they are coded as "above the median".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from puidrec.data.schema import Origin, require_columns, require_rows
from puidrec.data.sources.reading import Types, collect_columns, read_delimited, scan_columns, typed_columns
from puidrec.errors import InputError

Features = Literal["paper", "all", "none"]
_PLAYS = ("show", "play", "complete_play", "valid_play", "short_time_play", "long_time_play")
_PAIRS = {
    "cancel_like": "user_num", "delete_comment": None, "comment_like": "user_num", "follow": "cnt",
    "cancel_follow": "user_num", "share": "cnt", "download": "user_num", "report": "cnt",
    "reduce_similar": "user_num", "collect": "cnt", "cancel_collect": "user_num",
}  # fmt: skip
ITEM_GROUPS: dict[tuple[str, ...], str | None] = {
    tuple(f"{name}_{kind}" for name in _PLAYS for kind in ("cnt", "user_num")): "valid_play_user_num",
    ("like_cnt", "like_user_num", "double_click_cnt", "click_like_cnt"): "click_like_cnt",
    ("comment_cnt", "comment_user_num", "direct_comment_cnt"): "direct_comment_cnt",
    **{(f"{name}_cnt", f"{name}_user_num"): kind and f"{name}_{kind}" for name, kind in _PAIRS.items()},
}
"""Correlated item features → the one kept (None: the appendix keeps none of the group)."""
HALVES = ("valid_play_user_num", "play_progress", "click_like_cnt", "cancel_like_user_num")
"""Coded as above the median of the daily rows or not."""
NON_ZERO = tuple(name for name in ITEM_GROUPS.values() if name is not None and name not in HALVES)
"""Coded as zero or not."""
_NAMED = ("video_type", "upload_type", "visible_status", "video_tag_name")
DAILY_COLUMNS: Types = {
    "video_id": pl.Int64,
    **dict.fromkeys(_NAMED, pl.String),
    **dict.fromkeys((*HALVES, *NON_ZERO), pl.Float64),
}
USER_CODES = ("onehot_feat0", "onehot_feat6", *(f"onehot_feat{k}" for k in range(11, 18)))
_ACTIVE = {"full_active": "1", "high_active": "2", "middle_active": "2"}
_FEW_FOLLOWED = ["0", "(0,10]", "(10,50]"]
_YOUNG = ["15-30", "31-60", "61-90", "91-180"]
_SOURCE_USER = (
    "user_active_degree", "is_live_streamer", "follow_user_num_range", "friend_user_num_range", "register_days_range",
)  # fmt: skip


def user_features(path: Path, features: Features) -> pl.DataFrame:
    """The user table: the appendix's 14 coded columns (`paper`), or every column as it is (`all`)."""
    frame = read_delimited(path)
    require_columns(frame, ("user_id", *_SOURCE_USER, *USER_CODES), Origin(path))
    if features == "all":
        codes = [name for name in frame.columns if name.startswith(("onehot_", "is_"))]
        return typed_columns(frame, keep_text=codes)
    active, live, follows, friends, days = (pl.col(name) for name in _SOURCE_USER)
    return typed_columns(frame.select("user_id")).with_columns(
        frame.select(
            active.replace_strict(_ACTIVE, default="0", return_dtype=pl.String),
            live,
            _code(~follows.is_in(_FEW_FOLLOWED)),
            _code(friends != "0"),
            _code(~days.is_in(_YOUNG)),
            *USER_CODES,
        )
    )


def _code(condition: pl.Expr) -> pl.Expr:
    """A condition as the category "1" or "0"; unknown stays missing."""
    return condition.cast(pl.Int8).cast(pl.String)


def item_tags(path: Path) -> pl.DataFrame:
    """Tags of videos, `[27, 9]`, as a multi-valued column."""
    frame = read_delimited(path)
    require_columns(frame, ("video_id", "feat"), Origin(path))
    bad = ~frame["feat"].str.contains(r"^\[\s*([0-9]+\s*(,\s*[0-9]+\s*)*)?\]$").fill_null(True)
    if bad.any():
        row = int(bad.arg_true()[0])
        raise InputError(
            "not a list of tags", file=path, row=row + 1, column="feat", found=frame["feat"][row], expected="[27, 9]"
        )
    ids = typed_columns(frame.select(item_id="video_id"))
    return ids.with_columns(frame.select(tags=pl.col("feat").str.extract_all(r"[0-9]+")))


def item_features(path: Path) -> pl.DataFrame:
    """The appendix's 18 coded item features, one row per video, from the daily rows."""
    daily = collect_columns(scan_columns(path, DAILY_COLUMNS), path, DAILY_COLUMNS)
    require_rows(daily, Origin(path))
    tag = pl.col("video_tag_name")
    common = _common_tags(daily)
    rows = daily.select(
        "video_id",
        _code(pl.col("video_type") != "AD"),
        _code(pl.col("upload_type") != "ShortImport"),
        pl.col("visible_status").replace_strict({"only friends": "0", "private": "1"}, default="2"),
        pl.when(tag.is_null()).then(pl.lit("-1")).when(tag.is_in(common)).then(pl.lit("4")).otherwise(pl.lit("1"))
        .alias("video_tag_name"),
        *[(pl.col(name) > pl.col(name).median()).cast(pl.Float64) for name in HALVES],
        *[(pl.col(name) != 0).cast(pl.Float64) for name in NON_ZERO],
    )  # fmt: skip
    most = [pl.col(name).drop_nulls().mode().sort().first() for name in _NAMED]
    majority = [_code(pl.col(name).mean() >= 0.5) for name in (*HALVES, *NON_ZERO)]
    return rows.group_by("video_id").agg(*most, *majority).sort("video_id").rename({"video_id": "item_id"})


def _common_tags(daily: pl.DataFrame) -> Sequence[str]:
    """The most frequent quarter of the tags, without the top one, which the appendix treats on its own."""
    counts = daily["video_tag_name"].drop_nulls().value_counts()
    rest = counts.sort("count", "video_tag_name", descending=[True, False])[1:]
    return rest["video_tag_name"][: -(-rest.height // 4)].to_list()

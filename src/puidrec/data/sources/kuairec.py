"""KuaiRec: a block of 1,411 users × 3,327 videos whose every label is known, and a biased log drawn
from it.

The label is watch_ratio > 2. Files: `small_matrix.csv` or its compact form
`small_matrix_labels.npz`, with `user_features.csv`, `item_categories.csv` and the item features
where present. `convert` writes the compact forms, a few megabytes that load in a second:

    small_matrix.csv → small_matrix_labels.npz
    big_matrix.csv → big_matrix_labels.parquet (one row per pair)
    item_daily_features.csv → item_features.csv    user_features.csv, item_categories.csv → copied

Features are those of the paper's appendix: representatives of correlated groups, mapped and binned;
`features.bins.correlation_groups` finds such groups in any table. Item rows are daily; a video's
bin is the one it has on most of its days. Four of the appendix's quantile recipes end, by their
printed counts, in halves of the daily rows, so they are coded as "above the median".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, refuse_other_files
from puidrec.data.dataset import Dataset
from puidrec.data.schema import Origin, reject, require_columns, require_rows
from puidrec.data.sources.reading import (
    AnyPath,
    Types,
    data_folder,
    first_file,
    has_file,
    read_arrays,
    read_bytes,
    read_columns,
    read_delimited,
    read_parquet,
    typed_columns,
)
from puidrec.data.tables import OverlapRule
from puidrec.errors import InputError
from puidrec.rng import Rng, generator

SMALL, SMALL_COMPACT = "small_matrix.csv", "small_matrix_labels.npz"
BIG, BIG_COMPACT = "big_matrix.csv", "big_matrix_labels.parquet"
DAILY, DAILY_COMPACT = "item_daily_features.csv", "item_features.csv"
USERS, TAGS = "user_features.csv", "item_categories.csv"
COMPACT = (SMALL_COMPACT, BIG_COMPACT, DAILY_COMPACT, USERS, TAGS)
P_POSITIVE, P_NEGATIVE = 0.256, 0.153
"""Observation rates of the two feedback groups; together about 740,000 rows, the size the paper
states."""
Evaluation = Literal["held-out", "overlapping-as-in-paper"]
LogKind = Literal["synthesised", "big-matrix"]
Features = Literal["paper", "none"]
MAX_CELLS = 1 << 28
"""Pairs of the largest block that is accepted: a larger one would fill the memory."""
WATCHED = {"user_id": pl.Int64, "video_id": pl.Int64, "watch_ratio": pl.Float64}
HALVES = ("valid_play_user_num", "play_progress", "click_like_cnt", "cancel_like_user_num")
"""Coded as above the median of the daily rows or not."""
NON_ZERO = (
    "direct_comment_cnt",
    "comment_like_user_num",
    "follow_cnt",
    "cancel_follow_user_num",
    "share_cnt",
    "download_user_num",
    "report_cnt",
    "reduce_similar_user_num",
    "collect_cnt",
    "cancel_collect_user_num",
)
"""Coded as zero or not."""
_NAMED = ("video_type", "upload_type", "visible_status", "video_tag_name")
DAILY_COLUMNS: Types = {
    "video_id": pl.Int64,
    **dict.fromkeys(_NAMED, pl.String),
    **dict.fromkeys((*HALVES, *NON_ZERO), pl.Float64),
}
USER_CODES = ("onehot_feat0", "onehot_feat6", *(f"onehot_feat{k}" for k in range(11, 18)))
_SOURCE_USER = (
    "user_active_degree",
    "is_live_streamer",
    "follow_user_num_range",
    "friend_user_num_range",
    "register_days_range",
)


def load(
    path: AnyPath | None,
    *,
    log: LogKind = "synthesised",
    evaluation: Evaluation = "held-out",
    features: Features = "paper",
    rng: Rng = 0,
    overlap: OverlapRule = "drop",
) -> Dataset:
    """Load KuaiRec with the paper's synthesised log, or with the platform's own
    (`log="big-matrix"`).

    `evaluation` says which pairs of the block are the uniform rows: those outside the log, or (as
    in the paper) all of them, training pairs included. The platform's log shares no pair with the
    block, so there all are used.
    """
    if evaluation != "held-out" and overlap != "keep":
        raise InputError(
            "these uniform rows hold the log's pairs, and without them would lack positives",
            found=f"evaluation={evaluation}",
            hint="For comparison with print keep them: overlap='keep' (--overlap keep).",
        )
    folder = data_folder(path, "kuairec")
    file = first_file(folder, (SMALL, SMALL_COMPACT), "kuairec")
    block = LabelBlock.read_csv(file) if file.name == SMALL else LabelBlock.read_npz(file)
    if log == "synthesised":
        logged, uniform = draw_log(block, evaluation, rng)
        parts = block.rows(logged), block.rows(uniform)
        notes = {
            "log": f"synthesised: Bernoulli per pair, {P_POSITIVE} if positive, {P_NEGATIVE} "
            "if negative",
            "uniform": "every labelled pair, those of the log included"
            if evaluation != "held-out"
            else "pairs outside the log, thinned so that each pair is kept with "
            f"probability {1.0 - P_POSITIVE} whatever its label",
        }
    else:
        parts = _big_rows(folder), block.rows(block.candidates)
        notes = {"log": "the platform's own (big_matrix), a pair positive if any view was"}
    return Dataset.from_frame(
        *parts,
        *((None, None) if features == "none" else _side_tables(folder)),
        scale=(0.0, 1.0),
        unknown_ids="drop",
        overlap=overlap,
        name="kuairec",
        origins={"logged": file, "uniform": file, "users": folder / USERS, "items": folder},
        notes={
            "label": "watch_ratio > 2",
            "features": features,
            "evaluation": "whole block" if log == "big-matrix" else evaluation,
            "unobserved": block.unobserved,
            **notes,
        },
    )


def draw_log(block: LabelBlock, evaluation: Evaluation, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the logged and the uniform pairs of the block.

    A pair escapes the log with probability 1 − p of its label, so what is left over holds too few
    positives to be a uniform sample. Held-out rows are therefore thinned to the smaller of the two
    escape rates: each pair of the block is then a uniform row with one probability, whatever its
    label.
    """
    known = block.candidates
    p = np.where(block.gt2, np.float32(P_POSITIVE), np.float32(P_NEGATIVE))
    logged = known & (generator(rng, "kuairec-log").random(p.shape, dtype=np.float32) < p)
    if evaluation == "overlapping-as-in-paper":
        return logged, known
    keep = (1.0 - P_POSITIVE) / (1.0 - p)
    chosen = generator(rng, "kuairec-uniform").random(p.shape, dtype=np.float32) < keep
    return logged, known & ~logged & chosen


def _big_rows(folder: Path) -> pl.DataFrame:
    file = first_file(folder, (BIG, BIG_COMPACT), "kuairec big-matrix")
    rows = watched_pairs(file) if file.name == BIG else read_parquet(file)
    require_columns(rows, ("user_id", "video_id", "gt2"), Origin(file))
    return rows.select("user_id", item_id="video_id", rating=pl.col("gt2").cast(pl.Float32))


def _side_tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The user and item tables: tags only where the daily item features are absent."""
    users = user_features(folder / USERS)
    if has_file(folder / DAILY_COMPACT):
        coded = read_delimited(folder / DAILY_COMPACT)
        return users, typed_columns(coded, keep_text=set(coded.columns) - {"item_id"})
    if has_file(folder / DAILY):
        return users, item_features(folder / DAILY)
    return users, item_tags(folder / TAGS)


@dataclass(frozen=True)
class LabelBlock:
    """Labels of every pair of the block's users and videos, both sorted by id."""

    user_id: np.ndarray
    video_id: np.ndarray
    gt2: np.ndarray
    """watch_ratio > 2, the paper's positive label; [users, videos] of bool."""
    observed: np.ndarray | None
    """Whether the pair was observed; None where the file does not say (then unobserved pairs read
    as negative)."""

    @classmethod
    def read_csv(cls, path: Path) -> LabelBlock:
        """Read the original form."""
        rows = watched_pairs(path)
        require_rows(rows, Origin(path))
        users, user = np.unique(rows["user_id"].to_numpy(), return_inverse=True)
        videos, video = np.unique(rows["video_id"].to_numpy(), return_inverse=True)
        if users.size * videos.size > MAX_CELLS:
            raise InputError(
                "too many pairs for a fully observed block",
                file=path,
                found=f"{users.size:,} users x {videos.size:,} videos",
                hint="Is this big_matrix.csv? The block is small_matrix.csv.",
            )
        gt2, observed = np.zeros((2, users.size, videos.size), dtype=bool)
        gt2[user, video] = rows["gt2"].to_numpy()
        observed[user, video] = True
        return cls(users, videos, gt2, observed)

    @classmethod
    def read_npz(cls, path: Path) -> LabelBlock:
        """Read the compact form, with or without `observed_bits`."""
        arrays = read_arrays(path, ("user_id", "video_id", "gt2_bits"), ("observed_bits",))
        users, videos = arrays.pop("user_id"), arrays.pop("video_id")
        for name, ids in (("user_id", users), ("video_id", videos)):
            whole = ids.ndim == 1 and ids.size and np.issubdtype(ids.dtype, np.integer)
            if not whole or (ids[1:] <= ids[:-1]).any():
                raise _wrong_array(path, name, ids, "whole numbers that increase")
        shape = (users.size, (videos.size + 7) // 8)
        for name, bits in arrays.items():
            if bits.dtype != np.uint8 or bits.shape != shape:
                raise _wrong_array(path, name, bits, f"uint8 {shape}")
            arrays[name] = np.unpackbits(bits, axis=1, count=videos.size).astype(bool)
        users, videos = users.astype(np.int64), videos.astype(np.int64)
        return cls(users, videos, arrays["gt2_bits"], arrays.get("observed_bits"))

    def write_npz(self, path: Path) -> None:
        """Write the compact form."""
        matrices = {"gt2_bits": self.gt2, "observed_bits": self.observed}
        packed: dict[str, Any] = {
            name: np.packbits(bits, axis=1) for name, bits in matrices.items() if bits is not None
        }
        np.savez_compressed(path, user_id=self.user_id, video_id=self.video_id, **packed)

    @property
    def candidates(self) -> np.ndarray:
        """The pairs whose label is known."""
        return np.ones_like(self.gt2) if self.observed is None else self.observed

    @property
    def unobserved(self) -> str:
        """What becomes of pairs without a label."""
        if self.observed is None:
            return "not told by the file: pairs never shown (0.4 % of the block) count as negative"
        return f"{int((~self.observed).sum()):,} pairs without a label, left out"

    def rows(self, chosen: np.ndarray) -> pl.DataFrame:
        """The chosen pairs with their labels."""
        user, video = np.nonzero(chosen)
        ids = {"user_id": self.user_id[user], "item_id": self.video_id[video]}
        return pl.DataFrame({**ids, "rating": self.gt2[user, video].astype(np.float32)})


def watched_pairs(path: Path) -> pl.DataFrame:
    """One row per pair of a watch file, `gt2` if it holds for any of its views; sorted by user and
    video."""
    rows = read_columns(path, WATCHED, required=tuple(WATCHED))
    pairs = rows.group_by("user_id", "video_id").agg(gt2=(pl.col("watch_ratio") > 2).any())
    return pairs.sort("user_id", "video_id")


def _wrong_array(path: Path, name: str, array: np.ndarray, expected: str) -> InputError:
    found = f"{array.dtype} {array.shape}"
    return InputError("wrong array", file=path, column=name, found=found, expected=expected)


def user_features(path: Path) -> pl.DataFrame:
    """The user table: the appendix's 14 coded columns."""
    frame = read_delimited(path, columns=("user_id", *_SOURCE_USER, *USER_CODES))
    active, live, follows, friends, days = (pl.col(name) for name in _SOURCE_USER)
    degrees = {"full_active": "1", "high_active": "2", "middle_active": "2"}
    return typed_columns(frame.select("user_id")).with_columns(
        frame.select(
            active.replace_strict(degrees, default="0", return_dtype=pl.String),
            live,
            _code(~follows.is_in(["0", "(0,10]", "(10,50]"])),
            _code(friends != "0"),
            _code(~days.is_in(["15-30", "31-60", "61-90", "91-180"])),
            *USER_CODES,
        )
    )


def _code(condition: pl.Expr) -> pl.Expr:
    """A condition as the category "1" or "0"; unknown stays missing."""
    return condition.cast(pl.Int8).cast(pl.String)


def item_tags(path: Path) -> pl.DataFrame:
    """Tags of videos, `[27, 9]`, as a multi-valued column."""
    frame = read_delimited(path, columns=("video_id", "feat"))
    tags = frame["feat"]
    bad = ~tags.str.contains(r"^\[\s*([0-9]+\s*(,\s*[0-9]+\s*)*)?\]$").fill_null(False)
    reject(bad, tags, "not a list of tags", "[27, 9]", "Correct the row.", Origin(path))
    ids = typed_columns(frame.select(item_id="video_id"))
    return ids.with_columns(tags.str.extract_all(r"[0-9]+").alias("tags"))


def item_features(path: Path) -> pl.DataFrame:
    """The appendix's 18 coded item features, one row per video, from the daily rows."""
    daily = read_columns(path, DAILY_COLUMNS)
    require_rows(daily, Origin(path))
    tag = pl.col("video_tag_name")
    # the most frequent quarter of the tags, without the top one, which the appendix treats apart
    counts = daily["video_tag_name"].drop_nulls().value_counts()
    rest = counts.sort("count", "video_tag_name", descending=[True, False])[1:]
    common = rest["video_tag_name"][: -(-rest.height // 4)].to_list()
    rows = daily.select(
        "video_id",
        _code(pl.col("video_type") != "AD"),
        _code(pl.col("upload_type") != "ShortImport"),
        pl.col("visible_status").replace_strict({"only friends": "0", "private": "1"}, default="2"),
        pl.when(tag.is_null())
        .then(pl.lit("-1"))
        .when(tag.is_in(common))
        .then(pl.lit("4"))
        .otherwise(pl.lit("1"))
        .alias("video_tag_name"),
        *[(pl.col(name) > pl.col(name).median()).cast(pl.Float64) for name in HALVES],
        *[(pl.col(name) != 0).cast(pl.Float64) for name in NON_ZERO],
    )
    most = [pl.col(name).drop_nulls().mode().sort().first() for name in _NAMED]
    majority = [_code(pl.col(name).mean() >= 0.5) for name in (*HALVES, *NON_ZERO)]
    videos = rows.group_by(item_id="video_id").agg(*most, *majority)
    return videos.sort("item_id")


def _copy(old: Path, new: Path) -> None:
    new.write_bytes(read_bytes(old))


def convert(src: AnyPath, dst: AnyPath) -> dict[str, Any]:
    """Write the compact form of the originals in `src` to the folder `dst`; returns counts and file
    sizes."""
    source, target = data_folder(src, "kuairec"), Path(dst)
    refuse_other_files(target, COMPACT, "an earlier conversion", always=(SMALL_COMPACT,))
    small = first_file(source, (SMALL,), "kuairec")
    optional: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
        BIG: (BIG_COMPACT, lambda old, new: watched_pairs(old).write_parquet(new)),
        DAILY: (DAILY_COMPACT, lambda old, new: item_features(old).write_csv(new)),
        **{name: (name, _copy) for name in (USERS, TAGS)},
    }
    with atomic_folder(target) as folder:
        block = LabelBlock.read_csv(small)
        block.write_npz(folder / SMALL_COMPACT)
        for name, (written, step) in optional.items():
            if has_file(source / name):
                step(source / name, folder / written)
        sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    labels = {"observed": int(block.candidates.sum()), "positives": int(block.gt2.sum())}
    return {"users": block.user_id.size, "videos": block.video_id.size, **labels, "bytes": sizes}

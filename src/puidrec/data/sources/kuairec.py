"""KuaiRec: a block of 1,411 users × 3,327 videos whose every label is known, and a biased log drawn from it.

The label is watch_ratio > 2. Files: `small_matrix.csv` or its compact form `small_matrix_labels.npz` (see
`kuairec_convert`), with `user_features.csv`, `item_categories.csv` and the item features where present.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import check_choice
from puidrec.data.sources.kuairec_block import Block, watched_pairs
from puidrec.data.sources.kuairec_convert import BIG, BIG_COMPACT, DAILY, DAILY_COMPACT, SMALL, SMALL_COMPACT
from puidrec.data.sources.kuairec_features import Features, item_features, item_tags, user_features
from puidrec.data.sources.reading import AnyPath, data_folder, first_file, has_file, read_delimited, typed_columns
from puidrec.data.sources.reading_arrays import read_parquet
from puidrec.errors import InputError
from puidrec.rng import Rng, generator

P_POSITIVE, P_NEGATIVE = 0.256, 0.153
"""Observation rates of the two feedback groups; together about 740,000 rows, the size the paper states."""
Evaluation = Literal["held-out", "overlapping-as-in-paper"]
LogKind = Literal["synthesised", "big-matrix"]


def load(
    path: AnyPath | None,
    *,
    log: LogKind = "synthesised",
    evaluation: Evaluation = "held-out",
    p_positive: float = P_POSITIVE,
    p_negative: float = P_NEGATIVE,
    features: Features = "paper",
    rng: Rng = 0,
) -> Dataset:
    """Load KuaiRec with the paper's synthesised log, or with the platform's own (`log="big-matrix"`).

    `evaluation` says which pairs of the block are the uniform rows: those outside the log, or (as in the paper)
    all of them, training pairs included. The platform's log shares no pair with the block, so there all are used.
    """
    check_choice("log", log, ("synthesised", "big-matrix"))
    check_choice("evaluation", evaluation, ("held-out", "overlapping-as-in-paper"))
    check_choice("features", features, ("paper", "all", "none"))
    folder = data_folder(path, "kuairec")
    file = first_file(folder, (SMALL, SMALL_COMPACT), "kuairec")
    block = Block.read_csv(file) if file.name == SMALL else Block.read_npz(file)
    notes: dict[str, Any] = {"label": "watch_ratio > 2", "features": features, "unobserved": _unobserved(block)}
    if log == "synthesised":
        logged, uniform = draw_log(block, p_positive, p_negative, evaluation, rng)
        notes |= {
            "log": f"synthesised: Bernoulli per pair, {p_positive:g} if positive, {p_negative:g} if negative",
            "evaluation": evaluation,
            "uniform": "every labelled pair, those of the log included"
            if evaluation != "held-out"
            else f"pairs outside the log, thinned so that each pair is kept with probability "
            f"{1 - max(p_positive, p_negative):g} whatever its label",
        }
        parts = _rows(block, logged), _rows(block, uniform)
    else:
        parts = _big_rows(folder), _rows(block, block.candidates)
        notes |= {
            "log": "the platform's own (big_matrix), a pair positive if any view was",
            "evaluation": "whole block",
        }
    users, items = _side_tables(folder, features)
    return Dataset.from_frame(
        parts[0],
        parts[1],
        users=users,
        items=items,
        scale=(0.0, 1.0),
        unknown_ids="drop",
        name="kuairec",
        origins={"logged": file, "uniform": file, "users": folder / "user_features.csv", "items": folder},
        notes=notes,
    )


def draw_log(
    block: Block, p_positive: float, p_negative: float, evaluation: Evaluation, rng: Rng
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the logged and the uniform pairs of the block.

    A pair escapes the log with probability 1 − p of its label, so what is left over holds too few positives to be
    a uniform sample. Held-out rows are therefore thinned to the smaller of the two escape rates: each pair of the
    block is then a uniform row with one probability, whatever its label.
    """
    for name, value in (("p_positive", p_positive), ("p_negative", p_negative)):
        if not 0.0 < value < 1.0:
            raise InputError(f"{name} out of range", found=value, expected="a probability between 0 and 1")
    known = block.candidates
    p = np.where(block.gt2, np.float32(p_positive), np.float32(p_negative))
    logged = known & (generator(rng, "kuairec-log").random(p.shape, dtype=np.float32) < p)
    if evaluation == "overlapping-as-in-paper":
        return logged, known
    keep = (1.0 - max(p_positive, p_negative)) / (1.0 - p)
    chosen = generator(rng, "kuairec-uniform").random(p.shape, dtype=np.float32) < keep
    return logged, known & ~logged & chosen


def _rows(block: Block, chosen: np.ndarray) -> pl.DataFrame:
    user, video = np.nonzero(chosen)
    return pl.DataFrame(
        {
            "user_id": block.user_id[user],
            "item_id": block.video_id[video],
            "rating": block.gt2[user, video].astype(np.float32),
        }
    )


def _big_rows(folder: Path) -> pl.DataFrame:
    file = first_file(folder, (BIG, BIG_COMPACT), "kuairec big-matrix")
    rows = watched_pairs(file) if file.name == BIG else read_parquet(file)
    if missing := [name for name in ("user_id", "video_id", "gt2") if name not in rows.columns]:
        raise InputError(f"missing column {missing[0]}", file=file, found=", ".join(rows.columns))
    return rows.select("user_id", item_id="video_id", rating=pl.col("gt2").cast(pl.Float32))


def _side_tables(folder: Path, features: Features) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """The user and item tables. `paper` uses tags only where the daily item features are absent."""
    if features == "none":
        return None, None
    users = user_features(folder / "user_features.csv", features)
    coded = _coded_items(folder)
    if coded is not None and features == "paper":
        return users, coded
    tags = item_tags(folder / "item_categories.csv")
    return users, tags if coded is None else tags.join(coded, on="item_id", how="left")


def _coded_items(folder: Path) -> pl.DataFrame | None:
    if has_file(folder / DAILY_COMPACT):
        frame = read_delimited(folder / DAILY_COMPACT)
        return typed_columns(frame, keep_text=[name for name in frame.columns if name != "item_id"])
    return item_features(folder / DAILY) if has_file(folder / DAILY) else None


def _unobserved(block: Block) -> str:
    if block.observed is None:
        return "not told by the file: pairs never shown (0.4 % of the original block) count as negative"
    return f"{int((~block.observed).sum()):,} pairs without a label, left out"

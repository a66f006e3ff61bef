from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.sources.kuairec import COMPACT, convert
from puidrec.data.sources.kuairec_features import HALVES, NON_ZERO, USER_CODES

SOURCE_USER = ["user_active_degree", "is_live_streamer", "follow_user_num_range", "friend_user_num_range"]


def watch_rows(users: range, videos: range, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    user, video = np.meshgrid(users, videos, indexing="ij")
    keep = rng.random(user.size) < 0.95
    ratio = rng.choice([0.5, 2.0, 3.0], user.size)
    columns = {"user_id": user.ravel(), "video_id": video.ravel(), "timestamp": "1.0", "watch_ratio": ratio}
    return pl.DataFrame(columns).filter(keep).sample(fraction=1.0, shuffle=True, seed=seed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    folder.mkdir()
    watch_rows(range(10, 20), range(5, 30), 0).write_csv(folder / "small_matrix.csv")
    watch_rows(range(20, 40), range(40), 1).write_csv(folder / "big_matrix.csv")
    users = pl.DataFrame({"user_id": range(40)}).with_columns(
        [pl.lit("0").alias(name) for name in (*SOURCE_USER, "register_days_range", *USER_CODES)]
    )
    users.write_csv(folder / "user_features.csv")
    pl.DataFrame({"video_id": range(40), "feat": "[1, 2]"}).write_csv(folder / "item_categories.csv")
    rng = np.random.default_rng(2)
    names = {"video_type": "AD", "upload_type": "Web", "visible_status": "public", "video_tag_name": "cats"}
    numbers = {name: rng.poisson(1, 120) for name in (*HALVES, *NON_ZERO)}
    daily = pl.DataFrame({"video_id": np.repeat(np.arange(40), 3), **numbers})
    daily.with_columns([pl.lit(v).alias(k) for k, v in names.items()]).write_csv(folder / "item_daily_features.csv")
    return folder


@pytest.mark.parametrize("log", ["synthesised", "big-matrix"])
def test_the_compact_form_loads_as_the_original(log: str, source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "new" / "compact")
    compact = tmp_path / "new" / "compact"
    assert sorted(file.name for file in compact.iterdir()) == sorted(COMPACT) == sorted(result["bytes"])
    original, back = (load_dataset("kuairec", folder, log=log) for folder in (source, compact))
    assert back.sha256 == original.sha256
    rows = pl.read_csv(source / "small_matrix.csv")
    assert (result["users"], result["videos"], result["observed"]) == (10, 25, rows.height)
    assert result["positives"] == (rows["watch_ratio"] > 2).sum()


def test_a_second_run_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "compact"
    convert(source, target)
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    (source / "big_matrix.csv").unlink()
    convert(source, target)
    after = {file.name: file.read_bytes() for file in target.iterdir()}
    assert before.pop("big_matrix_labels.parquet")
    assert after == before


def test_only_the_small_matrix_is_needed(source: Path, tmp_path: Path) -> None:
    for file in source.iterdir():
        if file.name != "small_matrix.csv":
            file.unlink()
    convert(source, tmp_path / "compact")
    assert load_dataset("kuairec", tmp_path / "compact", features="none").n_users == 10


def test_hostile_paths_are_refused_and_nothing_is_written(source: Path, tmp_path: Path, refusal) -> None:
    refusal(lambda: convert(source, source), "overlap")
    refusal(lambda: convert(source, source / "inside"), "overlap")
    refusal(lambda: convert(source, tmp_path), "overlap")
    (tmp_path / "alias").symlink_to(source)
    refusal(lambda: convert(source, tmp_path / "alias"), "overlap")
    holder = tmp_path / "letters"
    holder.mkdir()
    (holder / "letter.txt").write_text("dear")
    refusal(lambda: convert(source, holder), str(holder), "other files", "letter.txt")
    refusal(lambda: convert(source, holder / "letter.txt"), "not a folder")
    (tmp_path / "link").symlink_to(holder)
    refusal(lambda: convert(source, tmp_path / "link"), "not a folder")
    assert (holder / "letter.txt").read_text() == "dear"
    (source / "user_features.csv").unlink()
    (source / "user_features.csv").symlink_to(holder / "letter.txt")
    refusal(lambda: convert(source, tmp_path / "compact"), "user_features.csv", "not a plain file")
    assert not (tmp_path / "compact").exists()


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("small_matrix.csv", "user_id,video_id,watch_ratio\n1,2,x\n", ("row 1", "column 'watch_ratio'", "'x'")),
        ("big_matrix.csv", "user_id,video_id,watch_ratio\n1,2,3\n1,y,3\n", ("row 2", "column 'video_id'", "'y'")),
        ("big_matrix.csv", "user_id,video_id\n1,2\n", ("missing column watch_ratio",)),
        ("item_daily_features.csv", "video_id\n1\n", ("missing column",)),
    ],
)
def test_a_failure_leaves_an_earlier_conversion_untouched(
    file: str, content: str, parts: tuple[str, ...], source: Path, tmp_path: Path, refusal
) -> None:
    target = tmp_path / "compact"
    convert(source, target)
    before = {f.name: f.read_bytes() for f in target.iterdir()}
    (source / file).write_text(content)
    refusal(lambda: convert(source, target), file, *parts)
    assert {f.name: f.read_bytes() for f in target.iterdir()} == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["compact", "original"]


def test_a_source_without_the_block(tmp_path: Path, refusal) -> None:
    refusal(lambda: convert(tmp_path / "no", tmp_path / "out"), "no such folder")
    (tmp_path / "src").mkdir()
    refusal(lambda: convert(tmp_path / "src", tmp_path / "out"), "small_matrix.csv")

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data.sources.kuairec_features import (
    HALVES,
    ITEM_GROUPS,
    NON_ZERO,
    USER_CODES,
    item_features,
    item_tags,
    user_features,
)
from puidrec.features.select import correlation_groups, select_representatives


def daily(n_videos: int = 40, n_days: int = 5, seed: int = 0) -> pl.DataFrame:
    """Daily item rows with the original's column names; members of a group are multiples of each other."""
    rng = np.random.default_rng(seed)
    n = n_videos * n_days
    columns: dict[str, object] = {
        "video_id": np.repeat(np.arange(n_videos), n_days),
        "date": np.tile(np.arange(n_days), n_videos),
        "video_type": np.repeat(rng.choice(["AD", "NORMAL"], n_videos), n_days),
        "upload_type": np.repeat(rng.choice(["ShortImport", "LongImport", "Web"], n_videos), n_days),
        "visible_status": np.repeat(rng.choice(["public", "private", "only friends"], n_videos), n_days),
        "video_tag_name": np.repeat(rng.choice(["a", "b", "c", "d", "e", "f", None], n_videos), n_days),
        "play_progress": rng.random(n),
    }
    for group in ITEM_GROUPS:
        base = rng.poisson(1.0, n)
        columns |= {name: base * k + (rng.random(n) < 0.001) for k, name in enumerate(group, 1)}
    return pl.DataFrame(columns)


def test_the_appendix_keeps_19_item_columns_and_14_user_columns() -> None:
    assert len(ITEM_GROUPS) == 14
    assert sum(map(len, ITEM_GROUPS)) == 12 + 4 + 3 + 2 * 11
    assert len({*HALVES, *NON_ZERO}) == 14
    assert 1 + 4 + len(HALVES) + len(NON_ZERO) == 19
    assert 5 + len(USER_CODES) == 14


def test_selection_finds_the_appendix_groups() -> None:
    frame = daily().drop("video_id", "date")
    groups = {frozenset(group) for group in correlation_groups(frame, 0.9)}
    assert groups == {frozenset(group) for group in ITEM_GROUPS}
    prefer = [name for name in ITEM_GROUPS.values() if name]
    kept = select_representatives(frame, 0.9, prefer)
    assert set(prefer) < set(kept)


def test_item_features_one_row_per_video(tmp_path: Path) -> None:
    frame = daily()
    frame.write_csv(tmp_path / "daily.csv")
    out = item_features(tmp_path / "daily.csv")
    assert out.shape == (40, 19)
    assert out["item_id"].to_list() == list(range(40))
    first = frame.group_by("video_id", maintain_order=True).first()
    assert out["video_type"].to_list() == ["0" if t == "AD" else "1" for t in first["video_type"]]
    assert out["upload_type"].to_list() == ["0" if t == "ShortImport" else "1" for t in first["upload_type"]]
    codes = {"only friends": "0", "private": "1", "public": "2"}
    assert out["visible_status"].to_list() == [codes[s] for s in first["visible_status"]]
    days = frame.group_by("video_id", maintain_order=True).agg((pl.col("share_cnt") != 0).mean())
    assert out["share_cnt"].to_list() == [str(int(share >= 0.5)) for share in days["share_cnt"]]
    middle = frame["play_progress"].median()
    days = frame.group_by("video_id", maintain_order=True).agg((pl.col("play_progress") > middle).mean())
    assert out["play_progress"].to_list() == [str(int(share >= 0.5)) for share in days["play_progress"]]


def test_tags_common_rare_and_missing(tmp_path: Path) -> None:
    tags = ["top"] * 9 + ["b"] * 5 + ["c"] * 3 + ["d"] * 2 + ["e"] + [None] * 4
    frame = daily(len(tags), 1).with_columns(video_tag_name=pl.Series(tags))
    frame.write_csv(tmp_path / "daily.csv")
    codes = item_features(tmp_path / "daily.csv")["video_tag_name"].to_list()
    assert codes == ["1"] * 9 + ["4"] * 5 + ["1"] * 6 + ["-1"] * 4


def test_wrong_files_are_named(tmp_path: Path, refusal) -> None:
    file = tmp_path / "daily.csv"
    daily().drop("share_cnt").write_csv(file)
    refusal(lambda: item_features(file), str(file), "missing column share_cnt")
    daily().with_columns(share_cnt=pl.lit("many")).write_csv(file)
    refusal(lambda: item_features(file), str(file), "row 1", "column 'share_cnt'", "'many'")
    file.write_text("video_id,feat\n1,[2]\n2,oops\n")
    refusal(lambda: item_tags(file), str(file), "row 2", "column 'feat'", "'oops'")
    refusal(lambda: user_features(file, "paper"), str(file), "missing column user_id")


def test_tags_are_lists(tmp_path: Path) -> None:
    file = tmp_path / "item_categories.csv"
    file.write_text('video_id,feat\n1,[2]\n2,"[27, 9]"\n3,[]\n')
    assert item_tags(file).rows() == [(1, ["2"]), (2, ["27", "9"]), (3, [])]


@pytest.mark.real_data
def test_the_appendix_user_counts(data_root: Path) -> None:
    path = data_root / "kuairec" / "user_features.csv"
    users = user_features(path, "paper")
    assert users.shape == (7176, 15)
    expected = {
        "user_active_degree": {"2": 966, "1": 6092, "0": 118},
        "follow_user_num_range": {"0": 4155, "1": 3021},
        "friend_user_num_range": {"0": 4338, "1": 2838},
        "register_days_range": {"0": 2936, "1": 4240},
        "onehot_feat0": {"0": 4361, "1": 2815},
        "onehot_feat6": {"1": 4040, "0": 3120, "2": 16},
        "onehot_feat11": {"0": 6665, "2": 473, "1": 38},
    }
    for name, counts in expected.items():
        assert dict(users[name].value_counts().rows()) == counts
    assert user_features(path, "all").width == 31


@pytest.mark.real_data
def test_the_appendix_user_group(data_root: Path) -> None:
    raw = pl.read_csv(data_root / "kuairec" / "user_features.csv").drop("user_id")
    assert correlation_groups(raw, 0.7) == [["onehot_feat2", "onehot_feat3"]]

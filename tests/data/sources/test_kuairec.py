"""KuaiRec: the block in both forms, the synthesised log, features of the paper's appendix,
conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.sources import kuairec
from puidrec.data.sources.kuairec import (
    COMPACT,
    HALVES,
    NON_ZERO,
    USER_CODES,
    LabelBlock,
    convert,
    draw_log,
    item_features,
    item_tags,
    user_features,
    watched_pairs,
)
from puidrec.features.bins import correlation_groups, select_representatives

N_USERS, N_VIDEOS = 30, 50
BIG_ROWS = "user_id,video_id,watch_ratio\n500,900,3.0\n500,900,0.1\n501,900,0.5\n501,1000,2.5\n"


def made_block(
    shape: tuple[int, int] = (N_USERS, N_VIDEOS), *, hidden: float = 0.02, seed: int = 0
) -> LabelBlock:
    rng = np.random.default_rng(seed)
    observed = rng.random(shape) >= hidden
    gt2 = observed & (rng.random(shape) < 0.2)
    return LabelBlock(np.arange(shape[0]) * 2, np.arange(shape[1]) + 1000, gt2, observed)


def write_csv(block: LabelBlock, path: Path) -> None:
    user, video = np.nonzero(block.observed)
    ratio = np.where(block.gt2[user, video], 2.5, 0.5)
    lines = [
        f"{block.user_id[u]},{block.video_id[v]},{r}"
        for u, v, r in zip(user, video, ratio, strict=True)
    ]
    path.write_text("user_id,video_id,watch_ratio\n" + "\n".join(lines) + "\n")


def write_features(folder: Path) -> None:
    names = [
        "user_active_degree",
        "is_live_streamer",
        "follow_user_num_range",
        "friend_user_num_range",
    ]
    header = ",".join(["user_id", *names, "register_days_range", *USER_CODES])
    rows = [
        ",".join([str(u), "full_active", "0", '"(0,10]"', "0", "730+", *["1"] * 9])
        for u in range(600)
    ]
    (folder / "user_features.csv").write_text("\n".join([header, *rows]))
    tags = [f'{v},"[{v % 3}, 7]"' for v in range(900, 1100)]
    (folder / "item_categories.csv").write_text("\n".join(["video_id,feat", *tags]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_csv(made_block(), tmp_path / "small_matrix.csv")
    write_features(tmp_path)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
def test_every_pair_is_uniform_with_one_probability_whatever_its_label(seed: int) -> None:
    block = made_block((700, 900), seed=seed)
    logged, uniform = draw_log(block, "held-out", seed)
    assert not (logged & uniform).any()
    assert not ((logged | uniform) & ~block.observed).any()
    for label, p in ((True, 0.256), (False, 0.153)):
        group = block.observed & (block.gt2 == label)
        n = int(group.sum())
        for mask, expected in ((logged, p), (uniform, 1 - 0.256)):
            rate = mask[group].mean()
            assert abs(rate - expected) < 4.5 * np.sqrt(expected * (1 - expected) / n)


def test_the_log_is_seeded_and_the_same_under_both_evaluations(folder: Path) -> None:
    first, again = (load_dataset("kuairec", folder, rng=1) for _ in range(2))
    other = load_dataset("kuairec", folder, rng=2)
    assert first.sha256 == again.sha256 != other.sha256
    paper = load_dataset(
        "kuairec", folder, rng=1, evaluation="overlapping-as-in-paper", overlap="keep"
    )
    assert paper.logged.frame.equals(first.logged.frame)
    assert len(paper.uniform) == int(made_block().observed.sum())
    assert "included" in paper.notes["uniform"]
    assert "probability 0.744" in first.notes["uniform"]


def test_ratings_are_the_block_labels(folder: Path) -> None:
    block, data = (
        made_block(),
        load_dataset("kuairec", folder, evaluation="overlapping-as-in-paper", overlap="keep"),
    )
    assert (data.n_users, data.n_items) == (N_USERS, N_VIDEOS)
    for part in (data.logged, data.uniform):
        np.testing.assert_array_equal(part.rating, block.gt2[part.user, part.item])
        assert block.observed[part.user, part.item].all()
    assert (data.scale.low, data.scale.high) == (0, 1)
    assert data.users["follow_user_num_range"].unique().to_list() == ["0"]
    assert data.users["register_days_range"].unique().to_list() == ["1"]
    assert data.items["tags"][0].to_list() == ["1", "7"]


def test_the_compact_form_gives_the_same_data(folder: Path) -> None:
    expected = load_dataset("kuairec", folder)
    (folder / "small_matrix.csv").unlink()
    made_block().write_npz(folder / "small_matrix_labels.npz")
    assert load_dataset("kuairec", folder).sha256 == expected.sha256


def test_the_platform_log_has_its_own_users_and_videos(folder: Path) -> None:
    (folder / "big_matrix.csv").write_text(BIG_ROWS)
    data = load_dataset("kuairec", folder, log="big-matrix")
    assert data.logged.to_frame().rows() == [(500, 900, 1.0), (501, 900, 0.0), (501, 1000, 1.0)]
    assert len(data.uniform) == int(made_block().observed.sum())
    assert (data.n_users, data.n_items) == (N_USERS + 2, N_VIDEOS + 1)


def test_feature_options(folder: Path) -> None:
    assert load_dataset("kuairec", folder, features="none").users is None
    columns = ["item_id", "share_cnt"]
    rows = [f"{video},{video % 2}" for video in range(1000, 1000 + N_VIDEOS)]
    (folder / "item_features.csv").write_text("\n".join([",".join(columns), *rows]))
    paper = load_dataset("kuairec", folder)
    assert paper.items.columns == columns
    assert paper.items["share_cnt"].to_list()[:3] == ["0", "1", "0"]


def test_wrong_options_and_missing_files(folder: Path, tmp_path: Path, refusal) -> None:
    for option, value in (("log", "x"), ("evaluation", "x"), ("features", "x")):
        refusal(
            lambda o=option, v=value: load_dataset("kuairec", folder, **{o: v}),
            option,
            "'x'",
            "one of",
        )
    refusal(
        lambda: load_dataset("kuairec", folder, log="big-matrix"),
        "big_matrix.csv or big_matrix_labels.parquet",
    )
    (folder / "user_features.csv").unlink()
    refusal(lambda: load_dataset("kuairec", folder), "user_features.csv", "no such file")
    (tmp_path / "empty").mkdir()
    message = "small_matrix.csv or small_matrix_labels.npz"
    refusal(lambda: load_dataset("kuairec", tmp_path / "empty"), str(tmp_path / "empty"), message)


@pytest.mark.real_data
def test_the_published_block_and_a_log_of_the_paper_size(data_root: Path) -> None:
    data = load_dataset(
        "kuairec", data_root / "kuairec", evaluation="overlapping-as-in-paper", overlap="keep"
    )
    assert (data.n_users, data.n_items, len(data.uniform)) == (1411, 3327, 1411 * 3327)
    assert int(data.uniform.rating.sum()) == 217_175
    expected = 0.256 * 217_175 + 0.153 * (1411 * 3327 - 217_175)
    assert abs(len(data.logged) - expected) < 4 * np.sqrt(expected)
    assert abs(len(data.logged) - 740_271) < 3_000
    assert "not told" in data.notes["unobserved"]
    assert [data.users.width, data.items.columns] == [15, ["item_id", "tags"]]


HEADER = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
ROWS = [(14, 103, 2.0), (14, 109, 2.5), (19, 103, 0.3), (19, 120, 7.0), (14, 120, 1.9)]


def write(path: Path, rows: list[tuple[object, object, object]]) -> Path:
    path.write_text(HEADER + "".join(f"{u},{v},1,2,,,,{r}\n" for u, v, r in rows))
    return path


def test_labels_and_observed_cells(tmp_path: Path) -> None:
    block = LabelBlock.read_csv(write(tmp_path / "small_matrix.csv", ROWS))
    assert block.user_id.tolist() == [14, 19]
    assert block.video_id.tolist() == [103, 109, 120]
    np.testing.assert_array_equal(block.gt2, [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(block.observed, [[1, 1, 1], [1, 0, 1]])
    assert block.candidates is block.observed


def test_a_pair_watched_twice_is_positive_if_any_view_was(tmp_path: Path) -> None:
    rows = watched_pairs(write(tmp_path / "big.csv", [(1, 1, 0.1), (1, 1, 3.0), (0, 1, 2.0)]))
    assert rows.rows() == [(0, 1, False), (1, 1, True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_compact_form_is_the_same_block(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = (5, 9 + seed)
    gt2 = rng.random(shape) < 0.4
    observed = gt2 | (rng.random(shape) < 0.9) if seed % 2 else None
    block = LabelBlock(np.arange(5) * 3, np.arange(shape[1]) + 100, gt2, observed)
    block.write_npz(tmp_path / "labels.npz")
    back = LabelBlock.read_npz(tmp_path / "labels.npz")
    for name in ("user_id", "video_id", "gt2"):
        np.testing.assert_array_equal(getattr(back, name), getattr(block, name))
    np.testing.assert_array_equal(back.candidates, block.candidates)
    assert (back.observed is None) == (observed is None)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([(1, 2, 3.0), ("x", 2, 3.0)], ("row 2", "column 'user_id'", "'x'", "a whole number")),
        ([(1, 2, 3.0), (1, "", 3.0)], ("row 2", "column 'video_id'", "nothing")),
        ([(1, 2, 3.0), (1, 3, "fast")], ("row 2", "column 'watch_ratio'", "'fast'")),
        ([(1, 2, 3.0), (1, 3, "")], ("row 2", "column 'watch_ratio'", "nothing")),
        ([(1, 2, 3.0), (1, 3, "NaN")], ("row 2", "column 'watch_ratio'", "NaN", "finite")),
        ([(1, 2, 3.0), (1, 3, "inf")], ("row 2", "column 'watch_ratio'", "inf")),
        ([], ("empty", "0 rows")),
    ],
)
def test_bad_watch_rows_are_named(
    rows: list[tuple[object, ...]], parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    file = write(tmp_path / "small_matrix.csv", rows)
    refusal(lambda: LabelBlock.read_csv(file), str(file), *parts)


def test_other_broken_files(tmp_path: Path, refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small_matrix.csv"
    refusal(lambda: LabelBlock.read_csv(file), str(file), "no such file")
    for content, part in (
        (b"", "the file is empty"),
        (b"a,b\n1,2\n", "missing column user_id"),
        (b"\xff\xfe\0", "small"),
    ):
        file.write_bytes(content)
        refusal(lambda: LabelBlock.read_csv(file), str(file), part)
    monkeypatch.setattr(kuairec, "MAX_CELLS", 5)
    write(file, ROWS)
    refusal(lambda: LabelBlock.read_csv(file), "2 users x 3 videos", "small_matrix.csv")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"gt2_bits": np.zeros((2, 2), np.uint8)}, ("column 'gt2_bits'", "uint8 (2, 1)")),
        ({"observed_bits": np.zeros((2, 1), np.int64)}, ("column 'observed_bits'", "int64")),
        ({"user_id": np.array([2, 1])}, ("column 'user_id'", "increase")),
        ({"video_id": np.array([0.5, 1.5, 2.5])}, ("column 'video_id'", "float64")),
        ({"user_id": np.array([], int)}, ("column 'user_id'",)),
    ],
)
def test_wrong_arrays_are_refused(
    changes: dict[str, np.ndarray], parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    bits = np.zeros((2, 1), np.uint8)
    good = {"user_id": np.arange(2), "video_id": np.arange(3), "gt2_bits": bits}
    np.savez(tmp_path / "labels.npz", **{**good, **changes})
    refusal(lambda: LabelBlock.read_npz(tmp_path / "labels.npz"), "labels.npz", *parts)


@pytest.mark.real_data
def test_the_published_block(data_root: Path) -> None:
    block = LabelBlock.read_npz(data_root / "kuairec" / "small_matrix_labels.npz")
    assert block.gt2.shape == (1411, 3327)
    assert int(block.gt2.sum()) == 217_175
    seen = pl.read_csv(
        data_root / "kuairec" / "random.txt", has_header=False, new_columns=["u", "v", "r"]
    )
    user, video = (
        np.searchsorted(ids, seen[key])
        for ids, key in ((block.user_id, "u"), (block.video_id, "v"))
    )
    np.testing.assert_array_equal(block.gt2[user, video], (seen["r"] > 2).to_numpy())


SOURCE_USER = [
    "user_active_degree",
    "is_live_streamer",
    "follow_user_num_range",
    "friend_user_num_range",
]


def watch_rows(users: range, videos: range, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    user, video = np.meshgrid(users, videos, indexing="ij")
    keep = rng.random(user.size) < 0.95
    ratio = rng.choice([0.5, 2.0, 3.0], user.size)
    columns = {
        "user_id": user.ravel(),
        "video_id": video.ravel(),
        "timestamp": "1.0",
        "watch_ratio": ratio,
    }
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
    pl.DataFrame({"video_id": range(40), "feat": "[1, 2]"}).write_csv(
        folder / "item_categories.csv"
    )
    rng = np.random.default_rng(2)
    names = {
        "video_type": "AD",
        "upload_type": "Web",
        "visible_status": "public",
        "video_tag_name": "cats",
    }
    numbers = {name: rng.poisson(1, 120) for name in (*HALVES, *NON_ZERO)}
    daily = pl.DataFrame({"video_id": np.repeat(np.arange(40), 3), **numbers})
    daily.with_columns([pl.lit(v).alias(k) for k, v in names.items()]).write_csv(
        folder / "item_daily_features.csv"
    )
    return folder


@pytest.mark.parametrize("log", ["synthesised", "big-matrix"])
def test_the_compact_form_loads_as_the_original(log: str, source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "new" / "compact")
    compact = tmp_path / "new" / "compact"
    assert (
        sorted(file.name for file in compact.iterdir())
        == sorted(COMPACT)
        == sorted(result["bytes"])
    )
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


def test_hostile_paths_are_refused_and_nothing_is_written(
    source: Path, tmp_path: Path, refusal
) -> None:
    refusal(lambda: convert(source, source), "other files")
    refusal(lambda: convert(source, tmp_path), "other files")
    holder = tmp_path / "letters"
    holder.mkdir()
    (holder / "letter.txt").write_text("dear")
    refusal(lambda: convert(source, holder), str(holder), "other files", "letter.txt")
    refusal(lambda: convert(source, holder / "letter.txt"), "not a folder")
    (tmp_path / "link").symlink_to(holder)
    refusal(lambda: convert(source, tmp_path / "link"), "not a folder")
    assert (holder / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        (
            "small_matrix.csv",
            "user_id,video_id,watch_ratio\n1,2,x\n",
            ("row 1", "column 'watch_ratio'", "'x'"),
        ),
        (
            "big_matrix.csv",
            "user_id,video_id,watch_ratio\n1,2,3\n1,y,3\n",
            ("row 2", "column 'video_id'", "'y'"),
        ),
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


_PLAYS = ("show", "play", "complete_play", "valid_play", "short_time_play", "long_time_play")
_PAIRS = {
    "cancel_like": "user_num",
    "delete_comment": None,
    "comment_like": "user_num",
    "follow": "cnt",
    "cancel_follow": "user_num",
    "share": "cnt",
    "download": "user_num",
    "report": "cnt",
    "reduce_similar": "user_num",
    "collect": "cnt",
    "cancel_collect": "user_num",
}
ITEM_GROUPS: dict[tuple[str, ...], str | None] = {
    tuple(
        f"{name}_{kind}" for name in _PLAYS for kind in ("cnt", "user_num")
    ): "valid_play_user_num",
    ("like_cnt", "like_user_num", "double_click_cnt", "click_like_cnt"): "click_like_cnt",
    ("comment_cnt", "comment_user_num", "direct_comment_cnt"): "direct_comment_cnt",
    **{
        (f"{name}_cnt", f"{name}_user_num"): kind and f"{name}_{kind}"
        for name, kind in _PAIRS.items()
    },
}
"""The appendix's groups of correlated item features → the one it keeps (None: none of the
group)."""


def daily(n_videos: int = 40, n_days: int = 5, seed: int = 0) -> pl.DataFrame:
    """Daily item rows with the original's column names; members of a group are multiples of each
    other."""
    rng = np.random.default_rng(seed)
    n = n_videos * n_days
    columns: dict[str, object] = {
        "video_id": np.repeat(np.arange(n_videos), n_days),
        "date": np.tile(np.arange(n_days), n_videos),
        "video_type": np.repeat(rng.choice(["AD", "NORMAL"], n_videos), n_days),
        "upload_type": np.repeat(
            rng.choice(["ShortImport", "LongImport", "Web"], n_videos), n_days
        ),
        "visible_status": np.repeat(
            rng.choice(["public", "private", "only friends"], n_videos), n_days
        ),
        "video_tag_name": np.repeat(
            rng.choice(["a", "b", "c", "d", "e", "f", None], n_videos), n_days
        ),
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
    assert {name for name in ITEM_GROUPS.values() if name} == {*HALVES, *NON_ZERO} - {
        "play_progress"
    }
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
    assert out["upload_type"].to_list() == [
        "0" if t == "ShortImport" else "1" for t in first["upload_type"]
    ]
    codes = {"only friends": "0", "private": "1", "public": "2"}
    assert out["visible_status"].to_list() == [codes[s] for s in first["visible_status"]]
    days = frame.group_by("video_id", maintain_order=True).agg((pl.col("share_cnt") != 0).mean())
    assert out["share_cnt"].to_list() == [str(int(share >= 0.5)) for share in days["share_cnt"]]
    middle = frame["play_progress"].median()
    days = frame.group_by("video_id", maintain_order=True).agg(
        (pl.col("play_progress") > middle).mean()
    )
    assert out["play_progress"].to_list() == [
        str(int(share >= 0.5)) for share in days["play_progress"]
    ]


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
    refusal(lambda: user_features(file), str(file), "missing column user_id")


def test_tags_are_lists(tmp_path: Path) -> None:
    file = tmp_path / "item_categories.csv"
    file.write_text('video_id,feat\n1,[2]\n2,"[27, 9]"\n3,[]\n')
    assert item_tags(file).rows() == [(1, ["2"]), (2, ["27", "9"]), (3, [])]


@pytest.mark.real_data
def test_the_appendix_user_counts(data_root: Path) -> None:
    path = data_root / "kuairec" / "user_features.csv"
    users = user_features(path)
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


@pytest.mark.real_data
def test_the_appendix_user_group(data_root: Path) -> None:
    raw = pl.read_csv(data_root / "kuairec" / "user_features.csv").drop("user_id")
    assert correlation_groups(raw, 0.7) == [["onehot_feat2", "onehot_feat3"]]

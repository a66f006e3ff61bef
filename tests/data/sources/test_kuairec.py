from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.data.sources.kuairec import LabelBlock, draw_log
from puidrec.data.sources.kuairec_features import USER_CODES

N_USERS, N_VIDEOS = 30, 50
BIG_ROWS = "user_id,video_id,watch_ratio\n500,900,3.0\n500,900,0.1\n501,900,0.5\n501,1000,2.5\n"


def made_block(shape: tuple[int, int] = (N_USERS, N_VIDEOS), *, hidden: float = 0.02, seed: int = 0) -> LabelBlock:
    rng = np.random.default_rng(seed)
    observed = rng.random(shape) >= hidden
    gt2 = observed & (rng.random(shape) < 0.2)
    return LabelBlock(np.arange(shape[0]) * 2, np.arange(shape[1]) + 1000, gt2, gt2, observed)


def write_csv(block: LabelBlock, path: Path) -> None:
    user, video = np.nonzero(block.observed)
    ratio = np.where(block.gt2[user, video], 2.5, 0.5)
    lines = [f"{block.user_id[u]},{block.video_id[v]},{r}" for u, v, r in zip(user, video, ratio, strict=True)]
    path.write_text("user_id,video_id,watch_ratio\n" + "\n".join(lines) + "\n")


def write_features(folder: Path) -> None:
    names = ["user_active_degree", "is_live_streamer", "follow_user_num_range", "friend_user_num_range"]
    header = ",".join(["user_id", *names, "register_days_range", *USER_CODES])
    rows = [",".join([str(u), "full_active", "0", '"(0,10]"', "0", "730+", *["1"] * 9]) for u in range(600)]
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
    logged, uniform = draw_log(block, 0.256, 0.153, "held-out", seed)
    assert not (logged & uniform).any()
    assert not ((logged | uniform) & ~block.observed).any()
    for label, p in ((True, 0.256), (False, 0.153)):
        group = block.observed & (block.gt2 == label)
        n = int(group.sum())
        for mask, expected in ((logged, p), (uniform, 1 - 0.256)):
            rate = mask[group].mean()
            assert abs(rate - expected) < 4.5 * np.sqrt(expected * (1 - expected) / n)


def test_thinning_also_holds_when_negatives_are_seen_more_often() -> None:
    block = made_block((700, 900))
    _, uniform = draw_log(block, 0.1, 0.6, "held-out", 0)
    for label in (True, False):
        assert uniform[block.observed & (block.gt2 == label)].mean() == pytest.approx(0.4, abs=0.01)


def test_the_log_is_seeded_and_the_same_under_both_evaluations(folder: Path) -> None:
    first, again = (load_dataset("kuairec", folder, rng=1) for _ in range(2))
    other = load_dataset("kuairec", folder, rng=2)
    assert first.sha256 == again.sha256 != other.sha256
    paper = load_dataset("kuairec", folder, rng=1, evaluation="overlapping-as-in-paper")
    assert paper.logged.frame.equals(first.logged.frame)
    assert len(paper.uniform) == int(made_block().observed.sum())
    assert "included" in paper.notes["uniform"]
    assert "probability 0.744" in first.notes["uniform"]


def test_ratings_are_the_block_labels(folder: Path) -> None:
    block, data = made_block(), load_dataset("kuairec", folder, evaluation="overlapping-as-in-paper")
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
    everything = load_dataset("kuairec", folder, features="all")
    assert everything.users["user_active_degree"].unique().to_list() == ["full_active"]
    columns = ["item_id", "share_cnt"]
    rows = [f"{video},{video % 2}" for video in range(1000, 1000 + N_VIDEOS)]
    (folder / "item_features.csv").write_text("\n".join([",".join(columns), *rows]))
    paper = load_dataset("kuairec", folder)
    assert paper.items.columns == columns
    assert paper.items["share_cnt"].to_list()[:3] == ["0", "1", "0"]
    assert load_dataset("kuairec", folder, features="all").items.columns == ["item_id", "tags", "share_cnt"]


def test_wrong_options_and_missing_files(folder: Path, tmp_path: Path, refusal) -> None:
    for option, value in (("log", "x"), ("evaluation", "x"), ("features", "x")):
        refusal(lambda o=option, v=value: load_dataset("kuairec", folder, **{o: v}), option, "'x'", "one of")
    for value in (0.0, 1.0, float("nan")):
        refusal(lambda v=value: load_dataset("kuairec", folder, p_positive=v), "p_positive", "between 0 and 1")
    refusal(lambda: load_dataset("kuairec", folder, log="big-matrix"), "big_matrix.csv or big_matrix_labels.parquet")
    (folder / "user_features.csv").unlink()
    refusal(lambda: load_dataset("kuairec", folder), "user_features.csv", "no such file")
    (tmp_path / "empty").mkdir()
    message = "small_matrix.csv or small_matrix_labels.npz"
    refusal(lambda: load_dataset("kuairec", tmp_path / "empty"), str(tmp_path / "empty"), message)


@pytest.mark.real_data
def test_the_published_block_and_a_log_of_the_paper_size(data_root: Path) -> None:
    data = load_dataset("kuairec", data_root / "kuairec", evaluation="overlapping-as-in-paper")
    assert (data.n_users, data.n_items, len(data.uniform)) == (1411, 3327, 1411 * 3327)
    assert int(data.uniform.rating.sum()) == 217_175
    expected = 0.256 * 217_175 + 0.153 * (1411 * 3327 - 217_175)
    assert abs(len(data.logged) - expected) < 4 * np.sqrt(expected)
    assert abs(len(data.logged) - 740_271) < 3_000
    assert "not told" in data.notes["unobserved"]
    assert [data.users.width, data.items.columns] == [15, ["item_id", "tags"]]

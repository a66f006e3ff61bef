"""KuaiRand on logs made with its columns and ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.data.sources.kuairand import CHINA, DAY, RANDOM, STANDARD, USERS, VIDEOS, Label
from puidrec.testing.source import SourceContract

LABELS = get_args(Label)
COLUMNS = (
    "user_id",
    "video_id",
    "date",
    "hourmin",
    "time_ms",
    *("is_click", "is_like", "is_follow", "is_comment"),
    "is_forward",
    "is_hate",
    "long_view",
    "play_time_ms",
    "duration_ms",
    "profile_stay_time",
    "comment_stay_time",
    "is_profile_enter",
    "is_rand",
    "tab",
)
APRIL_8 = 1_649_347_200_000
"""8 April 2022, 0:00 in China."""


def made_log(
    rows: int, first: int, last: int, *, inserted: bool, rng: np.random.Generator, n: int = 40
) -> pl.DataFrame:
    """Impressions on days first..last, counted from 8 April; some pairs repeat, some have the next
    day's date."""
    day = rng.integers(first, last + 1, rows)
    time = APRIL_8 + day * DAY + rng.integers(0, DAY, rows)
    dated = day + (rng.random(rows) < 0.02) * (day < last)
    dates = (
        (pl.Series(APRIL_8 + CHINA + dated * DAY).cast(pl.Datetime("ms")))
        .dt.strftime("%Y%m%d")
        .cast(pl.Int64)
    )
    frame = pl.DataFrame(
        {
            "user_id": rng.integers(0, n, rows),
            "video_id": rng.integers(0, n, rows),
            "date": dates,
            "time_ms": time,
            "is_rand": int(inserted),
        }
    )
    answers = [pl.Series(name, rng.integers(0, 2, rows)) for name in LABELS]
    rest = [pl.lit(0).alias(name) for name in COLUMNS if name not in (*frame.columns, *LABELS)]
    return frame.with_columns(*answers, *rest).select(COLUMNS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, rng = tmp_path_factory.mktemp("KuaiRand-Pure") / "data", np.random.default_rng(0)
    out.mkdir()
    made_log(500, 0, 13, inserted=False, rng=rng).write_csv(out / STANDARD[0])
    made_log(500, 14, 30, inserted=False, rng=rng).write_csv(out / STANDARD[1])
    made_log(900, 14, 30, inserted=True, rng=rng).write_csv(out / RANDOM)
    ids = np.arange(45)
    codes = {f"onehot_feat{k}": ids % 3 for k in range(18)}
    ranges = (
        "follow_user_num_range",
        "fans_user_num_range",
        "friend_user_num_range",
        "register_days_range",
    )
    users = {
        "user_id": ids,
        "user_active_degree": ["UNKNOWN"] * 45,
        "is_lowactive_period": ids * 0,
        "is_live_streamer": np.where(ids % 2, -124, 1),
        "is_video_author": ids % 2,
    }
    pl.DataFrame({**users, **dict.fromkeys(ranges, ["[1,5)"] * 45), **codes}).write_csv(out / USERS)
    videos = {
        "video_id": ids,
        "author_id": ids,
        "video_type": ["NORMAL"] * 45,
        "upload_dt": ["2022-04-10"] * 45,
        "upload_type": ["Kmovie"] * 45,
        "visible_status": ids * 0,
        "music_id": ids,
        "music_type": ids % 4,
        "video_duration": [None, *(ids[1:] * 1000.0)],
        "tag": ["1,22"] * 44 + [None],
    }
    pl.DataFrame(videos, strict=False).write_csv(out / VIDEOS)
    return out


class TestContract(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> pr.Dataset:
        return pr.load_dataset("kuairand", self.folder)

    def load_nonsense(self) -> pr.Dataset:
        return pr.load_dataset("kuairand", self.folder, label="clicks")


def test_the_first_impression_of_a_pair_counts(folder: Path) -> None:
    data = pr.load_dataset("kuairand", folder, overlap="keep")
    rows = pl.concat([pl.read_csv(folder / name) for name in STANDARD])
    first = (
        rows.sort("time_ms")
        .unique(["user_id", "video_id"], keep="first")
        .sort("user_id", "video_id")
    )
    assert len(data.logged) == first.height < rows.height
    by_time = pr.load_dataset("kuairand", folder, overlap="keep", day="time").logged.to_frame()
    assert by_time["rating"].to_list() == first["is_click"].to_list()
    assert by_time["timestamp"].to_list() == first["time_ms"].to_list()
    anything = pr.load_dataset("kuairand", folder, overlap="keep", duplicates="max")
    most = (
        rows.group_by("user_id", "video_id")
        .agg(pl.col("is_click").max())
        .sort("user_id", "video_id")
    )
    assert anything.logged.rating.tolist() == most["is_click"].to_list()


def test_a_time_lies_in_the_day_of_its_date(folder: Path) -> None:
    rows = pl.read_csv(folder / RANDOM)
    uniform = pr.load_dataset("kuairand", folder, overlap="keep").uniform
    assert uniform is not None
    frame = uniform.to_frame().join(
        rows.rename({"video_id": "item_id"}),
        on=["user_id", "item_id"],
        how="left",
        maintain_order="left",
    )
    day = (pl.col("timestamp") + CHINA).cast(pl.Datetime("ms")).dt.strftime("%Y%m%d").cast(pl.Int64)
    alone = frame.filter(~pl.struct("user_id", "item_id").is_duplicated())
    assert alone.select((day == pl.col("date")).all()).item()
    assert (alone["timestamp"] != alone["time_ms"]).any()


def test_features_without_ids_constants_and_codes_for_unknown(folder: Path) -> None:
    data = pr.load_dataset("kuairand", folder)
    assert data.users is not None
    assert data.items is not None
    assert not {"is_lowactive_period", "visible_status", "author_id", "music_id"} & {
        *data.users.columns,
        *data.items.columns,
    }
    assert set(data.users["is_live_streamer"].unique()) == {None, "1"}
    assert data.items["tags"][0].to_list() == ["1", "22"]
    assert data.items["seconds"][:2].to_list() == [None, 1.0]
    assert pr.load_dataset("kuairand", folder, features="none").users is None


def dates(part: pr.data.dataset.Interactions) -> tuple[int, int]:  # type: ignore[name-defined]
    """First and last day of rows, counted from 8 April."""
    day = (part.frame["timestamp"].to_numpy() - APRIL_8) // DAY
    return int(day.min()), int(day.max())


def test_the_two_protocols_cut_at_their_dates(
    folder: Path, refusal: Callable[..., str], tiny_data: pr.Dataset
) -> None:
    random = pr.load_dataset("kuairand", folder.parent).split("kuairand-random")
    assert random.propensity is not None
    found = [
        dates(part) for part in (random.train, random.propensity, random.validation, random.test)
    ]
    assert found == [(0, 22), (14, 22), (23, 26), (27, 30)]
    assert (random.evaluation, random.selection) == ("uniform", "uniform")
    standard = pr.load_dataset("kuairand", folder, label="long_view").split("kuairand-standard")
    assert [dates(part) for part in (standard.train, standard.validation, standard.test)] == [
        (0, 13),
        (14, 20),
        (21, 30),
    ]
    assert standard.evaluation == "logged"
    refusal(lambda: tiny_data.split("kuairand-random"), "another log", "--data kuairand")


def test_a_wrong_folder_and_mixed_logs_are_refused(
    folder: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    refusal(lambda: pr.load_dataset("kuairand", tmp_path), "no kuairand files here", STANDARD[0])
    pl.read_csv(folder / RANDOM).write_csv(tmp_path / STANDARD[0])
    refusal(lambda: pr.load_dataset("kuairand", tmp_path), "rows of the other log", "is_rand")


@pytest.mark.real_data
def test_the_published_side_tables_fit(data_root: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made_log(2_000, 0, 13, inserted=False, rng=rng, n=7_000).write_csv(tmp_path / STANDARD[0])
    for name in (USERS, VIDEOS):
        (tmp_path / name).write_bytes((data_root / "kuairand" / name).read_bytes())
    data = pr.load_dataset("kuairand", tmp_path)
    assert data.users is not None
    assert data.users.height == data.n_users
    assert data.users["user_active_degree"].n_unique() > 4

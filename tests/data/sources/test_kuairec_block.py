from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data.sources import kuairec
from puidrec.data.sources.kuairec import LabelBlock, watched_pairs

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
    np.testing.assert_array_equal(block.ge2, [[1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(block.observed, [[1, 1, 1], [1, 0, 1]])
    assert block.candidates is block.observed


def test_a_pair_watched_twice_is_positive_if_any_view_was(tmp_path: Path) -> None:
    rows = watched_pairs(write(tmp_path / "big.csv", [(1, 1, 0.1), (1, 1, 3.0), (0, 1, 2.0)]))
    assert rows.rows() == [(0, 1, False, True), (1, 1, True, True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_compact_form_is_the_same_block(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = (5, 9 + seed)
    ge2 = rng.random(shape) < 0.5
    gt2 = ge2 & (rng.random(shape) < 0.8)
    observed = ge2 | (rng.random(shape) < 0.9) if seed % 2 else None
    block = LabelBlock(np.arange(5) * 3, np.arange(shape[1]) + 100, gt2, ge2, observed)
    block.write_npz(tmp_path / "labels.npz")
    back = LabelBlock.read_npz(tmp_path / "labels.npz")
    for name in ("user_id", "video_id", "gt2", "ge2"):
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
    for content, part in ((b"", "cannot read"), (b"a,b\n1,2\n", "missing column user_id"), (b"\xff\xfe\0", "small")):
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
    good = {"user_id": np.arange(2), "video_id": np.arange(3), "gt2_bits": bits, "ge2_bits": bits}
    np.savez(tmp_path / "labels.npz", **{**good, **changes})
    refusal(lambda: LabelBlock.read_npz(tmp_path / "labels.npz"), "labels.npz", *parts)


@pytest.mark.real_data
def test_the_published_block(data_root: Path) -> None:
    block = LabelBlock.read_npz(data_root / "kuairec" / "small_matrix_labels.npz")
    assert block.gt2.shape == (1411, 3327)
    assert (int(block.gt2.sum()), int(block.ge2.sum())) == (217_175, 217_226)
    assert not (block.gt2 & ~block.ge2).any()
    seen = pl.read_csv(data_root / "kuairec" / "random.txt", has_header=False, new_columns=["u", "v", "r"])
    user, video = (np.searchsorted(ids, seen[key]) for ids, key in ((block.user_id, "u"), (block.video_id, "v")))
    np.testing.assert_array_equal(block.gt2[user, video], (seen["r"] > 2).to_numpy())

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data import synthetic as exposure
from puidrec.data.synthetic import read_simulation, simulate, simulate_to_parquet
from puidrec.errors import InputError


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "_ROWS_PER_BLOCK", 400)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("part_rows", "expected"), [(10, 8), (1_000, 4), (100_000, 1)])
def test_parts_hold_exactly_what_simulate_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int, expected: int
) -> None:
    monkeypatch.setattr(exposure, "ROWS_PER_PART", part_rows)
    calls: list[tuple[int, int]] = []
    facts = simulate_to_parquet(
        tmp_path / "sim",
        "half-complete",
        300,
        200,
        rng=5,
        progress=lambda *c: calls.append(c),
    )
    memory, disk = simulate("half-complete", 300, 200, rng=5), read_simulation(tmp_path / "sim")
    assert disk.data.sha256 == memory.data.sha256
    assert disk.data.notes == memory.data.notes
    assert np.array_equal(disk.truth.matrix("phi"), memory.truth.matrix("phi"))
    assert facts["rows"] == len(memory.data.logged)
    assert calls[-1] == (300, 300)
    parts = len(list((tmp_path / "sim" / "logged").glob("part-*.parquet")))
    assert parts == len(calls) == expected


def test_files_are_compact_and_sorted(tmp_path: Path) -> None:
    simulate_to_parquet(tmp_path / "sim", "mixed", 300, 200)
    log = pl.read_parquet(tmp_path / "sim" / "logged" / "part-00000.parquet")
    assert log.schema == {"user_id": pl.Int32, "item_id": pl.Int32, "rating": pl.UInt8}
    assert log.equals(log.sort("user_id", "item_id"))


def test_a_log_far_smaller_than_d_costs_its_rows_only(tmp_path: Path) -> None:
    facts = simulate_to_parquet(
        tmp_path / "sim", "pair", 1_000_000, 100_000, 100_000, n_uniform=1_000
    )
    assert facts["rows"] == pytest.approx(100_000, rel=0.05)


def test_only_a_former_simulation_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"thesis.txt.* an earlier simulation"):
        simulate_to_parquet(tmp_path / "mine", "mixed", 100, 50)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    for seed in (0, 1):
        simulate_to_parquet(tmp_path / "sim", "mixed", 100, 50, rng=seed)
    assert read_simulation(tmp_path / "sim").truth.options.seed == 1


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("stopped by the caller")

    with pytest.raises(RuntimeError, match="stopped"):
        simulate_to_parquet(tmp_path / "sim", "mixed", 100, 50, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "cannot read the truth"),
        ("{}", "cannot read the truth"),
        ("[1]", "cannot read the truth"),
        ('{"options": {"world": "mixed", "speed": 9}, "intercept": 0}', "cannot read the truth"),
    ],
)
def test_a_damaged_truth_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    simulate_to_parquet(tmp_path / "sim", "mixed", 100, 50)
    file = tmp_path / "sim" / "truth.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_simulation(tmp_path / "sim")
    assert "truth.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_part_is_one_line(tmp_path: Path) -> None:
    simulate_to_parquet(tmp_path / "sim", "mixed", 100, 50)
    part = tmp_path / "sim" / "logged" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot read"):
        read_simulation(tmp_path / "sim")
    part.unlink()
    with pytest.raises(InputError, match="cannot read"):
        read_simulation(tmp_path / "sim")

"""The source contract holds for the built-in sources, and fails for sources that break it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset, IdMap
from puidrec.data.sources import load_dataset
from puidrec.data.sources.files import write_dataset
from puidrec.data.synthetic import simulate
from puidrec.testing.source import SourceContract

SMALL = {"n_users": 30, "n_items": 20, "density": 0.3}


class TestSimulated(SourceContract):
    def load(self) -> Dataset:
        return load_dataset("simulated", **SMALL)

    def load_nonsense(self) -> Dataset:
        return load_dataset("simulated", **SMALL, colour="blue")


class TestRecbole(SourceContract):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        write_dataset(load_dataset("simulated", **SMALL), "recbole", tmp_path)

    def load(self) -> Dataset:
        return load_dataset("recbole", self.folder)

    def load_nonsense(self) -> Dataset:
        return load_dataset("recbole", self.folder, logged=self.folder / "log.user")


class TestFiles(SourceContract):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        data = load_dataset("simulated", **SMALL)
        data.logged.to_frame().write_csv(tmp_path / "log.csv")
        data.items.write_parquet(tmp_path / "items.parquet")

    def load(self) -> Dataset:
        return load_dataset(
            "files", logged=self.folder / "log.csv", items=self.folder / "items.parquet"
        )

    def load_nonsense(self) -> Dataset:
        return load_dataset("files", logged=self.folder / "nothing.csv")


class TestCoat(SourceContract):
    @pytest.fixture(autouse=True)
    def root(self, data_root: Path) -> None:
        self.folder = data_root / "coat"
        if not self.folder.is_dir():
            pytest.skip("no coat folder")

    def load(self) -> Dataset:
        return load_dataset("coat", self.folder)

    def load_nonsense(self) -> Dataset:
        return load_dataset("coat", self.folder / "nowhere")


GOOD = simulate("mixed", 30, 20, density=0.3, rng=0).data


def broken(data: Dataset, name: str) -> Dataset:
    frame = data.logged.frame
    logged = {
        "unsorted": frame[::-1],
        "twice": pl.concat([frame[:1], frame]),
        "outside": frame.with_columns(pl.col("user") + 5),
        "off the scale": frame.with_columns(pl.col("rating") + 90),
        "not finite": frame.with_columns(rating=pl.lit(float("nan"), pl.Float32)),
    }
    if name in logged:
        return dataclasses.replace(
            data, logged=dataclasses.replace(data.logged, frame=logged[name])
        )
    return {
        "no name": dataclasses.replace(data, name=""),
        "ids unsorted": dataclasses.replace(data, user_ids=IdMap(data.user_ids.ids.reverse())),
        "shuffled table": dataclasses.replace(data, users=data.users.reverse()),
        "notes": dataclasses.replace(data, notes={"array": np.zeros(3)}),
    }[name]


BROKEN = {
    "unsorted": "rows_are_sorted",
    "twice": "rows_are_sorted",
    "outside": "rows_are_sorted",
    "off the scale": "rows_are_sorted",
    "not finite": "rows_are_sorted",
    "no name": "name",
    "ids unsorted": "ids_are",
    "shuffled table": "side_tables",
    "notes": "describes",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_source_that_breaks_the_contract_fails_it(name: str) -> None:
    class Broken(SourceContract):
        def load(self) -> Dataset:
            return broken(GOOD, name)

    failed = [
        test for test in dir(Broken) if test.startswith("test_") and fails(getattr(Broken(), test))
    ]
    assert any(BROKEN[name] in test for test in failed), failed


def test_chance_and_nonsense_fail_it() -> None:
    class Chance(SourceContract):
        draws = iter(range(10))

        def load(self) -> Dataset:
            return simulate("mixed", 30, 20, density=0.3, rng=next(self.draws)).data

        def load_nonsense(self) -> Dataset:
            return GOOD

    assert fails(Chance().test_loading_twice_gives_the_same_data)
    assert fails(Chance().test_nonsense_is_refused_in_one_line)


def fails(test: Any) -> bool:
    try:
        test()
    except (Exception, pytest.fail.Exception):
        return True
    return False

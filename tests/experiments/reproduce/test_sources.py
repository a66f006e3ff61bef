from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from puidrec.experiments.reproduce.sources import PUBLIC, find_sources


def test_what_is_here_and_what_is_not(small_root: Path) -> None:
    found = find_sources(small_root)
    assert found.folders == {name: small_root / name for name in ("coat", "kuairec", "ml-100k")}
    assert list(found.missing) == ["yahoo-r3"]
    line = found.missing["yahoo-r3"]
    assert line.splitlines() == [line]
    assert "https://" in line
    assert find_sources(small_root).only(("coat", "yahoo-r3")).folders == {"coat": small_root / "coat"}


@pytest.mark.parametrize("folder", ["yahoo", "yahooR3", "yahoo-r3"])
def test_other_names_and_forms(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    assert "yahoo-r3" in find_sources(tmp_path).missing  # an empty folder is no data set
    (tmp_path / folder / "user.txt").write_text("0,0,5\n")
    assert find_sources(tmp_path).folders == {"yahoo-r3": tmp_path / folder}


def test_every_data_set_says_how_to_get_it() -> None:
    assert all("https://" in public.get for public in PUBLIC.values())


def test_a_root_that_is_not_there(tmp_path: Path, refusal: Callable[..., str]) -> None:
    refusal(lambda: find_sources(tmp_path / "none"), "none", "no such folder")

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from puidrec.data.sources.ml_100k import GENRES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with twenty films and users in the shape of MovieLens, and nothing else."""
    folder = tmp_path / "data" / "ml-100k"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((20, 20)) < 0.4) + 1
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{rng.integers(1, 6)}\t1\n" for u, i in pairs))
    (folder / "u.user").write_text(
        "".join(f"{u}|{20 + u % 7}|{'MF'[u % 2]}|writer|{u % 10}5711\n" for u in range(1, 21))
    )
    flags = (rng.random((20, len(GENRES))) < 0.3).astype(int)
    films = [f"{i + 1}|Film|01-Jan-19{60 + i % 9}||http://x|{'|'.join(map(str, flags[i]))}\n" for i in range(20)]
    (folder / "u.item").write_text("".join(films))
    return folder.parent


def test_a_question_is_answered_in_files(puid, root: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    said = puid("reproduce", "rq4", "--data-root", root, "--quick", "--workers", 1, "--out", out)
    assert said.code == 0, said
    assert "RQ4, hidden user features" in said.out
    assert "report.html" in said.out
    names = {path.name for path in out.iterdir()}
    assert {"results.json", "summary.json", "table.md", "results.md", "report.html", "rq4.png"} <= names
    text = (out / "results.md").read_text()
    assert "puid reproduce rq4 --data-root DIR --seeds 1 --quick --out DIR" in text
    assert str(root) not in text
    assert {row["experiment"] for row in json.loads((out / "results.json").read_text())} == {"rq4", "gamma"}
    before = (out / "results.md").read_bytes()
    again = puid("reproduce", "rq4", "--data-root", root, "--quick", "--workers", 1, "--out", out, "--json")
    assert json.loads(again.out)["questions"] == ["rq4"]
    assert (out / "results.md").read_bytes() == before


def test_absent_data_sets_are_named_on_one_line_each(puid, root: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    said = puid("reproduce", "rq1", "rq4", "--data-root", root, "--quick", "--workers", 1, "--out", tmp_path / "out")
    assert said.code == 0, said
    lines = said.err.splitlines()
    assert [line.split()[1] for line in lines] == ["coat", "yahoo-r3", "kuairec"]
    assert all("To get it" in line for line in lines)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("rq9",), ("rq9", "unknown question")),
        (("rq1",), ("none of the data sets", "coat")),
        (("rq4", "--seeds", "0"), ("--seeds",)),
        (("rq4", "--workers", "0"), ("worker",)),
        (("rq4", "--engine", "abacus"), ("abacus",)),
    ],
)
def test_mistakes_are_told_before_any_work(args, parts, puid, root: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    puid("reproduce", *args, "--data-root", root, "--out", tmp_path / "out").refused(*parts)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file(puid, root: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "out").write_text("mine")
    puid("reproduce", "rq4", "--data-root", root, "--out", tmp_path / "out").refused("folder", "out")
    assert (tmp_path / "out").read_text() == "mine"

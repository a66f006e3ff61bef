"""The tutorial runs by copying its commands only, and prints what it says it prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_tutorial_runs_and_prints_what_it_quotes(
    pages: ModuleType, programs: Path, tmp_path: Path
) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    _, wrong = pages.run_page(text, tmp_path, programs)
    assert not wrong, "\n".join(
        [*wrong, "python docs/pages.py docs/tutorial.md writes fresh figures"]
    )
    first, second = (
        json.loads((tmp_path / name / "audit.json").read_text()) for name in ("audit", "audit-2")
    )
    assert first["verdict"] == "fragile"  # collect 500 random ratings first
    assert second["verdict"] == "refuted"  # ship the other one
    assert second["error"]["uniform"]["high"] < 0


def test_the_tutorial_starts_from_csv_and_ends_with_a_decision(pages: ModuleType) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    shown = [
        line
        for block in pages.blocks(text)
        if block.kind == "console"
        for line in block.body.splitlines()
    ]
    used = {" ".join(line.split()[:2]) for line in shown if line.startswith("puid")}
    assert used >= {
        f"puid {name}"
        for name in ("data", "train", "compare", "gamma", "audit", "evaluate", "recommend")
    }
    assert "Collect 500 random ratings first" in text
    assert "do not ship `mf`" in text
    assert all(block.note is None for block in pages.blocks(text)), (
        "every block of the tutorial is run"
    )


def test_quoted_lines_are_found_by_their_words(pages: ModuleType) -> None:
    printed = " mse   0.0743 \nother\n mse   0.0785\n"
    found = list(pages.matched("mse 0.07\n…\nmse 0.08\nnothing 1\n", printed))
    assert [line for _, line in found] == [" mse   0.0743", " mse   0.0785", None]


@pytest.mark.parametrize(
    ("quoted", "printed", "same"),
    [
        ("mse 0.0743", "mse 0.0747", True),
        ("mse 0.0743", "mse 0.0843", False),
        ("gap -0.0012", "gap −0.0010", True),
        ("gap 0.0012", "gap -0.0012", False),
        ("19,906 rows", "19,906 rows", True),
        ("500 rows", "50 rows", False),
    ],
)
def test_numbers_may_be_off_by_little(
    pages: ModuleType, quoted: str, printed: str, same: bool
) -> None:
    assert pages.near(quoted, printed) is same


def test_a_page_that_misquotes_is_told(pages: ModuleType, tmp_path: Path) -> None:
    shown = "```console\necho '{\"x\": 2.5}' | tee f.json\necho value 1.5\n```\n"
    page = f"{shown}\n```text\nvalue 3.5\nlost\n```\nIt is 9.9<!-- f.json x .1f -->.\n"
    fresh, wrong = pages.run_page(page, tmp_path)
    assert len(wrong) == 3
    assert "value 1.5\nlost" in fresh
    assert "2.5<!-- f.json" in fresh
    again, wrong = pages.run_page(fresh, tmp_path)
    assert again == fresh
    assert len(wrong) == 1


def test_a_figure_stays_with_its_method_when_rows_are_added(
    pages: ModuleType, tmp_path: Path
) -> None:
    rows = [{"method": "mf", "x": 1.0}, {"method": "signed-rd", "x": 2.0}]
    for table in (rows, [{"method": "bias", "x": 3.0}, *rows]):
        (tmp_path / "f.json").write_text(json.dumps({"rows": table}))
        assert pages.from_file(tmp_path, "f.json", "rows.signed-rd.x", ".1f") == "2.0"
    assert pages.from_file(tmp_path, "f.json", "rows.0.x", ".1f") == "3.0"


def test_a_command_that_fails_fails_the_page(pages: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code 3"):
        pages.run_page("```console\necho fine\n(exit 3)\necho never\n```\n", tmp_path)


def test_a_command_that_starts_at_once_is_the_command(
    pages: ModuleType, programs: Path, tmp_path: Path
) -> None:
    """The same words, exit codes and files, in the caller's folder, also where two of them run at
    once."""
    size = "--set data.n_users=30 --set data.n_items=20"
    shown = f"puid data describe {size} --json"
    assert pages.run_command(shown, tmp_path, programs) == pages.run_command(shown, tmp_path)
    assert (
        pages.run_command("puid --version | cat - <(puid --version)", tmp_path, programs).count(
            "puid "
        )
        == 2
    )
    pages.run_command("puid data simulate --users 30 --items 20 --out made", tmp_path, programs)
    assert (tmp_path / "made" / "users.parquet").exists()
    with pytest.raises(AssertionError, match="exit code 2"):
        pages.run_command("puid data describe --data nothing", tmp_path, programs)

"""Pages with measured figures are of this version: stamped with its golden scores, written from
stored results, and nothing else holds a table of figures."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
EXECUTED = ("tutorial.md", "sets.md", "signed.md")
"""Their figures are those of blocks that the tests run."""
FIGURE = re.compile(r"[−+-]?\d*\.\d+")


@pytest.fixture(scope="module")
def made() -> Iterator[ModuleType]:
    """bench/pages.py, and the modules beside it while the tests run."""
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("pages")
    finally:
        sys.path.remove(str(BENCH))


def test_every_page_is_of_this_version(made: ModuleType) -> None:
    old = made.stale()
    assert not old, f"golden scores are others than those of {', '.join(old)}: run make pages"


@pytest.mark.parametrize("name", ["paper", "field", "truth", "guarantees", "scaling"])
def test_a_page_is_what_its_results_say(made: ModuleType, name: str) -> None:
    """Written by hand, or by other code than today's, it would differ."""
    results = made.stored(name)
    assert results is not None
    shown = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert shown == made.written(name, results), "run python bench/pages.py write"
    assert results["golden"] in shown
    assert results["command"] in shown
    assert results["date"] in shown


def test_the_papers_page_can_be_read_in_one_sitting() -> None:
    assert len((ROOT / "docs" / "paper.md").read_text(encoding="utf-8").split()) <= 2_500


def test_the_first_pages_say_what_the_results_say(made: ModuleType) -> None:
    for file in made.SHOWN_IN:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "<!-- found -->" in text
        assert text == made.with_findings(text, "" if file.startswith("docs/") else "docs/")


def test_one_changed_score_names_every_page(made: ModuleType, tmp_path: Path) -> None:
    golden, docs = tmp_path / "golden", tmp_path / "docs"
    shutil.copytree(ROOT / "tests" / "golden", golden, ignore=shutil.ignore_patterns("*.py", "_*"))
    (docs / "results").mkdir(parents=True)
    now = made.golden_hash(golden)
    for name in made.PAGES:
        text = json.dumps({"golden": now, "quick": False})
        (docs / "results" / f"{name}.json").write_text(text)
    assert made.stale(docs, golden) == []
    plain = golden / "plain.json"
    scores = json.loads(plain.read_text())
    scores["mf"][0] += 1e-4
    plain.write_text(json.dumps(scores))
    assert made.stale(docs, golden) == [f"{name}.md" for name in made.PAGES]
    (docs / "results" / "field.json").unlink()
    assert "field.md" in made.stale(docs, golden)


def test_a_quick_run_is_never_current(made: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    text = json.dumps({"golden": made.golden_hash(), "quick": True})
    (tmp_path / "results" / "truth.json").write_text(text)
    assert "truth.md" in made.stale(tmp_path)


def test_no_other_page_holds_a_table_of_figures(made: ModuleType) -> None:
    """A row with three cells that are a decimal number was measured somewhere."""
    own = {f"{name}.md" for name in made.PAGES} | set(EXECUTED)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        if page.name in own:
            continue
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
        measured = [
            line for line in rows if sum(bool(FIGURE.match(c.strip())) for c in line.split("|")) > 2
        ]
        assert not measured, f"{page.name}: {measured[0]}"


def test_finished_parts_are_not_run_again(made: ModuleType, tmp_path: Path) -> None:
    import time

    run_parts = importlib.import_module("parts").run_parts
    soon = time.monotonic() + 60.0
    parts = {f"part {k}": (pow, (k, 2)) for k in range(3)}
    assert run_parts(parts, tmp_path, 1, soon) == ({f"part {k}": k * k for k in range(3)}, 0)
    (tmp_path / "part 1.json").write_text("7")
    (tmp_path / "part 2.json").unlink()
    found, unfinished = run_parts(parts, tmp_path, 1, time.monotonic() - 1.0)
    assert (found, unfinished) == ({"part 0": 0, "part 1": 7}, 1)
    assert run_parts(parts, tmp_path, 1, soon) == ({"part 0": 0, "part 1": 7, "part 2": 4}, 0)


def test_only_fits_of_a_changed_method_are_of_another_version(
    made: ModuleType, tmp_path: Path
) -> None:
    golden = tmp_path / "golden"
    shutil.copytree(ROOT / "tests" / "golden", golden, ignore=shutil.ignore_patterns("*.py", "_*"))
    before = {name: made.version(name, folder=golden) for name in ("mf", "dr")}
    plain = golden / "plain.json"
    scores = json.loads(plain.read_text())
    scores["mf"][0] += 1e-4
    plain.write_text(json.dumps(scores))
    assert made.version("mf", folder=golden) != before["mf"]
    assert made.version("dr", folder=golden) == before["dr"]


def test_a_page_that_fits_no_changed_method_is_stamped_anew(made: ModuleType) -> None:
    page = made.PAGES["scaling"]
    kept = {"fits": made.version(*page.methods), "quick": False}
    assert made.unchanged(page, kept)
    assert not made.unchanged(page, {**kept, "quick": True})
    assert not made.unchanged(page, {**kept, "fits": "of other scores"})
    assert not made.unchanged(made.PAGES["guarantees"], kept)


def test_the_plan_names_what_pages_are_made_of(made: ModuleType) -> None:
    said = made.plan(made.PAGES)
    assert all(f"{name}: " in said for name in made.PAGES)
    assert "minutes with two processes" in said


def test_sentences_follow_from_figures(made: ModuleType) -> None:
    findings = importlib.import_module("findings")
    contrasts = [{"kind": "one", "verdict": word} for word in ("wins", "ties", "ties")]
    assert "won 1 of 3 paired comparisons" in findings.personal({"contrasts": contrasts})
    rows = [
        {
            "metric": "uauc",
            "protocol": "rd",
            "data": "coat",
            "label": label,
            "mean": mean,
            "verdict": v,
        }
        for label, mean, v in (
            ("mf", 0.7, None),
            ("spectrum", 0.74, "wins"),
            ("ips", 0.69, "loses"),
        )
    ]
    said = findings.uniform({"tables": {"field": rows}})
    assert "Coat 0.700 → 0.740" in said
    assert "won 1, tied 0 and lost 0 of 1" in said
    assert "won 0, tied 0 and lost 1" in said

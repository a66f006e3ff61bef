"""The table of the field's methods: alike for all of them, in a small form, and sentences that
follow from its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puidrec.methods import METHODS
from puidrec.report.field import field_text, findings
from puidrec.reproduce import field
from puidrec.reproduce.field import FieldSize, field_jobs, run_field, seconds_by_method


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    return {"coat": tmp_path / "coat", "kuairec": tmp_path / "kuairec"}


def test_every_method_of_a_table_has_the_same_seeds_and_budget(folders) -> None:
    tables: dict[tuple[str, str], dict[str, set[tuple[int, int]]]] = {}
    for job in field_jobs(folders, FieldSize(seeds=5)):
        rows = tables.setdefault((job.data.title, job.protocol), {})
        rows.setdefault(job.method, set()).add(
            (job.seed, job.budget if METHODS[job.method].trains else 0)
        )
    assert {title for title, _ in tables} == {
        "coat",
        "kuairec",
        *(f"simulated, {world}" for world in field.WORLDS),
    }
    for (_, protocol), rows in tables.items():
        assert len({frozenset(alike) for name, alike in rows.items() if METHODS[name].trains}) == 1
        using = {
            name
            for name in field.WITH_UNIFORM
            if protocol == "rd" or not METHODS[name].needs_uniform
        }
        assert {name for name in rows if METHODS[name].uses_uniform} == using


def test_interrupted_runs_have_all_methods_under_the_first_seeds(folders) -> None:
    seeds = [job.seed for job in field_jobs(folders, FieldSize(seeds=3))]
    assert seeds == sorted(seeds)


def test_parts_can_be_asked_for(folders, refusal) -> None:
    some = {
        (job.data.name, job.protocol) for job in field_jobs(folders, FieldSize(1), ["coat", "rd"])
    }
    assert some == {("coat", "rd")}
    assert {job.data.name for job in field_jobs(folders, FieldSize(1), ["simulated"])} == {
        "simulated"
    }
    refusal(lambda: field_jobs(folders, FieldSize(1), ["coat", "rq1"]), "rq1", "some of")


def test_without_data_there_is_nothing_to_run(tmp_path, refusal) -> None:
    refusal(lambda: run_field([], tmp_path / "out"), "nothing to run", "--data-root")


def test_a_small_form_gives_the_page(tmp_path, monkeypatch, one_thread) -> None:
    monkeypatch.setattr(
        field, "WORLD_SIZE", {"n_users": 60, "n_items": 40, "density": 0.2, "n_uniform": 2_000}
    )
    jobs = [
        job
        for job in field_jobs({}, FieldSize(1, quick=True))
        if job.method in ("mf", "dr", "mrdr", "bal-dr")
    ]
    made = run_field(jobs, tmp_path / "out", workers=1)
    again = run_field(jobs, tmp_path / "out", workers=1)  # nothing is run twice
    assert (
        made == again == json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    )
    seconds = seconds_by_method(
        json.loads((tmp_path / "out" / "timings.json").read_text(encoding="utf-8"))["cells"]
    )
    text = field_text(made, seconds, "puid reproduce field")
    assert not made["failed"]
    assert all(f"| `{job.method}` |" in text for job in jobs)
    verdicts = text.split("## How often it helps")[1].split("##")[0]
    assert "| `mf` | reference |" in verdicts
    assert (
        "| `dr` | 0 / 1 / 0 | reference |" in verdicts
        or "| `dr` | 0 / 0 / 1 | reference |" in verdicts
    )
    assert "training (weights of the log)" in text
    assert set(seconds["simulated"]) == {"mf", "dr", "mrdr", "bal-dr"}


def row(
    label: str, reference: str, mean: float, verdict: str | None, difference: float | None
) -> dict:
    return {
        "data": "coat",
        "protocol": "cvib",
        "label": label,
        "metric": "uauc",
        "mean": mean,
        "verdict": verdict,
        "difference": difference,
        "difference_low": None if difference is None else difference - 0.01,
        "difference_high": None if difference is None else difference + 0.01,
        "is_reference": label == reference,
        "positive_rate": 0.2,
    }


@pytest.mark.parametrize("verdict", ["wins", "ties", "loses"])
def test_sentences_follow_from_the_rows(verdict) -> None:
    tables = {
        "mf": [row("mf", "mf", 0.7, None, None), row("dr", "mf", 0.6, "loses", -0.1)],
        "dr": [row("mf", "dr", 0.7, "wins", 0.1), row("dr", "dr", 0.6, None, None)],
    }
    for reference, difference in (("mf", 0.02), ("dr", 0.12)):
        tables[reference].append(row("mrdr", reference, 0.72, verdict, difference))
    first, second, *printed = findings({"tables": tables})
    assert "best mean is that of mrdr (0.720)" in first
    assert ("beyond chance: mrdr" in first) is (verdict == "wins")
    assert "worse: dr" in first
    assert ("mrdr of the 1 variants" in second) is (verdict == "wins")
    if verdict == "wins":
        assert not printed
    else:
        assert (
            "printed gain over DR does not appear for mrdr +0.120 [+0.110, +0.130] (printed: +.005"
            in printed[0]
        )


def test_a_printed_gain_is_looked_for_under_its_own_protocol() -> None:
    rows = [row("dr", "dr", 0.6, None, None), row("mrdr", "dr", 0.6, "ties", 0.0)]
    other = [{**r, "protocol": "rd"} for r in rows]
    assert not any(
        "printed gain" in line for line in findings({"tables": {"mf": other, "dr": other}})
    )

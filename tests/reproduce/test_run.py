"""Finding the data, running what is not finished, and the summary that pages are made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.comparing import run as running
from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.evaluation.significance import PerUser
from puidrec.reproduce import grids
from puidrec.reproduce.grids import PAPER
from puidrec.reproduce.run import (
    PUBLIC,
    chance,
    contrast_rows,
    fact_rows,
    find_sources,
    plan_reproduction,
    reproduce,
    rounded,
    table_rows,
)

USERS = np.arange(300)


@pytest.fixture(scope="module")
def short() -> Iterator[None]:
    """Two epochs, four pseudo-features and one small world are enough to see that jobs run."""
    patch = pytest.MonkeyPatch()
    patch.setitem(PAPER.options["coat"], "dim", 4)  # type: ignore[arg-type]
    patch.setattr(grids, "QUICK", {"epochs": 2, "patience": 0, "l2": 0.1, "dim": 4})
    patch.setattr(grids, "WORLDS", ("entity",))
    patch.setattr(grids, "WORLD_SIZE", {"n_users": 60, "n_items": 40, "density": 0.2})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def run(
    short: None, small_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out")
    plan = plan_reproduction(["all"], small_root, 1, quick=True, workers=1)
    return out, reproduce(plan, out, engine="inline")


def test_every_question_has_rows(run: tuple[Path, dict[str, Any]]) -> None:
    out, summary = run
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["failed"] == []
    assert summary["unfinished"] == 0
    assert len(summary["skipped"]) == 1  # Yahoo!R3
    assert all(summary["tables"][name] for name in ("rq1", "rq2", "ablation", "field"))
    assert summary["contrasts"]
    assert summary["rq3"]["user"]
    assert summary["rq4"]["item"]
    assert {row["data"] for row in summary["facts"]} == {"coat", "kuairec", "ml-100k"}
    assert "seconds" not in (out / "results.json").read_text()


def test_a_rerun_trains_nothing_and_writes_the_same(
    run: tuple[Path, dict[str, Any]],
    small_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = shutil.copytree(run[0], tmp_path / "again")
    monkeypatch.setattr(running, "run_one", lambda *_: pytest.fail("a finished job was run"))
    reproduce(
        plan_reproduction(["all"], small_root, 1, quick=True, workers=1), out, engine="inline"
    )
    for name in ("results.json", "summary.json"):
        assert (out / name).read_bytes() == (run[0] / name).read_bytes()


def test_what_the_time_does_not_allow_is_left_for_another_time(
    short: None, small_root: Path, tmp_path: Path
) -> None:
    plan = plan_reproduction(["ablation"], small_root, 1, quick=True, workers=1)
    first = reproduce(plan, tmp_path, engine="inline", minutes=0)
    total = len({job.key for job in plan.jobs["ablation"]})
    assert 0 < first["unfinished"] < len(plan.jobs["ablation"])
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1
    assert reproduce(plan, tmp_path, engine="inline")["unfinished"] == 0
    assert len(list((tmp_path / "cells").glob("*.json"))) == total


def test_only_what_is_asked_for(short: None, small_root: Path, tmp_path: Path) -> None:
    plan = plan_reproduction(["rq3"], small_root, 1, quick=True, workers=1)
    assert not plan.jobs
    assert list(plan.found.folders) == ["ml-100k"]
    made = reproduce(plan, tmp_path, engine="inline")
    assert made["rq3"]
    assert made["rq4"] == {}


def test_a_failed_job_is_named_and_the_rest_is_summed_up(
    short: None, small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = running.run_one
    monkeypatch.setattr(
        running,
        "run_one",
        lambda job, *more: (job, "it diverged", "") if job.method == "dr" else real(job, *more),
    )
    plan = plan_reproduction(["ablation"], small_root, 1, quick=True, workers=1)
    made = reproduce(plan, tmp_path, engine="inline")
    assert any("it diverged" in line for line in made["failed"])
    assert {row["label"][0] for row in made["tables"]["ablation"]} == {"B"}


@pytest.mark.parametrize(
    ("questions", "more", "parts"),
    [
        (["rq9"], {}, ("rq9", "unknown question", "ablation")),
        (["all"], {"seeds": 0}, ("0", "--seeds")),
        (["all"], {"workers": 0}, ("0", "--workers")),
    ],
)
def test_refusals(
    questions: list[str],
    more: dict[str, int],
    parts: tuple[str, ...],
    small_root: Path,
    refusal: Callable[..., str],
) -> None:
    refusal(lambda: plan_reproduction(questions, small_root, **more), *parts)


def test_no_data_at_all(tmp_path: Path, refusal: Callable[..., str]) -> None:
    refusal(
        lambda: plan_reproduction(["rq3"], tmp_path), "none of the data sets", "ml-100k", "https://"
    )


def test_what_is_here_and_what_is_not(small_root: Path, refusal: Callable[..., str]) -> None:
    found = find_sources(small_root)
    assert found.folders == {name: small_root / name for name in ("coat", "kuairec", "ml-100k")}
    assert list(found.missing) == ["yahoo-r3"]
    assert "https://" in found.missing["yahoo-r3"]
    assert all("https://" in public.get for public in PUBLIC.values())
    refusal(lambda: find_sources(small_root / "none"), "none", "no such folder")


@pytest.mark.parametrize("folder", ["yahoo", "yahooR3", "yahoo-r3"])
def test_other_names_and_forms(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    assert "yahoo-r3" in find_sources(tmp_path).missing  # an empty folder is no data set
    (tmp_path / folder / "user.txt").write_text("0,0,5\n")
    assert find_sources(tmp_path).folders == {"yahoo-r3": tmp_path / folder}


def result(label: str, mean: float, seed: int, method: str | None = None) -> Result:
    """A made result: users differ a little around the mean, more for each seed."""
    values = mean + 0.01 * np.random.default_rng([seed, len(label)]).normal(size=USERS.size)
    values += mean - values.mean()
    per_user = {metric: PerUser(USERS, values) for metric in ("uauc", "ndcg@5")}
    job = Job(DataSpec("coat"), method or label, seed, "ge3", {}, label, "paper")
    return Result(
        job, dict.fromkeys(("uauc", "ndcg@5"), mean), {"positive_rate": 0.4}, None, {}, per_user
    )


def made_results() -> list[Result]:
    means = {"mf": 0.60, "rd-ips": 0.62, "puid-ips": 0.64, "item-rate": 0.62}
    rows = [result(label, mean, seed) for label, mean in means.items() for seed in range(2)]
    return rows + [result("puid-ips, random Γ", 0.6402, seed, "puid-ips") for seed in range(2)]


def test_contrasts_say_who_is_ahead() -> None:
    rows = {row["kind"]: row for row in contrast_rows(made_results()) if row["metric"] == "uauc"}
    assert (rows["one"]["verdict"], round(rows["one"]["difference"], 4)) == ("wins", 0.02)
    assert rows["random"]["verdict"] == "ties"
    assert "none" not in rows  # there is no ips


def test_a_method_that_lost_a_seed_is_compared_on_the_others_only() -> None:
    results = [r for r in made_results() if (r.job.name, r.job.seed) != ("puid-ips", 1)]
    assert {row["n_seeds"] for row in contrast_rows(results)} == {1}


def test_rows_of_tables() -> None:
    rows = {(row["label"], row["metric"]): row for row in table_rows("rq1", made_results())}
    puid = rows["puid-ips", "uauc"]
    assert (puid["source"], puid["mask"], puid["n_seeds"]) == ("coat", None, 2)
    assert puid["difference"] == pytest.approx(0.04)
    assert 0 < puid["half"] < 0.01


def test_series_of_the_ablation_have_their_own_reference() -> None:
    labels = ("A1 x", "A2 x", "B1 x", "B2 x")
    rows = table_rows("ablation", [result(label, 0.6, 0, "puid-ips") for label in labels])
    assert {row["label"] for row in rows if row["difference"] is None} == {"A1 x", "B1 x"}


def test_facts_of_a_data_set(small_root: Path) -> None:
    (row,) = fact_rows({"coat": small_root / "coat"})
    assert row["per_user"] == [8, 8]
    assert row["below_one"] == pytest.approx(1.0)
    assert set(row["chance"]) == {"rd", "paper", "ge3"}


def test_chance_is_a_half(small_root: Path) -> None:
    test = load_dataset("kuairec", small_root / "kuairec", rng=0).split("rd", 0).test
    assert chance(test, ["uauc"])["uauc"] == pytest.approx(0.5, abs=0.04)


def test_numbers_are_rounded_and_nothing_else() -> None:
    assert rounded({"a": [0.123456789, 7, "x"], "b": None}) == {"a": [0.12346, 7, "x"], "b": None}


def test_the_paper_page_follows_from_the_figures(run: tuple[Path, dict[str, Any]]) -> None:
    from puidrec.report.study import claims, field_text, paper_text

    summary = run[1]
    text = paper_text(summary, "Made by nobody.")
    assert "Made by nobody." in text
    assert "A quick run" in text
    assert "|mf|0.661|" in text  # as printed
    assert "yahoo-r3 is skipped" in text
    for heading in ("RQ1", "RQ2", "RQ3", "RQ4", "ablation"):
        assert f"## {heading}" in text.replace("The ablation", "ablation")
    won = [{**row, "verdict": "wins"} for row in summary["contrasts"]]
    before, after = (
        {c: f for c, f, _ in claims(s)} for s in (summary, {**summary, "contrasts": won})
    )
    changed = {claim for claim in before if before[claim] != after[claim]}
    assert changed
    assert all("personal Γ" in claim for claim in changed)
    field = field_text(summary, "Made by nobody.")
    assert "`puid-dr`" in field
    assert "1. Best mean: " in field


def test_a_page_says_what_is_missing(run: tuple[Path, dict[str, Any]]) -> None:
    from puidrec.report.study import paper_text

    text = paper_text({**run[1], "unfinished": 7, "failed": ["mf on coat: it diverged"]}, "x")
    assert "7 fits" in text
    assert "Failed: mf on coat: it diverged" in text


def test_marks_and_printed_figures_of_a_table() -> None:
    from puidrec.report.study import field_findings, rq1_table

    rows = table_rows("rq1", made_results())
    lines = rq1_table(rows, "coat", "uauc").splitlines()
    puid = next(line for line in lines if line.startswith("|puid-ips|"))
    assert puid.startswith("|puid-ips|0.676|0.640±0.00")
    assert puid.endswith("▲|")
    worse = [replace(r, job=replace(r.job, preset="field")) for r in made_results()]
    found = field_findings([{**row, "to_dr": None} for row in table_rows("rq1", worse)])
    assert "`puid-ips, random Γ` 0.640" in found[0]
    assert "`item-rate` 1 won" in found[4]

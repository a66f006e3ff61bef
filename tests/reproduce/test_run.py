"""None"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from puidrec.comparing import run as running
from puidrec.reproduce import questions
from puidrec.reproduce.entropies import entropy_tasks, run_entropies
from puidrec.reproduce.presets import PAPER
from puidrec.reproduce.questions import PlannedQuestion, RunSize
from puidrec.reproduce.run import PUBLIC, Reproduction, find_sources, plan_reproduction, reproduce

QUICK = RunSize(1, quick=True)


@pytest.fixture(scope="module")
def short() -> Iterator[None]:
    """Two epochs and four pseudo-features are enough to see that jobs run."""
    patch = pytest.MonkeyPatch()
    patch.setitem(PAPER.options["coat"], "dim", 4)  # type: ignore[arg-type]
    patch.setattr(questions, "QUICK_EPOCHS", {"coat": 2, "yahoo-r3": 2, "kuairec": 2})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def run(
    short: None, small_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Reproduction]:
    out = tmp_path_factory.mktemp("out")
    return out, reproduce(plan_reproduction(["all"], small_root, QUICK, 1), out, engine="inline")


def test_every_question_has_rows(run: tuple[Path, Reproduction]) -> None:
    out, made = run
    rows = json.loads((out / "results.json").read_text())
    assert rows == json.loads(json.dumps(made.rows))
    assert {row["experiment"] for row in rows} == {
        "rq1",
        "rq2",
        "rq3",
        "rq4",
        "ablation",
        "gamma",
        "chance",
    }
    assert all({"data", "method", "protocol", "seed"} <= set(row) for row in rows)
    coat = next(
        r for r in rows if (r["experiment"], r["data"], r["label"]) == ("rq1", "coat", "mf")
    )
    assert {"uauc", "ndcg@5", "positive_rate", "preset"} <= set(coat)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["failed"] == []
    assert len(summary["skipped"]) == 1
    assert {row["experiment"] for row in summary["tables"]} == {"rq1", "rq2", "ablation"}
    assert summary["contrasts"]


def test_no_clock_in_results(run: tuple[Path, Reproduction]) -> None:
    assert "seconds" not in (run[0] / "results.json").read_text()
    assert json.loads((run[0] / "timings.json").read_text())["cells"]


def test_a_rerun_trains_nothing_and_writes_the_same(
    run: tuple[Path, Reproduction],
    small_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = shutil.copytree(run[0], tmp_path / "again")
    monkeypatch.setattr(
        "puidrec.comparing.run.run_one", lambda *_: pytest.fail("a finished job was run")
    )
    monkeypatch.setattr(
        "puidrec.reproduce.entropies.finish", lambda *_: pytest.fail("a finished order was run")
    )
    reproduce(plan_reproduction(["all"], small_root, QUICK, 1), out, engine="inline")
    for name in ("results.json", "summary.json"):
        assert (out / name).read_bytes() == (run[0] / name).read_bytes()


def test_entropies_do_not_depend_on_workers_and_survive_damage(
    small_root: Path, tmp_path: Path
) -> None:
    tasks = entropy_tasks(["rq4"], small_root / "ml-100k", 1, quick=True)
    told: list[int] = []
    one = run_entropies(tasks, tmp_path / "one", 1, lambda _, done, total: told.append(done))
    two = run_entropies(tasks, tmp_path / "two", 2, lambda *_: None)
    assert one == two
    assert told == [1, 2]
    tasks[0].path(tmp_path / "one").write_text("[{]")
    assert run_entropies(tasks, tmp_path / "one", 1, lambda *_: None) == two


def test_only_what_is_asked_for(short: None, small_root: Path, tmp_path: Path) -> None:
    work = plan_reproduction(["rq3"], small_root, QUICK, 1)
    assert work.jobs == []
    assert list(work.found.folders) == ["ml-100k"]
    made = reproduce(work, tmp_path, engine="inline")
    assert {row["experiment"] for row in made.rows} == {"rq3", "gamma"}
    assert made.summary["rq4"] == {}


def test_large_data_sets_come_first_and_full_runs_repeat_seeds(small_root: Path) -> None:
    names = [job.data.name for job in plan_reproduction(["all"], small_root, RunSize(2), 1).jobs]
    assert names == sorted(names, key=["kuairec", "coat"].index)
    assert len(entropy_tasks(["rq3", "rq4"], small_root / "ml-100k", 3, quick=False)) == 20


def test_all_cells_train_on_the_device_that_is_named(small_root: Path) -> None:
    by_default, named = (
        plan_reproduction(["all"], small_root, QUICK, 1, **more)
        for more in ({}, {"device": "cuda"})
    )
    assert {job.resolved.device for job in by_default.jobs} == {"cpu"}
    assert {job.resolved.device for job in named.jobs} == {"cuda"}
    assert [job.names() for job in named.jobs] == [job.names() for job in by_default.jobs]


def test_a_failed_job_is_named_and_the_rest_is_written(
    short: None, small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = running.run_one
    monkeypatch.setattr(
        running,
        "run_one",
        lambda job, *more: (job, "it diverged", "") if job.method == "rd-ips" else real(job, *more),
    )
    work = plan_reproduction(["ablation"], small_root, QUICK, 1)
    few = tuple(job for job in work.planned[0].jobs if job.method in ("ips", "rd-ips"))
    made = reproduce(
        replace(work, planned=(PlannedQuestion("ablation", few),)), tmp_path, engine="inline"
    )
    assert {row["error"] for row in made.summary["failed"]} == {"it diverged"}
    assert [row["method"] for row in made.rows if row["experiment"] == "ablation"] == ["ips"]


@pytest.mark.parametrize(
    ("questions", "seeds", "parts"),
    [
        (["rq9"], 1, ("rq9", "unknown question", "ablation")),
        (["all"], 0, ("0", "--seeds")),
    ],
)
def test_refusals(
    questions: list[str], seeds: int, parts: tuple[str, ...], small_root: Path, refusal
) -> None:  # type: ignore[no-untyped-def]
    refusal(lambda: plan_reproduction(questions, small_root, RunSize(seeds)), *parts)


def test_no_data_at_all(tmp_path: Path, refusal: Callable[..., str]) -> None:
    refusal(
        lambda: plan_reproduction(["rq3"], tmp_path, QUICK),
        "none of the data sets",
        "ml-100k",
        "https://",
    )


def test_what_is_here_and_what_is_not(small_root: Path) -> None:
    found = find_sources(small_root)
    assert found.folders == {name: small_root / name for name in ("coat", "kuairec", "ml-100k")}
    assert list(found.missing) == ["yahoo-r3"]
    line = found.missing["yahoo-r3"]
    assert line.splitlines() == [line]
    assert "https://" in line
    assert find_sources(small_root, ("coat", "yahoo-r3")).folders == {"coat": small_root / "coat"}


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

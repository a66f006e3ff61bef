"""Studies: the same bytes whatever runs them, finished jobs never again, and failures that stay
where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from puidrec.comparing import job as job_module
from puidrec.comparing import run as running
from puidrec.comparing.comparison import Comparison
from puidrec.comparing.job import DataSpec, Job
from puidrec.comparing.run import Event, Failure, Results, run_jobs

SMALL = DataSpec("simulated", options={"n_users": 60, "n_items": 40})
QUICK = {"epochs": 4, "dim": 4, "l2": 0.1}
METRICS = ("uauc", "ndcg@5")
FILES = ("results.json", "summary.json", "table.md")


def jobs(methods: str = "mf rd-dr item-rate", seeds: int = 2, **more: object) -> list[Job]:
    made = [
        Job(SMALL, method, seed, settings=QUICK)
        for method in methods.split()
        for seed in range(seeds)
    ]
    return [replace(job, **more) for job in made]  # type: ignore[arg-type]


def study(out: Path, wanted: list[Job], engine: str = "inline", **more: object) -> dict[str, bytes]:
    results = run_jobs(wanted, out, engine=engine, **more)  # type: ignore[arg-type]
    Comparison.of(results, "mf", METRICS).save(out)
    return {name: (out / name).read_bytes() for name in FILES}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the jobs that are fitted in this process, trials included."""
    fitted: list[str] = []
    original = running.JobData.fit

    def fit(self: running.JobData, job: Job) -> object:
        fitted.append(job.key)
        return original(self, job)

    monkeypatch.setattr(running.JobData, "fit", fit)
    return fitted


def test_the_bytes_are_the_same_whatever_the_engine_workers_or_order(tmp_path: Path) -> None:
    wanted = jobs("mf rd-dr signed-rd item-rate", 2, budget=2)
    first = study(tmp_path / "inline", wanted)
    assert study(tmp_path / "two", wanted, "local", workers=2) == first
    run_jobs(wanted[::-1], tmp_path / "back", engine="inline")
    assert study(tmp_path / "back", wanted) == first
    rows = json.loads(first["results.json"])
    assert [(row["label"], row["seed"]) for row in rows] == [(c.name, c.seed) for c in wanted]
    assert {
        "data",
        "method",
        "label",
        "preset",
        "protocol",
        "seed",
        "uauc",
        "ndcg@5",
        "positive_rate",
    } <= rows[0].keys()
    assert not any("second" in name for row in rows for name in row)
    timings = json.loads((tmp_path / "inline" / "timings.json").read_text())
    assert len(timings["cells"]) == len(wanted)


def test_ten_seeds_are_ten_splits_and_ten_initialisations(monkeypatch: pytest.MonkeyPatch) -> None:
    splits, starts = set(), set()
    original = running.JobData.fit

    def fit(self: running.JobData, job: Job) -> object:
        splits.add(self.split.test.frame.hash_rows().sort().implode().hash().item())
        model = original(self, job)
        starts.add(model.user_factors_.tobytes())
        return model

    monkeypatch.setattr(running.JobData, "fit", fit)
    wanted = [
        Job(SMALL, "mf", seed, settings={"epochs": 1, "lr": 1e-9, "dim": 4, "solver": "adam"})
        for seed in range(10)
    ]
    results = run_jobs(wanted, engine="inline")
    assert len(splits) == len(starts) == len({r.metrics["uauc"] for r in results}) == 10


def test_finished_jobs_are_never_trained_again(tmp_path: Path, trained: list[str]) -> None:
    first = study(tmp_path, jobs(), progress=None)
    assert len(trained) == 6
    events: list[Event] = []
    assert study(tmp_path, jobs(), progress=events.append) == first
    assert len(trained) == 6
    assert [(event.done, event.total, event.resumed) for event in events] == [
        (k, 6, True) for k in range(1, 7)
    ]
    study(tmp_path, jobs(seeds=3))
    assert len(trained) == 9  # only the third seed is new
    study(tmp_path, [replace(job, settings={**QUICK, "lr": 0.01}) for job in jobs()])
    assert len(trained) == 15  # other settings are other jobs
    assert study(tmp_path, jobs()) == first
    assert len(trained) == 15


def test_damaged_and_foreign_files_and_changed_data_are_trained_anew(
    tmp_path: Path, trained: list[str]
) -> None:
    out, data = tmp_path / "out", tmp_path / "log.csv"
    data.write_text(
        "user_id,item_id,rating\n"
        + "".join(f"{u},{(u * 7 + k) % 9},{1 + k}\n" for u in range(30) for k in range(5))
    )
    wanted = [
        replace(job, data=DataSpec("files", options={"logged": data, "scale": [1, 5]}))
        for job in jobs("mf bias", 1)
    ]
    first = study(out, wanted)
    paths = sorted((out / "cells").iterdir())
    assert len(paths) == 2
    paths[0].write_bytes(b"\x00 not ours")
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    assert study(out, wanted) == first
    assert len(trained) == 4
    data.write_text(data.read_text() + "0,8,5\n")
    job_module._load.cache_clear()
    assert study(out, wanted) != first
    assert len(trained) == 6


def test_a_job_that_fails_is_named_and_the_others_are_written(tmp_path: Path) -> None:
    wanted = [
        *jobs(),
        Job(SMALL, "ips", 0, settings={**QUICK, "lr": 1e30, "solver": "adam"}, label="wild [x]"),
    ]
    results = run_jobs(wanted, tmp_path, engine="inline")
    assert len(results) == 6
    assert [failure.job.name for failure in results.failures] == ["wild [x]"]
    assert "diverged" in str(results.failures[0])
    Comparison.of(results, "mf", METRICS).save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed"][0]["label"] == "wild [x]"
    assert "diverged" in (tmp_path / "table.md").read_text()


def test_a_search_meets_the_test_rows_once_and_the_best_trial_is_measured(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    original = running.measure
    monkeypatch.setattr(
        running, "measure", lambda *a, **more: (measured.append(1), original(*a, **more))[1]
    )
    wanted = [Job(SMALL, "rd-ips", 2, settings=QUICK, budget=4)]
    result = run_jobs(wanted, tmp_path, engine="inline")[0]
    assert (len(trained), len(measured), result.context["trials"]) == (4, 1, 4)
    alone = run_jobs(running.trials(wanted[0]), engine="inline")
    scores = [trial.validation for trial in alone]
    assert result.validation == max(scores)
    chosen = alone[scores.index(max(scores))]
    assert result.settings == chosen.settings
    assert not any(trial.metrics or trial.per_user for trial in alone)
    direct = run_jobs([replace(chosen.job, measured=True)], engine="inline")[0]
    assert direct.metrics == result.metrics


@pytest.mark.parametrize(
    ("method", "settings", "budget", "parts"),
    [
        ("mf", {}, 1, ()),
        ("mf", {"solver": "adam"}, 1, ("validation",)),
        ("mf", {}, 2, ("validation",)),
        ("rd-ips", {"propensity": "naive-bayes"}, 1, ("propensity",)),
        (
            "rd-ips",
            {"propensity": "naive-bayes", "solver": "adam"},
            2,
            ("propensity", "validation"),
        ),
        ("rd-ips", {"gamma": "learned"}, 1, ("propensity", "validation")),
        ("spectrum", {}, 1, ("propensity", "validation")),
        ("spectrum", {}, 2, ("propensity", "validation")),
    ],
)
def test_uniform_rows_that_training_or_the_choice_was_given_are_counted_once(
    method: str, settings: dict[str, object], budget: int, parts: tuple[str, ...]
) -> None:
    job = Job(SMALL, method, 0, settings=QUICK | settings, budget=budget)
    split = SMALL.load().split("rd", 0)
    context = run_jobs([job], engine="inline")[0].context
    assert context["uniform_rows_given"] == sum(len(getattr(split, part)) for part in parts)
    assert (context["uniform_rows_used"] == "none") is (method == "mf" and not settings)


def test_a_trial_that_diverges_is_out_of_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Job(SMALL, "ips", 0, settings=QUICK, budget=3)
    wild = [
        replace(t, settings={**t.settings, "lr": 1e30, "solver": "adam"}) if k != 1 else t
        for k, t in enumerate(running.trials(wanted))
    ]
    monkeypatch.setattr(running, "trials", lambda job, likes: wild)
    result = run_jobs([wanted], engine="inline")[0]
    assert (result.context["trials"], result.context["trials_failed"]) == (1, 2)
    assert result.settings["lr"] == wild[1].resolved.lr
    monkeypatch.setattr(running, "trials", lambda job, likes: wild[::2])
    assert "diverged" in run_jobs([wanted], engine="inline").failures[0].error


def test_one_job_under_two_names_runs_once(trained: list[str]) -> None:
    twice = [
        Job(SMALL, "mf", 0, settings=QUICK),
        Job(SMALL, "mf", 0, settings=QUICK, label="again", preset="paper"),
    ]
    results = run_jobs(twice, engine="inline")
    assert len(trained) == 1
    assert [(r.job.name, r.job.preset) for r in results] == [("mf", "own"), ("again", "paper")]
    assert results[0].metrics == results[1].metrics


def test_mistakes_are_told_before_anything_is_written(tmp_path: Path, refusal) -> None:
    out = tmp_path / "out"
    for wrong, word in (
        ({"method": "nope"}, "unknown method"),
        ({"settings": {"epoch": 1}}, "unknown setting"),
        ({"budget": 0}, "budget"),
        ({"data": DataSpec("coat", tmp_path / "none")}, "none"),
        ({"data": DataSpec("nope")}, "unknown data set"),
    ):
        refusal(lambda wrong=wrong: run_jobs([replace(c, **wrong) for c in jobs()], out), word)
    refusal(lambda: run_jobs(jobs(), out, engine="nope"), "unknown engine")
    refusal(lambda: run_jobs(jobs(), out, workers=0), "worker")
    assert not out.exists()
    out.write_text("x")
    refusal(lambda: run_jobs(jobs(), out, engine="inline"), "need a folder")
    refusal(lambda: run_jobs(jobs(), out / "sub", engine="inline"), "cannot write")
    assert out.read_text() == "x"


def test_results_are_a_list_with_failures() -> None:
    failure = Failure(jobs()[0], "no")
    assert Results() == []
    assert Results([], [failure]).failures == [failure]
    assert str(failure) == "mf on simulated, seed 0: no"
    assert run_jobs([], engine="local") == []


LONG = ("mf rd-dr", 4)
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_run import jobs
from puidrec.comparing.run import run_jobs
run_jobs(jobs(*{long!r}), Path({out!r}), engine="local", workers=2)
"""


def test_a_killed_study_goes_on_and_ends_the_same(tmp_path: Path, trained: list[str]) -> None:
    wanted = jobs(*LONG)
    out = tmp_path / "out"
    script = SCRIPT.format(here=str(Path(__file__).parent), long=LONG, out=str(out))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment)
    while (
        len(list((out / "cells").glob("*.json")) if out.exists() else []) < 4  # both work by then
        and process.poll() is None
    ):
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_until_gone(workers)
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    assert 2 <= len(before) < 8
    resumed = study(out, wanted)
    assert len(trained) == 8 - len(before)
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert resumed == study(tmp_path / "whole", wanted)


def _wait_until_gone(workers: list[int]) -> None:
    """Workers must not outlive whoever started them."""
    for _ in range(1500):
        if not any(_alive(pid) for pid in workers):
            return
        time.sleep(0.02)
    pytest.fail("a worker outlived its study")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.real_data
def test_matrix_factorisation_beats_rates_of_items_on_coat(data_root: Path, tmp_path: Path) -> None:
    """Seeds are resampled as well as users, so that two of them settle nothing."""
    spec = DataSpec("coat", data_root / "coat")
    methods = ("mf", "item-rate")
    wanted = [Job(spec, m, s, settings={"epochs": 60}) for m in methods for s in range(3)]
    results = run_jobs(wanted, tmp_path, engine="inline")
    rows = {(r.label, r.metric): r for r in Comparison.of(results, "item-rate", METRICS).rows}
    assert (
        rows["mf", "uauc"].mean > 0.71
    )  # 0.719; 16 columns with l2=0.1 have 0.727, within its interval
    assert rows["mf", "uauc"].verdict == rows["mf", "ndcg@5"].verdict == "wins"
    assert rows["mf", "uauc"].positive_rate == pytest.approx(0.183, abs=0.005)


def test_a_folder_that_another_process_writes_is_left_alone(
    tmp_path: Path, refusal, lock_holder
) -> None:
    with lock_holder(tmp_path / "out"):
        refusal(lambda: run_jobs([], tmp_path / "out", engine="inline"), "has been writing there")
        assert not (tmp_path / "out").exists()
    run_jobs([], tmp_path / "out", engine="inline")

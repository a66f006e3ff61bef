"""Engines: a worker that dies loses nothing, one that always dies ends, and nothing is left running."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from puidrec.experiments import engines
from puidrec.experiments.engines import RETRIES, cores, get_engine, local
from puidrec.experiments.job import DataSpec, Job
from puidrec.experiments.study import run_study

SMALL = DataSpec("simulated", options={"n_users": 60, "n_items": 40})


def jobs_of(seeds: int) -> list[Job]:
    return [Job(SMALL, "mf", seed, settings={"epochs": 3, "dim": 4}) for seed in range(seeds)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Every worker process that is started."""
    processes: list[subprocess.Popen[str]] = []
    original = engines._start

    def start() -> subprocess.Popen[str]:
        processes.append(original())
        return processes[-1]

    monkeypatch.setattr(engines, "_start", start)
    return processes


def test_a_killed_worker_is_replaced_failures_are_one_line_and_nothing_is_left_running(
    tmp_path: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = engines._ask, itertools.count()

    def ask(process: subprocess.Popen[str], line: str) -> str:
        if next(calls) == 1:
            process.kill()  # while it holds the second job
        return original(process, line)

    monkeypatch.setattr(engines, "_ask", ask)
    good = jobs_of(2)
    wild = Job(SMALL, "mf", 0, settings={"lr": 1e30, "solver": "adam", "epochs": 3})
    foreign = Job(DataSpec("coat", tmp_path / "none"), "mf")
    endless = Job(SMALL, "mf", 0, settings={"epochs": 10**7, "patience": 0})
    running = local([*good, wild, foreign, endless], tmp_path, 1)
    ended = [next(running) for _ in range(4)]
    assert ended[:2] == [(job, None) for job in good]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert "diverged" in (ended[2][1] or "")
    assert "none" in (ended[3][1] or "")
    assert all(len(str(error).splitlines()) == 1 for _, error in ended)
    running.close()  # in the middle of the endless one
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
    local([endless], tmp_path, 1).close()  # never begun: starts nothing
    assert len(started) == 2


def test_a_job_that_kills_every_worker_ends_and_the_others_go_on(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = engines._ask

    def ask(process: subprocess.Popen[str], line: str) -> str:
        if '"seed": 0' in line:
            process.kill()
        return original(process, line)

    monkeypatch.setattr(engines, "_ask", ask)
    results = run_study(jobs_of(2), workers=1)
    assert [r.job.seed for r in results] == [1]
    assert len(started) == 1 + RETRIES + 1
    (failure,) = results.failures
    assert "died 3 times (SIGKILL)" in failure.error


def test_engines_by_name(refusal) -> None:
    assert get_engine("local") is local
    refusal(lambda: get_engine("nope"), "unknown engine", "local")
    assert cores() >= 1


def test_engine_none_trains_nothing_and_takes_what_is_finished(tmp_path: Path) -> None:
    first, second = (Job(SMALL, "item-rate", seed) for seed in (0, 1))
    run_study([first], tmp_path, engine="inline")
    results = run_study([first, second], tmp_path, engine="none")
    assert [result.job for result in results] == [first]
    assert [(failure.job, failure.error) for failure in results.failures] == [(second, "not run yet")]


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_a_device_that_is_not_here_is_one_line_before_anything_runs(engine: str, tmp_path: Path, refusal) -> None:
    jobs = [Job(SMALL, method, 0, settings={"epochs": 3, "device": "abacus"}) for method in ("mf", "ips")]
    refusal(lambda: run_study(jobs, tmp_path, engine=engine), "no such device", "abacus", "cpu", "--device")
    assert list((tmp_path / "cells").iterdir()) == []

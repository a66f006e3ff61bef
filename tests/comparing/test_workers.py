"""Where jobs run: a process that dies loses one job at most, and nothing is left running."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import joblib
import pytest

import puidrec as pr
from puidrec.comparing import run as running
from puidrec.comparing.job import DataSpec, Job
from puidrec.comparing.run import DIED, finished, require_engine, run_jobs
from puidrec.data.dataset import Dataset

SMALL = DataSpec("simulated", options={"n_users": 60, "n_items": 40})


def jobs_of(seeds: int) -> list[Job]:
    return [
        Job(SMALL, "mf", seed, settings={"epochs": 3, "dim": 4, "l2": 0.1}) for seed in range(seeds)
    ]


def test_a_job_that_kills_its_process_ends_and_the_others_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = running.run_one

    def deadly(job: Job, data: Dataset | None = None, parent: int | None = None) -> running.Ended:
        if job.seed == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(job, data)

    deadly.__module__ = "__main__"  # so that it travels by value: no worker can import a test
    monkeypatch.setattr(running, "run_one", deadly)
    results = run_jobs(jobs_of(3), tmp_path, engine="local", workers=2)
    assert [result.job.seed for result in results] == [1, 2]
    assert [(failure.job.seed, failure.error) for failure in results.failures] == [(0, DIED)]
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2


def test_failures_are_one_line_and_stopping_ends_all_work(tmp_path: Path) -> None:
    wild = Job(SMALL, "mf", 0, settings={"lr": 1e30, "solver": "adam", "epochs": 3})
    foreign = Job(DataSpec("coat", tmp_path / "none"), "mf")
    endless = Job(SMALL, "mf", 0, settings={"epochs": 10**7, "patience": 0, "solver": "adam"})
    some = finished([wild, foreign, endless], {}, "local", 2)
    ended = [next(some) for _ in range(2)]
    words = sorted(str(error) for _, error, _ in ended)
    assert "diverged" in " ".join(words)
    assert "none" in " ".join(words)
    assert all(len(line.splitlines()) == 1 for line in words)
    some.close()  # in the middle of the endless one


def test_data_in_memory_travel_to_processes_and_give_the_same(
    tmp_path: Path, tiny_data: Dataset
) -> None:
    given = {"seeds": 2, "baselines": False, "dim": 3, "l2": 0.1, "epochs": 5}
    alone = pr.compare(tiny_data, ["mf", "ips"], **given)
    spread = pr.compare(tiny_data, ["mf", "ips"], workers=2, folder=tmp_path, **given)
    with joblib.parallel_config("threading", n_jobs=2):
        threads = pr.compare(tiny_data, ["mf", "ips"], **given)
    assert alone.rows == spread.rows == threads.rows
    assert len(list((tmp_path / "cells").glob("*.json"))) == 4


def test_a_comparison_goes_on_from_its_folder(
    tmp_path: Path, tiny_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    original = running.JobData.fit
    monkeypatch.setattr(
        running.JobData, "fit", lambda self, job: (fitted.append(job.name), original(self, job))[1]
    )
    given = {"baselines": False, "dim": 3, "l2": 0.1, "epochs": 5, "folder": tmp_path}
    pr.compare(tiny_data, ["mf"], seeds=1, **given)
    found = pr.compare(tiny_data, ["mf", "ips"], seeds=1, **given)
    assert fitted == ["mf", "ips"]
    found.save(tmp_path)
    assert (tmp_path / "report.html").is_file()


def test_a_budget_is_the_number_of_configurations(tiny_data: Dataset) -> None:
    given = {"seeds": 1, "baselines": False, "dim": 3, "l2": 0.1, "epochs": 5}
    found = pr.compare(tiny_data, ["ips", "bias"], budget=3, reference="ips", **given)
    tried = {row.label: row.trials for row in found.rows}
    assert tried == {"ips": 3, "bias": 1}
    assert "| configurations |" in repr(found)


def test_engines_by_name(refusal) -> None:
    require_engine("local")
    require_engine(None)
    refusal(lambda: require_engine("nope"), "unknown engine", "local")


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_package_that_is_not_there_is_one_line(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal
) -> None:
    for name in ("ray", "ray.util.joblib", "distributed"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    refusal(
        lambda: run_jobs(jobs_of(1), tmp_path / "out", engine=engine),
        f"needs the package {engine}",
        "pip install",
    )
    assert not (tmp_path / "out").exists()


def test_what_is_not_finished_in_time_is_left_for_another_time(tmp_path: Path) -> None:
    first, second, third = (Job(SMALL, "item-rate", seed) for seed in (0, 1, 2))
    run_jobs([first], tmp_path, engine="inline")
    results = run_jobs([first, second, third], tmp_path, engine="inline", minutes=0.0)
    assert [result.job for result in results] == [first, second]
    assert [(failure.job, failure.error) for failure in results.failures] == [
        (third, "not run yet")
    ]


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_a_device_that_is_not_here_is_one_line_before_anything_runs(
    engine: str, tmp_path: Path, refusal
) -> None:
    jobs = [
        Job(SMALL, method, 0, settings={"epochs": 3, "device": "abacus"})
        for method in ("mf", "ips")
    ]
    refusal(
        lambda: run_jobs(jobs, tmp_path, engine=engine),
        "no such device",
        "abacus",
        "cpu",
        "--device",
    )
    assert list((tmp_path / "cells").iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_ray_cluster_gives_the_same_bytes(
    tmp_path: Path, tiny_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from puidrec.comparing.comparison import Comparison

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wild = Job(SMALL, "ips", 0, settings={"lr": 1e30, "solver": "adam", "epochs": 3})
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        from ray.util.joblib import register_ray

        register_ray()
        given = {"seeds": 2, "baselines": False, "dim": 3, "l2": 0.1, "epochs": 5}
        with joblib.parallel_config("ray", n_jobs=2):  # as the how-to shows
            spread = pr.compare(tiny_data, ["mf", "ips"], **given)
        assert spread.rows == pr.compare(tiny_data, ["mf", "ips"], **given).rows
        for engine in ("ray", "inline"):
            results = run_jobs([*jobs_of(3), wild], tmp_path / engine, engine=engine, workers=2)
            assert len(results) == 3
            assert "diverged" in results.failures[0].error
            Comparison.of(results, "mf", ("uauc",)).save(tmp_path / engine)
    finally:
        ray.shutdown()
    for name in ("results.json", "summary.json", "table.md"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "inline" / name).read_bytes()

"""The Ray engine on a local cluster, started and stopped here: the same bytes, and a killed worker loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from puidrec.experiments import ray_engine
from puidrec.experiments.job import DataSpec, Job, ResultFolder
from puidrec.experiments.ray_engine import run_remotely
from puidrec.experiments.search import trials
from puidrec.experiments.study import run_study, write_study

SMALL = DataSpec("simulated", options={"n_users": 60, "n_items": 40})
QUICK = {"epochs": 4, "dim": 4}
JOBS = [Job(SMALL, method, seed, settings=QUICK, budget=2) for method in ("mf", "rd-dr") for seed in (0, 1)]


def test_a_job_comes_back_as_files_and_known_trials_travel_along(tmp_path: Path) -> None:
    error, made = run_remotely(JOBS[1].to_plain(), {})
    assert error is None
    assert len(made) == 3  # two trials and the job
    files, digest = ResultFolder(tmp_path), SMALL.load().sha256
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    first = files.load(JOBS[1], digest)
    known = ray_engine._known(JOBS[1], files)
    own = files.path(JOBS[1]).name
    assert {own, *known} == set(made)
    error, again = run_remotely(JOBS[1].to_plain(), known)
    assert (error, set(again)) == (None, {own})
    (tmp_path / own).write_bytes(again[own])
    second = files.load(JOBS[1], digest)
    assert first is not None
    assert second is not None
    assert first.row() == second.row()
    wild = Job(SMALL, "mf", 0, settings={**QUICK, "lr": 1e30, "solver": "adam"})
    assert "diverged" in (run_remotely(wild.to_plain(), {})[0] or "")


def test_without_ray_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    refusal(lambda: run_study(JOBS, tmp_path / "out", engine="ray"), "needs the package ray", "puidrec[ray]")
    assert not (tmp_path / "out").exists()


def test_a_search_waits_for_its_trials_and_no_trial_runs_twice(tmp_path: Path) -> None:
    small, large = (Job(SMALL, "mf", 0, settings=QUICK, budget=budget) for budget in (2, 3))
    plain = Job(SMALL, "mf", 1, settings=QUICK)
    nothing_to_choose = Job(SMALL, "item-rate", 0, budget=5)
    jobs, files = (small, large, plain, nothing_to_choose), ResultFolder(tmp_path)
    queue, order, ended = ray_engine._Queue(jobs, files), [], []
    while queue.waiting:
        job = queue.waiting.popleft()
        order.append(job)
        if job != trials(small)[1]:  # a failed trial leaves no file, and the search goes on without it
            files.path(job).write_bytes(b"done")
        if not queue.was_trial(job):
            ended.append(job)
    shared, third = trials(small), trials(large)[2]
    assert order == [*shared, small, third, large, plain, nothing_to_choose]
    assert ended == [small, large, plain, nothing_to_choose]
    assert not list(ray_engine._Queue(jobs[:1], files).waiting)[1:]  # all trials are known: the search alone


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_local_cluster_gives_the_same_bytes_and_survives_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    marker, log, original = str(tmp_path / "killed"), str(tmp_path / "log"), run_remotely
    victim = trials(JOBS[1])[1]  # the second trial of a search whose first one is done by then
    search = JOBS[1].key

    def deadly(plain: Mapping[str, Any], known: Mapping[str, bytes]) -> Any:
        key = Job.from_plain(plain).key
        with open(log, "a") as file:  # noqa: PTH123
            file.write(f"{key} {len(known)}\n")
        if key == victim.key and not os.path.exists(marker):  # noqa: PTH110
            open(marker, "w").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return original(plain, known)

    deadly.__module__ = "__main__"  # so that it travels by value: no worker can import a test
    monkeypatch.setattr(ray_engine, "run_remotely", deadly)
    wild = Job(SMALL, "ips", 0, settings={**QUICK, "lr": 1e30, "solver": "adam"})
    for engine in ("ray", "inline"):
        results = run_study([*JOBS, wild], tmp_path / engine, engine=engine, workers=2)
        assert len(results) == 4
        assert "diverged" in results.failures[0].error
        write_study(tmp_path / engine, results, "mf", ("uauc",))
    assert Path(marker).exists()
    tried = [line.split() for line in Path(log).read_text().splitlines()]
    keys = [key for key, _ in tried]
    assert keys.count(victim.key) == 2  # and nothing else was done twice
    assert len(keys) == len(set(keys)) + 1
    assert [search, "2"] in tried
    assert not ray.is_initialized()
    for name in ("results.json", "summary.json", "table.md"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "inline" / name).read_bytes()

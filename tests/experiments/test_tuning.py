"""Tuning: trials ranked by validation rows, never by test rows, and a best file that training takes."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from puidrec.errors import OutputError, PuidError
from puidrec.experiments import run_job as running
from puidrec.experiments import study
from puidrec.experiments.job import DataSpec, Job
from puidrec.experiments.study import Trial, tune, write_tuning
from puidrec.settings import Settings

JOB = Job(DataSpec("simulated", options={"n_users": 60, "n_items": 40}), "rd-ips", settings={"epochs": 5}, budget=4)


def test_trials_are_ranked_by_the_mean_validation_score_and_test_rows_stay_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "measure", lambda *_: pytest.fail("the test rows were looked at"))
    tried: dict[int, list[object]] = {3: [], 4: []}
    fit = running.JobData.fit
    monkeypatch.setattr(
        running.JobData,
        "fit",
        lambda m, job: (tried[job.seed].append(job.settings), fit(m, job))[1],
    )
    ranked = tune(JOB, [3, 4], tmp_path, engine="inline")
    assert tried[3] == tried[4]  # all seeds judge the same settings
    assert sorted(trial.number for trial in ranked) == [0, 1, 2, 3]
    scores = [trial.score for trial in ranked]
    assert scores == sorted(scores, reverse=True)
    for trial in ranked:
        assert trial.score == pytest.approx(sum(trial.scores.values()) / 2)
        assert set(trial.scores) == {3, 4}
        assert trial.settings["epochs"] == 5
    given = next(trial for trial in ranked if trial.number == 0)
    assert given.settings == {"epochs": 5}
    write_tuning(tmp_path, JOB, ranked)
    best = tomllib.loads((tmp_path / "best.toml").read_text())
    assert best.pop("protocol") == "rd"
    assert Settings.of(**best) == Settings.of("rd-ips", **ranked[0].settings)
    rows = json.loads((tmp_path / "trials.json").read_text())
    assert [row["trial"] for row in rows] == [trial.number for trial in ranked]


def test_a_larger_budget_trains_only_the_new_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = []
    original = running.JobData.fit
    monkeypatch.setattr(running.JobData, "fit", lambda self, job: (fitted.append(1), original(self, job))[1])
    tune(replace(JOB, budget=2), [0], tmp_path, engine="inline")
    tune(JOB, [0], tmp_path, engine="inline")
    assert len(fitted) == 4


def test_failures_rank_last_and_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    original = study.trials

    def wild(job: Job, draws_seed: int | None = None) -> list[Job]:
        made = original(job, draws_seed)
        return [replace(made[0], settings={**made[0].settings, "lr": 1e30, "solver": "adam"}), *made[1:]]

    monkeypatch.setattr(study, "trials", wild)
    ranked = tune(JOB, [0], engine="inline")
    assert ranked[-1].number == 0
    assert "diverged" in (ranked[-1].error or "")
    assert ranked[-1].score is None
    monkeypatch.setattr(study, "trials", lambda job, draws_seed: wild(job, draws_seed)[:1])
    with pytest.raises(PuidError, match="every trial of rd-ips failed"):
        tune(JOB, [0], engine="inline")


def test_without_scores_the_given_settings_come_first() -> None:
    assert Trial(0, {}, {0: None}).score is None
    ranked = tune(replace(JOB, settings={"epochs": 2, "select": "none"}, budget=3), [0], engine="inline")
    assert [trial.number for trial in ranked] == [0, 1, 2]
    assert len(tune(replace(JOB, method="bias"), [0], engine="inline")) == 1


def test_files_are_written_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(DataSpec("simulated"), "mf", 0)
    write_tuning(tmp_path, job, [Trial(0, {}, {0: 0.5})])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(before) == ["best.toml", "trials.json"]

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(study, "write_text", full)
    with pytest.raises(OutputError, match="No space"):
        write_tuning(tmp_path, job, [Trial(1, {"l2": 0.5}, {0: 0.75})])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

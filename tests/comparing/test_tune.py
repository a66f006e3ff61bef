"""Tuning: trials ranked by validation rows, never by test rows, and a best file that training
takes."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import puidrec as pr
from puidrec.comparing import run as running
from puidrec.comparing import tune as module
from puidrec.comparing.job import DataSpec, Job
from puidrec.comparing.tune import Trial, Tuning, tune_job
from puidrec.errors import OutputError, PuidError
from puidrec.settings import Settings

GIVEN = {"epochs": 5, "dim": 3, "l2": 0.1}
JOB = Job(
    DataSpec("simulated", options={"n_users": 60, "n_items": 40}),
    "rd-ips",
    settings=GIVEN,
    budget=4,
)


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
    tuning = tune_job(JOB, [3, 4], tmp_path, engine="inline")
    ranked = tuning.trials
    assert tuning.metric == "auc"
    assert tried[3] == tried[4]  # all seeds judge the same settings
    assert sorted(trial.number for trial in ranked) == [0, 1, 2, 3]
    scores = [trial.score for trial in ranked]
    assert scores == sorted(scores, reverse=True)
    for trial in ranked:
        assert trial.score == pytest.approx(sum(trial.scores.values()) / 2)
        assert set(trial.scores) == {3, 4}
        assert trial.settings["epochs"] == 5
    given = next(trial for trial in ranked if trial.number == 0)
    assert given.settings == GIVEN
    tuning.save(tmp_path)
    best = tomllib.loads((tmp_path / "best.toml").read_text())
    assert best.pop("protocol") == "rd"
    assert Settings.of(**best) == Settings.of("rd-ips", **ranked[0].settings)
    rows = json.loads((tmp_path / "trials.json").read_text())
    assert [row["trial"] for row in rows] == [trial.number for trial in ranked]


def test_a_larger_budget_trains_only_the_new_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    original = running.JobData.fit
    monkeypatch.setattr(
        running.JobData, "fit", lambda self, job: (fitted.append(1), original(self, job))[1]
    )
    tune_job(replace(JOB, budget=2), [0], tmp_path, engine="inline")
    tune_job(JOB, [0], tmp_path, engine="inline")
    assert len(fitted) == 4


def test_failures_rank_last_and_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.trials

    def wild(job: Job, draws_seed: int | None = None, *, likes: bool = False) -> list[Job]:
        made = original(job, draws_seed, likes=likes)
        return [
            replace(made[0], settings={**made[0].settings, "lr": 1e30, "solver": "adam"}),
            *made[1:],
        ]

    monkeypatch.setattr(module, "trials", wild)
    ranked = tune_job(JOB, [0], engine="inline").trials
    assert ranked[-1].number == 0
    assert "diverged" in (ranked[-1].error or "")
    assert ranked[-1].score is None
    monkeypatch.setattr(module, "trials", lambda job, seed, likes: wild(job, seed, likes=likes)[:1])
    with pytest.raises(PuidError, match="every trial of rd-ips failed"):
        tune_job(JOB, [0], engine="inline")


def test_without_scores_the_given_settings_come_first() -> None:
    assert Trial(0, {}, {0: None}).score is None
    found = tune_job(
        replace(JOB, settings={"epochs": 2, "select": "none"}, budget=3), [0], engine="inline"
    )
    assert [trial.number for trial in found.trials] == [0, 1, 2]
    assert found.metric is None
    assert "no validation rows" in repr(found)
    alone = tune_job(replace(JOB, method="bias"), [0], engine="inline")
    assert (len(alone.trials), alone.searched) == (1, ())


def test_files_are_written_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(DataSpec("simulated"), "mf", 0)
    Tuning(job, (Trial(0, {}, {0: 0.5}),), (), "random", "auc").save(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert sorted(before) == ["best.toml", "trials.json"]

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_text", full)
    with pytest.raises(OutputError, match="No space"):
        Tuning(job, (Trial(1, {"l2": 0.5}, {0: 0.75}),), (), "random", "auc").save(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_the_curve_is_the_best_so_far() -> None:
    scores = {0: 0.5, 1: 0.4, 2: None, 3: 0.7, 4: 0.6}
    made = [Trial(number, {}, {0: score}) for number, score in scores.items()]
    found = Tuning(Job(DataSpec("simulated"), "mf"), tuple(made[::-1]), (), "random", "auc")
    assert found.curve() == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.7), (4, 0.7)]
    drawn = found.plot().axes[0]
    assert drawn.lines[1].get_ydata().tolist() == [0.5, 0.5, 0.5, 0.7, 0.7]
    assert "auc" in drawn.get_ylabel()


class TestOptuna:
    """The sampler and the pruner of another package, and a study of the caller's own."""

    @pytest.fixture
    def fitted(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, object]]]:
        found: list[tuple[int, dict[str, object]]] = []
        original = running.JobData.fit

        def fit(self: running.JobData, job: Job) -> object:
            found.append((job.seed, dict(job.settings)))
            return original(self, job)

        monkeypatch.setattr(running.JobData, "fit", fit)
        return found

    def test_the_same_search_goes_on_from_its_files(self, tmp_path: Path, fitted) -> None:
        pytest.importorskip("optuna")
        job = replace(JOB, budget=11)
        first = tune_job(job, [0], tmp_path, sampler="tpe", engine="inline")
        assert (first.sampler, len(first.trials), len(fitted)) == ("tpe", 11, 11)
        again = tune_job(job, [0], tmp_path, sampler="tpe", engine="inline")
        assert again.trials == first.trials
        assert len(fitted) == 11

    def test_a_given_study_proposes_is_told_and_prunes(self, tiny_data, fitted) -> None:
        optuna = pytest.importorskip("optuna")

        class After(optuna.pruners.BasePruner):
            def prune(self, study: object, trial: object) -> bool:
                return trial.number == 1  # type: ignore[attr-defined]

        sampler = optuna.samplers.RandomSampler(seed=1)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=After())
        found = pr.tune(
            tiny_data, "rd-ips", budget=4, seeds=[5, 6], study=study, epochs=3, dim=3, l2=0.1
        )
        states = [trial.state.name for trial in study.trials]
        assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
        given_up = next(trial for trial in found.trials if trial.pruned)
        assert (given_up.number, set(given_up.scores), given_up.score) == (2, {5}, None)
        assert found.trials[-1] is given_up
        assert sorted(seed for seed, _ in fitted) == [5, 5, 5, 5, 6, 6, 6]
        drawn = [trial for trial in found.trials if trial.number and not trial.pruned]
        assert [trial.score for trial in drawn] == sorted(
            [study.trials[0].value, study.trials[2].value], reverse=True
        )
        assert pr.Recommender(**found.settings).settings.epochs == 3

    def test_what_is_not_installed_is_named_only_where_it_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch, refusal
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "optuna", None)
        refusal(
            lambda: tune_job(JOB, [0], sampler="tpe"), "needs the package optuna", "puidrec[tune]"
        )
        refusal(lambda: tune_job(JOB, [0], sampler="grid"), "unknown sampler", "random")
        found = tune_job(replace(JOB, budget=2), [0], sampler="auto", engine="inline")
        assert found.sampler == "random"

    def test_a_study_that_minimises_is_refused(self, refusal) -> None:
        optuna = pytest.importorskip("optuna")
        refusal(lambda: tune_job(JOB, [0], study=optuna.create_study()), "maximised", "MINIMIZE")

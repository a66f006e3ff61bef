"""The pages of the paper's tables and of the field: grids of `puid reproduce`, and implicit's ALS
beside the field's methods."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pages import Ask, version
from parts import Part, run_parts, summed_costs
from puidrec.comparing.job import Job, Result, ResultFolder
from puidrec.comparing.run import claim, run_jobs, run_one
from puidrec.data.split import Split
from puidrec.evaluation import evaluate_scores
from puidrec.report.study import ALS, field_text, paper_text
from puidrec.reproduce.grids import FIELD_METHODS, PAPER_METHODS
from puidrec.reproduce.run import (
    ReproductionPlan,
    plan_reproduction,
    reproduce,
    rounded,
    table_rows,
)

__all__ = ["field_text", "measure_field", "measure_paper", "paper_text"]
PAGE_METHODS = {"paper": (*PAPER_METHODS, "item-rate"), "field": FIELD_METHODS}
SEEDS = 1
"""Intervals are over users."""
METRICS = ("uauc", "ndcg@5", "auc")


def run_job(job: Job, folder: Path) -> None:
    """Fit and measure, and keep the result where `reproduce` looks for it."""
    _, error, text = run_one(job)
    if error is not None:
        raise RuntimeError(f"{job.data.title}, {job.preset}, {job.name}: {error}")
    ResultFolder(folder / "cells").save(job, text)


def parts_of(plan: ReproductionPlan, folder: Path) -> dict[str, tuple[Job, Part]]:
    """Job and part by name; jobs that pages share are one part, and the first seed goes first."""
    jobs = sorted((job for own in plan.jobs.values() for job in own), key=lambda job: job.seed)
    return {f"{job.key} {version(job.method)}": (job, (run_job, (job, folder))) for job in jobs}


def plan_of(ask: Ask, question: str) -> ReproductionPlan:
    """What a page is made of."""
    seeds = 1 if ask.quick else SEEDS
    return plan_reproduction([question], ask.data, seeds, quick=ask.quick, workers=ask.workers)


def measure(ask: Ask, question: str) -> tuple[ReproductionPlan, dict[str, Any]]:
    """A plan, and the summary of its run."""
    plan = plan_of(ask, question)
    parts = parts_of(plan, ask.folder)
    claim(ask.folder)
    run_parts({name: part for name, (_, part) in parts.items()}, ask.folder, ask.workers, ask.end)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of logs divided at random: that is the protocol here
        summary = reproduce(plan, ask.folder, minutes=-1.0)
    # where the data would be is of this machine only
    summary["skipped"] = [f"{name} is not here." for name in plan.found.missing]
    shared = {} if question == "paper" else parts_of(plan_of(ask, "paper"), ask.folder)
    kinds = {
        name: f"fits, {job.data.name}, {job.preset}"
        for name, (job, _) in parts.items()
        if name not in shared
    }
    summary["costs"] = summed_costs(ask.folder, kinds)
    return plan, summary


def measure_paper(ask: Ask) -> dict[str, Any]:
    """RQ1 to RQ4 and the ablation."""
    return measure(ask, "paper")[1]


def measure_field(ask: Ask) -> dict[str, Any]:
    """The field's methods, and ALS on the splits of `mf`."""
    plan, summary = measure(ask, "field")
    results = run_jobs(plan.jobs["field"], ask.folder, minutes=-1.0)
    rows = [*results, *(als_result(one) for one in results if one.job.method == "mf")]
    summary["tables"]["field"] = rounded(table_rows("field", rows))
    return summary


def als_result(beside: Result) -> Result:
    """ALS with its own settings, fitted to the liked rows of the training log, on the test rows of
    another result."""
    job: Job = beside.job
    split = job.load().split(job.protocol, job.seed, select=job.resolved.select)
    test = split.test
    found = evaluate_scores(
        test.user,
        als_scores(split, job.seed),
        test.label,
        metrics=METRICS,
        users=split.protocol.users,
    )
    return Result(
        replace(job, label=ALS),
        {name: float(found[name]) for name in METRICS},
        {**beside.context, "uniform_rows_given": 0, "solver": "its own"},
        None,
        {},
        found.per_user,
    )


def als_scores(split: Split, seed: int) -> np.ndarray:
    """Scores of the test rows."""
    import implicit
    import scipy.sparse as sp

    train, test = split.train, split.test
    liked = train.label == 1
    shape = (int(max(train.user.max(), test.user.max())) + 1,)
    shape += (int(max(train.item.max(), test.item.max())) + 1,)
    ones = np.ones(int(liked.sum()), np.float32)
    als = implicit.als.AlternatingLeastSquares(use_gpu=False, num_threads=1, random_state=seed)
    als.fit(sp.csr_matrix((ones, (train.user[liked], train.item[liked])), shape), False)
    scores: np.ndarray = np.einsum(
        "nd,nd->n", als.user_factors[test.user], als.item_factors[test.item]
    )
    return scores

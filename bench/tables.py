"""The pages of the paper's tables and of the field: grids of `puid reproduce`, and implicit's ALS
beside the field's methods."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from pages import Ask
from puidrec.comparing.job import Job, Result
from puidrec.comparing.run import run_jobs
from puidrec.data.split import Split
from puidrec.evaluation import evaluate_scores
from puidrec.report.reproduce import ALS, field_text, paper_text
from puidrec.reproduce.run import plan_reproduction, reproduce, rounded, table_rows

__all__ = ["field_text", "measure_field", "measure_paper", "paper_text"]
SEEDS = 3
METRICS = ("uauc", "ndcg@5", "auc")


def tell(words: str, done: int, total: int) -> None:
    """A line on standard output now and then."""
    if done % 20 == 0 or done == total:
        sys.stdout.write(f"{words} {done}/{total}\n")
        sys.stdout.flush()


def measure(ask: Ask, question: str) -> tuple[Any, dict[str, Any]]:
    """A plan, and the summary of its run."""
    seeds = 1 if ask.quick else SEEDS
    plan = plan_reproduction([question], ask.data, seeds, quick=ask.quick, workers=ask.workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of logs divided at random: that is the protocol here
        summary = reproduce(plan, ask.folder, engine="local", minutes=ask.minutes, tell=tell)
    # where the data would be is of this machine only
    summary["skipped"] = [f"{name} is not here." for name in plan.found.missing]
    return plan, summary


def measure_paper(ask: Ask) -> dict[str, Any]:
    """RQ1 to RQ4 and the ablation."""
    return measure(ask, "paper")[1]


def measure_field(ask: Ask) -> dict[str, Any]:
    """The field's methods, and ALS on the splits of `mf`."""
    plan, summary = measure(ask, "field")
    results = run_jobs(plan.jobs["field"], ask.folder, engine="none")
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

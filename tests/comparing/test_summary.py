"""Summaries: figures by hand, comparisons equal to those of `compare_all`, holes named and not
compared."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from puidrec.comparing.comparison import markdown
from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.comparing.summary import (
    DETERMINISTIC,
    SummaryRow,
    conditions,
    difference,
    figure,
    grouped,
    summarise,
)
from puidrec.evaluation.significance import PerUser, compare

DATA = DataSpec("simulated")
SHIFT = {"mf": 0.0, "good": 0.08, "same": 0.0, "bad": -0.08}


def made(
    label: str, seed: int, data: DataSpec = DATA, preset: str = "own", sign: float = 1.0
) -> Result:
    rng = np.random.default_rng(seed)
    noise = np.random.default_rng([seed, len(label)]).normal(0, 0.02, 80)
    values = 0.6 + rng.normal(0, 0.1, 80) + noise + SHIFT[label]
    error = PerUser(np.arange(80), 1.0 - values, rng.integers(1, 9, 80).astype(float))
    per_user = {"uauc": PerUser(np.arange(80), values), "mse": error}
    metrics = {"uauc": float(values.mean()), "mse": error.mean, "auc": 0.5 + SHIFT[label]}
    job = Job(data, "mf", seed, label=label, preset=preset)
    return Result(job, metrics, {"positive_rate": 0.25}, None, {}, per_user, 1.0)


def by_name(rows: list[SummaryRow]) -> dict[tuple[str, str], SummaryRow]:
    return {(row.label, row.metric): row for row in rows}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [made(label, seed) for seed in range(3) for label in SHIFT]


def test_means_and_intervals_by_hand(results: list[Result]) -> None:
    row = by_name(summarise(results, "mf", ["uauc"]))["good", "uauc"]
    values = [r.metrics["uauc"] for r in results if r.job.name == "good"]
    assert row.mean == pytest.approx(np.mean(values))
    assert row.sd == pytest.approx(np.std(values, ddof=1))
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (row.seed_low, row.seed_high) == (pytest.approx(low), pytest.approx(high))
    assert row.n_seeds == 3
    assert row.n_users == 80
    user_means = np.mean(
        [r.per_user["uauc"].values for r in results if r.job.name == "good"], axis=0
    )
    reach = 1.96 * user_means.std() / math.sqrt(80)  # the same users in every seed
    assert row.user_low == pytest.approx(row.mean - reach, abs=0.2 * reach)
    assert row.user_high == pytest.approx(row.mean + reach, abs=0.2 * reach)


def test_verdicts_and_the_direction_of_errors(results: list[Result]) -> None:
    rows = by_name(summarise(results, "mf", ["uauc", "mse"]))
    for metric in ("uauc", "mse"):
        assert [rows[label, metric].verdict for label in ("good", "same", "bad")] == [
            "wins",
            "ties",
            "loses",
        ]
        assert rows["mf", metric].is_reference
        assert rows["mf", metric].difference is None
    assert rows["good", "mse"].difference < 0
    alone = compare(
        [r.per_user["uauc"] for r in results if r.job.name == "good"],
        [r.per_user["uauc"] for r in results if r.job.name == "mf"],
    )
    good = rows["good", "uauc"]
    assert (good.difference, good.difference_low) == (
        pytest.approx(alone.difference),
        pytest.approx(alone.low),
    )
    assert good.p_value == pytest.approx(min(1.0, 3 * alone.p_value))  # Holm: the smallest of three


def test_a_pooled_metric_has_a_difference_but_no_verdict(results: list[Result]) -> None:
    row = by_name(summarise(results, "mf", ["auc"]))["good", "auc"]
    assert row.difference == pytest.approx(0.08)
    assert (row.verdict, row.p_value, row.user_low) == (None, None, None)
    assert difference(row) == "+0.0800"


def test_a_missing_seed_is_shown_and_not_compared(results: list[Result]) -> None:
    holed = [r for r in results if not (r.job.name == "good" and r.job.seed == 1)]
    rows = by_name(summarise(holed, "mf", ["uauc"]))
    assert rows["good", "uauc"].n_seeds == 2
    assert rows["good", "uauc"].verdict is None
    assert rows["good", "uauc"].difference is None
    assert rows["bad", "uauc"].verdict == "loses"
    no_reference = by_name(summarise([r for r in results if r.job.name != "mf"], "mf", ["uauc"]))
    assert all(row.verdict is None and not row.is_reference for row in no_reference.values())


def test_one_seed_has_no_seed_interval_and_tables_are_apart(results: list[Result]) -> None:
    masked = DataSpec("simulated", mask=("random", 0.5))
    more = [made(label, 0, masked, preset) for label in SHIFT for preset in ("own", "paper")]
    rows = summarise([*results, *more], "mf", ["uauc"])
    single = [row for row in rows if row.preset == "paper"]
    assert len(single) == 4
    assert all(
        row.sd is None and row.seed_low is None and row.user_low is not None for row in single
    )
    assert figure(single[0]) == f"{single[0].mean:.4f}"
    assert len(grouped(rows)) == markdown(rows, ["uauc"], "mf").count("\n| --- |") == 3


def test_two_jobs_of_one_name_are_refused(results: list[Result], refusal) -> None:
    refusal(lambda: summarise([*results, results[0]], "mf", ["uauc"]), "one name", "mf")
    refusal(lambda: summarise(results, "mf", ["nope"]), "unknown metric")


def test_the_table_is_sorted_and_says_what_it_stands_under(results: list[Result]) -> None:
    rows = summarise(results, "mf", ["uauc", "mse"])
    labels = list(dict.fromkeys(row.label for row in rows))
    assert labels[0] == "good"
    assert labels[-1] == "bad"
    assert summarise(results, "mf", ["mse"])[0].label == "good"
    assert conditions(rows) == (
        "protocol rd, 25.0% of test rows positive, 3 seeds, own settings; no uniform rows used"
    )
    text = markdown(rows, ["uauc", "mse"], "mf", ["x on y, seed 1: no"])
    assert "| method | uauc | against mf | mse | against mf |" in text
    assert text.index("| good |") < text.index("| mf |") < text.index("| bad |")
    assert "wins" in text
    assert "| reference |" in text
    assert "* x on y, seed 1: no" in text


def test_one_seed_says_what_its_intervals_leave_out(results: list[Result]) -> None:
    one = [result for result in results if result.job.seed == 0]
    for chosen, said in ((one, True), (results, False)):
        page = markdown(summarise(chosen, "mf", ["uauc"]), ["uauc"], "mf")
        assert ("training noise is not in the intervals" in page) is said
        assert "* uauc: " in page  # one headline per metric


def test_what_differs_between_rows_is_a_column_and_what_does_not_is_said_once() -> None:
    def given(label: str, trials: int, rows: int, solver: str = "least-squares") -> list[Result]:
        more = {"trials": trials, "uniform_rows_given": rows, "new_users": 4, "solver": solver}
        found = [made(label, seed) for seed in range(2)]
        return [replace(result, context={**result.context, **more}) for result in found]

    same = summarise([*given("mf", 3, 28), *given("good", 3, 28)], "mf", ["uauc"])
    words = conditions(same)
    assert "3 configurations tried per method and seed" in words
    assert "28 uniform rows used" in words
    assert "4 test users have no training row" in words
    page = markdown(same, ["uauc"], "mf")
    assert "| configurations |" not in page
    assert DETERMINISTIC in page
    other = summarise([*given("mf", 1, 0), *given("good", 3, 1028, "adam")], "mf", ["uauc"])
    assert "uniform rows" not in conditions(other)
    page = markdown(other, ["uauc"], "mf")
    assert "| uauc | against mf | configurations | uniform rows used |" in page
    assert "| 3 | 1,028 |" in page
    assert "and what good draws at random." in page
    assert DETERMINISTIC not in page

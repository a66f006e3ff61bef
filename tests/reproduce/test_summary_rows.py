"""Tables beside the paper's figures, paired comparisons, limits, and facts on the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.evaluation.significance import PerUser
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import resolve_gamma
from puidrec.reproduce.summary_rows import (
    chance,
    contrast_rows,
    fact_rows,
    limit_rows,
    printed_gamma,
    table_rows,
)

USERS = np.arange(300)


def result(
    label: str,
    mean: float,
    seed: int,
    method: str | None = None,
    mask: tuple[str, float] | None = None,
) -> Result:
    """A made result: users differ a little around the mean, more for each seed."""
    values = mean + 0.01 * np.random.default_rng([seed, len(label)]).normal(size=USERS.size)
    values += mean - values.mean()
    per_user = {metric: PerUser(USERS, values) for metric in ("uauc", "ndcg@5")}
    job = Job(DataSpec("coat", mask=mask), method or label, seed, "ge3", {}, label, "paper")  # type: ignore[arg-type]
    return Result(
        job, dict.fromkeys(("uauc", "ndcg@5"), mean), {"positive_rate": 0.4}, None, {}, per_user
    )


def made() -> list[Result]:
    means = {"mf": 0.60, "rd-ips": 0.62, "puid-ips": 0.64, "item-rate": 0.62}
    rows = [result(label, mean, seed) for label, mean in means.items() for seed in range(2)]
    return rows + [result("puid-ips, random Γ", 0.6402, seed, "puid-ips") for seed in range(2)]


def test_contrasts_say_who_is_ahead() -> None:
    rows = [row for row in contrast_rows("rq1", made()) if row["metric"] == "uauc"]
    verdict = {
        (row["method"], row["against"]): (row["verdict"], round(row["difference"], 4))
        for row in rows
    }
    assert verdict["puid-ips", "rd-ips"] == ("wins", 0.02)
    assert verdict["puid-ips", "puid-ips, random Γ"][0] == "ties"
    assert verdict["mf", "item-rate"] == ("loses", -0.02)
    assert verdict["puid-ips", "item-rate"] == ("wins", 0.02)
    assert ("puid-dr", "rd-dr") not in verdict


def test_a_method_that_lost_a_seed_is_compared_on_the_others_only() -> None:
    results = [r for r in made() if (r.job.name, r.job.seed) != ("puid-ips", 1)]
    rows = contrast_rows("rq1", results)
    pair = next(row for row in rows if (row["method"], row["against"]) == ("puid-ips", "rd-ips"))
    assert pair["n_seeds"] == 1
    assert not [row for row in rows if (row["method"], row["against"]) == ("puid-ips", "item-rate")]


def test_tables_stand_beside_the_printed_figures() -> None:
    rows = {(row["label"], row["metric"]): row for row in table_rows("rq1", made())}
    puid = rows["puid-ips", "uauc"]
    assert (puid["paper"], puid["source"]) == (0.6763, "coat")
    assert puid["paper_difference"] == pytest.approx(0.64 - 0.6763)
    assert puid["difference"] == pytest.approx(0.04)
    assert rows["puid-ips, random Γ", "uauc"]["paper"] is None  # the paper has no such row
    assert rows["item-rate", "uauc"]["paper"] is None


@pytest.mark.parametrize(("kind", "figure"), [("random", 0.6253), ("positives", None)])
def test_masked_tables_know_their_ratio_and_kind(kind: str, figure: float | None) -> None:
    rows = table_rows(
        "rq2",
        [result("puid-ips", 0.6, 0, mask=(kind, 0.8)), result("mf", 0.5, 0, mask=(kind, 0.8))],
    )
    row = next(row for row in rows if row["label"] == "puid-ips" and row["metric"] == "uauc")
    assert row["mask"] == [kind, 0.8]
    assert row["paper"] == figure


def test_series_of_the_ablation_have_their_own_reference() -> None:
    labels = ("A1 puid-ips, α = 2, β = 5", "A2 x", "B1 puid-dr, α = 2, β = 5", "B2 x")
    rows = table_rows("ablation", [result(label, 0.6, 0, "puid-ips") for label in labels])
    assert {row["label"] for row in rows if row["is_reference"]} == {labels[0], labels[2]}


def test_fits_whose_best_epoch_was_the_last_are_counted() -> None:
    results = [
        replace(result(method, 0.6, 0), settings={"epochs": 9}, context={"best_epoch": best})
        for method, best in (("mf", 9), ("ips", 8), ("item-rate", 0))
    ]
    assert limit_rows(results) == [
        {"data": "coat", "preset": "paper", "fits": 2, "at_the_limit": 1, "epochs": 9}
    ]


def test_rows_of_a_data_set(small_root: Path) -> None:
    rows = fact_rows("coat", small_root / "coat", 5)
    kinds = [(row["experiment"], row.get("features"), row["protocol"]) for row in rows]
    assert kinds == [
        ("gamma", "pseudo", "rd"),
        ("chance", None, "rd"),
        ("chance", None, "paper"),
        ("chance", None, "ge3"),
        ("gamma", "real", "rd"),
    ]
    assert [row["protocol"] for row in fact_rows("kuairec", small_root / "kuairec", 2)] == [
        "rd",
        "rd",
    ]
    assert len(fact_rows("ml-100k", small_root / "ml-100k", 2)) == 1


def test_users_of_one_activity_give_no_user_term(small_root: Path) -> None:
    facts = printed_gamma(load_dataset("coat", small_root / "coat"), 5)
    assert facts["user_degrees"] == [8, 8]
    assert facts["gain_user"]["plugin"] == pytest.approx(0.0, abs=1e-12)
    assert facts["gain_item"]["plugin"] > 0
    assert facts["value"] == pytest.approx(5 * facts["gain_item"]["plugin"])
    assert facts["share_below_one"] == pytest.approx(1.0)
    assert facts["mean_gamma"] >= 1.0


def test_mean_gamma_is_that_of_the_rule(small_root: Path) -> None:
    data = load_dataset("ml-100k", small_root / "ml-100k")
    log = data.split("rd", 0).train
    sides = {"users": data.users, "items": data.items}
    evidence = Evidence.from_log(
        log.user, log.item, n_users=data.n_users, n_items=data.n_items, **sides
    )
    gamma = resolve_gamma("information", alpha=2, beta=5, n_permutations=7).fit(evidence, 0)
    user, item = (axis.ravel() for axis in np.indices((data.n_users, data.n_items)))
    assert printed_gamma(data, 7)["mean_gamma"] == pytest.approx(
        np.exp(np.log(gamma.at(user, item)).mean()), rel=1e-6
    )


def test_chance_is_a_half(small_root: Path) -> None:
    data = load_dataset("kuairec", small_root / "kuairec", rng=0)
    facts = chance(data, "kuairec", "rd")
    assert facts["uauc"] == pytest.approx(0.5, abs=0.04)
    assert facts["positive_rate"] == pytest.approx(float(data.split("rd", 0).test.label.mean()))

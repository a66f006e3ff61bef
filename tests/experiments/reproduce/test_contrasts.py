from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from puidrec.evaluation.significance import PerUser
from puidrec.experiments.cells import Cell, DataSpec, Result
from puidrec.experiments.reproduce.contrasts import contrast_rows, limit_rows, table_rows

USERS = np.arange(300)


def result(
    label: str, mean: float, seed: int, method: str | None = None, mask: tuple[str, float] | None = None
) -> Result:
    """A made result: users differ a little around the mean, more for each seed."""
    values = mean + 0.01 * np.random.default_rng([seed, len(label)]).normal(size=USERS.size)
    values += mean - values.mean()
    per_user = {metric: PerUser(USERS, values) for metric in ("uauc", "ndcg@5")}
    cell = Cell(DataSpec("coat", mask=mask), method or label, seed, "ge3", {}, label, "paper")  # type: ignore[arg-type]
    return Result(cell, dict.fromkeys(("uauc", "ndcg@5"), mean), {"positive_rate": 0.4}, None, {}, per_user)


def made() -> list[Result]:
    means = {"mf": 0.60, "rd-ips": 0.62, "puid-ips": 0.64, "item-rate": 0.63}
    rows = [result(label, mean, seed) for label, mean in means.items() for seed in range(2)]
    return rows + [result("puid-ips, random Γ", 0.6402, seed, "puid-ips") for seed in range(2)]


def test_contrasts_say_who_is_ahead() -> None:
    rows = [row for row in contrast_rows("rq1", made()) if row["metric"] == "uauc"]
    verdict = {(row["method"], row["against"]): (row["verdict"], round(row["difference"], 4)) for row in rows}
    assert verdict["puid-ips", "rd-ips"] == ("wins", 0.02)
    assert verdict["puid-ips", "puid-ips, random Γ"][0] == "ties"
    assert verdict["mf", "item-rate"] == ("loses", -0.03)
    assert verdict["puid-ips", "item-rate"] == ("wins", 0.01)
    assert ("puid-dr", "rd-dr") not in verdict


def test_a_method_that_lost_a_seed_is_compared_on_the_others_only() -> None:
    results = [r for r in made() if (r.cell.name, r.cell.seed) != ("puid-ips", 1)]
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
    rows = table_rows("rq2", [result("puid-ips", 0.6, 0, mask=(kind, 0.8)), result("mf", 0.5, 0, mask=(kind, 0.8))])
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
    assert limit_rows(results) == [{"data": "coat", "preset": "paper", "fits": 2, "at_the_limit": 1, "epochs": 9}]

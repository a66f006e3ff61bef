from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.experiments.reproduce.facts import chance, fact_rows, printed_gamma
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.gamma import resolve_gamma


def test_rows_of_a_data_set(small_root: Path) -> None:
    rows = fact_rows("coat", small_root / "coat", 5)
    kinds = [(row["experiment"], row.get("features"), row["protocol"]) for row in rows]
    assert kinds == [
        ("gamma", "pseudo", "rd"), ("chance", None, "rd"), ("chance", None, "paper"), ("chance", None, "ge3"),
        ("gamma", "real", "rd"),
    ]  # fmt: skip
    assert [row["protocol"] for row in fact_rows("kuairec", small_root / "kuairec", 2)] == ["rd", "rd"]
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
    evidence = Evidence.from_log(log.user, log.item, n_users=data.n_users, n_items=data.n_items, **sides)
    gamma = resolve_gamma("information", alpha=2, beta=5, n_permutations=7).fit(evidence, 0)
    user, item = (axis.ravel() for axis in np.indices((data.n_users, data.n_items)))
    assert printed_gamma(data, 7)["mean_gamma"] == pytest.approx(np.exp(np.log(gamma.at(user, item)).mean()), rel=1e-6)


def test_chance_is_a_half(small_root: Path) -> None:
    data = load_dataset("kuairec", small_root / "kuairec", rng=0)
    facts = chance(data, "kuairec", "rd")
    assert facts["uauc"] == pytest.approx(0.5, abs=0.04)
    assert facts["positive_rate"] == pytest.approx(float(data.split("rd", 0).test.label.mean()))

"""The card of a model: what is known is said, what is not is left out, and nothing in a name breaks
the page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from puidrec.auditing.audit import audit
from puidrec.data.dataset import Dataset
from puidrec.evaluation import evaluate
from puidrec.methods import METHODS
from puidrec.model import Recommender
from puidrec.report.page import assumptions

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tiny_data: Dataset) -> Recommender:
    return Recommender("bias").fit(tiny_data, protocol="rd")


def test_a_card_says_what_is_known(model: Recommender, tiny_data: Dataset) -> None:
    split = tiny_data.split("rd", 0)
    found = evaluate(model, split.test, ["uauc", "auc", "rmse"])
    card = model.to_card(tiny_data, split, found)
    assert re.findall(r"^##? (.*)$", card, re.M) == [
        f"Model card: bias on {tiny_data.name}",
        "Data",
        "Method",
        "Assumptions",
        "Metrics",
        "Audit",
    ]
    for name in ("uauc", "auc", "rmse"):
        band = found.interval(name)
        assert f"| {name} | {found[name]:.4f} | {band.low:.4f} … {band.high:.4f} |" in card
    assert f"{len(split.test):,} uniform test rows" in card
    assert tiny_data.sha256 in card
    assert "not corrected" in card
    assert "No audit was made" in card
    assert "chosen by users" not in card
    alone = replace(tiny_data, uniform=None, repeated=None)
    assert "chosen by users" in model.to_card(alone, alone.split(), found)


def test_a_card_without_anything_else(model: Recommender) -> None:
    card = model.to_card()
    assert "60 users × 40 items" in card
    assert "Not measured here" in card


def test_the_verdict_of_an_audit(model: Recommender, tiny_data: Dataset) -> None:
    found = audit(model, tiny_data, Recommender("item-rate").fit(tiny_data), replicates=50)
    card = model.to_card(tiny_data, audit=found)
    assert f"**{found.verdict}**: {found.sentence}" in card


def test_names_break_nothing(model: Recommender, tiny_data: Dataset) -> None:
    named = replace(tiny_data, name="my | <script>\nlog\x1b[2J")
    card = model.to_card(named)
    assert card.splitlines()[0] == "# Model card: bias on my \\| &lt;script> log [2J"
    assert "\x1b" not in card


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_it_assumes(name: str) -> None:
    spec = METHODS[name]
    words = assumptions(spec, adjusts=True)
    assert ("at most Γ" in words) == (spec.uncertainty != "none")
    assert ("pick what they like" in words) == name.startswith("signed-")
    assert ("counts as disliked" in words) == (name in ("all-rank", "ease", "popularity"))
    assert ("not corrected" in words) == (
        not spec.uses_propensity
        and spec.uncertainty == "none"
        and not spec.uses_uniform
        and spec.needs_levels
    )

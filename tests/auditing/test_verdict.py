"""Verdicts at their thresholds, and one clause that says them."""

from __future__ import annotations

import pytest

from puidrec.auditing.envelope import Tipping
from puidrec.auditing.estimates import Limits
from puidrec.auditing.measured import Measured
from puidrec.auditing.verdict import Lead, Yardstick, sentence, single_sentence

INF = float("inf")
AHEAD, BEHIND, OPEN = Limits(0.1, 0.05, 0.15), Limits(-0.1, -0.15, -0.05), Limits(-0.1, -0.15, 0.05)
MEASURED = {
    "": None,
    "ahead": Measured(400, AHEAD),
    "behind": Measured(400, BEHIND),
    "open": Measured(400, OPEN),
    "together": Measured(400, OPEN, AHEAD, AHEAD),
    "against together": Measured(400, AHEAD, BEHIND, OPEN),
    "disagree": Measured(400, AHEAD, BEHIND, None),
}


def lead(
    gamma: float,
    low: float,
    high: float,
    measured: str = "",
    known: float | None = 1.5,
    leak: str = "",
) -> Lead:
    """A lead of that tipping point; the lead in the log is beyond chance if the interval of Γ* is
    above 1."""
    found = (
        AHEAD if low > 1 else Limits(0.1, -0.05, 0.25) if gamma > 1 else Limits(-0.1, -0.2, -0.05)
    )
    yardstick = None if known is None else Yardstick("what you believe to be the most", known)
    return Lead(
        "squared error",
        Tipping(gamma, low, high, found, gamma),
        MEASURED[measured],
        leak,
        yardstick,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lead(1.0, 1.0, 1.0), "undecided"),
        (lead(1.2, 1.0, 1.4), "undecided"),
        (lead(1.2, 1.1, 1.4), "fragile"),
        (lead(2.0, 1.51, 3.0), "robust"),
        (lead(2.0, 1.5, 3.0), "fragile"),
        (lead(2.0, 1.9, 3.0, known=None), "undecided"),  # nothing is known of Γ: no adjective
        (lead(INF, INF, INF), "robust"),
        (lead(INF, INF, INF, known=None), "undecided"),
        (lead(INF, 1.0, INF), "undecided"),
        (lead(9.0, 8.0, INF, leak="leakage"), "undecided"),
        (lead(9.0, 8.0, INF, "ahead", leak="leakage"), "confirmed"),  # uniform rows trained nobody
        (lead(1.0, 1.0, 1.0, "ahead"), "confirmed"),
        (lead(1.0, 1.0, 1.0, "ahead", known=None), "confirmed"),
        (lead(2.2, 2.1, 3.0, "behind"), "refuted"),
        (lead(1.0, 1.0, 1.0, "behind"), "refuted"),
        (lead(2.2, 2.1, 3.0, "open"), "robust"),  # what they leave open, the envelope answers
        (lead(1.2, 1.1, 3.0, "open"), "fragile"),
        (lead(1.0, 1.0, 1.0, "together"), "confirmed"),
        (
            lead(1.0, 1.0, 1.0, "against together"),
            "undecided",
        ),  # together decides, where both agree within chance
        (lead(1.0, 1.0, 1.0, "disagree"), "confirmed"),  # where they do not, uniform rows alone
    ],
)
def test_thresholds(found: Lead, expected: str) -> None:
    assert found.verdict == expected


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        (lead(1.0, 1.0, 1.0), ("undecided", "the log shows b ahead, not a")),
        (
            lead(1.2, 1.0, 1.4),
            ("undecided", "shows a ahead, but not beyond chance", "-0.0500 to 0.2500"),
        ),
        (
            lead(1.2, 1.0, 1.4, "ahead"),
            ("Measured: a is ahead of b in squared error", "on 400 uniform ratings)"),
        ),
        (
            lead(1.2, 1.0, 1.4, "together"),
            ("Measured: a is ahead", "400 uniform ratings and the log adjusted by them"),
        ),
        (lead(2.2, 2.1, 3.0, "behind"), ("Measured: b is ahead of a", "difference -0.1000")),
        (
            lead(2.2, 1.4, INF),
            ("fragile", "Γ* = 2.20 (95 % 1.40 to ∞)", "not clearly more than what you believe"),
        ),
        (
            lead(4.2, 3.9, 5.0),
            ("robust", "Γ* = 4.20", "more than what you believe to be the most (Γ = 1.50)"),
        ),
        (
            lead(2.2, 2.0, 3.0, known=None),
            ("The log shows a ahead of b", "stays below Γ* = 2.20 (95 % 2.00 to 3.00)"),
        ),
        (lead(INF, INF, INF, known=None), ("The log shows a ahead of b", "whatever Γ is")),
        (
            lead(9.0, 8.0, INF, leak="leakage, scores of a (97 %)"),
            ("undecided", "show nothing: leakage", "97 %"),
        ),
    ],
)
def test_one_plain_clause(found: Lead, parts: tuple[str, ...]) -> None:
    text = sentence(("a", "b"), found)
    assert text.endswith(".")
    assert text.count(". ") == 0
    assert text.count(";") == 0
    assert "\n" not in text
    assert "inf" not in text
    for part in parts:
        assert part in text


@pytest.mark.parametrize("word", ["robust", "fragile"])
def test_no_adjective_where_nothing_is_known_of_gamma(word: str) -> None:
    for gamma in (1.1, 2.0, 9.0, INF):
        assert word not in sentence(("a", "b"), lead(gamma, gamma, gamma, known=None))


def test_models_that_do_not_differ_are_level() -> None:
    level = Lead("squared error", Tipping(1.0, 1.0, 1.0, Limits(0.0, 0.0, 0.0), 1.0))
    assert level.verdict == "undecided"
    assert "do not tell them apart" in sentence(("a", "b"), level)


def test_a_metric_of_uniform_rows_alone() -> None:
    found = Lead("NDCG@10", None, Measured(400, OPEN))
    assert (found.verdict, found.tipping_point, found.interval, found.lead) == (
        "undecided",
        None,
        None,
        None,
    )
    assert "uniform ratings do not show who is ahead" in sentence(("a", "b"), found)
    assert Lead("NDCG@10", None, Measured(400, AHEAD)).verdict == "confirmed"


def test_one_model_alone() -> None:
    text = single_sentence("mf", 0.05, 0.03, 0.08, 1.5)
    assert "0.0500" in text
    assert "between 0.0300 and 0.0800" in text

"""A made summary in, files for people out: sentences must follow the figures, whichever they are."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from puidrec.atomic import write_json
from puidrec.report.reproduce import (
    findings,
    page_text,
    results_text,
    table_text,
    write_reproduction,
)

FLOOR = "against the item rate"
COMMAND = "puid reproduce all --data-root DIR --seeds 3 --out DIR"


def table_row(label: str, mean: float, paper: float | None = None, **more: Any) -> dict[str, Any]:
    row = {
        "experiment": "rq1",
        "source": "coat",
        "data": "coat",
        "preset": "paper",
        "protocol": "ge3",
        "label": label,
        "method": label,
        "metric": "uauc",
        "higher_is_better": True,
        "positive_rate": 0.399,
        "n_seeds": 3,
        "n_users": 232,
        "mean": mean,
        "sd": 0.01,
        "seed_low": mean - 0.02,
        "seed_high": mean + 0.02,
        "user_low": mean - 0.025,
        "user_high": mean + 0.025,
        "is_reference": label == "mf",
        "difference": None if label == "mf" else mean - 0.66,
        "difference_low": None,
        "difference_high": None,
        "p_value": None,
        "verdict": None if label == "mf" else "wins",
        "mask": None,
        "paper": paper,
        "paper_difference": None if paper is None else mean - paper,
    }
    return {**row, **more}


def contrast(
    verdict: str, kind: str = "personalised against random Γ", **more: Any
) -> dict[str, Any]:
    row = {
        "experiment": "rq1",
        "data": "coat",
        "source": "coat",
        "preset": "paper",
        "protocol": "ge3",
        "metric": "uauc",
        "kind": kind,
        "method": "puid-ips",
        "against": "puid-ips, random Γ",
        "difference": -0.0012,
        "low": -0.01,
        "high": 0.008,
        "p_value": 0.7,
        "verdict": verdict,
        "n_users": 232,
        "n_seeds": 3,
    }
    return {**row, **more}


def gamma_fact(value: float, below: float, degrees: tuple[int, int], user: float) -> dict[str, Any]:
    return {
        "experiment": "gamma",
        "data": "coat",
        "method": "Γ as printed",
        "protocol": "rd",
        "seed": 0,
        "features": "pseudo",
        "alpha": 2.0,
        "beta": 5.0,
        "H": 0.28,
        "value": value,
        "share_below_one": below,
        "share_below_one_local": below,
        "gain_user": {"plugin": user, "miller-madow": user, "permutation": user},
        "mean_gamma": 1.002,
        "max_gamma": 1.1,
        "gain_item": {"plugin": 0.03, "miller-madow": 0.02, "permutation": 0.02},
        "user_degrees": list(degrees),
        "chance_user": [0.0, 0.0],
        "chance_item": [0.0, 0.0],
    }


def mean(value: float) -> dict[str, Any]:
    return {"n": 10, "mean": value, "low": value - 0.001, "high": value + 0.001}


@pytest.fixture
def summary() -> dict[str, Any]:
    return made_summary()


def made_summary() -> dict[str, Any]:
    ratios = [
        {
            "control": control,
            "share_user": u,
            "share_item": i,
            "ratio": ratio,
            "estimator": estimator,
            "of": 10,
            "positive": 1.0,
            **mean(0.1 * u),
        }
        for control in ("none", "permuted")
        for u in (2, 3, 4, 5)
        for i in (2, 3, 4, 5)
        for ratio in ("ratio_user", "ratio_item")
        for estimator in ("plugin", "miller-madow", "permutation")
    ]
    gains = [
        {
            "control": control,
            "step": step,
            "plugin": 0.04,
            "noise": 0.03,
            "permutation": 0.01,
            "artefact": 0.75,
            "beyond_chance": 0.5,
        }
        for control in ("none", "permuted")
        for step in ("x_u", "x_i", "h_u", "h_i")
    ]
    side = {
        "features": 3,
        "rising": {"plugin": 1.0, "noise": 0.95, "permutation": 0.6},
        "artefact_at_the_end": 0.98,
        "final": {"plugin": mean(0.06), "noise": mean(0.0588), "permutation": mean(0.0012)},
        "beyond_chance": 0.1,
    }
    steps = [
        {
            "side": s,
            "hidden": k,
            "of": 3,
            "plugin": mean(0.02 * k),
            "noise": mean(0.019 * k),
            "beyond_chance": 0.1,
            "permutation": mean(0.001 * k),
            "miller-madow": mean(0.019 * k),
        }
        for s in ("user", "item")
        for k in (1, 2, 3)
    ]
    tables = [
        table_row("mf", 0.66, 0.6606),
        table_row("puid-ips", 0.68, 0.6763),
        table_row("mf", 0.73, 0.6606, protocol="paper"),
        table_row("puid-ips", 0.72, 0.6763, protocol="paper"),
        table_row("mf", 0.70, None, experiment="rq2", mask=["positives", 0.5], data="coat, masked"),
        table_row("mf", 0.70, 0.66, experiment="rq2", mask=["random", 0.1], data="coat, masked"),
        table_row("A1 x", 0.7, experiment="ablation", is_reference=True),
        table_row("B1 x", 0.7, experiment="ablation"),
        table_row("mf", 0.79, 0.6781, source="kuairec", protocol="rd"),
        table_row("mf", 0.75, 0.6781, source="kuairec", protocol="rd", preset="paper-overlapping"),
    ]
    chance = {
        "experiment": "chance",
        "data": "coat",
        "protocol": "ge3",
        "positive_rate": 0.4,
        "test_rows": 4176,
        "uauc": 0.5,
        "ndcg@5": 0.43,
        "method": "random order",
        "seed": 0,
    }
    return {
        "questions": ["rq1", "rq2", "rq3", "rq4", "ablation"],
        "seeds": 3,
        "quick": False,
        "reference": "mf",
        "presets": {"own": "ours", "paper": "the paper's", "paper-overlapping": "overlapping"},
        "tables": tables,
        "contrasts": [
            contrast("ties"),
            contrast("ties"),
            contrast("loses", FLOOR, against="item-rate"),
        ],
        "rq3": {"ratios": ratios, "gains": gains, "orders": 10, "data": "ml-100k"},
        "rq4": {
            "steps": steps,
            "sides": {"user": side, "item": {**side, "artefact_at_the_end": 0.4}},
            "orders": 10,
            "data": "ml-100k",
        },
        "facts": [gamma_fact(0.0051, 1.0, (24, 24), 0.0), chance],
        "skipped": ["yahoo-r3 is skipped: get it."],
        "notes": {"rq1": ["A note."]},
        "failed": [],
        "limits": [
            {"data": "coat", "preset": "own", "fits": 9, "at_the_limit": 0, "epochs": 300},
            {"data": "kuairec", "preset": "paper", "fits": 12, "at_the_limit": 7, "epochs": 150},
        ],
    }


def found(summary: dict[str, Any]) -> dict[str, str]:
    return {point.title: point.text for point in findings(summary)}


def test_sentences_follow_the_figures(summary: dict[str, Any]) -> None:
    text = found(summary)
    assert "allows no hidden confounding" in text["Γ as printed"]
    assert "every user has 24 logged ratings" in text["The user term on Coat"]
    assert "ge3 fits best" in text["The protocol behind the figures on Coat"]
    assert "0 are won, 2 tied, 0 lost" in text["Personalised against random Γ"]
    assert "No personalised method is ahead" in text["Personalised against random Γ"]
    assert "0 of 1 rows win, 0 tie, 1 lose" in text["Against the item rate on Coat, preset paper"]
    assert "-0.040" in text["Scoring training pairs on KuaiRec"]
    assert "So the sign says nothing." in text["RQ3, user side"]
    assert "98% is artefact" in text["RQ4, hidden user features"]
    assert "40% is artefact" in text["RQ4, hidden item features"]
    assert "7 of 12 on KuaiRec under preset paper (limit 150)" in text["Fits cut short"]
    assert "Coat" not in text["Fits cut short"]


def test_other_figures_other_sentences(summary: dict[str, Any]) -> None:
    other = copy.deepcopy(summary)
    other["facts"] = [gamma_fact(1.3, 0.2, (3, 40), 0.01)]
    other["contrasts"] = [contrast("wins", difference=0.02), contrast("ties")]
    for row in other["rq3"]["ratios"]:
        row["positive"] = 0.1 if row["control"] == "permuted" else 1.0
    for row in other["tables"]:
        row["paper_difference"] = (
            None if row["paper"] is None else (0.5 if row["protocol"] == "ge3" else 0.1)
        )
    text = found(other)
    assert "has to be raised to 1" in text["Γ as printed"]
    assert "The user term on Coat" not in text
    assert "Ahead: puid-ips on Coat (paper)." in text["Personalised against random Γ"]
    assert "paper fits best" in text["The protocol behind the figures on Coat"]
    assert "So the sign says something." in text["RQ3, user side"]


def test_the_files_on_disk_are_enough(summary: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert results_text(read, COMMAND) == results_text(summary, COMMAND)
    assert list(found(read).items()) == list(found(summary).items())


def test_the_sixteen_ratios_are_listed_with_intervals(summary: dict[str, Any]) -> None:
    for row in summary["rq3"]["ratios"]:
        if (row["share_user"], row["share_item"], row["estimator"]) == (3, 4, "permutation"):
            row |= {"n": 0, "mean": None, "low": None, "high": None}
    text = table_text(summary)
    assert (
        "| 1/2 | 1/5 | 0.20 [0.20, 0.20] | 0.20 [0.20, 0.20] | 0.20 [0.20, 0.20] | 0.20 [0.20, 0.20] | 10 of 10 |"
        in text
    )
    assert (
        "| 1/3 | 1/4 | 0.30 [0.30, 0.30] | 0.30 [0.30, 0.30] | – | 0.30 [0.30, 0.30] | 0 of 10 |"
        in text
    )


def test_a_question_alone(summary: dict[str, Any]) -> None:
    alone = {
        **summary,
        "questions": ["rq3"],
        "tables": [],
        "contrasts": [],
        "rq4": {},
        "facts": [],
        "notes": {},
        "limits": [],
    }
    assert set(found(alone)) == {"RQ3, user side", "RQ3, item side"}
    assert "RQ4:" not in results_text(alone, COMMAND)


def test_results_page_shows_paper_ours_difference_protocol_and_rate(
    summary: dict[str, Any],
) -> None:
    text = results_text(summary, COMMAND)
    assert COMMAND in text
    assert "| puid-ips | 0.6763 | 0.6800 [0.655, 0.705] | +0.0037 | +0.0200 wins |" in text
    assert "Coat, preset paper, protocol ge3" in text
    assert "39.9% of the test rows are positive; 3 seeds" in text
    assert "share of the positive rows was removed" in text
    assert "yahoo-r3 is skipped" in text
    assert "quick run" not in text
    assert "quick run" in results_text({**summary, "quick": True}, COMMAND)
    assert "it diverged" in results_text(
        {
            **summary,
            "failed": [
                {"label": "dr", "data": "coat", "preset": "own", "seed": 1, "error": "it diverged"}
            ],
        },
        COMMAND,
    )
    assert "A note." in table_text(summary)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    out = tmp_path_factory.mktemp("written")
    return out, write_reproduction(out, made_summary(), COMMAND)


def test_every_file_is_there(written: tuple[Path, list[Path]]) -> None:
    out, paths = written
    names = {path.name for path in out.iterdir()}
    assert names == {path.name for path in paths}
    charts = {
        "rq1-coat-paper-ge3",
        "rq2-coat-paper-ge3",
        "rq3-ratio-user",
        "rq3-ratio-item",
        "rq4",
        "ablation-coat-paper-ge3",
    }
    assert {"report.html", "results.md", "table.md", *(f"{chart}.png" for chart in charts)} <= names
    assert all(
        (out / name).read_bytes()[:4] == b"\x89PNG" for name in names if name.endswith("png")
    )


def test_the_page_names_what_was_found(
    written: tuple[Path, list[Path]], summary: dict[str, Any]
) -> None:
    html = (written[0] / "report.html").read_text()
    assert html == page_text(summary, written[0], COMMAND)
    for part in (
        "What was found",
        "RQ1: methods compared",
        "98% is artefact",
        "data:image/png",
        "yahoo-r3 is skipped",
    ):
        assert part in html


def test_equal_summaries_give_equal_bytes(summary: dict[str, Any], tmp_path: Path) -> None:
    few = {**summary, "questions": ["rq1"], "tables": summary["tables"][:2], "rq3": {}, "rq4": {}}
    for out in ("a", "b"):
        write_reproduction(tmp_path / out, copy.deepcopy(few), COMMAND)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()

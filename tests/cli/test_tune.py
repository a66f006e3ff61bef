"""`puid tune`, called as a user calls it, and what `puid train` makes of its best file."""

from __future__ import annotations

import json
from pathlib import Path

SIZES = ("--set", "data.n_users=60", "--set", "data.n_items=40")
QUICK = (*SIZES, "--set", "epochs=4", "--engine", "inline")


def test_the_best_trial_trains_as_it_is(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = puid("tune", "--method", "rd-ips", "--budget", 4, *QUICK, "--out", out)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    for word in ("default", "score", "l2", "gamma", "best.toml", "next: puid train -c"):
        assert word in outcome.out
    trials = json.loads((out / "trials.json").read_text())
    assert len(trials) == 4
    trained = puid("train", "-c", out / "best.toml", "--data", "simulated", *SIZES, "--json")
    assert trained.code == 0, trained
    facts = json.loads(trained.out)
    assert facts["method"] == "rd-ips"
    assert facts["validation"] == trials[0]["validation"]  # the same model: seed 0, the same settings
    shown = puid("tune", "--method", "rd-ips", "--budget", 4, *QUICK, "--out", out, "--json")
    assert json.loads(shown.out) == trials


def test_several_seeds_and_many_trials(puid, tmp_path: Path) -> None:
    small = (*SIZES, "--set", "epochs=1", "--set", "dim=4", "--engine", "inline")
    outcome = puid("tune", "--method", "mf", "--budget", 12, "--seeds", 2, *small, "--out", tmp_path)
    assert outcome.code == 0, outcome
    assert "2 more trials" in outcome.out
    assert set(json.loads((tmp_path / "trials.json").read_text())[0]["seeds"]) == {"0", "1"}


def test_a_method_without_settings_says_so(puid) -> None:
    outcome = puid("tune", "--method", "item-rate", *QUICK)
    assert outcome.code == 0, outcome
    assert "no settings to search: one trial" in outcome.out


def test_mistakes_are_one_line_and_write_nothing(puid, tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = (*QUICK, "--out", out)
    puid("tune", "--method", "nope", *to).refused("unknown method")
    puid("tune", "--method", "mf", "--budget", 0, *to).refused("budget")
    puid("tune", "--method", "mf", "--seeds", 0, *to).refused("seed")
    puid("tune", "--method", "mf", *to, "--set", "nope=1").refused("unknown setting")
    puid("tune", "--method", "mf", "--data", "coat", "--data-dir", tmp_path / "none", "--out", out).refused("none")
    assert not out.exists()
    assert puid("tune", "--method", "mf", *QUICK, "--set", "lr=1e30", "--budget", 1, "--out", out).code == 1

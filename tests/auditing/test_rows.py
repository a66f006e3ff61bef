"""Rows that no model has seen: which are chosen, that no fit saw its own, and what a memoriser
looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from puidrec.auditing import rows as unseen
from puidrec.auditing.audit import audit
from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.sources import load_dataset
from puidrec.data.split import Split
from puidrec.model import Recommender


class Memory:
    """Learns every training rating by heart, and says the mean elsewhere; it can be trained
    again."""

    fits: ClassVar[list[np.ndarray]] = []

    def __init__(self, **params: Any) -> None:
        self.params = {"seed": 0, "select": "uniform", "target": "rating", **params}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return self.params

    def fit(self, data: Dataset, split: Split) -> Memory:
        rows = split.train
        unit = data.scale.unit(rows.rating)
        self.data, self.scores = data, np.full((data.n_users, data.n_items), unit.mean())
        self.scores[rows.user, rows.item] = unit
        self.seen = np.zeros(self.scores.shape, bool)
        self.seen[rows.user, rows.item] = True
        Memory.fits.append(self.seen)
        return self

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return self.scores[self.data.user_ids.encode(users), self.data.item_ids.encode(items)]


def test_every_row_is_judged_by_a_fit_that_did_not_see_it(simulation) -> None:
    """A model that knows what it saw by heart is no better than the mean on the rows of an
    audit."""
    data = simulation.data
    Memory.fits.clear()
    memory = Memory().fit(data, data.split())
    found = audit(memory, data, against=Recommender("bias", rng=0).fit(data), replicates=0)
    values = found.to_dict()
    assert values["rows"]["source"] == "cross-fitted"
    assert values["rows"]["n"] == len(data.logged)
    assert len(Memory.fits) == 6
    log = np.zeros((data.n_users, data.n_items), bool)
    log[data.logged.user, data.logged.item] = True
    unseen_by = [log & ~seen for seen in Memory.fits[1:]]
    assert (
        np.sum(unseen_by, axis=0) == log
    ).all()  # the five parts are apart, and all rows are in one
    assert values["envelopes"]["model_loss"]["point"] == pytest.approx(
        data.scale.unit(data.logged.rating).var(), rel=0.2
    )
    assert found.error.verdict == "undecided"
    assert values["leakage"]["words"] == ""
    assert any("trained again" in text for text in values["limits"])


def test_fits_of_parts_are_those_of_the_settings(simulation) -> None:
    data = simulation.data
    models = [Recommender("mf", rng=0, epochs=3, dim=2, l2=l2).fit(data) for l2 in (0.1, 1.0)]
    one, two = (audit(models[0], data, against=models[1], replicates=0).to_dict() for _ in range(2))
    assert one == two
    assert one["rows"]["source"] == "cross-fitted"
    few = audit(models[0], data, against=models[1], replicates=0, folds=2).to_dict()
    assert "in 2 parts" in few["rows"]["part"]


@pytest.mark.parametrize(
    "asked",
    [{}, {"folds": 1}, {"rows": slice(0, 90)}, {"protocol": "paper"}],
    ids=["cross-fitted", "hold-out", "rows", "a protocol that drops rows"],
)
def test_a_log_on_disk_is_audited_as_one_in_memory(
    simulation, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 100)
    tables = {
        "logged": simulation.data.logged.to_frame(),
        "uniform": simulation.data.uniform.to_frame(),
    }
    for name, table in tables.items():
        table.select("user_id", "item_id", "rating").write_parquet(tmp_path / f"{name}.parquet")
    files = {name: tmp_path / f"{name}.parquet" for name in tables}
    asked = {
        key: tables["logged"][value] if key == "rows" else value for key, value in asked.items()
    }
    found = []
    for more in ({}, {"shards": tmp_path / "shards"}):
        data = load_dataset("files", **files, scale=(1, 5), **more)
        assert isinstance(data.logged, StoredInteractions) == bool(more)
        models = [
            Recommender(method, rng=0, dim=2, l2=0.1, epochs=3).fit(
                data, protocol=asked.get("protocol", "rd")
            )
            for method in ("mf", "bias")
        ]
        found.append(audit(models[0], data, against=models[1], replicates=0, **asked).to_dict())
    memory, disk = found
    assert memory["rows"] == disk["rows"]
    assert memory["rows"]["source"] == ("hold-out" if asked.get("folds") == 1 else "cross-fitted")
    for name in ("error", "ranking", "precision"):
        assert disk[name]["lead"]["value"] == pytest.approx(
            memory[name]["lead"]["value"], rel=1e-3, abs=1e-5
        )
        assert disk[name]["verdict"] == memory[name]["verdict"]


def test_large_logs_are_held_out_once(simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    data = simulation.data
    model = Recommender("bias", rng=0).fit(data)
    monkeypatch.setattr(unseen, "MAX_CROSS_FIT", 100)
    values = audit(model, data, replicates=0).to_dict()
    assert values["rows"]["source"] == "hold-out"
    assert values["rows"]["n"] == round(0.1 * len(data.logged))


def test_held_out_rows_come_first(simulation) -> None:
    alone = replace(simulation.data, uniform=None)
    cases = (
        (alone, "uniform", "rd", "test"),
        (alone, "uniform", None, "validation"),
        (simulation.data, "observational", None, "validation"),
    )
    for data, select, protocol, part in cases:
        model = Recommender("bias", rng=0, select=select).fit(data, protocol=protocol)
        rows = audit(model, data, replicates=0).to_dict()["rows"]
        assert rows["source"] == "held-out"
        assert rows["part"] == f"{part} rows of the log"
        assert rows["n"] == pytest.approx(0.1 * len(data.logged), rel=0.01)


def test_a_foreign_model_needs_rows_or_a_word(simulation, good, poor, refusal) -> None:
    data = simulation.data
    refusal(lambda: audit(good, data, against=poor), "has not seen", "unseen=True")
    claimed = audit(good, data, against=poor, unseen=True, replicates=0).to_dict()
    assert claimed["rows"]["source"] == "claimed"
    assert any("caller's word (unseen=True)" in text for text in claimed["limits"])
    named = data.logged.to_frame().select("user_id", "item_id")[:300]
    given = audit(good, data, against=poor, rows=named, replicates=0).to_dict()
    assert (given["rows"]["source"], given["rows"]["n"]) == ("given", 300)
    refusal(
        lambda: audit(good, data, rows=named.with_columns(item_id=named["item_id"] * 0 + 10**6)),
        "not in the log",
    )
    refusal(lambda: audit(good, data, rows=named[:0]), "empty")


def test_one_trained_here_and_one_elsewhere(simulation, good) -> None:
    """The one is trained again without the rows, the other is taken at its owner's word."""
    data = simulation.data
    bias = Recommender("bias", rng=0).fit(data)
    found = audit(bias, data, against=good, unseen=True, replicates=0).to_dict()
    assert found["rows"]["source"] == "cross-fitted"
    named = data.logged.to_frame().select("user_id", "item_id")[::3]
    rows = audit(bias, data, against=good, rows=named, replicates=0, folds=3).to_dict()["rows"]
    assert (rows["source"], rows["n"]) == ("cross-fitted", named.height)


def test_leakage_is_little_for_a_fair_model_and_much_for_one_that_learned_the_rows(
    simulation, good
) -> None:
    data = simulation.data
    rows, outcome = data.logged, data.scale.unit(data.logged.rating).astype(float)
    rng = np.random.default_rng(0)
    fair = good.scores[rows.user, rows.item]
    assert unseen.leakage(fair, outcome, rows) < unseen.LEAK
    assert unseen.leakage(outcome, outcome, rows) == 1.0
    assert unseen.leakage(0.7 * outcome + 0.3 * fair, outcome, rows) > unseen.LEAK
    assert abs(unseen.leakage(np.full(len(rows), outcome.mean()), outcome, rows)) < 0.3
    assert unseen.leakage(rng.random(len(rows)), outcome, rows) < 0.0


def test_folds_out_of_range_are_refused(simulation, refusal) -> None:
    model = Recommender("bias", rng=0).fit(simulation.data)
    for folds in (0, 51):
        refusal(lambda folds=folds: audit(model, simulation.data, folds=folds), "folds")


def test_lists_leave_out_what_is_logged_and_not_judged(simulation, good) -> None:
    data, rng = simulation.data, np.random.default_rng(0)
    logged = data.logged.labelled(data.split().protocol)
    part = rng.integers(0, 2, len(logged)).astype(np.int8)
    judged = unseen.Judged(logged, "claimed", "all", part, (None, None))
    users = np.arange(0, data.n_users, 3)
    for k in (0, 1):
        start, item = judged.not_judged(k, logged, users)
        for user in range(data.n_users):
            own = (logged.user == user) & (part != k)
            expected = logged.item[own] if user in users else []
            assert sorted(item[start[user] : start[user + 1]]) == sorted(expected)

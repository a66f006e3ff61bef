"""Splits and masks: which rows train, validate and test, decided by a protocol and a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.overlap import Overlap
from puidrec.data.protocol import Protocol, get_protocol
from puidrec.data.schema import check_choice
from puidrec.errors import InputError
from puidrec.rng import Rng, generator

MaskKind = Literal["random", "positives"]
Selection = Literal["uniform", "observational", "none"]
Regime = Literal["uniform", "logged"]

MOST_HELD_OUT = 1_000_000
"""Most rows held out for validation or test: more would cost as much as training and add no precision."""


@dataclass(frozen=True)
class Split:
    """The parts of one protocol and seed. `propensity`: uniform rows held out to estimate propensities with."""

    train: Interactions
    propensity: Interactions | None
    validation: Interactions
    test: Interactions
    protocol: Protocol
    seed: int
    evaluation: Regime
    """Which regime the test rows come from."""
    selection: Regime
    """Which regime the validation rows come from."""
    uniform_in_training: bool = False
    overlap: Overlap = field(default_factory=Overlap)
    """How many uniform rows are logged pairs, and whether they were dropped before the split."""

    def __repr__(self) -> str:
        fitted = "" if self.propensity is None else f", {len(self.propensity):,} uniform rows for propensities"
        return (
            f"Split by protocol {self.protocol.name!r}, seed {self.seed}: {len(self.train):,} training rows{fitted}\n"
            f"  {len(self.validation):,} validation rows ({self.selection}), {len(self.test):,} test rows "
            f"({self.evaluation})"
        )

    @property
    def positive_rate(self) -> float:
        """Share of positive labels among the test rows; every table prints it beside the protocol."""
        return float(self.test.label.mean()) if len(self.test) else float("nan")


def split_dataset(
    data: Dataset, protocol: str | Protocol, seed: int, *, add_uniform: bool = False, select: Selection = "uniform"
) -> Split:
    """Divide a data set. With uniform rows: train on the log, evaluate on them. Without: hold rows of the log out.

    select="observational" takes the validation rows from the log even where uniform rows exist, so that no uniform
    row influences the model; the test rows do not change. So does a protocol that tests on all uniform rows.
    """
    rule = get_protocol(protocol)
    rng = generator(seed, "split")
    _require_log(data, rule)
    if rule.unlogged:
        data = data.with_overlap("drop")
    if data.uniform is None:
        if add_uniform:
            raise InputError(
                "training on uniform rows was asked for, but the data set has none",
                found=data.name,
                hint="Give uniform interactions, or leave add_uniform out.",
            )
        share = rule.logged_validation_share
        validation, test, train = _divide(data.logged, (share, share), rng)
        held_out = (validation.labelled(rule), test.labelled(rule))
        return Split(train.labelled(rule), None, *held_out, rule, seed, "logged", "logged", overlap=data.overlap)
    propensity, validation, test = _divide(data.uniform, (rule.propensity_share, rule.validation_share), rng)
    train = data.logged
    selection: Regime = "uniform"
    if select == "observational" or not rule.validation_share:
        validation, _, train = _divide(data.logged, (rule.logged_validation_share, 0.0), generator(seed, "hold-out"))
        selection = "logged"
    if add_uniform:
        if isinstance(train, StoredInteractions):
            raise InputError("uniform rows cannot join a log on disk", hint="Leave add_uniform out.")
        train = _union(train, propensity)
    parts = (train.labelled(rule), propensity.labelled(rule), validation.labelled(rule), test.labelled(rule))
    return Split(*parts, rule, seed, "uniform", selection, add_uniform, data.overlap)


def _require_log(data: Dataset, rule: Protocol) -> None:
    """Refuse a protocol that belongs to another log than the data set's."""
    if rule.log_note and rule.log_note not in str(data.notes.get("log", "")):
        found = f"{data.name}, {data.notes.get('log', 'another log')}"
        raise InputError(f"protocol {rule.name} belongs to another log", found=found, hint=rule.log_hint)


def mask_logged(data: Dataset, ratio: float, kind: MaskKind, rng: Rng, protocol: str | Protocol) -> Dataset:
    """Remove a share of the log, or of its positive rows, at random: the paper's hidden-confounding levels."""
    if not 0.0 <= ratio < 1.0:
        raise InputError(
            "mask ratio out of range", found=ratio, expected="0 <= ratio < 1", hint="The paper uses 0.1 to 0.8."
        )
    check_choice("mask kind", kind, get_args(MaskKind))
    logged = data.logged
    positive = get_protocol(protocol).label(logged.rating, data.scale) == 1
    pool = np.flatnonzero(positive) if kind == "positives" else np.arange(len(logged))
    gone = generator(rng, "mask").permutation(pool)[: min(round(ratio * pool.size), max(pool.size - 1, 0))]
    notes = {**data.notes, "mask": {"ratio": ratio, "kind": kind, "removed": int(gone.size)}}
    return replace(data, logged=logged.without(gone), notes=notes)


def _divide(
    rows: Interactions, shares: tuple[float, float], rng: np.random.Generator
) -> tuple[Interactions, Interactions, Interactions]:
    """Cut rows at random into two shares and the rest. Of a large log a share is `MOST_HELD_OUT` rows at most."""
    n = len(rows)
    first, second = (min(round(share * n), MOST_HELD_OUT) for share in shares)
    order = rng.permutation(n) if n <= 10 * MOST_HELD_OUT else _draw(n, first + second, rng)
    return rows.take(order[:first]), rows.take(order[first : first + second]), rows.without(order[: first + second])


def _draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct numbers below n in random order, without a list of all n."""
    found = np.zeros(0, np.int64)
    while found.size < size:
        found = np.unique(np.concatenate([found, rng.integers(n, size=size)]))
    return rng.permutation(found)[:size]


def _union(logged: Interactions, uniform: Interactions) -> Interactions:
    """Logged rows and uniform rows together; a pair in both keeps its logged row."""
    both = pl.concat([logged.frame, uniform.frame], how="diagonal")
    kept = both.unique(["user", "item"], keep="first", maintain_order=True).sort("user", "item")
    return replace(logged, frame=kept)

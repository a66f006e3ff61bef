"""Splits and masks: which rows train, validate and test, decided by a protocol and a seed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.protocol import Protocol, get_protocol
from puidrec.data.row_matrix import entity_keys, row_hashes
from puidrec.data.schema import check_choice
from puidrec.data.tables import Overlap
from puidrec.errors import FutureRowsWarning, InputError
from puidrec.rng import Rng, generator

MaskKind = Literal["random", "positives"]
Selection = Literal["uniform", "observational", "none"]
Regime = Literal["uniform", "logged"]

MOST_HELD_OUT = 1_000_000
"""Most rows held out for validation or test: more would cost as much as training and add no
precision."""

FUTURE = (
    "rows of this log were held out at random, so that training rows lie after test rows: "
    "figures may be better than "
    "in use; protocol 'temporal' tests on the latest rows (--protocol temporal)"
)


@dataclass(frozen=True)
class Split:
    """The parts of one protocol and seed. `propensity`: uniform rows held out to estimate
    propensities with."""

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
        fitted = (
            ""
            if self.propensity is None
            else f", {len(self.propensity):,} uniform rows for propensities"
        )
        return (
            f"Split by protocol {self.protocol.name!r}, seed {self.seed}: {len(self.train):,} "
            f"training rows{fitted}\n"
            f"  {len(self.validation):,} validation rows ({self.selection}), {len(self.test):,} "
            "test rows "
            f"({self.evaluation})"
        )

    @property
    def positive_rate(self) -> float:
        """Share of positive labels among the test rows; every table prints it beside the
        protocol."""
        return float(self.test.label.mean()) if len(self.test) else float("nan")


def split_dataset(
    data: Dataset,
    protocol: str | Protocol,
    seed: int,
    *,
    add_uniform: bool = False,
    select: Selection = "uniform",
    by_content: bool = False,
) -> Split:
    """Divide a data set. With uniform rows: train on the log, evaluate on them. Without: hold rows
    of the log out.

    select="observational" takes the validation rows from the log even where uniform rows exist, so
    that no uniform row influences the model; the test rows do not change. So does a protocol that
    tests on all uniform rows. by_content: rows are drawn by what they say (`_content_order`) in
    place of where they stand, as those of a log alone always are.
    """
    rule = get_protocol(protocol)

    def divide(
        rows: Interactions, shares: tuple[float, float], stream: str = "split"
    ) -> tuple[Interactions, Interactions, Interactions]:
        by_what = by_content or data.uniform is None
        order = _content_order(data, rows, seed) if by_what else None
        return _divide(rows, shares, generator(seed, stream), order)

    _require_log(data, rule)
    if rule.unlogged or rule.order != "random":
        data = data.with_overlap("drop")
    if rule.order == "dates":
        return _split_by_dates(data, rule, seed)
    if rule.order != "random":
        return _split_by_time(data, rule, seed, add_uniform)
    if data.uniform is None:
        if add_uniform:
            raise InputError(
                "training on uniform rows was asked for, but the data set has none",
                found=data.name,
                hint="Give uniform interactions, or leave add_uniform out.",
            )
        shares = rule.logged_validation_share, rule.logged_test_share
        validation, test, train = divide(data.logged, shares)
        _warn_of_future(train, test)
        return _split(data, rule, seed, train, None, validation, test, "logged", "logged")
    propensity, validation, test = divide(
        data.uniform, (rule.propensity_share, rule.validation_share)
    )
    train = data.logged
    selection: Regime = "uniform"
    if select == "observational" or not rule.validation_share:
        validation, _, train = divide(data.logged, (rule.logged_validation_share, 0.0), "hold-out")
        selection = "logged"
    parts = train, propensity, validation, test
    return _split(data, rule, seed, *parts, "uniform", selection, add_uniform)


def _split(
    data: Dataset,
    rule: Protocol,
    seed: int,
    train: Interactions,
    uniform: Interactions | None,
    validation: Interactions,
    test: Interactions,
    evaluation: Regime,
    selection: Regime,
    add_uniform: bool = False,
) -> Split:
    """The parts with their labels; uniform rows that are to train join the log."""
    if add_uniform and uniform is not None:
        train = _union(train, uniform)
    fitted = None if uniform is None else uniform.labelled(rule)
    parts = train.labelled(rule), fitted, validation.labelled(rule), test.labelled(rule)
    return Split(*parts, rule, seed, evaluation, selection, add_uniform, data.overlap)


def split_without_test(
    data: Dataset, seed: int, *, select: Selection = "uniform", hold_out: bool = True
) -> Split:
    """Protocol `rd` with every uniform row for calibration and validation, and no row for testing.

    Half of them validate where uniform rows are to choose (`select`). Without uniform rows one row
    of the log in ten validates, unless nothing is to choose or `hold_out` is false. Rows are drawn
    by their content, so that neither the names of users and items nor the order of rows decide
    which train.
    """
    shares = {"uniform": (0.5, 1.0), "observational": (1.0, 0.0), "none": (1.0, 1.0)}[select]
    rule = replace(
        get_protocol("rd"),
        propensity_share=shares[0],
        validation_share=shares[1],
        logged_test_share=0.0,
    )
    if data.uniform is None and (select == "none" or not hold_out):
        rule = replace(rule, logged_validation_share=0.0)
    return split_dataset(data, rule, seed, select=select, by_content=True)


def _split_by_time(data: Dataset, rule: Protocol, seed: int, add_uniform: bool) -> Split:
    """Train on the past, validate on what follows, test on what comes last; uniform rows are left
    to calibration."""
    time = _times(data.logged, rule)
    cut = (
        _latest(time, rule.logged_validation_share)
        if rule.order == "time"
        else _last_of_users(data.logged.user, time)
    )
    validation, test = (data.logged.take(rows) for rows in cut)
    train, uniform = data.logged.without(np.concatenate(cut)), data.uniform
    if not len(train) or not len(test):
        raise InputError(
            f"protocol {rule.name} leaves no rows to {'test' if len(train) else 'train'} on",
            found=f"{np.unique(time).size:,} different timestamps in {time.size:,} rows",
            hint="Give a longer log, or take --protocol rd.",
        )
    parts = train, uniform, validation, test
    return _split(data, rule, seed, *parts, "logged", "logged", add_uniform)


def _split_by_dates(data: Dataset, rule: Protocol, seed: int) -> Split:
    """Cut at two times: before, between, after. Uniform rows are cut likewise where they test, else
    all calibrate."""
    time, (middle, late) = _times(data.logged, rule), rule.cuts
    train, uniform = data.logged.take(time < middle), data.uniform
    regime: Regime = "logged"
    validation, test = (
        data.logged.take((time >= middle) & (time < late)),
        data.logged.take(time >= late),
    )
    if rule.tests_uniform:
        if uniform is None:
            raise InputError(
                f"protocol {rule.name} tests on uniform rows", found="a data set without any"
            )
        drawn, regime = _times(uniform, rule), "uniform"
        validation, test = (
            uniform.take((drawn >= middle) & (drawn < late)),
            uniform.take(drawn >= late),
        )
        uniform = uniform.take(drawn < middle)
    if not len(train) or not len(test):
        word = "test" if len(train) else "train"
        raise InputError(
            f"protocol {rule.name} leaves no rows to {word} on", found="rows of other dates"
        )
    return _split(data, rule, seed, train, uniform, validation, test, regime, regime)


def _times(rows: Interactions, rule: Protocol) -> np.ndarray:
    """The timestamp of each row; refused where one is missing."""
    hint = "Give a log with a column timestamp, or take --protocol rd."
    if isinstance(rows, StoredInteractions):
        raise InputError(
            f"protocol {rule.name} needs timestamps, which shards on disk do not keep", hint=hint
        )
    if "timestamp" not in rows.frame.columns:
        found = f"columns {', '.join(name for name in rows.to_frame().columns if name != 'label')}"
        raise InputError(
            f"protocol {rule.name} needs timestamps", found=found, expected="timestamp", hint=hint
        )
    missing = rows.frame["timestamp"].null_count()
    if missing:
        found = f"{missing:,} of {len(rows):,} rows without one"
        raise InputError(
            f"protocol {rule.name} needs timestamps",
            found=found,
            expected="one in every row",
            hint=hint,
        )
    return rows.frame["timestamp"].to_numpy()


def _latest(time: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions of validation and test rows: the latest shares; rows of one time are never
    divided."""
    ordered, size = np.sort(time), min(round(share * time.size), MOST_HELD_OUT)
    test_from = ordered[time.size - max(size, 1)]
    past = ordered[: np.searchsorted(ordered, test_from)]
    validate_from = past[past.size - size] if 0 < size <= past.size else test_from
    return np.flatnonzero((time >= validate_from) & (time < test_from)), np.flatnonzero(
        time >= test_from
    )


def _last_of_users(user: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the last but one row of each user of three or more, and of the last one of each
    user of two or more.

    Among rows of one time, the one with the larger item id is the later.
    """
    order = np.lexsort((time, user))
    end = np.flatnonzero(np.append(np.diff(user[order]) != 0, True))
    rows = np.diff(end, prepend=-1)
    return order[end[rows >= 3] - 1], order[end[rows >= 2]]


def _warn_of_future(train: Interactions, test: Interactions) -> None:
    """Say so once where rows held out at random have training rows after them: a model in use knows
    the past only."""
    if isinstance(train, StoredInteractions) or not {"timestamp"} <= set(train.frame.columns) & set(
        test.frame.columns
    ):
        return
    first, last = test.frame["timestamp"].min(), train.frame["timestamp"].max()
    if first is not None and last is not None and last > first:  # type: ignore[operator]
        warnings.warn(FUTURE, FutureRowsWarning, stacklevel=3)


def _require_log(data: Dataset, rule: Protocol) -> None:
    """Refuse a protocol that belongs to another log than the data set's."""
    if rule.log_note and rule.log_note not in str(data.notes.get("log", "")):
        found = f"{data.name}, {data.notes.get('log', 'another log')}"
        raise InputError(
            f"protocol {rule.name} belongs to another log", found=found, hint=rule.log_hint
        )


def mask_logged(
    data: Dataset, ratio: float, kind: MaskKind, rng: Rng, protocol: str | Protocol
) -> Dataset:
    """Remove a share of the log, or of its positive rows, at random: the paper's hidden-confounding
    levels."""
    if not 0.0 <= ratio < 1.0:
        raise InputError(
            "mask ratio out of range",
            found=ratio,
            expected="0 <= ratio < 1",
            hint="The paper uses 0.1 to 0.8.",
        )
    check_choice("mask kind", kind, get_args(MaskKind))
    logged = data.logged
    positive = get_protocol(protocol).label(logged.rating, data.scale) == 1
    pool = np.flatnonzero(positive) if kind == "positives" else np.arange(len(logged))
    gone = generator(rng, "mask").permutation(pool)[
        : min(round(ratio * pool.size), max(pool.size - 1, 0))
    ]
    notes = {**data.notes, "mask": {"ratio": ratio, "kind": kind, "removed": int(gone.size)}}
    return replace(data, logged=logged.without(gone), notes=notes)


def _divide(
    rows: Interactions,
    shares: tuple[float, float],
    rng: np.random.Generator,
    order: np.ndarray | None,
) -> tuple[Interactions, Interactions, Interactions]:
    """Cut rows into two shares and the rest, in this order or at random. Of a large log a share is
    `MOST_HELD_OUT` rows at most."""
    n = len(rows)
    first, second = (min(round(share * n), MOST_HELD_OUT) for share in shares)
    if order is None:
        order = rng.permutation(n) if n <= 10 * MOST_HELD_OUT else _draw(n, first + second, rng)
    return (
        rows.take(order[:first]),
        rows.take(order[first : first + second]),
        rows.without(order[: first + second]),
    )


def _content_order(data: Dataset, rows: Interactions, seed: int) -> np.ndarray | None:
    """The rows by hashes of their ratings and of what their users and items did, in these rows and
    in the log; None for a large log, whose rows are drawn by position.

    Rows that differ in nothing but a name come as they stand.
    """
    if len(rows) > 10 * MOST_HELD_OUT:
        return None

    known = None if rows is data.logged else entity_keys(data.logged.to_matrix(), seed, rounds=1)
    return np.argsort(row_hashes(rows.to_matrix(), seed, known), kind="stable")


def _draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct numbers below n in random order, without a list of all n."""
    found = np.zeros(0, np.int64)
    while found.size < size:
        found = np.sort(np.concatenate([found, rng.integers(n, size=size)]))
        found = found[
            np.append(True, found[1:] != found[:-1])
        ]  # np.unique hashes, which takes ten times as long
    return rng.permutation(found)[:size]


def _union(logged: Interactions, uniform: Interactions) -> Interactions:
    """Logged rows and uniform rows together; a pair in both keeps its logged row."""
    if isinstance(logged, StoredInteractions):
        raise InputError("uniform rows cannot join a log on disk", hint="Leave add_uniform out.")
    both = pl.concat([logged.frame, uniform.frame], how="diagonal")
    kept = both.unique(["user", "item"], keep="first", maintain_order=True).sort("user", "item")
    return replace(logged, frame=kept)

"""Protocols, splits and masks: which rows train, validate and test, and what counts as liked.

Two papers' numbers are comparable only under one evaluation protocol, so each is a named object.
Lines are drawn in stars (1..5): `RatingScale.stars` maps any scale there, and a 0/1 label to 1 and
5, on which all protocols agree.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.row_matrix import entity_keys, row_hashes
from puidrec.data.schema import RatingScale, check_choice
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
class Protocol:
    """What counts as liked, how the uniform rows are divided, and how rankings are scored.

    Users are scored on their own test items; ties are averaged in UAUC; NDCG has 0/1 gains. A new
    protocol is a row of `PROTOCOLS`.
    """

    name: str
    positive_from: float
    """Stars from which a rating is positive."""
    negative_to: float
    """Stars up to which a rating is negative; what lies between is dropped."""
    description: str
    version: int = 1
    propensity_share: float = 0.05
    validation_share: float = 0.05
    logged_validation_share: float = 0.10
    """Without uniform rows, the share of the log held out for validation."""
    logged_test_share: float = 0.10
    """And for testing."""
    users: Literal["both-labels", "any-positive", "all"] = "both-labels"
    """Whose lists count: users with both labels, with a positive (`any-positive`), or `all`: then
    NDCG is 1 for a user without a positive, as some papers have it."""
    unlogged: bool = False
    """Only pairs that were never logged are tested on, also where repeated pairs are kept
    (`overlap="keep"`)."""
    order: Literal["random", "time", "last", "dates"] = "random"
    """How rows of the log are held out: at random, the latest of all (`time`), or the last of each
    user (`last`). By time, the log is tested on even where there are uniform rows; these then
    calibrate."""
    cuts: tuple[int, int] = (0, 0)
    """Order `dates`: the times from which rows validate and test; rows before train."""
    tests_uniform: bool = False
    """Order `dates`: uniform rows validate, test and (before) calibrate; else rows of the log
    validate and test."""
    log_note: str = ""
    """What the source must say of its log (`notes["log"]`), where a protocol belongs to one form of
    a data set."""
    log_hint: str = ""

    def label(self, rating: np.ndarray, scale: RatingScale) -> np.ndarray:
        """Return 1 (positive), 0 (negative) or -1 (dropped) per rating, as int8."""
        stars = scale.stars(rating)
        return np.where(
            stars >= self.positive_from, 1, np.where(stars <= self.negative_to, 0, -1)
        ).astype(np.int8)


_JUST_ABOVE_3 = float(np.nextafter(3.0, 4.0)) + 1e-6
_FOUR_STARS, _THREE_STARS = (4.0, 4.0 - 1e-6), (3.0, 3.0 - 1e-6)
"""Positive from here on, else negative."""

_KUAIRAND = "Load it with --data kuairand (label is_click, or --set data.label=long_view)."
_DAY, _1_MAY = 86_400_000, 1_651_334_400_000
"""Milliseconds of a day, and the time at which 1 May 2022 began in China."""

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "rd",
            *_FOUR_STARS,
            "4 and 5 stars are positive, the rest negative (public RD code)",
        ),
        Protocol(
            "paper",
            _JUST_ABOVE_3,
            2.0,
            "above 3 positive, 2 and below negative, 3 dropped (as printed)",
        ),
        Protocol("ge3", *_THREE_STARS, "3 stars and above positive (what the paper's figures fit)"),
        Protocol(
            "cvib",
            *_THREE_STARS,
            "3 stars and above positive, all uniform rows are test, NDCG = 1 for users without a "
            "positive (CVIB)",
            propensity_share=0.0,
            validation_share=0.0,
            users="all",
        ),
        Protocol(
            "idcf",
            *_FOUR_STARS,
            "4 and 5 stars positive, 30 % of uniform rows validate, 70 % test (iDCF)",
            propensity_share=0.0,
            validation_share=0.3,
        ),
        Protocol(
            "unlogged",
            *_FOUR_STARS,
            "as rd, but only pairs that were never logged are ranked",
            unlogged=True,
        ),
        Protocol(
            "big-small",
            *_FOUR_STARS,
            "KuaiRec: the platform's log (big matrix) trains, the small matrix tests",
            propensity_share=0.0,
            validation_share=0.0,
            log_note="big_matrix",
            log_hint="Load KuaiRec with log='big-matrix' (--data kuairec --set "
            "data.log=big-matrix).",
        ),
        Protocol(
            "temporal",
            *_FOUR_STARS,
            "4 and 5 stars positive, the latest 10 % of the log test, the 10 % before "
            "them validate; all unseen items are ranked",
            order="time",
        ),
        Protocol(
            "leave-last-out",
            *_FOUR_STARS,
            "4 and 5 stars positive, the last row of each user tests, the one "
            "before validates; all unseen items are ranked",
            order="last",
        ),
        Protocol(
            "kuairand-random",
            *_FOUR_STARS,
            "KuaiRand: the log before 1 May trains; random rows before "
            "calibrate, of 1 to 4 May validate, of 5 to 8 May test",
            order="dates",
            cuts=(_1_MAY, _1_MAY + 4 * _DAY),
            tests_uniform=True,
            log_note="kuairand",
            log_hint=_KUAIRAND,
        ),
        Protocol(
            "kuairand-standard",
            *_FOUR_STARS,
            "KuaiRand: the log of 8 to 21 April trains, of 22 to 28 April "
            "validates, of 29 April to 8 May tests",
            order="dates",
            cuts=(_1_MAY - 9 * _DAY, _1_MAY - 2 * _DAY),
            log_note="kuairand",
            log_hint=_KUAIRAND,
        ),
    )
}


def get_protocol(protocol: str | Protocol) -> Protocol:
    """Look a protocol up by name."""
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        raise InputError(
            "unknown protocol", found=protocol, expected=f"one of {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[protocol]


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
    to calibration. With given dates, uniform rows may be cut likewise and test."""
    time, uniform = _times(data.logged, rule), data.uniform
    regime: Regime = "logged"
    if rule.order == "dates":
        train, validation, test = _cut(data.logged, time, rule)
    else:
        held = (
            _latest(time, rule.logged_validation_share)
            if rule.order == "time"
            else _last_of_users(data.logged.user, time)
        )
        validation, test = (data.logged.take(rows) for rows in held)
        train = data.logged.without(np.concatenate(held))
    if rule.tests_uniform:
        if uniform is None:
            raise InputError(f"protocol {rule.name} tests on uniform rows", found="none")
        regime = "uniform"
        uniform, validation, test = _cut(uniform, _times(uniform, rule), rule)
    if not len(train) or not len(test):
        raise InputError(
            f"protocol {rule.name} leaves no rows to {'test' if len(train) else 'train'} on",
            found=f"{np.unique(time).size:,} different timestamps in {time.size:,} rows",
            hint="Give a longer log, or take --protocol rd.",
        )
    parts = train, uniform, validation, test
    return _split(data, rule, seed, *parts, regime, regime, add_uniform)


def _cut(
    rows: Interactions, time: np.ndarray, rule: Protocol
) -> tuple[Interactions, Interactions, Interactions]:
    """Rows before, between and after the two dates of a protocol."""
    early, late = time < rule.cuts[0], time >= rule.cuts[1]
    return rows.take(early), rows.take(~early & ~late), rows.take(late)


def _times(rows: Interactions, rule: Protocol) -> np.ndarray:
    """The timestamp of each row; refused where one is missing."""
    found = "shards on disk, which do not keep them"
    if not isinstance(rows, StoredInteractions):
        if "timestamp" in rows.frame.columns and not rows.frame["timestamp"].null_count():
            return rows.frame["timestamp"].to_numpy()
        found = f"rows without one, columns {', '.join(rows.to_frame().columns)}"
    raise InputError(
        f"protocol {rule.name} needs timestamps",
        found=found,
        expected="a timestamp, one in every row",
        hint="Give a log with a column timestamp, or take --protocol rd.",
    )


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
    first, second = (min(round(share * len(rows)), MOST_HELD_OUT) for share in shares)
    if order is None:
        n = len(rows)
        large = n > 10 * MOST_HELD_OUT
        order = rng.choice(n, first + second, replace=False) if large else rng.permutation(n)
    held = order[: first + second]
    return rows.take(held[:first]), rows.take(held[first:]), rows.without(held)


def _content_order(data: Dataset, rows: Interactions, seed: int) -> np.ndarray | None:
    """The rows by hashes of their ratings and of what their users and items did, in these rows and
    in the log; None for a large log, whose rows are drawn by position.

    Rows that differ in nothing but a name come as they stand.
    """
    if len(rows) > 10 * MOST_HELD_OUT:
        return None
    known = None if rows is data.logged else entity_keys(data.logged.to_matrix(), seed, rounds=1)
    return np.argsort(row_hashes(rows.to_matrix(), seed, known), kind="stable")


def _union(logged: Interactions, uniform: Interactions) -> Interactions:
    """Logged rows and uniform rows together; a pair in both keeps its logged row."""
    if isinstance(logged, StoredInteractions):
        raise InputError("uniform rows cannot join a log on disk", hint="Leave add_uniform out.")
    both = pl.concat([logged.frame, uniform.frame], how="diagonal")
    kept = both.unique(["user", "item"], keep="first", maintain_order=True).sort("user", "item")
    return replace(logged, frame=kept)

"""From fitted members to one model: which rows calibrate, the columns of the mixture, its sum, and
what is said of it.

The prior mean is `mf`; the caller's word (`liked=`, a Γ) makes it the mild member, likes make it
`all-rank`. With uniform rows the mixture has all groups. Without, it has exposure scores alone,
whose weights come from logged rows judged by fits that have not seen them (`from_log.out_of_fold`), and the
prior mean is the mild member only where these rows show that people pick what they like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from puidrec.exposure.sign_check import CLEAR_T
from puidrec.methods.prepare import Prepared, UniformRows
from puidrec.methods.problem import Done, Fitted, Stage
from puidrec.methods.spectrum.from_log import (
    OutOfFold,
    exposure_scores,
    label_free_order,
    modulators,
    out_of_fold,
)
from puidrec.methods.spectrum.members import (
    cold_rows,
    member_stages,
    members_of,
    path_parameters,
)
from puidrec.methods.spectrum.mixture import Codes, Posterior, fit_mixture
from puidrec.methods.spectrum.terms import Compressed, Term, compress, one, spread
from puidrec.methods.spectrum.uncertainty import summarise
from puidrec.rng import generator
from puidrec.scores.low_rank import LowRank

MOST_COLUMNS, MORE_COLUMNS = 48, 16
"""Columns of the result: so many, or so many more than `dim`."""
KNOWN_LIKES = 20_000
"""Logged likes at which the mixture is held to what is known of them."""
LEAST_SPREAD = 0.003
"""A score that varies less is not blown up to standard deviation 1: that would be rounding."""


class Prior(NamedTuple):
    """The member that the mixture is centred on, and why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Ingredients:
    """All scores that may be mixed."""

    members: Mapping[str, LowRank]
    exposure: Mapping[str, LowRank]


@dataclass(frozen=True, eq=False)
class Column:
    """scale · (term − less): a column of the mixture, of standard deviation about 1 over all
    pairs."""

    group: str
    term: Term
    scale: float = 1.0
    less: Term | None = None

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Values of pairs."""
        values = self.term.at(user, item)
        return self.scale * (values if self.less is None else values - self.less.at(user, item))

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean over all items of each user, and over all users of each item."""
        own, less = self.term.means(), (0.0, 0.0) if self.less is None else self.less.means()
        return self.scale * (own[0] - less[0]), self.scale * (own[1] - less[1])


def stages(prepared: Prepared) -> list[Stage]:
    """Members one after the other, then the mixture in closed form; every process computes that."""
    members, gammas = member_stages(prepared)
    return [*members, Stage("main", lambda done: blend(prepared, done, gammas))]


def blend(prepared: Prepared, done: Done, gammas: Mapping[str, float]) -> Fitted:
    """The mixture of the stages done, as one low-rank model."""
    exposure = exposure_scores(prepared.log.ratings)
    given = Ingredients(members_of(done), exposure)
    rows = prepared.calibration_rows()
    shown = (
        None if rows.user.size else out_of_fold(prepared, given.members.get("mf"), given.exposure)
    )
    prior = _prior(prepared, shown)
    if rows.user.size:
        mixed = _mix(prepared, given, rows, prior)
        used = f"mixing weights ({rows.user.size:,} rows)"
    else:
        mixed = _mix_by_log(prepared, given, shown, prior)
        used = "none"
    small = compress(mixed.terms, max(MOST_COLUMNS, prepared.settings.dim_number + MORE_COLUMNS))
    sides = small.scores.lefts[0], small.scores.rights[0]
    path = path_parameters(small.scores, given.members, gammas, prior.name)
    kept = {"rank": sides[0].shape[1], "kept_by_compression": round(small.kept, 7)}
    notes = mixed.notes | kept | ({"stable": path.shares} if path.shares else {})
    parameters = (
        _cold_start(prepared, done, mixed.terms, small) | path.tensors | dict(mixed.posterior)
    )
    phi = LowRank.of(*(side.to(prepared.settings.device) for side in sides))
    validator = prepared.validator() if mixed.score is None else None
    score = validator.score(phi) if validator is not None else mixed.score
    said = {"uniform_rows_used": used, "spectrum": notes}
    return Fitted(phi, parameters=parameters, best_score=score, notes=said)


def _prior(prepared: Prepared, shown: OutOfFold | None) -> Prior:
    """What the mixture is centred on. `shown`: what the log alone shows, asked where there are no
    uniform rows."""
    settings = prepared.settings
    if prepared.data.positives_only:
        return Prior("all-rank", "the log holds likes only: what was not seen counts as not liked")
    if isinstance(settings.gamma, float) or settings.liked is not None:
        word = (
            f"Γ = {settings.gamma:g}"
            if isinstance(settings.gamma, float)
            else f"liked = {settings.liked}"
        )
        return Prior("mild", f"the caller's word: {word}")
    if shown is None:
        return Prior(
            "mf",
            "the fit to the log; uniform rows say what to change, or there is nothing that could",
        )
    check = shown.sign
    words = f"logged ratings rise with exposure factors made without them at t = {check.t:+.1f}"
    return Prior("mild" if check.liked else "mf", f"{words}; above {CLEAR_T:g} licenses Γ > 1")


class Mixed(NamedTuple):
    """The terms of the sum, and what is said of it."""

    terms: list[Term]
    notes: dict[str, Any]
    score: float | None = None
    """Log marginal likelihood per row; None where nothing was fitted."""
    posterior: Mapping[str, torch.Tensor] = MappingProxyType({})
    """What is kept of the uncertainty."""


def _mix(prepared: Prepared, given: Ingredients, rows: UniformRows, prior: Prior) -> Mixed:
    """The mixture of all groups, by uniform rows."""
    data, seed = prepared.data, prepared.settings.seed
    centre = Term(prior.name, given.members[prior.name], stage=prior.name)
    columns = _columns(prepared, given, centre)
    at_rows = centre.at(rows.user, rows.item)
    posterior = fit_mixture(
        _values(columns, rows.user, rows.item),
        rows.target - at_rows,
        generator(seed, "mixture"),
        Codes(rows.user, rows.item, (data.n_users, data.n_items)),
        known=_known_likes(prepared, columns, rows.user.size),
    )
    total = Sum(centre)
    total.add_all(columns, posterior.coefficient)
    constant = one(data.n_users, data.n_items)
    total.add(Term("one", constant, user_scale=posterior.sides[0].mean))
    total.add(Term("one", constant, item_scale=posterior.sides[1].mean))
    notes = _notes(
        prior, columns, posterior, f"{rows.user.size:,} uniform rows outside the training log"
    )
    summary = summarise(
        prepared, columns, posterior, (rows.user, rows.item), given.members.get("mf")
    )
    return Mixed(total.terms, notes, posterior.log_evidence / rows.user.size, summary)


def _mix_by_log(
    prepared: Prepared, given: Ingredients, shown: OutOfFold | None, prior: Prior
) -> Mixed:
    """The prior, and exposure scores with the weights that logged ratings ask for.

    Columns are centred on logged pairs: there the sum is what `mf` says, and where exposure is
    lower, so are ratings.
    """
    notes: dict[str, Any] = {
        "prior": prior.name,
        "prior_because": prior.reason,
        "calibrated_on": "none",
    }
    centre = Term(prior.name, given.members[prior.name], stage=prior.name)
    if shown is None:
        return Mixed([centre], notes)
    notes["sign_check"] = {"t": round(shown.sign.t, 2), "rows": shown.sign.rows}
    columns = [one for one in _exposure_columns(given) if one.term.name in shown.exposure]
    if not columns:
        return Mixed([centre], notes)
    x = np.column_stack([column.scale * shown.exposure[column.term.name] for column in columns])
    usual, residual = x.mean(0), shown.target - shown.prediction
    rng = generator(prepared.settings.seed, "mixture")
    posterior = fit_mixture({"exposure": x - usual}, residual - residual.mean(), rng)
    total = Sum(centre)
    total.add_all(columns, posterior.coefficient)
    level = one(prepared.data.n_users, prepared.data.n_items)
    total.add(Term("one", level, -float(posterior.coefficient @ usual)))
    words = f"{shown.user.size:,} logged rows, by fits that have not seen them"
    notes |= _notes(prior, columns, posterior, words)
    return Mixed(total.terms, notes, posterior.log_evidence / shown.user.size)


def _standard(group: str, term: Term, less: Term | None = None) -> Column:
    """The column of a term, or of what it adds to another, with standard deviation 1."""
    size = spread(term.scores, None if less is None else less.scores)
    return Column(group, term, 1.0 / max(size, LEAST_SPREAD), less)


def _exposure_columns(given: Ingredients) -> list[Column]:
    return [_standard("exposure", Term(name, scores)) for name, scores in given.exposure.items()]


def _columns(prepared: Prepared, given: Ingredients, centre: Term) -> list[Column]:
    """All columns: level, members less the prior, exposure, slope of the prior, and personal
    products.

    Products are those of modulators (activity, popularity, dispersion, features) with 1, the prior
    and all-rank.
    """
    level = Column("level", Term("one", one(prepared.data.n_users, prepared.data.n_items)))
    others = [
        Term(name, scores, stage=name)
        for name, scores in given.members.items()
        if name != centre.name
    ]
    slope = _standard("slope", centre)
    members = [_standard("members", term, centre) for term in others]
    found = [level, *members, *_exposure_columns(given), slope]
    bases = [level, slope, *(_standard("", term) for term in others if term.name == "all-rank")]
    for side, name, values in modulators(prepared):
        scale = {f"{side}_scale": values}
        for base in bases:
            term = replace(base.term, name=f"{base.term.name} by {name}", **scale)  # type: ignore[arg-type]
            found.append(Column("personal", term, base.scale))
    return found


def _values(columns: Sequence[Column], user: np.ndarray, item: np.ndarray) -> dict[str, np.ndarray]:
    """Columns at pairs, by group; groups come in the order of the columns."""
    names = dict.fromkeys(column.group for column in columns)
    return {
        name: np.column_stack([column.at(user, item) for column in columns if column.group == name])
        for name in names
    }


def _known_likes(
    prepared: Prepared, columns: Sequence[Column], n_uniform: int
) -> tuple[np.ndarray, float] | None:
    """Pairs of a log of likes, in the proportion they have in D to the pairs outside that uniform
    rows stand for.

    There seen pairs are liked, as `all-rank` says of them; exposure scores, calibrated on unseen
    pairs, are many times larger on seen ones, and would send them anywhere.
    """
    data, log, n = prepared.data, prepared.log, len(prepared.rows)
    if not data.positives_only:
        return None
    order = label_free_order(log.ratings)
    at = order[np.unique(np.linspace(0, n - 1, min(n, KNOWN_LIKES)).astype(np.int64))]
    user, item = (
        np.searchsorted(log.row_start, at, side="right") - 1,
        np.asarray(log.items[at], dtype=np.int64),
    )
    weight = n / max(data.n_users * data.n_items - n, 1) * n_uniform
    x = np.column_stack([*_values(columns, user, item).values()])
    return x * np.sqrt(weight / at.size), weight


class Sum:
    """A sum of terms; those that share scores become one, or two where weights vary by user and by
    item."""

    def __init__(self, prior: Term) -> None:
        self._first: dict[int, Term] = {}
        self._by_user: dict[int, np.ndarray] = {}
        self._by_item: dict[int, np.ndarray] = {}
        self.add(prior)

    def add(self, term: Term) -> None:
        """Add a term whose weight varies by user or by item, not by both."""
        key, scores = id(term.scores), term.scores
        self._first.setdefault(key, term)
        place, scale, size = self._by_user, term.user_scale, scores.n_users
        if term.item_scale is not None:
            place, scale, size = self._by_item, term.item_scale, scores.n_items
        own = term.weight * (np.ones(size) if scale is None else scale)
        place[key] = place.get(key, np.zeros(size)) + own

    def add_all(self, columns: Sequence[Column], coefficient: np.ndarray) -> None:
        """Add columns with their coefficients; what members gain, the prior loses."""
        for column, value in zip(columns, coefficient, strict=True):
            weight = column.scale * float(value)
            self.add(replace(column.term, weight=weight))
            if column.less is not None:
                self.add(replace(column.less, weight=-weight))

    @property
    def terms(self) -> list[Term]:
        """What it has become."""
        first = self._first
        by_user = [
            replace(first[k], weight=1.0, user_scale=v, item_scale=None)
            for k, v in self._by_user.items()
        ]
        by_item = [
            replace(first[k], weight=1.0, user_scale=None, item_scale=v)
            for k, v in self._by_item.items()
        ]
        return [*by_user, *by_item]


def _notes(
    prior: Prior, columns: Sequence[Column], posterior: Posterior, rows: str
) -> dict[str, Any]:
    weights = {
        column.term.name: round(column.scale * float(value), 5)
        for column, value in zip(columns, posterior.coefficient, strict=True)
    }
    return {
        "prior": prior.name,
        "prior_because": prior.reason,
        "calibrated_on": rows,
        "deviations": {name: round(value, 5) for name, value in posterior.deviations.items()},
        "effective_draws": round(posterior.effective_draws, 1),
        "log_evidence": round(posterior.log_evidence, 4),
        "weights": weights,
    }


def _cold_start(
    prepared: Prepared, done: Done, terms: Sequence[Term], small: Compressed
) -> dict[str, torch.Tensor]:
    """How features become factors of entities that were not in training, where members read
    features.

    Members with linear features are affine in them. What belongs to single entities, exposure
    included, is at its mean.
    """
    found: dict[str, torch.Tensor] = {}
    for side, key, to in (("user", "user_id", small.users), ("item", "item_id", small.items)):
        design = prepared.log.designs.get(key)
        if design is None or not design.n_columns:
            continue
        whole = (
            torch.cat(
                [cold_rows(prepared, done, term, side, design.n_columns) for term in terms], 1
            )
            @ to
        )
        found |= {
            f"cold.{side}.offset": whole[0].float(),
            f"cold.{side}.weight": (whole[1:] - whole[0]).float(),
        }
    return found

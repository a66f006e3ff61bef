"""From fitted members to one model: which rows calibrate, the columns of the mixture, its sum, and
what is said of it.

The mixture is centred on `mf`; the caller's word (`liked=`, a Γ) makes it the mild member, likes
make it `all-rank`. With uniform rows it has all groups of columns. Without, it has exposure scores
alone, whose weights come from logged rows judged by fits that have not seen them
(`from_log.out_of_fold`), and it is centred on the mild member only where these rows show that
people pick what they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from puidrec.exposure.tilt import CLEAR_T
from puidrec.methods.prepare import Prepared, UniformRows
from puidrec.methods.problem import Done, Fitted, Stage
from puidrec.methods.spectrum.from_log import (
    FINE_RATED,
    LogNoise,
    OutOfFold,
    exposure_scores,
    label_free_order,
    modulators,
    out_of_fold,
)
from puidrec.methods.spectrum.members import (
    Term,
    cold_start,
    compress,
    gathered,
    member_stages,
    members_of,
    one,
    path_parameters,
    root_mean_square,
    spread,
)
from puidrec.methods.spectrum.mixture import Codes, Posterior, fit_mixture
from puidrec.methods.spectrum.uncertainty import summarise
from puidrec.rng import generator
from puidrec.scores.low_rank import LowRank

MOST_COLUMNS, MORE_COLUMNS = 48, 16
"""Columns of the result: so many, or so many more than `dim`."""
KNOWN_LIKES = 20_000
"""Logged likes at which the mixture is held to what is known of them."""
LEAST_SPREAD = 0.003
"""A difference of scores that varies less, as a share of these scores, is not blown up to standard
deviation 1: that would be rounding."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the mixture: a sum of terms."""

    group: str
    name: str
    terms: tuple[Term, ...]

    @classmethod
    def standard(cls, group: str, *terms: Term) -> Column:
        """Of standard deviation 1 over all pairs; named like the first term."""
        size = max(root_mean_square(term) for term in terms)
        scale = 1.0 / max(spread(terms), LEAST_SPREAD * size, 1e-12)
        return cls(group, terms[0].name, tuple(_times(terms, scale)))

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Values of pairs."""
        return np.asarray(sum(term.at(user, item) for term in self.terms))

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean over all items of each user, and over all users of each item."""
        users, items = zip(*(term.means() for term in self.terms), strict=True)
        return np.sum(users, axis=0), np.sum(items, axis=0)


def _times(terms: Iterable[Term], factor: float) -> list[Term]:
    return [replace(term, weight=factor * term.weight) for term in terms]


def stages(prepared: Prepared) -> list[Stage]:
    """Members one after the other, then the mixture in closed form; every process computes that."""
    members, gammas = member_stages(prepared)
    return [*members, Stage("main", lambda done: blend(prepared, done, gammas))]


class Mixed(NamedTuple):
    """The terms of the sum, and what is said of it."""

    terms: list[Term]
    notes: dict[str, Any]
    score: float | None = None
    """Log marginal likelihood per row; None where nothing was fitted."""
    posterior: Mapping[str, torch.Tensor] = MappingProxyType({})
    """What is kept of the uncertainty."""


def blend(prepared: Prepared, done: Done, gammas: Mapping[str, float]) -> Fitted:
    """The mixture of the stages done, as one low-rank model."""
    members, exposure = members_of(done), exposure_scores(prepared.log.ratings)
    rows, shown = prepared.calibration_rows(), None
    used: dict[str, Any] = {"uniform_rows_used": "none", "uniform_parts": {}}
    if n := rows.user.size:
        used["uniform_rows_used"] = f"mixing weights ({n:,} rows)"
        used["uniform_parts"] = {"calibration": n}
    else:
        shown = out_of_fold(prepared, members.get("mf"), exposure)
    prior, reason = _prior(prepared, shown)
    centre, factors = (
        Term(prior, members[prior], stage=prior),
        [Column.standard("exposure", Term(name, scores)) for name, scores in exposure.items()],
    )
    if rows.user.size:
        mixed = _mix(prepared, members, centre, factors, rows)
    else:
        mixed = _mix_by_log(prepared, centre, factors, shown)
    small = compress(mixed.terms, max(MOST_COLUMNS, prepared.settings.dim_number + MORE_COLUMNS))
    path = path_parameters(small.scores, members, gammas, prior)
    notes = {"prior": prior, "prior_because": reason} | mixed.notes
    notes |= {"rank": small.users.shape[1], "kept_by_compression": round(small.kept, 7)}
    notes |= {"stable": path.shares} if path.shares else {}
    parameters = (
        cold_start(prepared, done, mixed.terms, small) | path.tensors | dict(mixed.posterior)
    )
    sides = small.scores.lefts[0], small.scores.rights[0]
    phi = LowRank.of(*(side.to(prepared.settings.device) for side in sides))
    validator = prepared.validator() if mixed.score is None else None
    score = validator.score(phi) if validator is not None else mixed.score
    return Fitted(phi, parameters=parameters, best_score=score, notes=used | {"spectrum": notes})


def _prior(prepared: Prepared, shown: OutOfFold | None) -> tuple[str, str]:
    """The member that the mixture is centred on, and why. `shown`: what the log alone shows, asked
    where there are no uniform rows."""
    gamma, liked = prepared.settings.gamma, prepared.settings.liked
    if prepared.data.positives_only:
        return "all-rank", "the log holds likes only: what was not seen counts as not liked"
    if isinstance(gamma, float):
        return "mild", f"the caller's word: Γ = {gamma:g}"
    if liked is not None:
        return "mild", f"the caller's word: liked = {liked}"
    if shown is None:
        return (
            "mf",
            "the fit to the log; uniform rows say what to change, or there is nothing that could",
        )
    check = shown.sign
    words = f"logged ratings rise with exposure factors made without them at t = {check.t:+.1f}"
    return "mild" if check.liked else "mf", f"{words}; above {CLEAR_T:g} licenses Γ > 1"


def _mix(
    prepared: Prepared,
    members: Mapping[str, LowRank],
    centre: Term,
    factors: Sequence[Column],
    rows: UniformRows,
) -> Mixed:
    """The mixture of all groups, by uniform rows."""
    data = prepared.data
    columns, mf = _columns(prepared, members, centre, factors), members.get("mf")
    q = centre.at(rows.user, rows.item)
    noise = LogNoise(0.0, 1.0, 0.0) if mf is None else LogNoise.of(prepared, mf)
    posterior = fit_mixture(
        _values(columns, rows.user, rows.item),
        rows.target - q,
        generator(prepared.settings.seed, "mixture"),
        Codes(rows.user, rows.item, (data.n_users, data.n_items)),
        known=_known_likes(prepared, columns, rows.user.size),
        variance=noise.relative(q, rows.target - q),
    )
    constant, (users, items) = one(data.n_users, data.n_items), posterior.sides
    effects = [
        replace(constant, user_scale=users.mean),
        replace(constant, item_scale=items.mean),
    ]
    notes = _notes(columns, posterior, f"{rows.user.size:,} uniform rows outside the training log")
    summary = summarise(prepared, columns, posterior, (rows.user, rows.item), mf, noise.mean)
    terms = _total(centre, columns, posterior, effects)
    return Mixed(terms, notes, posterior.log_evidence / rows.user.size, summary)


def _mix_by_log(
    prepared: Prepared, centre: Term, factors: Sequence[Column], shown: OutOfFold | None
) -> Mixed:
    """The prior, and exposure scores with the weights that logged ratings ask for.

    Columns are centred on logged pairs: there the sum is what `mf` says, and where exposure is
    lower, so are ratings. Ratings are reconstructed coarsely only: logged rows favour fine ones
    whether or not exposure shows taste.
    """
    notes: dict[str, Any] = {"calibrated_on": "none"}
    if shown is None:
        return Mixed([centre], notes)
    notes["sign_check"] = {"t": round(shown.sign.t, 2), "rows": shown.sign.rows}
    columns = [one for one in factors if one.name in {*shown.exposure} - {FINE_RATED}]
    if not columns:
        return Mixed([centre], notes)
    x = np.column_stack(
        [column.terms[0].weight * shown.exposure[column.name] for column in columns]
    )
    usual, residual = x.mean(0), shown.target - shown.prediction
    rng = generator(prepared.settings.seed, "mixture")
    posterior = fit_mixture({"exposure": x - usual}, residual - residual.mean(), rng)
    level = one(prepared.data.n_users, prepared.data.n_items)
    less = replace(level, weight=-float(posterior.coefficient @ usual))
    words = f"{shown.user.size:,} logged rows, by fits that have not seen them"
    notes |= _notes(columns, posterior, words)
    terms = _total(centre, columns, posterior, [less])
    return Mixed(terms, notes, posterior.log_evidence / shown.user.size)


def _total(
    centre: Term, columns: Sequence[Column], posterior: Posterior, more: Sequence[Term]
) -> list[Term]:
    """The prior, the columns with their coefficients, and what else is added."""
    weighted = zip(columns, posterior.coefficient.tolist(), strict=True)
    mixed = [term for column, value in weighted for term in _times(column.terms, value)]
    return gathered([centre, *mixed, *more])


def _columns(
    prepared: Prepared, members: Mapping[str, LowRank], centre: Term, factors: Sequence[Column]
) -> list[Column]:
    """All columns: level, members less the prior, exposure, slope of the prior, and personal
    products.

    Products are those of modulators (activity, popularity, dispersion, features) with 1, the prior
    and all-rank.
    """
    constant = one(prepared.data.n_users, prepared.data.n_items)
    level, slope = Column("level", "one", (constant,)), Column.standard("slope", centre)
    others = {
        name: Term(name, scores, stage=name)
        for name, scores in members.items()
        if name != centre.name
    }
    less = replace(centre, weight=-1.0)
    found = [level, *(Column.standard("members", term, less) for term in others.values())]
    found += [*factors, slope]
    bases = [level, slope]
    if "all-rank" in others:
        bases.append(Column.standard("", others["all-rank"]))
    for side, name, values in modulators(prepared):
        for base in bases:
            term = replace(base.terms[0], **{f"{side}_scale": values})  # type: ignore[arg-type]
            found.append(Column("personal", f"{base.name} by {name}", (term,)))
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


def _notes(columns: Sequence[Column], posterior: Posterior, rows: str) -> dict[str, Any]:
    weights = zip(columns, posterior.coefficient.tolist(), strict=True)
    return {
        "calibrated_on": rows,
        "deviations": {name: round(value, 5) for name, value in posterior.deviations.items()},
        "effective_draws": round(posterior.effective_draws, 1),
        "log_evidence": round(posterior.log_evidence, 4),
        "weights": {own.name: round(own.terms[0].weight * value, 5) for own, value in weights},
    }

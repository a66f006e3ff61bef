"""From fitted members to one model: which rows calibrate, the prior, the mixture, and what the report says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from puidrec.data.overlap import pairs_in
from puidrec.methods.baselines import closed_form
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Fitted, with_prefix
from puidrec.rng import generator
from puidrec.scores.features import Design
from puidrec.scores.low_rank import LowRank
from puidrec.scores.towers import Backbone
from puidrec.sensitivity.sign_check import CLEAR_T, SignCheck
from puidrec.spectrum.from_log import RATED, exposure_scores, modulators
from puidrec.spectrum.mixture import Interval, Mixture, fit_mixture, paired_interval, pays, rank_gain
from puidrec.spectrum.out_of_fold import OutOfFold, out_of_fold
from puidrec.spectrum.stability import path_parameters
from puidrec.spectrum.terms import Compressed, Term, compress, one

FEWEST = 20
"""Uniform rows below which they are not used."""
SAMPLED = 20_000
"""Pairs drawn from D for the standard deviations of scores."""
CLEAR_RANK = 3.0
"""Standard errors from which one of ten members is taken to order items better."""
CLEAR_MEAN = 2.0
"""t of the uniform rows' mean residual from which people are taken to pick what they like, or to avoid it."""
PERSONAL = 0.5
"""Scale of personal columns: their coefficients are shrunk four times as much."""


class Rows(NamedTuple):
    """Uniform rows that calibrate: none of them trained the members, none of them tests."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    liked: np.ndarray


class Prior(NamedTuple):
    """The member that the mixture is centred on, and why."""

    name: str
    reason: str
    check: SignCheck | None = None


@dataclass(frozen=True, eq=False)
class Ingredients:
    """All scores that may be mixed."""

    members: Mapping[str, LowRank]
    exposure: Mapping[str, LowRank]
    personal: Sequence[str]
    """Exposure scores that personal weights are given to."""
    spread: Mapping[str, float]
    """Standard deviation over pairs drawn from D."""

    @property
    def fine_rated(self) -> set[str]:
        """Reconstructions of ratings so fine that logged rows favour them whether or not exposure shows taste."""
        return {name for name in self.exposure if name.startswith(RATED) and name not in self.personal}


def blend(prepared: Prepared, done: Done, gammas: Mapping[str, float]) -> Fitted:
    """The mixture of the stages done, as one low-rank model."""
    given = _ingredients(prepared, done)
    rows = calibration_rows(prepared)
    error: float | None
    if rows.user.size:
        prior = _prior_by_uniform(prepared, given, rows)
        terms, notes, error = _mix(prepared, given, rows, prior)
        used = f"mixing weights ({rows.user.size:,} rows)"
    else:
        shown = out_of_fold(prepared, given.members.get("mf"), given.exposure)
        prior = _prior_by_log(prepared, shown)
        terms, notes, error = _mix_by_log(prepared, given, shown, prior)
        used = "none"
    small = compress(terms)
    path = path_parameters(small.scores, given.members, gammas, prior.name)
    notes |= {"rank": small.scores.lefts[0].shape[1], "lost_by_compression": small.lost}
    notes |= {"stable": path.shares} if path.shares else {}
    cold = _cold_start(prepared, done, terms, small)
    phi = LowRank.of(*(side.to(prepared.settings.device) for side in (small.scores.lefts[0], small.scores.rights[0])))
    validator = prepared.validator() if error is None else None
    score = validator.score(phi) if validator is not None else None if error is None else -error
    notes = {"uniform_rows_used": used, "spectrum": notes}
    return Fitted(phi, parameters=cold | path.tensors, best_score=score, notes=notes)


def calibration_rows(prepared: Prepared) -> Rows:
    """Uniform rows held out for calibration and validation, without pairs of the log; none where they are too few."""
    split, select = prepared.split, prepared.settings.select
    parts = [split.propensity] if split.propensity is not None else []
    if split.selection == "uniform" and select != "none":
        parts.append(split.validation)
    user = np.concatenate([np.zeros(0, np.int64), *(part.user for part in parts)])
    item = np.concatenate([np.zeros(0, np.int64), *(part.item for part in parts)])
    target = np.concatenate([np.zeros(0), *(prepared.log.target(part) for part in parts)])
    liked = np.concatenate([np.zeros(0, bool), *(part.label == 1 for part in parts)])
    kept = ~pairs_in(user, item, prepared.data.n_items, prepared.log.parts())
    kept &= kept.sum() >= FEWEST
    return Rows(user[kept], item[kept], target[kept], liked[kept])


def _ingredients(prepared: Prepared, done: Done) -> Ingredients:
    ratings, data = prepared.log.ratings, prepared.data
    members = {} if data.positives_only else {"bias": closed_form("bias", ratings, 1, 0)}
    for name, fitted in done.items():
        members[name] = LowRank.of(*(side[0].detach().cpu() for side in (fitted.phi.lefts, fitted.phi.rights)))
    factors = exposure_scores(ratings, prepared.settings.seed)
    exposure = factors.named
    rng = generator(prepared.settings.seed, "spectrum")
    user, item = rng.integers(data.n_users, size=SAMPLED), rng.integers(data.n_items, size=SAMPLED)
    values = {name: Term(name, scores).at(user, item) for name, scores in {**members, **exposure}.items()}
    spread = {name: float(drawn.std()) for name, drawn in values.items()}
    centre = values["all-rank" if data.positives_only else "mf"]
    spread |= {f"{name} - mf": float((values[name] - centre).std()) for name in members}
    return Ingredients(members, exposure, factors.personal, spread)


def _prior_by_word(prepared: Prepared) -> Prior | None:
    """What likes, or the caller's word, leave no choice about."""
    settings = prepared.settings
    if prepared.data.positives_only:
        return Prior("all-rank", "the log holds likes only: what was not seen counts as not liked")
    if isinstance(settings.gamma, float) or settings.liked is not None:
        word = f"Γ = {settings.gamma:g}" if isinstance(settings.gamma, float) else f"liked = {settings.liked}"
        return Prior("mild", f"the caller's word: {word}")
    return None


def gap_of_means(rows: Rows, mf: np.ndarray) -> tuple[float, float]:
    """What uniform ratings are above the predictions of `mf` for them, and its t."""
    gap = paired_interval(rows.target - mf, rows.user)
    return gap.mean, gap.mean / gap.standard_error if gap.standard_error > 0.0 else 0.0


def _prior_by_uniform(prepared: Prepared, given: Ingredients, rows: Rows) -> Prior:
    """`mf`, or the mild member where uniform ratings are clearly off what `mf` predicts; or a member that orders the
    items of users clearly better, where there are rows enough to see that."""
    if (word := _prior_by_word(prepared)) is not None:
        return word
    scores = {name: Term(name, given.members[name]).at(rows.user, rows.item) for name in given.members}
    gap, t = gap_of_means(rows, scores["mf"])
    words, name = f"uniform ratings are {gap:+.3f} from what mf predicts (t = {t:+.1f})", "mf"
    if abs(t) > CLEAR_MEAN:
        name = "mild"
        words += "" if t < 0.0 else ": people avoid what they like, and unseen ratings are pulled up"
    gains = {other: rank_gain(rows.user, rows.liked, scores[other], scores[name]) for other in given.members}
    clear = {other: gain.mean for other, gain in gains.items() if gain.mean > CLEAR_RANK * gain.standard_error}
    if clear:
        name = max(clear, key=clear.__getitem__)
        words += f"; {name} orders the items of users best (AUC {clear[name]:+.4f})"
    return Prior(name, words)


def _prior_by_log(prepared: Prepared, shown: OutOfFold | None) -> Prior:
    """`mf`, or the mild member where the log shows that people pick what they like."""
    if (word := _prior_by_word(prepared)) is not None:
        return word
    if shown is None:
        return Prior("mf", "no rows to check the sign of selection with")
    check = shown.sign
    words = f"logged ratings rise with exposure factors made without them at t = {check.t:+.1f}"
    words += f"; above {CLEAR_T:g} licenses Γ > 1"
    return Prior("mild" if check.liked else "mf", words, check)


def _mix(prepared: Prepared, given: Ingredients, rows: Rows, prior: Prior) -> tuple[list[Term], dict[str, Any], float]:
    """The terms of the sum with their weights, what to say of them, and their squared error by leave-one-out.

    Of three mixtures, each richer than the one before, the richest that pays and does not order the items of users
    clearly worse than the prior does: the prior at another level and scale, with other members, with personal weights.
    """
    notes: dict[str, Any] = {"prior": prior.name, "prior_because": prior.reason}
    notes["calibrated_on"] = f"{rows.user.size:,} uniform rows outside the training log"
    centre = Term("prior", given.members[prior.name], stage=prior.name)
    base = centre.at(rows.user, rows.item)
    residual = rows.target - base

    known = _logged_likes(prepared, rows.user.size)

    def fitted(columns: Sequence[Column]) -> tuple[Mixture, Interval]:
        still = known and known.weight * _values(columns, known.rows, centre.at(known.rows.user, known.rows.item))
        mixture = fit_mixture(_values(columns, rows, base), residual, rows.user, level=True, still=still)
        return mixture, rank_gain(rows.user, rows.liked, rows.target - mixture.left_out, base)

    columns = [*_member_columns(given, prior.name), *_level_columns(prepared, given, prior.name)]
    mixture, order = fitted(columns)
    notes |= {"alpha": _number(mixture.alpha), "gain": _interval(mixture.gain), "rank_gain": _interval(order)}
    if order.high < 0.0:
        notes["members"] = "left out: with them the items of users are ordered worse"
        columns = _level_columns(prepared, given, prior.name)
        mixture, _ = fitted(columns)
        return _weighted(columns, mixture, centre, notes), notes, float(mixture.error.mean())
    wide = [*columns, *_personal(prepared, given, prior.name)]
    richer, order = fitted(wide)
    worth = pays(mixture.error, richer.error, rows.user)
    on = worth.mean > worth.standard_error > 0.0 and order.high >= 0.0
    notes["personal"] = {"used": bool(on), "gain": _interval(worth), "rank_gain": _interval(order)}
    if on:
        columns, mixture = wide, richer
    return _weighted(columns, mixture, centre, notes), notes, float(mixture.error.mean())


class _Known(NamedTuple):
    """Pairs whose rating is known, and the root of what one of them counts against a uniform row."""

    rows: Rows
    weight: float


def _logged_likes(prepared: Prepared, n_uniform: int) -> _Known | None:
    """Pairs of a log of likes, in the proportion they have in D to the pairs outside that uniform rows stand for.

    There seen pairs are liked, as `all-rank` says of them; exposure scores, calibrated on unseen pairs, are many times
    larger on seen ones, and would send them anywhere.
    """
    data, log, n = prepared.data, prepared.log, len(prepared.rows)
    if not data.positives_only:
        return None
    at = np.unique(generator(prepared.settings.seed, "logged likes").integers(n, size=SAMPLED))
    user, item = np.searchsorted(log.row_start, at, side="right") - 1, np.asarray(log.items[at], dtype=np.int64)
    share, liked = n / max(data.n_users * data.n_items - n, 1), np.ones(at.size, bool)
    return _Known(Rows(user, item, liked.astype(float), liked), float(np.sqrt(share * n_uniform / at.size)))


def _mix_by_log(
    prepared: Prepared, given: Ingredients, shown: OutOfFold | None, prior: Prior
) -> tuple[list[Term], dict[str, Any], float | None]:
    """The prior, and exposure factors with the weights that logged ratings ask for; the error is of logged rows.

    Columns are centred on logged pairs: there the sum is what `mf` says, and where exposure is lower, so are ratings.
    """
    notes: dict[str, Any] = {"prior": prior.name, "prior_because": prior.reason, "calibrated_on": "none"}
    centre = Term("prior", given.members[prior.name], stage=prior.name)
    if prior.check is not None:
        notes["sign_check"] = {"t": round(prior.check.t, 2), "rows": prior.check.rows}
    if shown is None:
        return [centre], notes, None
    notes["calibrated_on"] = f"{shown.user.size:,} logged rows, by fits that have not seen them"
    columns = [
        column for column in _exposure_columns(given) if column.term.name in {*shown.exposure} - given.fine_rated
    ]
    if not columns:
        return [centre], notes, None
    x = np.column_stack([column.scale * shown.exposure[column.term.name] for column in columns])
    usual, residual = x.mean(0), shown.target - shown.prediction
    mixture = fit_mixture(x - usual, residual - residual.mean(), shown.user)
    notes |= {"alpha": _number(mixture.alpha), "gain": _interval(mixture.gain)}
    terms = _weighted(columns, mixture, centre, notes)
    if mixture.coefficient.any():
        level = one(prepared.data.n_users, prepared.data.n_items)
        terms.append(Term("one", level, weight=-float(mixture.coefficient @ usual)))
    return terms, notes, float(mixture.error.mean())


@dataclass(frozen=True, eq=False)
class Column:
    """A standardised column of the mixture: scale · (term − prior), or scale · term."""

    term: Term
    scale: float
    against_prior: bool = False


def _exposure_columns(given: Ingredients) -> list[Column]:
    return [Column(Term(name, scores), _inverse(given.spread[name])) for name, scores in given.exposure.items()]


def _member_columns(given: Ingredients, prior: str) -> list[Column]:
    found = _exposure_columns(given)
    for name, scores in given.members.items():
        if name != prior:
            spread = given.spread[f"{name} - mf"] or given.spread[f"{prior} - mf"]
            found.append(Column(Term(name, scores, stage=name), _inverse(spread), True))
    return found


def _level_columns(prepared: Prepared, given: Ingredients, prior: str) -> list[Column]:
    """Scale and level of the prior, which leave its order of items as it is."""
    constant = one(prepared.data.n_users, prepared.data.n_items)
    scale = Column(Term("prior", given.members[prior], stage=prior), _inverse(given.spread[prior]))
    return [scale, Column(Term("one", constant), 1.0)]


def _personal(prepared: Prepared, given: Ingredients, prior: str) -> list[Column]:
    """Products of modulators (activity, popularity, dispersion, features) with the prior, all-rank and exposure."""
    data, found = prepared.data, list[Column]()
    constant = one(data.n_users, data.n_items)
    bases = [("one", constant, 1.0), (prior, given.members[prior], _inverse(given.spread[prior]))]
    if prior != "all-rank":
        bases.append(("all-rank", given.members["all-rank"], _inverse(given.spread["all-rank"])))
    bases += [(name, given.exposure[name], _inverse(given.spread[name])) for name in given.personal]
    for side, name, values in modulators(prepared):
        by_user, by_item = (values, None) if side == "user" else (None, values)
        for base, scores, size in bases:
            stage = base if base in given.members else ""
            found.append(Column(Term(f"{base} by {name}", scores, 1.0, by_user, by_item, stage), PERSONAL * size))
    return found


def _values(columns: Sequence[Column], rows: Rows, prior: np.ndarray) -> np.ndarray:
    values = [
        column.scale * (column.term.at(rows.user, rows.item) - (prior if column.against_prior else 0.0))
        for column in columns
    ]
    return np.column_stack(values) if values else np.zeros((rows.user.size, 0))


def _weighted(columns: Sequence[Column], mixture: Mixture, prior: Term, notes: dict[str, Any]) -> list[Term]:
    """The columns with their coefficients; what members gain, the prior loses."""
    if not mixture.coefficient.any() and not mixture.level:
        return [prior]
    weights = [column.scale * float(c) for column, c in zip(columns, mixture.coefficient, strict=True)]
    notes["weights"] = {column.term.name: round(weight, 5) for column, weight in zip(columns, weights, strict=True)}
    moved = sum(weight for column, weight in zip(columns, weights, strict=True) if column.against_prior)
    terms = [replace(column.term, weight=weight) for column, weight in zip(columns, weights, strict=True)]
    if mixture.level:
        notes["weights"]["level"] = round(mixture.level, 5)
        terms.append(Term("level", one(prior.scores.n_users, prior.scores.n_items), weight=mixture.level))
    return [replace(prior, weight=1.0 - moved), *terms]


def _cold_start(prepared: Prepared, done: Done, terms: Sequence[Term], small: Compressed) -> dict[str, torch.Tensor]:
    """How features become factors of entities that were not in training, where members read features.

    Members with linear features are affine in them. What belongs to single entities, exposure included, is at its mean;
    a modulator is at its mean, 0.
    """
    found: dict[str, torch.Tensor] = {}
    backbones = {name: _backbone(prepared, done[name]) for name in {term.stage for term in terms} & done.keys()}
    for side, key, to in (("user", "user_id", small.users), ("item", "item_id", small.items)):
        design = prepared.log.designs.get(key)
        if design is None or not design.n_columns:
            continue
        parts = [_cold_rows(backbones, term, side, design.n_columns) for term in terms]
        whole = torch.cat(parts, 1) @ to
        found |= {f"cold.{side}.offset": whole[0].float(), f"cold.{side}.weight": (whole[1:] - whole[0]).float()}
    return found


def _backbone(prepared: Prepared, fitted: Fitted) -> Backbone:
    """The model of a stage as it was trained."""
    backbone = prepared.backbone("cold").cpu()
    backbone.load_state_dict(with_prefix(fitted.parameters, "phi."))
    return backbone


@torch.no_grad()
def _cold_rows(backbones: Mapping[str, Backbone], term: Term, side: str, width: int) -> torch.Tensor:
    """A term's side for an entity without features, and for one with each feature alone, [1 + features, columns]."""
    trained = (term.left if side == "user" else term.right).mean(0, keepdim=True)
    if (term.user_scale if side == "user" else term.item_scale) is not None:
        return torch.zeros_like(trained).expand(width + 1, -1)
    if term.stage not in backbones:  # features had no part in it
        return trained.expand(width + 1, -1)
    backbone = backbones[term.stage]
    design = Design.of(sparse.csr_array(sparse.eye(width + 1, width, -1, format="csr")))
    cold = backbone.cold_users(design) if side == "user" else backbone.cold_items(design)
    towers = backbone.user_towers if side == "user" else backbone.item_towers
    for tower in towers:
        if tower.uses_ids:
            mean = tower(slice(None)).mean(0)
            cold[:, : backbone.dim] += mean[: backbone.dim]
            cold[:, backbone.dim if side == "user" else backbone.dim + 1] += mean[backbone.dim]
    return cold.double() * (term.weight if side == "user" else 1.0)


def _inverse(spread: float) -> float:
    return 1.0 / spread if spread > 1e-9 else 0.0


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _interval(interval: Interval) -> dict[str, float]:
    return {"mean": round(interval.mean, 7), "low": round(interval.low, 7), "high": round(interval.high, 7)}

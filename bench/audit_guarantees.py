"""Verdicts of audits against the truth: how often wrong, and how often decided, in worlds where the
truth is known.

Counted by `python bench/guarantees.py --parts audits,real,impostors`.

In every log (six worlds, four sizes in turn) five methods are cross-fitted:
    bias       shrunk user and item means
    mf         ridge factorisation of what they leave
    popular    mf whose lists lean to what is seen often
    niche      mf whose lists lean to what is seen rarely
    overfit    factorisation of more columns with little regularisation
and all ten pairs are audited by error, DCG@10 and precision@10, from the log and from so many
uniform rows. Counted by `python bench/guarantees.py --parts audits,real,impostors`.

*Real* models are five of the package (bias, mf, all-rank, ease, spectrum) and ALS of the package
`implicit`, judged by a tenth of the log that they have not seen. Besides: a memoriser, a reversed
and a constant model, which must never be robust.

A verdict is wrong if it is robust or confirmed for the model that is truly worse, or refuted for
the better one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from implicit.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix

import puidrec as pr
from puidrec.auditing.audit import leads_of
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import Measured
from puidrec.auditing.models import AuditedModel
from puidrec.auditing.rows import Asked, Fits, Judged, choose_rows, fit_parts
from puidrec.auditing.slots import slot_discounts
from puidrec.auditing.verdict import Lead, Yardstick
from puidrec.data.dataset import Dataset
from puidrec.data.split import Split
from puidrec.evaluation.ranking import top_k
from worlds import Truth, make_world

WORLDS = ("nothing", "quality", "quality-pair", "entity", "trait-genre", "reversed")
SIZES = ((300, 150, 0.08), (500, 250, 0.06), (800, 200, 0.05), (400, 400, 0.06))
"""Users, items, share of pairs logged."""
METRICS = ("error", "ranking", "precision")
BELIEVE = 1.5
K, HELD_OUT = 10, 0.1
ALS = "implicit ALS"
"""Its scores are no ratings: judged by ranking only."""
Scores = dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """One comparison: what is true, and the verdict."""

    world: str
    seed: int
    pair: str
    metric: str
    n_uniform: int
    lead: float
    """The true lead as a share of the worse model's error, or of the better one's DCG; above 0: the
    first is ahead."""
    verdict: str
    without: str
    """The verdict from the log alone, at believe = 1.5."""
    inside: bool
    """Whether values by slots are within their range."""
    gap: float
    """The true lead in units of the metric, over pairs that are not in the log."""
    uniform: tuple[float, ...] | None
    adjusted: tuple[float, ...] | None
    decides: tuple[float, ...] | None

    @property
    def covered(self) -> bool:
        """Whether the interval that decides holds the true lead."""
        assert self.decides is not None
        return self.decides[1] <= self.gap <= self.decides[2]

    @property
    def wrong(self) -> bool:
        """Whether measured evidence says the opposite of the truth."""
        return (self.verdict in ("confirmed", "robust") and self.lead < 0) or (
            self.verdict == "refuted" and self.lead > 0
        )

    @property
    def right(self) -> bool:
        return (self.verdict in ("confirmed", "robust") and self.lead > 0) or (
            self.verdict == "refuted" and self.lead < 0
        )


class Table:
    """A model that looks its scores up, ids are positions; it says that they are ratings in 0..1, or nothing."""

    def __init__(self, scores: np.ndarray, *, rates: bool = True) -> None:
        self.scores, self.rates = scores, rates

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        says = {"target": "rating"} if self.rates else {}
        return {"method": "table", "seed": 0, "select": "uniform"} | says

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return self.scores[np.asarray(users), np.asarray(items)]


class Quick(Table):
    """One of five methods that take milliseconds, and can be trained again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"kind": self.kind}

    def fit(self, data: Dataset, split: Split) -> Quick:
        rows, shape = split.train, (data.n_users, data.n_items)
        unit = data.scale.unit(rows.rating).astype(np.float64)
        bias = means(rows.user, rows.item, unit, shape)
        left = unit - bias[rows.user, rows.item]
        seen = np.log1p(np.bincount(rows.item, minlength=shape[1]))
        lean = 0.06 * (seen - seen.mean()) / seen.std()
        dim, ridge = (8, 0.1) if self.kind == "overfit" else (3, 1.0)
        lists = {"popular": lean, "niche": -lean}.get(self.kind, 0.0)
        taste = (
            0.0 if self.kind == "bias" else factors(rows.user, rows.item, left, shape, dim, ridge)
        )
        self.scores = np.clip(bias + taste + lists, -0.5, 1.5)
        return self


def means(
    user: np.ndarray, item: np.ndarray, unit: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Shrunk user and item means."""
    middle, scores = float(unit.mean()), np.full(shape, float(unit.mean()))
    left = unit - middle
    for code, n, axis in ((item, shape[1], 0), (user, shape[0], 1)):
        effect = np.bincount(code, left, n) / (np.bincount(code, minlength=n) + 5.0)
        scores += effect[None, :] if axis == 0 else effect[:, None]
        left = left - effect[code]
    return scores


def factors(
    user: np.ndarray,
    item: np.ndarray,
    left: np.ndarray,
    shape: tuple[int, int],
    dim: int,
    ridge: float,
) -> np.ndarray:
    """Ridge factorisation of residuals by alternating least squares."""
    rng = np.random.default_rng(0)
    sides = [rng.normal(0.0, 0.1, (n, dim)) for n in shape]
    for _ in range(8):
        for own, codes in ((0, (user, item)), (1, (item, user))):
            design = sides[1 - own][codes[1]]
            rows = csr_matrix((np.ones(left.size), (codes[0], np.arange(left.size))))
            rows.resize(shape[own], left.size)
            products = (design[:, :, None] * design[:, None, :]).reshape(left.size, -1)
            square = (rows @ products).reshape(-1, dim, dim)
            right = rows @ (left[:, None] * design)
            sides[own] = np.linalg.solve(square + ridge * np.eye(dim), right[..., None])[..., 0]
    return sides[0] @ sides[1].T


def real_models(data: Dataset, split: Any) -> Scores:
    """Models of the package, in their defaults but for a fixed number of columns; and ALS of the
    package `implicit` in its stock settings but for the columns, trained on what was liked."""
    found = {}
    for method in ("bias", "mf", "all-rank", "ease", "spectrum"):
        own = {"dim": 4, "l2": 0.1} if method in ("mf", "all-rank", "spectrum") else {}
        model = pr.Recommender(method, rng=0, select="observational", **own).fit(data, split)
        found[method] = model.user_factors_.astype(np.float64) @ model.item_factors_.T
    liked = split.train.take(split.train.label > 0)
    shape = (data.n_users, data.n_items)
    matrix = csr_matrix((np.ones(len(liked), np.float32), (liked.user, liked.item)), shape=shape)
    als = AlternatingLeastSquares(factors=8, random_state=0, num_threads=1)
    als.fit(matrix, show_progress=False)
    return found | {ALS: (als.user_factors @ als.item_factors.T).astype(np.float64)}


def unit_ratings(truth: Truth) -> np.ndarray:
    """True ratings of all pairs in 0..1."""
    return (truth.rating - 1.0) / (truth.rating.max() - 1.0)


def true_values(truth: Truth, scores: np.ndarray, train: np.ndarray) -> dict[str, float]:
    """Error over all pairs and over those that are not in the log, and DCG and precision of lists
    without what trained, with every label known."""
    squared = (scores - unit_ratings(truth)) ** 2
    liked = truth.rating >= 4
    lists = top_k(np.where(train, -np.inf, scores), K)[0]
    hits = np.take_along_axis(liked, lists, 1)
    return {
        "error": float(squared.mean()),
        "error beyond the log": float(squared[~truth.seen].mean()),
        "ranking": float((hits * slot_discounts("dcg", K)[:K]).sum(axis=1).mean()),
        "precision": float(hits.mean()),
    }


def true_lead(name: str, own: dict[str, float], other: dict[str, float]) -> float:
    """As a share of the worse error, or of the better list."""
    if name == "error":
        return (other[name] - own[name]) / max(own[name], other[name])
    return (own[name] - other[name]) / max(own[name], other[name])


class Log:
    """A log with its uniform rows, and what all audits of it share."""

    def __init__(self, truth: Truth, seed: int, n_uniform: int, *, hold_out: bool = False) -> None:
        self.truth, self.rng = truth, np.random.default_rng([seed, 3, n_uniform])
        self.data = truth.dataset(n_uniform, self.rng)
        self.split = self.data.split("rd", 0)
        logged = self.data.logged.labelled(self.split.protocol)
        if not n_uniform:  # all logged rows, for the audit holds them out in turn
            nothing = self.split.test.take(np.zeros(0, np.int64))
            self.split = replace(self.split, train=logged, validation=nothing, test=nothing)
        self.shared: dict[str, Any] = {}
        if hold_out:
            self.hold_out()

    def hold_out(self) -> None:
        """Keep a tenth of the log from training, to judge by."""
        logged = self.data.logged.labelled(self.split.protocol)
        mine = self.rng.random(len(logged)) >= HELD_OUT
        self.split = replace(
            self.split, train=logged.take(mine), validation=logged.take(~mine), selection="logged"
        )

    def fits(self, models: dict[str, Any], **asked: Any) -> tuple[Judged, dict[str, Fits]]:
        """Every model as it judges the rows; trained again where it can be, once for all pairs."""
        audited = {name: AuditedModel.of(model, self.data) for name, model in models.items()}
        judged = choose_rows(
            tuple(audited.values()), self.data, self.split, Asked(split_given=True, **asked)
        )
        return judged, {
            name: fit_parts(model, judged, self.data) for name, model in audited.items()
        }

    def leads(
        self, names: tuple[str, str], judged: Judged, fits: dict[str, Fits]
    ) -> tuple[dict[str, Lead], AuditInputs]:
        """As `pr.audit(..., believe=1.5)` finds them, without the page's other parts."""
        pair = tuple(fits[name] for name in names)
        inputs = AuditInputs(self.data, self.split, judged, pair, "two-way", None, 1.0, 0, K)
        vars(inputs).update(self.shared)
        found = leads_of(inputs, names, Yardstick("believed", BELIEVE))
        self.shared |= {
            key: vars(inputs)[key]
            for key in ("nominal", "tilt", "seen", "gamma")
            if key in vars(inputs)
        }
        return found, inputs


QUICK = ("bias", "mf", "popular", "niche", "overfit")


def population(world: str, seed: int) -> Truth:
    """The population of a seed; sizes take turns."""
    n_users, n_items, density = SIZES[seed % len(SIZES)]
    return make_world(world, 7_000 + seed, n_users=n_users, n_items=n_items, density=density)


def outcomes(
    world: str, seed: int, sizes: Sequence[int], *, real: bool = False
) -> Iterator[Outcome]:
    """All pairs of models of one log, audited with so many uniform rows each; the models do not
    learn from these, so that each is trained once."""
    truth = population(world, seed)
    logs = [Log(truth, seed, n_uniform, hold_out=real) for n_uniform in sizes]
    first = logs[0]
    models: dict[str, Any]
    if real:
        scores = real_models(first.data, first.split)
        models = {name: Table(own, rates=name != ALS) for name, own in scores.items()}
        judged, fits = first.fits(models)
    else:
        models = {kind: Quick(kind).fit(first.data, first.split) for kind in QUICK}
        scores = {kind: model.scores for kind, model in models.items()}
        judged, fits = first.fits(models, folds=5)
    train = np.zeros(truth.seen.shape, bool)
    train[first.split.train.user, first.split.train.item] = True
    true = {name: true_values(truth, own, train) for name, own in scores.items()}
    for log, n_uniform in zip(logs, sizes, strict=True):
        log.shared |= (
            {"nominal": first.shared["nominal"]} if first.shared else {}
        )  # one log for all
        # by the log alone `robust` is said of the first only, so both orders are asked
        order = itertools.combinations if n_uniform else itertools.permutations
        for names in order(scores, 2):
            found, inputs = log.leads(names, judged, fits)
            sizes_of = [
                inputs.slot_lead(metric, slots=inputs.slots.alone(which))
                for metric in ("dcg", "precision")
                for which in (0, 1)
            ]
            inside = all(-1e-9 <= one.point <= one.size + 1e-9 for one in sizes_of)
            for metric in METRICS[ALS in names :]:
                beyond = "error beyond the log" if metric == "error" else metric
                own, other = (true[name][beyond] for name in names)
                sign = -1.0 if metric == "error" else 1.0
                yield Outcome(
                    world,
                    seed,
                    " ".join(names),
                    metric,
                    n_uniform,
                    true_lead(metric, true[names[0]], true[names[1]]),
                    found[metric].verdict,
                    replace(found[metric], measured=None).verdict,
                    inside,
                    sign * (own - other),
                    *measured_of(found[metric].measured),
                )


def measured_of(found: Measured | None) -> list[tuple[float, ...] | None]:
    """The intervals on uniform rows, of the adjusted log, and the one that decides."""
    if found is None:
        return [None, None, None]
    parts = found.uniform, found.adjusted, found.decides
    return [None if one is None else tuple(one) for one in parts]


def impostors(world: str, seed: int) -> dict[str, dict[str, str]]:
    """Verdicts on models that are truly worse: by heart, reversed, constant; against the expected
    ratings."""
    log = Log(population(world, seed), seed, 0)
    unit, mean = unit_ratings(log.truth), log.truth.mean
    middle, rng = float(unit[log.truth.seen].mean()), np.random.default_rng(seed)
    by_heart = np.where(log.truth.seen, unit, middle + rng.normal(0.0, 0.2, unit.shape))
    scores = {
        "memoriser": by_heart,
        "reversed": 1.0 - mean,
        "constant": np.full(unit.shape, middle),
        "expected": mean,
    }
    judged, fits = log.fits({name: Table(own) for name, own in scores.items()}, unseen=True)
    found = {}
    for name in ("memoriser", "reversed", "constant"):
        leads, _ = log.leads((name, "expected"), judged, fits)
        found[name] = {metric: leads[metric].verdict for metric in METRICS}
    return found


def shares(found: list[Outcome]) -> dict[str, Any]:
    """Wrong and right shares of some outcomes."""
    large = [o for o in found if abs(o.lead) >= 0.1]
    measured = [o for o in found if o.decides is not None]
    return {
        "n": len(found),
        "wrong": sum(o.wrong for o in found),
        "wrong_robust": sum(o.without == "robust" and o.lead < 0 for o in found),
        "robust": sum(o.without == "robust" and o.lead > 0 for o in found),
        "ahead": sum(o.lead > 0 for o in found),
        "large": len(large),
        "decided": sum(o.right for o in large),
        "measured": len(measured),
        "covered": sum(o.covered for o in measured),
        "inside": sum(o.inside for o in found),
    }

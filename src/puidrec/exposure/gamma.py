"""Γ rules: how sensitive the exposure of a pair may be to what is hidden, composed of named parts.

The printed equation (`eq:gamma_ui`) has averages where it says "personalised", is mostly below 1,
and grows where the abstract says it should shrink. So every choice is a field, and the printed
equation is the preset `paper`.

Other rules read Γ from *exposure residuals*: how much more or less users and items were exposed
than their features say. A hidden trait that drives exposure makes its owner seen more, or less,
than features predict; the `two-way` effects measure that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import chndtrix

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.exposure.additive import MIN_VARIANCE, effect_variance
from puidrec.exposure.bounds import Gamma, TableGamma, require_pairs
from puidrec.exposure.counts import Estimator, ExposureCounts, Gains, bernoulli_entropy
from puidrec.exposure.evidence import Evidence, SideName
from puidrec.plugins import Registry
from puidrec.rng import Rng, generator

__all__ = [
    "PRESETS",
    "SOURCES",
    "Gamma",
    "GammaRule",
    "GammaSpec",
    "PosteriorGamma",
    "TableGamma",
    "resolve_gamma",
]

SourceName = Literal["information", "exposure-gap", "recovered", "constant", "random"]
Scope = Literal["local", "global"]
Direction = Literal["proportional", "residual"]
Link = Literal["exp", "clip", "info"]
RANDOM_CLASSES = 64
VARIANCE_ROUNDS = 4
CURVE_STEPS = 1024
"""Resolution of the tabulated quantile."""
PARTNERS = 64
"""Partners over which the mean Γ of an entity is taken where it has no closed form."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "scope": get_args(Scope),
    "entropy": get_args(Estimator),
    "direction": get_args(Direction),
    "link": get_args(Link),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class GammaRule:
    """One way to set Γ_ui. `fit` applies it to evidence; presets are in `PRESETS`."""

    source: SourceName = "information"
    """What Γ is read from: information gains, exposure beyond the features, a number, or chance."""
    scope: Scope = "local"
    """`local`: scores of the pair's own bins; `global`: their averages, one number."""
    entropy: Estimator = "permutation"
    direction: Direction = "proportional"
    """`proportional`: Γ grows with what features tell (the equation); `residual`: with what they
    leave open."""
    link: Link = "exp"
    alpha: float | Literal["auto"] = "auto"
    """Weight of the user part; `auto` calibrates it by hiding features."""
    beta: float | Literal["auto"] = "auto"
    """Weight of the item part."""
    value: float = 1.5
    """Γ of `constant`; geometric mean of `random`."""
    level: float = 0.95
    """`recovered`: probability that the bounds contain the hidden shift of a pair's log-odds."""
    cap: float = 20.0
    """Γ is at most this."""
    n_permutations: int = 100

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError("unknown Γ source", found=self.source, expected=SOURCES.names())
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"unknown Γ {name}", found=getattr(self, name), expected=", ".join(allowed)
                )
        for name in ("alpha", "beta"):
            weight = getattr(self, name)
            if weight != "auto" and not (_is_number(weight) and 0.0 <= weight < np.inf):
                raise InputError(
                    f"{name} out of range", found=weight, expected="a number >= 0, or 'auto'"
                )
        for name in ("value", "cap"):
            if not (_is_number(getattr(self, name)) and 1.0 <= getattr(self, name) < np.inf):
                raise InputError(
                    f"Γ {name} out of range",
                    found=getattr(self, name),
                    expected="finite and at least 1",
                )
        if not 0.0 < self.level < 1.0:
            raise InputError("level out of range", found=self.level, expected="between 0 and 1")
        if self.link == "info" and self.direction == "residual":
            raise InputError(
                "link 'info' turns gains into Γ; 'residual' scores are no gains",
                expected="another link",
            )
        if self.link == "clip" and "auto" in (self.alpha, self.beta):
            raise InputError(
                "link 'clip' is the printed value; α and β must be numbers", found="auto"
            )

    @classmethod
    def constant(cls, value: float) -> GammaRule:
        """One Γ for all pairs."""
        return cls(source="constant", value=value)

    def fit(self, evidence: Evidence | ExposureCounts, rng: Rng = 0) -> Gamma:
        """Γ for every pair of the population, from a log's evidence (or its counts alone)."""
        seen = Evidence(evidence) if isinstance(evidence, ExposureCounts) else evidence
        return SOURCES[self.source](self, seen, rng)

    def describe(self) -> dict[str, Any]:
        """Plain values, for reports and configs."""
        return asdict(self)


def _scores(
    rule: GammaRule, gains: Gains, rate: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """User and item scores as tables [user bins, item bins]; their means over D do not depend on
    the scope."""
    full = np.ones_like(rate)
    if rule.direction == "proportional":
        if rule.scope == "global":
            return gains.gain_user * full, gains.gain_item * full
        return gains.user[:, None] * full, gains.item
    if gains.H <= 0.0:
        return 0.0 * full, 0.0 * full
    left = gains.H - gains.gain_user, max(0.0, gains.H - gains.gain_user - gains.gain_item)
    if rule.scope == "global":
        return left[0] / gains.H * full, left[1] / gains.H * full
    by_user = (rate * pairs).sum(axis=1) / np.maximum(pairs.sum(axis=1), 1.0)
    user = (
        bernoulli_entropy(by_user)[:, None]
        * (left[0] / gains.H_u if gains.H_u > 0.0 else 0.0)
        * full
    )
    item = bernoulli_entropy(rate) * (left[1] / gains.H_ui if gains.H_ui > 0.0 else 0.0)
    return user / gains.H, item / gains.H


def _weight(
    rule: GammaRule,
    choice: float | str,
    score: np.ndarray,
    weight: np.ndarray,
    evidence: Evidence,
    gains: Gains,
    side: SideName,
) -> tuple[float, np.ndarray]:
    """α or β and the scores it multiplies. `auto`: the side's mean log Γ is the shift of hiding a
    typical feature.

    Where the features' gain is not beyond chance, its distribution over bins is noise: the shift is
    spread evenly.
    """
    if rule.link == "info":
        return 1.0, score
    if choice != "auto":
        return float(choice), score
    target = evidence.calibration.shift(side)
    null, plugin = (
        (gains.null_user, gains.plugin_user)
        if side == "user"
        else (gains.null_item, gains.plugin_item)
    )
    mean = float((weight * score).sum())
    by_chance = null is not None and plugin <= null.high
    if mean <= 0.0 or (rule.direction == "proportional" and by_chance):
        return target, np.ones_like(score)
    return target / mean, score


def information(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """`eq:gamma_ui`, composed: scores of scope and direction, weights α and β, and a link that
    keeps Γ >= 1."""
    counts = evidence.counts
    gains = evidence.gains(rule.entropy, rule.n_permutations, rng)
    user, item = _scores(rule, gains, counts.cells / np.maximum(counts.pairs, 1.0), counts.pairs)
    weight = counts.pairs / counts.pairs.sum()
    alpha, user = _weight(rule, rule.alpha, user, weight, evidence, gains, "user")
    beta, item = _weight(rule, rule.beta, item, weight, evidence, gains, "item")
    printed = alpha * user + beta * item
    clipped = 0.0
    if rule.link == "exp":
        log_gamma = printed
    elif rule.link == "clip":
        log_gamma = np.log(np.maximum(printed, 1.0))
        clipped = float(weight[printed < 1.0].sum())
    else:  # info: KL(p + d ‖ p) ≈ (Δ logit)² p(1-p)/2, solved for Δ logit = log Γ
        scale = counts.rate * (1.0 - counts.rate)
        log_gamma = np.sqrt(2.0 * (user + item) / scale) if scale > 0.0 else np.zeros_like(user)
    return TableGamma.make(
        (counts.user_bin, counts.item_bin), log_gamma, cap=rule.cap, share_clipped=clipped
    )


@dataclass(frozen=True)
class Residual:
    """Posterior of one side's hidden log-odds shift."""

    mean: np.ndarray
    variance: np.ndarray
    prior: float
    """Variance of traits: how much could be hidden at all."""


def fitted_level(
    level: np.ndarray, noise: np.ndarray, design: np.ndarray | None, bins: np.ndarray
) -> np.ndarray:
    """E[level | features]: weighted ridge regression on the design, or the mean of the bin without
    one."""
    weight = 1.0 / (effect_variance(level - level.mean(), noise) + noise)
    if design is None:
        total = np.bincount(bins, weight * level)
        return (total / np.maximum(np.bincount(bins, weight), 1e-300))[bins]
    centred = design - np.average(design, axis=0, weights=weight)
    gram = (centred * weight[:, None]).T @ centred
    # one average entity per column
    penalty = weight.mean() * np.maximum(centred.var(axis=0), 1e-12)
    slope = np.linalg.solve(gram + np.diag(penalty), (centred * weight[:, None]).T @ level)
    return np.average(level, weights=weight) + centred @ slope


def shrunk_residual(gap: np.ndarray, noise: np.ndarray) -> Residual:
    """Traits seen through noise, gap ~ N(trait, noise): their variance by moments, each square
    weighted by the inverse of its own variance."""
    prior = effect_variance(gap, noise)
    for _ in range(VARIANCE_ROUNDS):
        weight = 1.0 / np.square(prior + noise)
        prior = max(float(np.average(gap**2 - noise, weights=weight)), MIN_VARIANCE)
    share = prior / (prior + noise)
    return Residual(gap * share, noise * share, prior)


def exposure_residuals(evidence: Evidence) -> tuple[Residual, Residual]:
    """What users and items show beyond their features: s_u − E[s|x_u] and t_i − E[t|x_i],
    shrunk."""
    counts, effects = evidence.counts, evidence.two_way
    row = effects.cell_logit @ (counts.items_in_bin / counts.n_items)
    column = (counts.users_in_bin / counts.n_users) @ effects.cell_logit
    sides = (
        (effects.user_effect, effects.user_variance, effects.ridge.user, row, counts.user_bin),
        (effects.item_effect, effects.item_variance, effects.ridge.item, column, counts.item_bin),
    )
    found = []
    for (effect, variance, ridge, table, bins), design in zip(sides, evidence.designs, strict=True):
        # undo the common shrinkage: from posterior and prior precision to estimate and noise
        kept = np.maximum(1.0 - ridge * variance, 1e-6)
        level, noise = effect / kept + table[bins], variance / kept
        found.append(shrunk_residual(level - fitted_level(level, noise, design, bins), noise))
    return found[0], found[1]


def exposure_gap(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """log Γ_ui = α |s_u - E[s|x_u]| + β |t_i - E[t|x_i]|: exposed more, or less, than features say;
    separable.

    `auto`: the mean of a side's part is the shift of hiding a typical feature of that side.
    """
    del rng
    counts, parts = evidence.counts, []
    sides: tuple[SideName, ...] = ("user", "item")
    for side, residual, choice in zip(
        sides, exposure_residuals(evidence), (rule.alpha, rule.beta), strict=True
    ):
        size = np.abs(residual.mean)
        typical = evidence.calibration.shift(side) if choice == "auto" else 0.0
        weight = typical / max(float(size.mean()), 1e-300) if choice == "auto" else choice
        parts.append(float(weight) * size)
    none = np.zeros(counts.cells.shape)
    bins = (counts.user_bin, counts.item_bin)
    return TableGamma.make(bins, none, (parts[0], parts[1]), cap=rule.cap)


@dataclass(frozen=True)
class PosteriorGamma(Gamma):
    """log Γ_ui: the `level` quantile of |shift| where shift ~ N(user + item means, sum of their
    variances)."""

    user: Residual
    item: Residual
    level: float

    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log Γ from the posterior of the pair's shift."""
        require_pairs(users, items)
        return self._log(
            self.user.mean[users] + self.item.mean[items],
            self.user.variance[users] + self.item.variance[items],
        )

    def _log(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return np.minimum(folded_quantile(mean, np.sqrt(variance), self.level), np.log(self.cap))

    def user_mean_log(self) -> np.ndarray:
        """Over items spread evenly over their means; exact where there are few."""
        return self._mean(self.user, self.item)

    def item_mean_log(self) -> np.ndarray:
        """Over users spread evenly over their means; exact where there are few."""
        return self._mean(self.item, self.user)

    def _mean(self, own: Residual, other: Residual) -> np.ndarray:
        n, order = other.mean.size, np.argsort(other.mean, kind="stable")
        some = order[((np.arange(min(PARTNERS, n)) + 0.5) * n / min(PARTNERS, n)).astype(np.int64)]
        parts = []
        for rows in row_slices(own.mean.size):
            mean = np.add.outer(own.mean[rows], other.mean[some])
            variance = np.add.outer(own.variance[rows], other.variance[some])
            parts.append(self._log(mean, variance).mean(axis=1))
        return np.concatenate(parts)

    @property
    def max(self) -> float:
        """An upper limit: the extreme means and the largest variances together, or the cap."""
        sides = self.user, self.item
        ends = [sum(float((sign * side.mean).max()) for side in sides) for sign in (1.0, -1.0)]
        deviation = np.array(np.sqrt(sum(float(side.variance.max()) for side in sides)))
        top = folded_quantile(np.array(max(ends)), deviation, self.level)
        return min(self.cap, float(np.exp(top + deviation / CURVE_STEPS)))  # as finely as tabulated


def folded_quantile(mean: np.ndarray, deviation: np.ndarray, level: float) -> np.ndarray:
    """The smallest g with P(|X| <= g) >= level for X ~ N(mean, deviation²); |mean| where deviation
    is 0."""
    curve, size = _quantile_curve(level), np.abs(mean)
    safe = np.maximum(deviation, 1e-9)
    nearest = np.minimum(size / safe * CURVE_STEPS, curve.size - 1).astype(np.int32)
    return size + safe * curve[nearest]


@lru_cache
def _quantile_curve(level: float) -> np.ndarray:
    """g - |mean| for deviation 1 and |mean| in 0..4, from X² ~ χ² with one degree of freedom and
    non-centrality mean²; beyond 4 the far tail no longer matters."""
    ratio = (np.arange(4 * CURVE_STEPS) + 0.5) / CURVE_STEPS
    return np.sqrt(chndtrix(level, 1.0, ratio**2)) - ratio


def recovered(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """The Γ whose bounds contain a pair's hidden shift with probability `level`, given the
    residuals of user and item.

    Residuals keep their sign: a user seen too often and an item seen too rarely cancel. p averages
    over traits, and a trait of variance v lifts that average: an entity without any sits about v/2
    below p. A hidden cause that varies from pair to pair leaves no residual, so it is not covered.
    """
    del rng
    user, item = (
        replace(side, mean=side.mean - 0.5 * side.prior) for side in exposure_residuals(evidence)
    )
    bins = (evidence.counts.user_bin, evidence.counts.item_bin)
    return PosteriorGamma(*bins, rule.cap, 0.0, user, item, rule.level)


def constant(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """One Γ for every pair: the robust deconfounder's."""
    del rng
    counts = evidence.counts
    bins = (np.zeros_like(counts.user_bin), np.zeros_like(counts.item_bin))
    return TableGamma.make(bins, np.full((1, 1), np.log(rule.value)), cap=max(rule.cap, rule.value))


def random(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """The ablation: log Γ uniform on [0, 2 log value], by random classes of users and items that
    mean nothing."""
    draw = generator(rng, "gamma-random")
    counts = evidence.counts
    users, items = (
        draw.integers(0, RANDOM_CLASSES, n).astype(np.int32)
        for n in (counts.n_users, counts.n_items)
    )
    table = draw.uniform(0.0, 2.0 * np.log(rule.value), (RANDOM_CLASSES, RANDOM_CLASSES))
    weight = np.multiply.outer(
        *(np.bincount(c, minlength=RANDOM_CLASSES) / c.size for c in (users, items))
    )
    mean = float((weight * table).sum())
    return TableGamma.make(
        (users, items), table * (np.log(rule.value) / mean if mean > 0.0 else 0.0), cap=rule.cap
    )


_SOURCES: dict[str, Callable[[GammaRule, Evidence, Rng], Gamma]] = {
    "information": information,
    "exposure-gap": exposure_gap,
    "recovered": recovered,
    "constant": constant,
    "random": random,
}
SOURCES = Registry(
    "puidrec.gamma_rules",
    _SOURCES,
    lambda _, source: source if callable(source) else None,
    "a function (rule, evidence, rng) -> Gamma",
)
"""A new source is one function here (or in a file of its own) and one line."""

_PRESETS: dict[str, GammaRule] = {
    "paper": GammaRule(scope="global", entropy="plugin", link="clip", alpha=2.0, beta=5.0),
    "information": GammaRule(),
    "residual": GammaRule(direction="residual"),
    "info": GammaRule(link="info"),
    "exposure-gap": GammaRule(source="exposure-gap", alpha=1.0, beta=1.0),
    "recovered": GammaRule(source="recovered"),
    "global": GammaRule(source="constant"),
    "random": GammaRule(source="random"),
}


def _plugin_rule(name: str, loaded: Any) -> GammaRule | None:
    """A plug-in is a rule composed of known parts, or a new source, which gets the default
    parts."""
    if isinstance(loaded, GammaRule):
        return loaded
    return GammaRule(source=name) if callable(loaded) else None  # type: ignore[arg-type]


PRESETS = Registry(
    "puidrec.gamma_rules",
    _PRESETS,
    _plugin_rule,
    "a GammaRule, or a function (rule, evidence, rng)",
)

GammaSpec = str | float | GammaRule
"""What every `gamma=` argument accepts: a preset's name, a number, or a rule."""


def resolve_gamma(spec: GammaSpec, **changes: Any) -> GammaRule:
    """The rule that a spec names, with fields changed: `resolve_gamma("paper", alpha=1)`,
    `resolve_gamma("1.5")`."""
    known = {field.name for field in fields(GammaRule)}
    for name in changes:
        if name not in known:
            raise InputError("unknown Γ option", found=name, expected=", ".join(sorted(known)))
    if isinstance(spec, GammaRule):
        return replace(spec, **changes)
    if isinstance(spec, str) and spec in PRESETS:
        return replace(PRESETS[spec], **changes)
    try:
        value = float(spec)
    except ValueError:
        raise InputError(
            "unknown Γ rule", found=spec, expected=f"a number, or one of {PRESETS.names()}"
        ) from None
    return replace(GammaRule.constant(value), **changes)

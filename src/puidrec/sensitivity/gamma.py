"""Γ rules: how sensitive the exposure of a pair may be to what is hidden, composed of named parts.

The printed equation (`eq:gamma_ui`) has averages where it says "personalised", is mostly below 1, and grows where the
abstract says it should shrink. So every choice is a field, and the printed equation is the preset `paper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from puidrec.errors import InputError
from puidrec.features.counts import ExposureCounts
from puidrec.plugins import Table
from puidrec.rng import Rng
from puidrec.sensitivity.entropy import Estimator
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.fitted import Gamma, TableGamma
from puidrec.sensitivity.sources import SOURCES
from puidrec.sensitivity.traced import TraceGamma
from puidrec.sensitivity.traces import Around, Spread

__all__ = ["PRESETS", "Gamma", "GammaRule", "GammaSpec", "TableGamma", "TraceGamma", "resolve_gamma"]

Source = Literal["information", "exposure-gap", "recovered", "constant", "random"]
Scope = Literal["local", "global"]
Direction = Literal["proportional", "residual"]
Link = Literal["exp", "one-plus", "clip", "info"]
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "scope": get_args(Scope),
    "entropy": get_args(Estimator),
    "direction": get_args(Direction),
    "link": get_args(Link),
    "around": get_args(Around),
    "spread": get_args(Spread),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class GammaRule:
    """One way to set Γ_ui. `fit` applies it to evidence; presets are in `PRESETS`."""

    source: Source = "information"
    """What Γ is read from: information gains, exposure beyond the features, a number, or chance."""
    scope: Scope = "local"
    """`local`: scores of the pair's own bins; `global`: their averages, one number."""
    entropy: Estimator = "permutation"
    direction: Direction = "proportional"
    """`proportional`: Γ grows with what features tell (the equation); `residual`: with what they leave open."""
    link: Link = "exp"
    alpha: float | Literal["auto"] = "auto"
    """Weight of the user part; `auto` calibrates it by hiding features."""
    beta: float | Literal["auto"] = "auto"
    """Weight of the item part."""
    value: float = 1.5
    """Γ of `constant`; geometric mean of `random`."""
    level: float = 0.95
    """`recovered`: probability with which Γ should hold a pair's hidden shift."""
    around: Around = "features"
    """Traces (`exposure-gap`, `recovered`): the nominal propensity that the bounds will be put around."""
    spread: Spread = "fitted"
    """Traces: their variance fitted to information gain and completeness, or one for all (`even`)."""
    cap: float = 20.0
    """Γ is at most this."""
    n_permutations: int = 100

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError("unknown Γ source", found=self.source, expected=SOURCES.names())
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"unknown Γ {name}", found=getattr(self, name), expected=", ".join(allowed))
        for name in ("alpha", "beta"):
            weight = getattr(self, name)
            if weight != "auto" and not (_is_number(weight) and 0.0 <= weight < np.inf):
                raise InputError(f"{name} out of range", found=weight, expected="a number >= 0, or 'auto'")
        for name in ("value", "cap"):
            if not (_is_number(getattr(self, name)) and 1.0 <= getattr(self, name) < np.inf):
                raise InputError(f"Γ {name} out of range", found=getattr(self, name), expected="finite and at least 1")
        if not 0.0 < self.level < 1.0:
            raise InputError("level out of range", found=self.level, expected="between 0 and 1")
        if self.link == "info" and self.direction == "residual":
            raise InputError("link 'info' turns gains into Γ; 'residual' scores are no gains", expected="another link")
        if self.link == "clip" and "auto" in (self.alpha, self.beta):
            raise InputError("link 'clip' is the printed value; α and β must be numbers", found="auto")

    @classmethod
    def constant(cls, value: float) -> GammaRule:
        """One Γ for all pairs."""
        return cls(source="constant", value=value)

    def fit(self, evidence: Evidence | ExposureCounts, rng: Rng = 0) -> Gamma:
        """Γ for every pair of the population, from a log's evidence (or its counts alone)."""
        seen = Evidence.from_counts(evidence) if isinstance(evidence, ExposureCounts) else evidence
        return SOURCES[self.source](self, seen, rng)

    def describe(self) -> dict[str, Any]:
        """Plain values, for reports and configs."""
        return asdict(self)


_BUILT_IN: dict[str, GammaRule] = {
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
    """A plug-in is a rule composed of known parts, or a new source, which gets the default parts."""
    if isinstance(loaded, GammaRule):
        return loaded
    return GammaRule(source=name) if callable(loaded) else None  # type: ignore[arg-type]


PRESETS = Table("puidrec.gamma_rules", _BUILT_IN, _plugin_rule, "a GammaRule, or a function (rule, evidence, rng)")

GammaSpec = str | float | GammaRule
"""What every `gamma=` argument accepts: a preset's name, a number, or a rule."""


def resolve_gamma(spec: GammaSpec, **changes: Any) -> GammaRule:
    """The rule that a spec names, with fields changed: `resolve_gamma("paper", alpha=1)`, `resolve_gamma("1.5")`."""
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
        raise InputError("unknown Γ rule", found=spec, expected=f"a number, or one of {PRESETS.names()}") from None
    return replace(GammaRule.constant(value), **changes)

"""Methods are rows of a table: (estimator) × (uncertainty) × (benchmark), and a few families outside the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from puidrec.errors import InputError

Family = Literal["grid", "multi", "unseen", "closed"]
Estimator = Literal["naive", "ips", "dr"]
Uncertainty = Literal["none", "global", "personalised"]


@dataclass(frozen=True)
class MethodSpec:
    """One method. `family` says which objective reads the other columns."""

    name: str
    family: Family
    estimator: Estimator = "naive"
    uncertainty: Uncertainty = "none"
    benchmark: bool = False
    end: Literal["signed", "worst"] = "signed"
    """Unseen family: which end of the sharp interval the unseen mean is taken at."""
    description: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which this method departs from the common defaults."""

    def __post_init__(self) -> None:
        if self.benchmark and self.uncertainty == "none":
            raise InputError(
                "a benchmark without uncertainty is vacuous: the benchmark's loss is a constant",
                found=self.name,
                hint="Use uncertainty 'global' (BRD) or 'personalised' (BPUID).",
            )
        if self.benchmark and self.estimator == "naive":
            raise InputError("a benchmark needs the estimator ips or dr", found=self.name)

    @property
    def imputes(self) -> bool:
        """Whether an imputation model θ is trained beside φ."""
        return self.estimator == "dr"


def _grid(prefix: str, uncertainty: Uncertainty, benchmark: bool, words: str) -> list[MethodSpec]:
    """The IPS and DR rows of one kind of uncertainty."""
    estimators: tuple[tuple[Estimator, str], ...] = (("ips", "inverse propensity scoring"), ("dr", "doubly robust"))
    return [
        MethodSpec(f"{prefix}{name}", "grid", name, uncertainty, benchmark, description=f"{label}{words}")
        for name, label in estimators
    ]


def _unseen(name: str, uncertainty: Uncertainty, end: Literal["signed", "worst"], words: str) -> MethodSpec:
    return MethodSpec(name, "unseen", "naive", uncertainty, end=end, description=words)


METHODS: dict[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        MethodSpec("mf", "grid", description="matrix factorisation on the log as it is"),
        *_grid("", "none", False, ""),
        *_grid("rd-", "global", False, ", worst case within one Γ"),
        *_grid("brd-", "global", True, ", worst case within one Γ against a frozen benchmark"),
        *_grid("puid-", "personalised", False, ", worst case within Γ per user and item"),
        *_grid("bpuid-", "personalised", True, ", worst case within Γ per user and item against a frozen benchmark"),
        MethodSpec("multi-ips", "multi", "ips", description="exposure and rating heads share representations, IPS"),
        MethodSpec(
            "multi-dr", "multi", "dr", description="exposure, rating and imputation heads share representations"
        ),
        _unseen("signed-rd", "global", "signed", "unseen ratings are lower by one Γ: people pick what they like"),
        _unseen("signed-puid", "personalised", "signed", "unseen ratings are lower by Γ per user and item"),
        _unseen("sharp-rd", "global", "worst", "worst end of the sharp interval for unseen ratings, one Γ"),
        _unseen("sharp-puid", "personalised", "worst", "worst end of the sharp interval, Γ per user and item"),
        MethodSpec("item-rate", "closed", description="mean rating of the item, shrunk: the baseline to beat"),
        MethodSpec("bias", "closed", description="user and item means, shrunk"),
        MethodSpec("pure-svd", "closed", description="truncated SVD of the centred log"),
    )
}


def get_method(method: str | MethodSpec) -> MethodSpec:
    """Look a method up by name."""
    if isinstance(method, MethodSpec):
        return method
    if not isinstance(method, str) or method not in METHODS:
        near = get_close_matches(str(method).lower().replace("_", "-")[:40], METHODS, 1)
        hint = f"Did you mean {near[0]}?" if near else None
        raise InputError("unknown method", found=method, expected=f"one of {', '.join(METHODS)}", hint=hint)
    return METHODS[method]

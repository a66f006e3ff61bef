"""How the tables are run: the paper's settings and our own, in one place.

The paper's: matrix factorisation with two-layer networks on features (pseudo-features where there
are only ids), targets ±1, a logistic nominal propensity, α = 2 and β = 5. Its equation for Γ is
below 1 nearly everywhere, so the weights act on log Γ of each pair's own bins; the equation as
printed is a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puidrec.comparing.job import DataSpec, Job
from puidrec.data.split import MaskKind
from puidrec.methods import get_method

DATA = ("coat", "yahoo-r3", "kuairec")
"""The data sets of the paper's tables."""
PAPER_METHODS = (
    "mf",
    "ips",
    "rd-ips",
    "multi-ips",
    "puid-ips",
    "dr",
    "rd-dr",
    "multi-dr",
    "puid-dr",
    "brd-ips",
    "bpuid-ips",
    "brd-dr",
    "bpuid-dr",
)
"""In the order of its first table."""
TRIVIAL = ("item-rate", "bias", "pure-svd", "all-rank", "ease")
OURS = ("spectrum", "signed-rd", "signed-puid")


@dataclass(frozen=True)
class Variant:
    """A row of a table: a method, the settings in which it departs, and its name where the method's
    is not enough."""

    method: str
    label: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.label or self.method


def control(method: str, gamma: str | float, words: str) -> Variant:
    """A personalised method whose Γ is replaced."""
    return Variant(method, f"{method}, {words}", {"gamma": gamma})


def trivial(method: str) -> Variant:
    """A baseline, which is the same whatever the backbone of the methods."""
    return Variant(method, settings={"backbone": "mf"} if get_method(method).trains else {})


RANDOM_GAMMA = tuple(control(f"puid-{kind}", "random", "random Γ") for kind in ("ips", "dr"))
NO_GAMMA = tuple(control(f"puid-{kind}", 1.0, "Γ = 1") for kind in ("ips", "dr"))
PRINTED_GAMMA = tuple(control(f"puid-{kind}", "paper", "Γ as printed") for kind in ("ips", "dr"))
CONTROLS = (*RANDOM_GAMMA, *NO_GAMMA)


@dataclass(frozen=True)
class Preset:
    """One way to run the tables."""

    name: str
    words: str
    protocols: Mapping[str, tuple[str, ...]]
    """Data set → protocols. On KuaiRec the label is given, so that all protocols agree."""
    variants: tuple[Variant, ...]
    """Rows of RQ1."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    personalised: Mapping[str, Any] = field(default_factory=dict)
    """Settings of methods with a personalised Γ; those with one Γ, or none, have no weights."""
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings for one data set."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the source, by data set."""

    def settings_of(self, variant: Variant, data: str) -> dict[str, Any]:
        """All settings of a row on a data set; trivial methods have none."""
        spec = get_method(variant.method)
        if not spec.trains:
            return {}
        own = (
            self.personalised
            if spec.uncertainty == "personalised" and not spec.calibrates_gamma
            else {}
        )
        return {**self.settings, **own, **self.by_data.get(data, {}), **variant.settings}

    def job(
        self,
        data: str,
        folder: Path,
        variant: Variant,
        seed: int,
        protocol: str,
        *,
        mask: tuple[MaskKind, float] | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> Job:
        """The job of a row; `limits` are settings that shorten training. Each seed draws KuaiRec's
        log anew."""
        settings = self.settings_of(variant, data)
        if limits and get_method(variant.method).trains:
            settings |= limits
        drawn = {"rng": seed} if data == "kuairec" else {}
        spec = DataSpec(data, folder, {**self.options.get(data, {}), **drawn}, mask)
        return Job(spec, variant.method, seed, protocol, settings, variant.label, self.name)


KUAIREC_LIMITS = {"epochs": 150, "patience": 15}
"""Three seeds and all masks under the paper's settings must end within the hour; reports say which
fits it cut."""

OWN = Preset(
    "own",
    "the settings we ship, with the features that the data have",
    protocols={"coat": ("rd",), "yahoo-r3": ("rd",), "kuairec": ("rd",)},
    variants=(*map(Variant, (*PAPER_METHODS, *OURS, *TRIVIAL)), *CONTROLS),
)
PAPER = Preset(
    "paper",
    "the paper's: mf-mlp, pseudo-features where there are only ids, targets ±1, logistic propensity, α = 2, β = 5",
    protocols={"coat": ("ge3", "paper"), "yahoo-r3": ("ge3", "paper"), "kuairec": ("rd",)},
    variants=(*map(Variant, PAPER_METHODS), *map(trivial, TRIVIAL), *CONTROLS, *PRINTED_GAMMA),
    settings={"backbone": "mf-mlp", "target": "binary", "propensity": "logistic"},
    personalised={"gamma": "information", "alpha": 2.0, "beta": 5.0},
    by_data={"kuairec": KUAIREC_LIMITS},
    options={"coat": {"features": "pseudo"}, "yahoo-r3": {"features": "pseudo"}},
)
OVERLAPPING = Preset(
    "paper-overlapping",
    "the paper's, scored on all pairs of the block, training pairs included, as in the paper",
    protocols={"kuairec": ("rd",)},
    variants=tuple(map(Variant, ("mf", "ips", "puid-ips", "puid-dr", "bpuid-dr", "item-rate"))),
    settings=PAPER.settings,
    personalised=PAPER.personalised,
    by_data=PAPER.by_data,
    options={"kuairec": {"evaluation": "overlapping-as-in-paper", "overlap": "keep"}},
)
PRESETS = {preset.name: preset for preset in (OWN, PAPER, OVERLAPPING)}

"""RQ1, RQ2 and the ablation: which jobs make up each table, how many they are, and about how long
they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puidrec.comparing.job import Job
from puidrec.data.split import MaskKind
from puidrec.methods import get_method
from puidrec.reproduce.paper_tables import MASK_RATIOS
from puidrec.reproduce.presets import DATA, OWN, PAPER, PRESETS, Preset, Variant

SECONDS = {"coat": (0.1, 1.5), "yahoo-r3": (0.5, 8.0), "kuairec": (2.5, 20.0)}
"""Of an evaluation, and of 300 epochs of a plain fit, on one quiet core; imputation and benchmarks
take longer."""
LARGE = ("yahoo-r3", "kuairec")
"""Data sets of hundreds of thousands of rows: under the paper's settings their tables take the
first seed only."""

QUICK_EPOCHS = {"coat": 40, "yahoo-r3": 15, "kuairec": 15}


@dataclass(frozen=True)
class RunSize:
    """How much is run."""

    seeds: int = 3
    quick: bool = False

    def limits(self, data: str) -> Mapping[str, Any]:
        """Settings that shorten training; a quick run shows that everything works, and no more."""
        return {"epochs": QUICK_EPOCHS[data], "patience": 0} if self.quick else {}

    def repeats(self, data: str, preset: str) -> range:
        """The seeds of a preset on a data set."""
        return range(1 if data in LARGE and preset != "own" else self.seeds)

    def pick(self, everything: Sequence[Any], few: Sequence[Any]) -> Sequence[Any]:
        """All of something, or the few that a quick run takes."""
        return few if self.quick else everything


@dataclass(frozen=True)
class PlannedQuestion:
    """The jobs of one question, and the lines that say what is left out."""

    question: str
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = field(default=())


Folders = Mapping[str, Path]


def estimated_seconds(jobs: Sequence[Job], workers: int) -> float:
    """A rough guess, so that someone knows whether to wait or to come back."""
    return sum(_seconds(job) for job in {job.key: job for job in jobs}.values()) / max(1, workers)


def _seconds(job: Job) -> float:
    spec = get_method(job.method)
    evaluation, training = SECONDS.get(job.data.name, (0.1, 1.0))
    if not spec.trains:
        return evaluation
    factor = (1.5 if spec.imputes else 1.0) * (1.7 if spec.benchmark else 1.0)
    return evaluation + training * factor * job.resolved.epochs / 300


RQ1_QUICK = {
    "coat": ("mf", "puid-ips", "puid-ips, random Γ", "puid-dr", "signed-rd", "item-rate"),
    "kuairec": ("mf", "puid-ips", "puid-ips, random Γ", "item-rate"),
}
RQ1_NOTE = (
    "On the large data sets, presets other than own take the first seed only, and their intervals are over users; "
    "paper-overlapping takes a few methods, to show what scoring training pairs does."
)


def rq1_jobs(folders: Folders, size: RunSize) -> PlannedQuestion:
    """Presets × data sets × protocols × rows × seeds."""
    jobs = [
        preset.job(data, folders[data], variant, seed, protocol, limits=size.limits(data))
        for preset in PRESETS.values()
        for data in DATA
        if data in folders
        for protocol in size.pick(
            preset.protocols.get(data, ()), preset.protocols.get(data, ())[:1]
        )
        for variant in rq1_rows(preset, data, size)
        for seed in size.repeats(data, preset.name)
    ]
    large = not size.quick and any(data in folders for data in LARGE)
    return PlannedQuestion("rq1", tuple(jobs), (RQ1_NOTE,) if large else ())


def rq1_rows(preset: Preset, data: str, size: RunSize) -> list[Variant]:
    """The rows of a table; a quick run takes a few, and skips the presets that cost most."""
    if not size.quick:
        return list(preset.variants)
    if preset.name == "paper-overlapping":
        return []
    return [
        variant
        for variant in preset.variants
        if variant.name in RQ1_QUICK.get(data, RQ1_QUICK["coat"])
    ]


MASKED_METHODS = (
    "puid-ips",
    "puid-dr",
    "bpuid-ips",
    "bpuid-dr",
    "rd-ips",
    "rd-dr",
    "brd-ips",
    "brd-dr",
    "mf",
    "item-rate",
    "signed-rd",
)
MASK_KINDS: tuple[MaskKind, ...] = ("random", "positives")
MASK_PROTOCOLS = {
    "paper": {"coat": "ge3", "yahoo-r3": "ge3", "kuairec": "rd"},
    "own": dict.fromkeys(DATA, "rd"),
}
MASK_PRESETS = {"coat": (PAPER, OWN), "yahoo-r3": (PAPER,), "kuairec": (PAPER,)}
"""Presets by data set: large ones under the paper's settings only, which its figures are compared
with."""
RQ2_NOTE = (
    "The large data sets are run with the first seed only here, and lose positive rows at the largest ratio only; "
    "their intervals are those over users."
)


def mask_ratios(data: str, kind: MaskKind) -> tuple[float, ...]:
    """The ratios of a kind of mask; what the paper does not print is run at one of them where fits
    are long."""
    return MASK_RATIOS[-1:] if kind == "positives" and data in LARGE else MASK_RATIOS


def rq2_jobs(folders: Folders, size: RunSize) -> PlannedQuestion:
    """Presets × data sets × kinds × ratios × methods × seeds."""
    jobs = [
        preset.job(
            data,
            folders[data],
            Variant(method),
            seed,
            MASK_PROTOCOLS[preset.name][data],
            mask=(kind, ratio),
            limits=size.limits(data),
        )
        for data in size.pick(DATA, DATA[:1])
        if data in folders
        for preset in size.pick(MASK_PRESETS[data], MASK_PRESETS[data][:1])
        for kind in MASK_KINDS
        for ratio in size.pick(mask_ratios(data, kind), MASK_RATIOS[::3])
        for method in size.pick(MASKED_METHODS, ("puid-ips", "rd-ips", "item-rate"))
        for seed in size.repeats(data, preset.name)
    ]
    large = not size.quick and any(data in folders for data in LARGE)
    return PlannedQuestion("rq2", tuple(jobs), (RQ2_NOTE,) if large else ())


ABLATION_SETUPS = ((PAPER, "ge3"), (OWN, "rd"))
LETTERS = {"A": "ips", "B": "dr"}


def ablation_variants(letter: str) -> tuple[Variant, ...]:
    """Rows 1–5 of a series, and one Γ and none. A random bound is drawn per class of pairs: a
    personalised method."""
    kind = LETTERS[letter]
    puid, rd = f"puid-{kind}", f"rd-{kind}"
    weights = {"gamma": "information", "alpha": 2.0, "beta": 5.0}
    return (
        Variant(puid, f"{letter}1 {puid}, α = 2, β = 5", weights),
        Variant(puid, f"{letter}2 {puid} without side features", {**weights, "backbone": "mf"}),
        Variant(puid, f"{letter}3 {puid}, α = 5, β = 10", {**weights, "alpha": 5.0, "beta": 10.0}),
        Variant(puid, f"{letter}4 {puid}, α = 5, β = 5", {**weights, "alpha": 5.0, "beta": 5.0}),
        Variant(
            puid,
            f"{letter}5 {rd} with random bounds",
            {"gamma": "random", "alpha": None, "beta": None},
        ),
        Variant(rd, f"{letter}+ {rd}, one Γ = 1.5", {"gamma": 1.5}),
        Variant(kind, f"{letter}+ {kind}, no Γ"),
    )


def ablation_jobs(folders: Folders, size: RunSize) -> PlannedQuestion:
    """Both series under the paper's settings (protocol ge3) and our own (rd, real features)."""
    if "coat" not in folders:
        return PlannedQuestion("ablation", ())
    jobs = [
        preset.job("coat", folders["coat"], variant, seed, protocol, limits=size.limits("coat"))
        for preset, protocol in size.pick(ABLATION_SETUPS, ABLATION_SETUPS[:1])
        for letter in LETTERS
        for variant in ablation_variants(letter)
        for seed in range(size.seeds)
    ]
    return PlannedQuestion("ablation", tuple(jobs))

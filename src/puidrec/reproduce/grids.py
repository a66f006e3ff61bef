"""Which jobs make up each table: the paper's questions RQ1, RQ2 and its ablation, and the field's
table of methods.

The paper's settings: matrix factorisation with two-layer networks on features (pseudo-features
where there are only ids), targets ±1, a logistic nominal propensity, α = 2 and β = 5. Its equation
for Γ is below 1 nearly everywhere, so the weights act on log Γ of each pair's own bins; the
equation as printed is a row of its own.

Jobs come seed by seed, so that a run that is interrupted has every table under its first seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from puidrec.comparing.job import DataSpec, Job
from puidrec.data.protocol import PROTOCOLS
from puidrec.methods import get_method
from puidrec.reproduce.paper_tables import MASK_RATIOS

Folders = Mapping[str, Path]
_PAPER_METHODS = """
mf ips rd-ips multi-ips puid-ips dr rd-dr multi-dr puid-dr brd-ips bpuid-ips brd-dr bpuid-dr
"""
PAPER_METHODS = tuple(_PAPER_METHODS.split())
"""In the order of the paper's first table."""
LARGE = ("yahoo-r3", "kuairec")
"""Hundreds of thousands of rows and thousands of users, which intervals come from: one seed."""
QUICK = {"epochs": 4, "patience": 0}
"""A quick run shows that everything works, and no more."""


@dataclass(frozen=True)
class Row:
    """A row of a table: a method, its name where the method's is not enough, and the settings in
    which it departs."""

    method: str
    label: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


CONTROLS = tuple(
    Row(method, f"{method}, random Γ", {"gamma": "random"}) for method in ("puid-ips", "puid-dr")
)
"""Γ = 1 would be `ips` and `dr`, and so would Γ as printed, which is below 1."""


@dataclass(frozen=True)
class Preset:
    """One way to run the tables."""

    name: str
    words: str
    rows: tuple[Row, ...]
    """Of RQ1."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    personalised: Mapping[str, Any] = field(default_factory=dict)
    """Settings of methods with a personalised Γ; those with one Γ, or none, have no weights."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the source, by data set."""

    def job(
        self, folders: Folders, data: str, row: Row, seed: int, protocol: str = "rd", **more: Any
    ) -> Job:
        """The job of a row; `more` may hold a `mask`. Each seed draws KuaiRec's log anew."""
        spec = get_method(row.method)
        own = spec.uncertainty == "personalised" and not spec.calibrates_gamma
        settings = {**self.settings, **(self.personalised if own else {}), **row.settings}
        if not spec.trains:
            settings = {}
        drawn = {"rng": seed} if data == "kuairec" else {}
        source = DataSpec(data, folders[data], {**self.options.get(data, {}), **drawn}, **more)
        return Job(source, row.method, seed, protocol, settings, row.label, self.name)


OWN = Preset(
    "own",
    "the settings we ship, with the features that the data have",
    (*map(Row, (*PAPER_METHODS, "item-rate")), *CONTROLS),
)
PAPER = Preset(
    "paper",
    "the paper's: mf-mlp trained with Adam, pseudo-features where there are only ids, targets ±1, "
    "logistic propensity, α = 2, β = 5",
    OWN.rows,
    {"backbone": "mf-mlp", "target": "binary", "propensity": "logistic", "epochs": 150},
    {"gamma": "information", "alpha": 2.0, "beta": 5.0},
    {"coat": {"features": "pseudo"}, "yahoo-r3": {"features": "pseudo"}},
)
OVERLAPPING = replace(
    PAPER,
    name="paper-overlapping",
    words="the paper's, scored on all pairs of the block, training pairs included, as in the paper",
    rows=tuple(map(Row, ("mf", "puid-ips", "puid-dr", "item-rate"))),
    options={"kuairec": {"evaluation": "overlapping-as-in-paper", "overlap": "keep"}},
)
PRESETS = {preset.name: preset for preset in (OWN, PAPER, OVERLAPPING)}
LABELLED = ("ge3", "paper", "rd")
"""What counts as liked, which the paper leaves open; on KuaiRec the label is given."""
RQ1_TABLES = (
    *(("coat", preset, p) for p in LABELLED for preset in (PAPER, OWN)),
    ("yahoo-r3", PAPER, "ge3"),
    ("yahoo-r3", OWN, "rd"),
    *(("kuairec", preset, "rd") for preset in (PAPER, OWN, OVERLAPPING)),
)
"""A large data set has one protocol per preset: that of the printed figures, and ours."""
MASKED_METHODS = tuple(m for m in PAPER_METHODS if "rd" in m or "puid" in m)
MASKED_LARGE = ("rd-ips", "puid-ips")
"""One Γ and a personal one, under our settings, which are faster there."""
MASKED_DATA = {"coat": "ge3", "yahoo-r3": "ge3", "kuairec": "rd"}
LETTERS = {"A": "ips", "B": "dr"}


def rq1_jobs(folders: Folders, seed: int) -> list[Job]:
    """Data sets × presets × protocols × rows."""
    return [
        preset.job(folders, data, row, seed, protocol)
        for data, preset, protocol in RQ1_TABLES
        if data in folders
        for row in preset.rows
        if asked_of(row, data, preset, protocol, seed)
    ]


def asked_of(row: Row, data: str, preset: Preset, protocol: str, seed: int) -> bool:
    """Under its home protocol a preset has its controls (the paper's networks on Coat only), and
    Coat all seeds. On large data sets benchmarked rows are left out: solved, they return their
    benchmark (docs/deviations.md)."""
    home = protocol == ("rd" if preset is OWN or data == "kuairec" else "ge3")
    if data not in LARGE:
        return home or (not seed and row.label is None)
    plain = row.label is None and not get_method(row.method).benchmark
    return not seed and (plain or (row.label is not None and preset is OWN))


def rq2_jobs(folders: Folders, seed: int) -> list[Job]:
    """Data sets × mask ratios × methods, under the first seed and the paper's settings, large data
    sets under ours."""
    return [
        (OWN if data in LARGE else PAPER).job(
            folders, data, Row(method), seed, protocol, mask=("random", ratio)
        )
        for data, protocol in MASKED_DATA.items()
        if data in folders and not seed
        for ratio in MASK_RATIOS
        for method in (*(MASKED_LARGE if data in LARGE else MASKED_METHODS), "mf", "item-rate")
    ]


def ablation_rows(letter: str) -> list[Row]:
    """Rows 1–5 of a series, and one Γ and none. A random bound is drawn per class of pairs: a
    personalised method."""
    kind = LETTERS[letter]
    puid = f"puid-{kind}"

    def weighted(number: int, words: str, **settings: Any) -> Row:
        weights = {"gamma": "information", "alpha": 2.0, "beta": 5.0, **settings}
        return Row(puid, f"{letter}{number} {puid}{words}", weights)

    return [
        weighted(1, ", α = 2, β = 5"),
        weighted(2, " without side features", backbone="mf"),
        weighted(3, ", α = 5, β = 10", alpha=5.0, beta=10.0),
        weighted(4, ", α = 5, β = 5", alpha=5.0),
        weighted(5, ", random bounds", gamma="random", alpha=None, beta=None),
        Row(f"rd-{kind}", f"{letter}+ rd-{kind}, one Γ = 1.5", {"gamma": 1.5}),
        Row(kind, f"{letter}+ {kind}, no Γ"),
    ]


def ablation_jobs(folders: Folders, seed: int) -> list[Job]:
    """Both series on Coat, under the paper's settings and our own."""
    return [
        preset.job(folders, "coat", row, seed, protocol)
        for preset, protocol in ((PAPER, "ge3"), (OWN, "rd"))
        if "coat" in folders
        for letter in LETTERS
        for row in ablation_rows(letter)
    ]


# The field


_FIELD_METHODS = """
popularity item-rate bias all-rank ease mf ips dr mrdr dr-mse tdr stable-dr d-ips d-dr ips-v2 dr-v2 kernel-ips
kernel-dr cvib dcf idcf multi-ips multi-dr rd-ips rd-dr puid-ips puid-dr auto-debias bal-ips bal-dr
res-ips res-dr signed-rd signed-puid spectrum
"""
FIELD_METHODS = tuple(_FIELD_METHODS.split())
_FIELD_LARGE = """
popularity item-rate bias all-rank ease mf ips dr cvib dcf idcf multi-ips multi-dr rd-ips rd-dr puid-ips puid-dr
auto-debias bal-dr res-dr signed-rd spectrum
"""
FIELD_LARGE = tuple(_FIELD_LARGE.split())
"""One or two of each kind: a fit takes ten seconds and more on large data sets."""
WORLDS = ("entity", "pair", "mixed")
WORLD_SIZE = {"n_users": 300, "n_items": 200, "density": 0.05, "n_uniform": 6_000}
FIELD_PROTOCOLS = {
    "coat": ("rd", "cvib", "idcf"),
    "yahoo-r3": ("rd", "cvib", "idcf"),
    "kuairec": ("rd",),
    "simulated": ("rd",),
}
"""On KuaiRec and in simulated worlds all protocols draw the same line, or nearly."""
ELSEWHERE = ("item-rate", "mf", "dr", "all-rank", "ease", "idcf", "spectrum")
"""What stands beside printed figures under other protocols than `rd`."""


def field_jobs(folders: Folders, seed: int) -> list[Job]:
    """Every method × data set × protocol, with shipped settings: one configuration each."""
    specs = [
        DataSpec(name, folder, {"rng": seed} if name == "kuairec" else {})
        for name, folder in folders.items()
    ]
    specs += [
        DataSpec(
            "simulated",
            None,
            {"world": world, "seed": seed, **WORLD_SIZE},
            label=f"simulated, {world}",
        )
        for world in WORLDS
    ]
    return [
        Job(spec, method, seed, protocol, preset="field")
        for spec in specs
        for protocol in FIELD_PROTOCOLS[spec.name]
        if not seed or (spec.name, protocol) == ("coat", "rd")
        for method in field_methods(spec.name, protocol)
        if can_train(method, protocol)
    ]


def field_methods(data: str, protocol: str) -> tuple[str, ...]:
    """The rows of a column."""
    if protocol != "rd":
        return ELSEWHERE
    return FIELD_LARGE if data in LARGE else FIELD_METHODS


def can_train(method: str, protocol: str) -> bool:
    """Whether a protocol leaves a method what it needs: some hold out no uniform rows for it."""
    return PROTOCOLS[protocol].propensity_share > 0.0 or not get_method(method).needs_uniform


GRIDS: dict[str, Callable[[Folders, int], list[Job]]] = {
    "rq1": rq1_jobs,
    "rq2": rq2_jobs,
    "ablation": ablation_jobs,
    "field": field_jobs,
}


def jobs_of(question: str, folders: Folders, seeds: int, *, quick: bool, device: str) -> list[Job]:
    """The jobs of a question, seed by seed; a quick run takes few methods, for a few epochs."""
    jobs = [job for seed in range(seeds) for job in GRIDS[question](folders, seed)]
    if quick:
        jobs = [job for job in jobs if job.method in ("mf", "dr", "puid-dr")]
    limits = {**(QUICK if quick else {}), **({} if device == "cpu" else {"device": device})}
    return [
        replace(job, settings={**job.settings, **limits}) if get_method(job.method).trains else job
        for job in jobs
    ]

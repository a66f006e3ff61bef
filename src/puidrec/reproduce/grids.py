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
from puidrec.data.split import PROTOCOLS
from puidrec.methods import get_method

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
popularity item-rate bias all-rank ease mf ips dr mrdr dr-mse tdr stable-dr d-ips d-dr ips-v2 dr-v2
kernel-ips kernel-dr cvib dcf idcf multi-ips multi-dr rd-ips rd-dr puid-ips puid-dr auto-debias
bal-ips bal-dr res-ips res-dr signed-rd signed-puid spectrum
"""
FIELD_METHODS = tuple(_FIELD_METHODS.split())
_FIELD_LARGE = """
popularity item-rate bias all-rank ease mf ips dr cvib dcf idcf multi-ips multi-dr rd-ips rd-dr
puid-ips puid-dr auto-debias bal-dr res-dr signed-rd spectrum
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


# The figures that the paper prints. The ablation and the experiments on entropies are printed as
# charts without numbers.

METRICS: Mapping[str, tuple[str, str]] = {
    "coat": ("uauc", "ndcg@5"),
    "yahoo-r3": ("uauc", "ndcg@5"),
    "kuairec": ("uauc", "ndcg@50"),
}
"""Data set → the two metrics that the paper prints for it, in the order of its columns."""
COLUMNS = tuple((data, metric) for data, metrics in METRICS.items() for metric in metrics)
MASK_RATIOS = (0.1, 0.2, 0.5, 0.8)
"""Mask ratios of RQ2."""
SHARES = (2, 3, 4, 5)
"""RQ3 observes one feature in so many."""

_RQ1 = """
mf         0.6606 0.5923 0.5874 0.5425 0.6781 0.6621
ips        0.6627 0.6000 0.5930 0.5530 0.7446 0.6683
rd-ips     0.6671 0.6081 0.6096 0.5706 0.7574 0.6700
multi-ips  0.6531 0.5940 0.5972 0.5589 0.5854 0.6983
puid-ips   0.6763 0.6182 0.6143 0.5736 0.7656 0.6703
dr         0.6797 0.6090 0.6133 0.5742 0.7468 0.6738
rd-dr      0.6827 0.6155 0.6088 0.5684 0.7635 0.6410
multi-dr   0.6386 0.5866 0.5671 0.5267 0.5914 0.6896
puid-dr    0.6843 0.6169 0.6178 0.5753 0.7677 0.6516
brd-ips    0.6786 0.6069 0.6065 0.5655 0.7684 0.6365
bpuid-ips  0.6806 0.6123 0.6125 0.5708 0.7644 0.6722
brd-dr     0.6788 0.6107 0.6129 0.5702 0.7638 0.6361
bpuid-dr   0.6809 0.6160 0.6177 0.5745 0.7724 0.6549
"""
_RQ2 = """
mask 0.1
puid-ips   0.6732 0.5986 0.6174 0.5749 0.7658 0.6712
puid-dr    0.6846 0.6229 0.6155 0.5723 0.7681 0.6533
bpuid-ips  0.6786 0.6204 0.6148 0.5736 0.7650 0.6701
bpuid-dr   0.6707 0.6091 0.6202 0.5798 0.7738 0.6523
rd-ips     0.6713 0.6098 0.6063 0.5650 0.7581 0.6704
rd-dr      0.6861 0.6183 0.6096 0.5687 0.7629 0.6384
brd-ips    0.6751 0.6154 0.6112 0.5674 0.7673 0.6405
brd-dr     0.6649 0.5939 0.6193 0.5776 0.7632 0.6322
mask 0.2
puid-ips   0.6490 0.5861 0.6118 0.5702 0.7661 0.6735
puid-dr    0.6709 0.6094 0.6151 0.5702 0.7678 0.6502
bpuid-ips  0.6700 0.6122 0.6146 0.5721 0.7647 0.6683
bpuid-dr   0.6645 0.5960 0.6197 0.5771 0.7737 0.6508
rd-ips     0.6511 0.5840 0.6098 0.5701 0.7574 0.6703
rd-dr      0.6805 0.6196 0.6181 0.5772 0.7634 0.6389
brd-ips    0.6725 0.6061 0.6066 0.5654 0.7693 0.6020
brd-dr     0.6614 0.5982 0.6149 0.5714 0.7639 0.6388
mask 0.5
puid-ips   0.6214 0.5545 0.5992 0.5572 0.7648 0.6733
puid-dr    0.6512 0.5900 0.6110 0.5668 0.7676 0.6525
bpuid-ips  0.6507 0.5910 0.6064 0.5620 0.7644 0.6733
bpuid-dr   0.6477 0.5821 0.6154 0.5710 0.7734 0.6537
rd-ips     0.6329 0.5771 0.6056 0.5634 0.7570 0.6700
rd-dr      0.6425 0.5842 0.6032 0.5606 0.7623 0.6367
brd-ips    0.6422 0.5876 0.6044 0.5602 0.7680 0.6740
brd-dr     0.6409 0.5785 0.6083 0.5633 0.7634 0.6350
mask 0.8
puid-ips   0.6253 0.5463 0.5857 0.5424 0.7602 0.6624
puid-dr    0.6307 0.5580 0.5904 0.5423 0.7637 0.6385
bpuid-ips  0.6419 0.5746 0.6033 0.5624 0.7649 0.6733
bpuid-dr   0.6352 0.5639 0.6033 0.5555 0.7694 0.6559
rd-ips     0.6270 0.5738 0.5854 0.5435 0.7518 0.6714
rd-dr      0.6352 0.5657 0.5930 0.5470 0.7597 0.6515
brd-ips    0.6399 0.5742 0.5864 0.5436 0.7686 0.6034
brd-dr     0.6403 0.5776 0.5935 0.5478 0.7585 0.6316
"""

Figures = Mapping[tuple[str, str, str], float]
"""(method, data, metric) → the printed figure."""


def _line(text: str) -> dict[tuple[str, str, str], float]:
    method, *figures = text.split()
    return {
        (method, *column): float(figure) for column, figure in zip(COLUMNS, figures, strict=True)
    }


def _read(text: str) -> dict[tuple[str, str, str], float]:
    return {key: value for line in text.strip().splitlines() for key, value in _line(line).items()}


RQ1: Figures = _read(_RQ1)
RQ2: Mapping[float, Figures] = {
    float(block.split("\n", 1)[0]): _read(block.split("\n", 1)[1])
    for block in _RQ2.strip().split("mask ")[1:]
}


def printed(method: str, data: str, metric: str, ratio: float | None = None) -> float | None:
    """The figure of RQ1, or of RQ2 at a mask ratio; None where the paper prints none."""
    return (RQ1 if ratio is None else RQ2.get(ratio, {})).get((method, data, metric))

"""RQ2: the same with a share of the log removed, at random or among its positive rows only."""

from __future__ import annotations

from puidrec.data.split import MaskKind
from puidrec.experiments.paper_tables import RATIOS
from puidrec.experiments.reproduce.plan import LARGE, Folders, Plan, Planned
from puidrec.experiments.reproduce.presets import DATA, OWN, PAPER, Variant

METHODS = (
    "puid-ips", "puid-dr", "bpuid-ips", "bpuid-dr", "rd-ips", "rd-dr", "brd-ips", "brd-dr",
    "mf", "item-rate", "signed-rd",
)  # fmt: skip
KINDS: tuple[MaskKind, ...] = ("random", "positives")
PROTOCOL = {"paper": {"coat": "ge3", "yahoo-r3": "ge3", "kuairec": "rd"}, "own": dict.fromkeys(DATA, "rd")}
SETUPS = {"coat": (PAPER, OWN), "yahoo-r3": (PAPER,), "kuairec": (PAPER,)}
"""Presets by data set: large ones under the paper's settings only, which its figures are compared with."""
NOTE = (
    "The large data sets are run with the first seed only here, and lose positive rows at the largest ratio only; "
    "their intervals are those over users."
)


def ratios(data: str, kind: MaskKind) -> tuple[float, ...]:
    """The ratios of a kind of mask; what the paper does not print is run at one of them where fits are long."""
    return RATIOS[-1:] if kind == "positives" and data in LARGE else RATIOS


def rq2_cells(folders: Folders, plan: Plan) -> Planned:
    """Presets × data sets × kinds × ratios × methods × seeds."""
    cells = [
        preset.cell(
            data, folders[data], Variant(method), seed, PROTOCOL[preset.name][data],
            mask=(kind, ratio), limits=plan.limits(data),
        )
        for data in plan.pick(DATA, DATA[:1])
        if data in folders
        for preset in plan.pick(SETUPS[data], SETUPS[data][:1])
        for kind in KINDS
        for ratio in plan.pick(ratios(data, kind), RATIOS[::3])
        for method in plan.pick(METHODS, ("puid-ips", "rd-ips", "item-rate"))
        for seed in plan.repeats(data, preset.name)
    ]  # fmt: skip
    large = not plan.quick and any(data in folders for data in LARGE)
    return Planned("rq2", tuple(cells), (NOTE,) if large else ())

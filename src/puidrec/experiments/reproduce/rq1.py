"""RQ1: every method on every data set, with trivial baselines and controls of Γ."""

from __future__ import annotations

from puidrec.experiments.reproduce.plan import LARGE, Folders, Plan, Planned
from puidrec.experiments.reproduce.presets import DATA, PRESETS, Preset, Variant

QUICK = {
    "coat": ("mf", "puid-ips", "puid-ips, random Γ", "puid-dr", "signed-rd", "item-rate"),
    "kuairec": ("mf", "puid-ips", "puid-ips, random Γ", "item-rate"),
}
NOTE = (
    "On the large data sets, presets other than own take the first seed only, and their intervals are over users; "
    "paper-overlapping takes a few methods, to show what scoring training pairs does."
)


def rq1_cells(folders: Folders, plan: Plan) -> Planned:
    """Presets × data sets × protocols × rows × seeds."""
    cells = [
        preset.cell(data, folders[data], variant, seed, protocol, limits=plan.limits(data))
        for preset in PRESETS.values()
        for data in DATA
        if data in folders
        for protocol in plan.pick(preset.protocols.get(data, ()), preset.protocols.get(data, ())[:1])
        for variant in rows(preset, data, plan)
        for seed in plan.repeats(data, preset.name)
    ]
    large = not plan.quick and any(data in folders for data in LARGE)
    return Planned("rq1", tuple(cells), (NOTE,) if large else ())


def rows(preset: Preset, data: str, plan: Plan) -> list[Variant]:
    """The rows of a table; a quick run takes a few, and skips the presets that cost most."""
    if not plan.quick:
        return list(preset.variants)
    if preset.name == "paper-overlapping":
        return []
    return [variant for variant in preset.variants if variant.name in QUICK.get(data, QUICK["coat"])]

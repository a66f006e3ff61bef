"""The ablation on Coat: A1–A5 with IPS, B1–B5 with DR, as the paper's caption lists them, and two controls more."""

from __future__ import annotations

from puidrec.experiments.reproduce.plan import Folders, Plan, Planned
from puidrec.experiments.reproduce.presets import OWN, PAPER, Variant

SETUPS = ((PAPER, "ge3"), (OWN, "rd"))
LETTERS = {"A": "ips", "B": "dr"}


def variants(letter: str) -> tuple[Variant, ...]:
    """Rows 1–5 of a series, and one Γ and none. A random bound is drawn per class of pairs: a personalised method."""
    kind = LETTERS[letter]
    puid, rd = f"puid-{kind}", f"rd-{kind}"
    weights = {"gamma": "information", "alpha": 2.0, "beta": 5.0}
    return (
        Variant(puid, f"{letter}1 {puid}, α = 2, β = 5", weights),
        Variant(puid, f"{letter}2 {puid} without side features", {**weights, "backbone": "mf"}),
        Variant(puid, f"{letter}3 {puid}, α = 5, β = 10", {**weights, "alpha": 5.0, "beta": 10.0}),
        Variant(puid, f"{letter}4 {puid}, α = 5, β = 5", {**weights, "alpha": 5.0, "beta": 5.0}),
        Variant(puid, f"{letter}5 {rd} with random bounds", {"gamma": "random", "alpha": None, "beta": None}),
        Variant(rd, f"{letter}+ {rd}, one Γ = 1.5", {"gamma": 1.5}),
        Variant(kind, f"{letter}+ {kind}, no Γ"),
    )


def ablation_cells(folders: Folders, plan: Plan) -> Planned:
    """Both series under the paper's settings (protocol ge3) and our own (rd, real features)."""
    if "coat" not in folders:
        return Planned("ablation", ())
    cells = [
        preset.cell("coat", folders["coat"], variant, seed, protocol, limits=plan.limits("coat"))
        for preset, protocol in plan.pick(SETUPS, SETUPS[:1])
        for letter in LETTERS
        for variant in variants(letter)
        for seed in range(plan.seeds)
    ]
    return Planned("ablation", tuple(cells))

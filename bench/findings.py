"""What was found, in three sentences with the page of each: README and the first page of the site
show them as the stored results have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from truth import IDS, counts

Row = Mapping[str, Any]
NAMES = {"coat": "Coat", "kuairec": "KuaiRec", "yahoo-r3": "Yahoo!R3"}


def findings(kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Page and sentence, for the pages that have results."""
    made = {"paper": personal, "field": uniform, "truth": worlds}
    return [(page, made[page](kept[page])) for page in made if page in kept]


def personal(figures: Row) -> str:
    """Whether a personal Γ from entropies beats one Γ."""
    rows = [row for row in figures["contrasts"] if row["kind"] == "one"]
    count = Counter(row["verdict"] for row in rows)
    return (
        f"On real logs a personal Γ from entropies, as the paper has it, won {count['wins']} of "
        f"{len(rows)} paired comparisons with one Γ for all, tied in {count['ties']} and lost "
        f"{count['loses']}."
    )


def uniform(figures: Row) -> str:
    """What uniform rows gain, and what weighting does."""
    own = [row for row in figures["tables"]["field"] if row["metric"] == "uauc"]
    mixed = [row for row in own if row["label"] == "spectrum" and row["data"] in NAMES]
    shown = "; ".join(
        f"{name} {at['mf']:.3f} → {at['spectrum']:.3f}"
        for name, at in by_data(own).items()
        if {"mf", "spectrum"} <= at.keys()
    )
    told = Counter(row["verdict"] for row in mixed)
    weighted = Counter(row["verdict"] for row in own if row["label"] in ("ips", "dr"))
    return (
        "Some ratings of items drawn at random, mixed in by the default `spectrum`: UAUC of `mf` → "
        f"`spectrum` is {shown}; it won {told['wins']}, tied {told['ties']} and lost {told['loses']} of "
        f"{len(mixed)} comparisons on these logs. Weighting alone (`ips`, `dr`) won "
        f"{weighted['wins']}, tied {weighted['ties']} and lost {weighted['loses']}."
    )


def by_data(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean by method, for public data sets under `rd`."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["protocol"] == "rd" and row["data"] in NAMES:
            found.setdefault(NAMES[row["data"]], {})[row["label"]] = row["mean"]
    return found


def worlds(figures: Row) -> str:
    """How the default does where the truth is known."""
    better, open_, worse = counts(figures["methods"][IDS], "spectrum, 500 rows")
    return (
        f"Where the truth is known, the default with 500 such ratings is better than `mf` in {better} of "
        f"{better + open_ + worse} simulated worlds and worse in {worse}."
    )

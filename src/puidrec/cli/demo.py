"""`puid demo`: a confounded log whose truth is known, and what each estimate makes of it."""

from __future__ import annotations

from typing import Annotated

import typer

from puidrec.cli import options

EXAMPLE = "Example: puid demo --world pair --seed 1"


def demo(
    world: Annotated[str, typer.Option(help="Simulated world; see puid data simulate --help.")] = "mixed",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a confounded log with known truth and show what the confounding does."""
    from puidrec.cli.output import console, print_json, print_table
    from puidrec.data.confounding import show_confounding
    from puidrec.data.synthetic import simulate

    simulation = simulate(world, rng=seed)
    facts = show_confounding(simulation)
    if as_json:
        print_json(facts)
        return
    console.print(
        f"Simulated world “{world}”: {facts['n_users']:,} users × {facts['n_items']:,} items, "
        f"{facts['rows']:,} ratings that people chose to give, and the truth behind all {facts['n_pairs']:,} pairs."
    )
    print_table(
        "Mean rating of all pairs, estimated in five ways",
        ("estimate", "mean rating", "± 95 %", "error", "what it needs"),
        [
            (row["name"], f"{row['value']:.3f}", f"{row['half_width']:.3f}", f"{row['error']:+.3f}", row["needs"])
            for row in facts["estimates"]
        ],
    )
    gamma = facts["gamma"]
    console.print(
        f"True strength of hidden confounding: Γ is {gamma['median']:.2f} for the median pair and "
        f"{gamma['p95']:.2f} for one pair in twenty.\n{facts['sentence']}"
    )

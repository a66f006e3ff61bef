"""`puid demo`: a confounded log whose truth is known, and what each estimate and method makes of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from puidrec.cli import options

EXAMPLE = "Example: puid demo --world pair --seed 1"


def demo(
    world: Annotated[str, typer.Option(help="Simulated world; see puid data simulate --help.")] = "mixed",
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a confounded log with known truth, and show what the confounding does and what repairs it."""
    from puidrec.cli.output import console, print_json, print_table, progress_bar
    from puidrec.experiments.demo import METHODS, run_demo

    with progress_bar() as bar:
        task = bar.add_task("simulating", total=len(METHODS) + 1)
        facts = run_demo(world, seed, lambda method: bar.update(task, advance=1, description=f"training {method}"))
    if as_json:
        print_json(facts)
        return
    gamma = facts["gamma"]
    console.print(
        f"World “{world}”: {facts['n_users']:,} users × {facts['n_items']:,} items. People chose to give "
        f"{facts['rows']:,} ratings; the truth behind all {facts['n_pairs']:,} pairs is known. Hidden confounding "
        f"shifts the odds of exposure by a factor Γ of {gamma['median']:.2f} for the median pair, {gamma['p95']:.2f} "
        "for one in twenty.\n"
    )
    print_table(
        "Mean rating of all pairs, estimated",
        ("from", "mean", "± 95 %", "error", "needs"),
        [
            (row["name"], f"{row['value']:.3f}", f"{row['half_width']:.3f}", f"{row['error']:+.3f}", row["needs"])
            for row in facts["estimates"]
        ],
    )
    print_table(
        "Mean squared error (ratings in 0..1): what the log shows, and what is",
        ("method", "on the log", "on all pairs", "confounding repaired", "seconds"),
        [_row(row) for row in facts["methods"]],
    )
    best = max(facts["methods"][:-1], key=lambda row: float(row["repaired"]))
    console.print(
        f"Judged by the log, mf looks better than all that repair it. On all pairs {best['method']} is best: it "
        f"repairs {best['repaired']:.0%} of what knowing the true propensities would.\n"
        "next: puid data describe --help, puid gamma --help, puid train --help"
    )


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    repaired = "" if row["method"] in ("item-rate", "mf") else f"{row['repaired']:.0%}"
    return row["method"], f"{row['naive_mse']:.4f}", f"{row['true_mse']:.4f}", repaired, f"{row['seconds']:.1f}"

"""`puid demo`: a confounded log whose truth is known, and what each estimate and method makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from puidrec.cli import options

EXAMPLE = "Example: puid demo --world mixed --seed 1 --out puid-demo"


def demo(
    world: Annotated[str, typer.Option(help="Simulated world; see puid data simulate --help.")] = "pair",
    out: Annotated[Path, typer.Option(help="Folder for report.html and demo.json.", readable=False)] = Path(
        "puid-demo"
    ),
    seed: options.Seed = 0,
    device: options.Device = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a confounded log with known truth, train, compare with the truth, audit, and write a report."""
    from puidrec.atomic import atomic_files, output_errors, refuse_overwriting, write_json
    from puidrec.cli.output import print_json, progress_bar
    from puidrec.experiments.demo import METHODS, run_demo
    from puidrec.report.demo import demo_page
    from puidrec.report.html import write_page

    with output_errors(out):
        refuse_overwriting(out, ("report.html",), "demo.json")
        out.mkdir(parents=True, exist_ok=True)  # before any work is spent
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=len(METHODS) + 2)
        found = run_demo(world, seed, lambda step: bar.update(task, advance=1, description=step), device or "cpu")
    content = {**found.facts, "audit": found.audit.to_dict()}
    with atomic_files(out) as stage:  # both or neither: the page must not speak of another run than the figures
        write_json(stage / "demo.json", content)
        write_page(stage / "report.html", demo_page(found.facts, content["audit"]))
    if as_json:
        print_json(content)
    else:
        _show(found.facts, content["audit"], out)


def _show(facts: dict[str, Any], audit: dict[str, Any], out: Path) -> None:
    """Two tables, what the truth says, what the audit says, and where the report is."""
    from puidrec.cli.output import console, print_table
    from puidrec.experiments.demo import NAIVE, ROBUST

    gamma = facts["gamma"]
    console.print(
        f"World “{facts['world']}”: {facts['n_users']:,} users × {facts['n_items']:,} items. People chose to give "
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
        "Mean squared error (ratings in 0..1): what held-out rows of the log show, and what is",
        ("method", "on the log", "on all pairs", "confounding repaired", "seconds"),
        [_row(row) for row in facts["methods"]],
    )
    best = min(facts["methods"][:-1], key=lambda row: float(row["true_mse"]))
    console.print(
        f"On all pairs {best['method']} is best: it repairs {best['repaired']:.0%} of what knowing the true "
        f"propensities would. Audit of {NAIVE} against {ROBUST}, from the log and its uniform ratings alone:\n"
    )
    console.print(f"  {audit['sentence']}\n", style="bold", markup=False)
    console.print(
        f"wrote {out}: report.html, demo.json\nnext: open {out / 'report.html'}, then puid train --help",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    repaired = "" if row["method"] in ("item-rate", "mf") else f"{row['repaired']:.0%}"
    return row["method"], f"{row['naive_mse']:.4f}", f"{row['true_mse']:.4f}", repaired, f"{row['seconds']:.1f}"

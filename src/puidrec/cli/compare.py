"""`puid compare`: methods × seeds on one data set, with intervals, paired differences and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puidrec.atomic import atomic_files
from puidrec.cli import options, study_options
from puidrec.errors import InputError, PuidError

if TYPE_CHECKING:
    from puidrec.experiments.study import Results
    from puidrec.experiments.summary import SummaryRow

EXAMPLE = "Example: puid compare --data coat --data-dir coat --methods mf,dr,signed-rd --seeds 5 --out compare-coat"
BASELINES = ("item-rate", "bias")
"""Shown in every table: what does not beat them has learned nothing about people."""

Methods = Annotated[
    str, typer.Option(help="a,b,… or all; the baselines item-rate and bias are always shown.", metavar="NAMES")
]
Budget = Annotated[
    int, typer.Option(help="Settings tried per method and seed, chosen on validation rows; 1: the defaults.")
]
Reference = Annotated[
    str | None, typer.Option(help="The method that others are compared with; by default mf.", metavar="NAME")
]


def compare(
    context: typer.Context,
    data: options.DataName = "simulated",
    data_dir: options.DataDir = None,
    methods: Methods = "all",
    seeds: study_options.Seeds = 5,
    budget: Budget = 1,
    reference: Reference = None,
    metrics: Annotated[str, typer.Option(help="Metrics of the tables, the first one sorts.")] = "uauc,ndcg@5",
    out: options.Out = None,
    config: options.Config = None,
    settings: options.Settings = None,
    protocol: options.ProtocolName = "rd",
    select: study_options.Select = None,
    workers: study_options.Workers = None,
    engine: study_options.EngineName = "local",
    device: options.Device = None,
    seed: study_options.FirstSeed = 0,
    logged: options.Logged = None,
    uniform: options.Uniform = None,
    users: options.Users = None,
    items: options.Items = None,
    scale: options.Scale = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare methods over several seeds: means, intervals, and who wins, ties or loses against a reference.

    Finished jobs are kept in OUT/cells and never trained again: repeat the command to go on after an interruption.
    Another command in the same folder trains only what is new; the tables are those of the last command.
    """
    from puidrec.cli.live import LiveTable
    from puidrec.cli.output import print_json
    from puidrec.experiments.job import Job
    from puidrec.experiments.run import METRICS
    from puidrec.experiments.study import run_study

    given = options.parse_settings(settings)
    chosen = study_options.model_settings(context, given, select=select, device=device)
    names, base = _methods(methods, reference)
    shown = study_options.parse_names(metrics, "metric", METRICS)
    files = {"logged": logged, "uniform": uniform, "users": users, "items": items, "scale": scale}
    numbers = study_options.seeds_from(seed, seeds)
    spec = study_options.data_spec(data, data_dir, given, files)
    jobs = [
        Job(spec, name, number, protocol, study_options.settings_for(name, chosen), budget=budget)
        for number in numbers
        for name in names
    ]
    with LiveTable(f"{spec.title}, {len(names)} methods × {seeds} seeds", shown) as live:
        results = run_study(jobs, out, engine=engine, workers=workers, progress=live)
    if not results:
        _tell_failures(results)  # an earlier comparison stays as it is
    rows = _tables(results, base, shown, out)
    if as_json:
        failed = [{**failure.job.names(), "error": failure.error} for failure in results.failures]
        print_json({"reference": base, "rows": [row.plain() for row in rows], "failed": failed})
    else:
        show(rows, base, shown, out)
    _tell_failures(results)


def _methods(text: str, reference: str | None) -> tuple[list[str], str]:
    """The methods of the table, baselines included, and the reference among them."""
    from puidrec.methods import METHODS, get_method

    asked = list(METHODS) if text.strip() == "all" else study_options.parse_names(text, "method")
    names = [get_method(name).name for name in dict.fromkeys([*asked, *BASELINES])]
    base = reference or ("mf" if "mf" in names else asked[0])
    if base not in names:
        raise InputError("the reference is not among the methods", found=base, expected=f"one of {', '.join(names)}")
    return names, base


def _tables(results: Results, reference: str, metrics: Sequence[str], out: Path | None) -> list[SummaryRow]:
    """The rows of the tables; with `out`, all files of the comparison, together or not at all."""
    from puidrec.experiments.study import summarise, write_study

    if out is None:
        return summarise(results, reference, metrics)
    from puidrec.report.study import write_report

    with atomic_files(out) as stage:
        rows = write_study(stage, results, reference, metrics)
        write_report(stage, results, rows, reference, metrics)
    return rows


def show(rows: Sequence[SummaryRow], reference: str, metrics: Sequence[str], out: Path | None) -> None:
    """Print one table per metric, and where the files are."""
    from puidrec.cli.output import console, print_table
    from puidrec.experiments.summary import interval, title

    for metric in metrics:
        own = [row for row in rows if row.metric == metric]
        if not own:
            continue
        body = [
            (
                row.label, f"{row.mean:.4f}", "" if row.seed_high is None else f"{row.seed_high - row.mean:.4f}",
                "reference" if row.is_reference else "" if row.difference is None else f"{row.difference:+.4f}",
                interval(row), row.verdict or "",
            )
            for row in own
        ]  # fmt: skip
        head = ("method", metric, "± seeds", f"to {reference}", "95 % over users", "verdict")
        print_table(title(own), head, body)
    if out is not None:
        console.print(
            f"wrote {out}: report.html, table.md, results.json, summary.json, charts\nnext: open {out}/report.html",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def _tell_failures(results: Results) -> None:
    """A study with holes ends with their names and exit code 1."""
    if results.failures:
        total = len(results) + len(results.failures)
        named = "; ".join(str(failure) for failure in results.failures[:3])
        more = f"; and {len(results.failures) - 3} more" if len(results.failures) > 3 else ""
        raise PuidError(f"{len(results.failures)} of {total} jobs failed: {named}{more}")

"""`puid reproduce`: the paper's questions, run again on the public data sets that are here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puidrec.cli import options, study_options
from puidrec.errors import PuidError

if TYPE_CHECKING:
    from puidrec.experiments.reproduce.run import ReproductionPlan

EXAMPLE = "Example: puid reproduce all --data-root data --seeds 3 --out reproduction"


def reproduce(
    questions: Annotated[
        list[str], typer.Argument(help="rq1, rq2, rq3, rq4, ablation, or all.", metavar="QUESTION…", show_default=False)
    ],
    data_root: Annotated[
        Path,
        typer.Option(
            help="Folder with the folders coat, yahoo-r3, kuairec, ml-100k; those absent are skipped.",
            metavar="DIR",
            readable=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.", metavar="DIR", readable=False)],
    seeds: study_options.Seeds = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, few epochs and methods: shows that everything works.")
    ] = False,
    workers: study_options.Workers = None,
    engine: study_options.EngineName = "local",
    device: options.Device = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Run the paper's questions again: its figure, ours with an interval, the difference, and what does not hold.

    Finished parts are kept in OUT and never run again: repeat the command to go on after an interruption, or to write
    the tables, charts, report.html and results.md anew.
    """
    from puidrec.cli.output import console, print_json, progress_bar
    from puidrec.experiments.reproduce.questions import RunSize
    from puidrec.experiments.reproduce.run import plan_reproduction
    from puidrec.experiments.reproduce.run import reproduce as run
    from puidrec.report.reproduce import findings, write_reproduction

    plan = plan_reproduction(questions, data_root, RunSize(1 if quick else seeds, quick), workers, device or "cpu")
    _announce(plan)
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        made = run(
            plan, out, engine=engine,
            tell=lambda words, done, total: bar.update(task, description=words, completed=done, total=total),
        )  # fmt: skip
        bar.update(task, description="writing", total=None)
        paths = write_reproduction(out, made.summary, command_of(questions, plan))
    if as_json:
        print_json(made.summary)
    else:
        for point in findings(made.summary):
            console.print(point.title, style="bold", markup=False)
            console.print(f"{point.text}\n", markup=False)
        charts = f"{len(paths) - 3} charts, results.json, summary.json"
        console.print(f"wrote {out}: {', '.join(path.name for path in paths[:3])}, {charts}", markup=False)
        console.print(f"next: open {paths[0]}", markup=False)
    failed = made.summary["failed"]
    if failed:
        named = "; ".join(f"{row['label']} on {row['data']}, seed {row['seed']}: {row['error']}" for row in failed[:3])
        raise PuidError(f"{len(failed)} of {len(plan.jobs)} jobs failed: {named}")


def command_of(questions: list[str], plan: ReproductionPlan) -> str:
    """The command as it is told to readers: without the paths of this machine."""
    words = ["puid reproduce", *questions, "--data-root DIR", f"--seeds {plan.size.seeds}"]
    return " ".join([*words, *(["--quick"] if plan.size.quick else []), "--out DIR"])


def _announce(plan: ReproductionPlan) -> None:
    """How much is going to be run, and what is not; on standard error, so that results stay clean."""
    jobs = len({job.key for job in plan.jobs})
    for line in plan.found.missing.values():
        typer.echo(f"puid: {line}", err=True)
    if jobs:
        typer.echo(
            f"puid: {jobs} fits on {plan.workers} workers, very roughly {max(1, round(plan.seconds / 60))} minutes; "
            "finished ones are not run again",
            err=True,
        )

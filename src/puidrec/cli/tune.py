"""`puid tune`: random search for one method, judged by validation rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puidrec.cli import options, study_options

if TYPE_CHECKING:
    from puidrec.experiments.job import Job
    from puidrec.experiments.study import Trial

EXAMPLE = "Example: puid tune --data coat --data-dir coat --method puid-dr --budget 20 --out tune-puid-dr"
SHOWN = 10


def tune(
    context: typer.Context,
    method: options.Method,
    data: options.DataName = "simulated",
    data_dir: options.DataDir = None,
    budget: Annotated[int, typer.Option(help="Settings tried: the defaults, and the others drawn at random.")] = 20,
    seeds: study_options.Seeds = 1,
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
    """Search settings of a method by their score on validation rows; test rows are never looked at.

    What --set gives stays fixed. best.toml in OUT is for puid train -c. Finished trials are kept in OUT/cells and
    never trained again: a larger --budget tries only the new ones.
    """
    from puidrec.cli.live import LiveTable
    from puidrec.cli.output import print_json
    from puidrec.experiments.job import Job
    from puidrec.experiments.study import tune as run
    from puidrec.experiments.study import write_tuning
    from puidrec.methods import get_method

    given = options.parse_settings(settings)
    name = get_method(method).name
    chosen = study_options.model_settings(context, given, select=select, device=device)
    files = {"logged": logged, "uniform": uniform, "users": users, "items": items, "scale": scale}
    numbers = study_options.seeds_from(seed, seeds)
    spec = study_options.data_spec(data, data_dir, given, files)
    job = Job(spec, name, seed, protocol, study_options.settings_for(name, chosen), budget=budget).check()
    with LiveTable(f"{name} on {spec.title}", ("validation",)) as live:
        ranked = run(job, numbers, out, engine=engine, workers=workers, progress=live)
    if out is not None:
        write_tuning(out, job, ranked)
    if as_json:
        print_json([trial.plain() for trial in ranked])
    else:
        show(job, ranked, out)


def show(job: Job, ranked: Sequence[Trial], out: Path | None) -> None:
    """Print the best trials, and what to do with them."""
    from puidrec.cli.output import console, print_table
    from puidrec.experiments.search import searched

    varied = list(dict.fromkeys(parameter.name for parameter in searched(job)))
    body = [
        (
            "default" if trial.number == 0 else str(trial.number),
            "failed" if trial.error else "–" if trial.score is None else f"{trial.score:.4f}",
            *(str(trial.settings.get(name, getattr(job.resolved, name))) for name in varied),
        )
        for trial in ranked[:SHOWN]
    ]  # fmt: skip
    print_table(f"{job.method} on {job.data.title}: trials by validation score", ("trial", "score", *varied), body)
    if not varied:
        console.print(f"{job.method} has no settings to search: one trial.")
    elif len(ranked) > SHOWN:
        console.print(f"{len(ranked) - SHOWN} more trials are in trials.json.")
    if out is not None:
        console.print(f"wrote {out}: trials.json, best.toml", markup=False, soft_wrap=True)
        console.print(f"next: puid train -c {out}/best.toml --data {job.data.name} …", markup=False, soft_wrap=True)

"""`puid train`: fit one method on one data set and leave a run folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puidrec.cli import options

if TYPE_CHECKING:
    from puidrec.experiments.run import Run

EXAMPLE = "Example: puid train --data coat --data-dir coat --method puid-dr --set alpha=2 --out runs/puid-dr"


def train(
    context: typer.Context,
    data: options.DataName = "simulated",
    data_dir: options.DataDir = None,
    method: Annotated[str | None, typer.Option(help=options.METHODS, metavar="NAME", show_default="puid-dr")] = None,
    out: options.Out = None,
    config: options.Config = None,
    settings: options.Settings = None,
    protocol: options.ProtocolName = "rd",
    device: options.Device = None,
    seed: Annotated[int | None, typer.Option(help="Seed of split and initialisation.", min=0, show_default="0")] = None,
    logged: options.Logged = None,
    uniform: options.Uniform = None,
    users: options.Users = None,
    items: options.Items = None,
    scale: options.Scale = None,
    shards: options.Shards = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a recommender and measure it on the protocol's test rows.

    A run that was interrupted goes on where its last checkpoint left off: repeat the command.
    """
    from puidrec.cli.output import print_json, progress_bar
    from puidrec.experiments.run import train_run
    from puidrec.settings import Settings
    from puidrec.train.distributed import join_world

    given = options.parse_settings(settings)
    named = {key: value for key, value in (("method", method), ("device", device), ("seed", seed)) if value is not None}
    chosen = Settings.of(**{**options.model_settings(context, given), **named})
    with join_world(chosen.device) as world, progress_bar() as bar:
        reading = "reading the data" if shards is None else "sorting the log into shards, unless it was before"
        task = bar.add_task(reading, total=None)
        with world.first_ahead() if shards is not None else contextlib.nullcontext():
            loaded = options.open_dataset(
                data, data_dir, given, logged=logged, uniform=uniform, users=users, items=items, scale=scale,
                shards=shards,
            )  # fmt: skip
        chosen = chosen.replace(device=world.device) if world.size > 1 else chosen
        bar.update(task, description=f"{chosen.method}: propensities, Γ and noise of the log")

        def show(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
            score = f", validation {figures['score']:.4f}" if "score" in figures else ""
            loss = next(value for name, value in figures.items() if name.startswith("loss_"))
            words = f"{chosen.method} ({stage}): loss {loss:.4f}{score}"
            bar.update(task, completed=done, total=total, description=words)

        run = train_run(loaded, chosen, protocol=protocol, out=out, progress=show, world=world)
    if as_json:
        print_json(run.metrics)
    else:
        _show(run, loaded.name, out)


def _show(run: Run, data: str, out: Path | None) -> None:
    """Print the figures on test rows, what they stand under, and where the run is."""
    from puidrec.cli.output import console, print_table

    facts = run.metrics
    print_table(
        f"{facts['method']} on {data}, protocol {facts['protocol']}, seed {facts['seed']}", ("metric", "test"),
        [(name, f"{value:.4f}") for name, value in run.evaluation.items()],
    )  # fmt: skip
    console.print(
        f"{facts['test_rows']:,} {facts['evaluated_on']} test rows, {facts['positive_rate']:.1%} liked; best epoch "
        f"{facts['best_epoch']} of {facts['epochs']}, {facts['seconds']:.1f} s; uniform rows used for: "
        f"{facts['uniform_rows_used']}.",
        markup=False,
    )
    if "gamma_set_by" in facts:
        console.print(f"Γ was set by {facts['gamma_set_by']}. --set gamma=NUMBER sets it yourself.", markup=False)
    if out is not None:
        console.print(f"wrote {out}\nnext: puid recommend {out} --k 10", markup=False)

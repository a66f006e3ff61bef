"""`puid data describe|convert|simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from puidrec.cli import options
from puidrec.errors import InputError

app = typer.Typer(help="Describe, convert and simulate data sets.", no_args_is_help=True)


@app.command(epilog="Example: puid data describe --data coat --data-dir coat")
def describe(
    data: options.DataName = "simulated",
    data_dir: options.DataDir = None,
    logged: options.Logged = None,
    uniform: options.Uniform = None,
    users: options.Users = None,
    items: options.Items = None,
    scale: options.Scale = None,
    settings: options.DataSettings = None,
    protocol: options.ProtocolName = "rd",
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a data set holds, and how far the log is from the uniform rows."""
    from puidrec.cli.output import console, print_json, print_table
    from puidrec.data.describe import describe_dataset

    loaded = options.open_dataset(
        data, data_dir, options.parse_settings(settings, ("data",)),
        logged=logged, uniform=uniform, users=users, items=items, scale=scale,
    )  # fmt: skip
    facts = describe_dataset(loaded, protocol)
    if as_json:
        print_json(facts)
        return
    print_table(
        f"{facts['name']}: {facts['n_users']:,} users × {facts['n_items']:,} items",
        ("regime", "rows", "share of pairs", "mean rating", "± 95 %", "liked", "ratings low → high"),
        [
            (
                name, f"{part['rows']:,}", f"{part['density']:.3%}", f"{part['mean_rating']:.3f}",
                f"{part['half_width']:.3f}", f"{part['positive_rate']:.1%}", part["histogram"],
            )
            for name, part in facts["regimes"].items()
        ],
    )  # fmt: skip
    for side in ("users", "items"):
        features = facts["features"][side]
        console.print(f"features of {side}: " + (", ".join(features) if features else "none"), markup=False)
    console.print(facts["sentence"])


@app.command(epilog="Example: puid data convert kuairec KuaiRec/data kuairec-compact")
def convert(
    source: Annotated[str, typer.Argument(help="Data set to convert: kuairec.", metavar="NAME")],
    src: Annotated[Path, typer.Argument(help="Folder of the original files.", readable=False)],
    dst: Annotated[Path, typer.Argument(help="Folder to write: new, or an earlier conversion.", readable=False)],
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the compact form of a data set from its original files, streaming."""
    from puidrec.cli.output import console, print_json

    if source != "kuairec":
        raise InputError("nothing to convert", found=source, expected="kuairec")
    from puidrec.data.sources.kuairec import convert as convert_kuairec

    facts = convert_kuairec(src, dst)
    if as_json:
        print_json(facts)
    else:
        counts = ", ".join(f"{value:,} {key}" for key, value in facts.items() if isinstance(value, int))
        console.print(f"wrote {dst}: {counts}; {sum(facts['bytes'].values()) / 2**20:.1f} MiB", markup=False)


@app.command(epilog="Example: puid data simulate --world pair --users 300 --items 300 --out sim")
def simulate(
    out: Annotated[Path, typer.Option(help="Folder to write.", metavar="DIR", readable=False)],
    world: Annotated[
        str, typer.Option(help="entity, pair, mixed, half-complete, proportional, no-confounding.")
    ] = "mixed",
    users: Annotated[int, typer.Option(help="Number of users.", min=2)] = 800,
    items: Annotated[int, typer.Option(help="Number of items.", min=2)] = 500,
    rows: Annotated[
        int | None, typer.Option(help="Expected number of logged rows (default: 5 % of the pairs).", min=1)
    ] = None,
    uniform_rows: Annotated[
        int | None, typer.Option(help="Rows drawn uniformly (default: 16 per user; 0 for none).", min=0)
    ] = None,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate a confounded log with a uniform sample and the truth, up to a million users, in chunks."""
    from puidrec.cli.output import console, print_json, progress_bar
    from puidrec.data.synthetic import simulate_to_parquet

    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None)
        facts = simulate_to_parquet(
            out, world, users, items, rows, rng=seed, n_uniform=uniform_rows,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    if as_json:
        print_json(facts)
    else:
        console.print(
            f"wrote {out}: {facts['rows']:,} logged rows, {facts['uniform_rows']:,} uniform rows", markup=False
        )
        console.print(f"next: puid data describe --data simulated --data-dir {out}", markup=False)

"""`puid data describe|convert|export|simulate|fetch`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from puidrec.cli import options
from puidrec.cli.command import Options, add_commands, command, option
from puidrec.cli.output import print_json, print_page, progress_bar, say, steps
from puidrec.errors import InputError

app = typer.Typer(
    help="Describe, convert, export, simulate and fetch data sets.", no_args_is_help=True
)


@command("puid data describe --data coat --data-dir coat")
def describe(
    data: options.DataOptions,
    protocol: options.ProtocolName = "rd",
    *,
    common: options.CommonOptions,
) -> None:
    """Show what a data set holds, and how far the log is from the uniform rows."""
    from puidrec.data.describe import describe_dataset

    with steps("reading"):
        facts = describe_dataset(data.load(), protocol)
    if common.as_json:
        print_json(facts)
        return
    print_page("data", facts=facts)


@command("puid data convert kuairec KuaiRec/data kuairec-compact", writes="dst")
def convert(
    source: Annotated[str, typer.Argument(help="Data set to convert: kuairec.", metavar="NAME")],
    src: Annotated[Path, typer.Argument(help="Folder of the original files.", readable=False)],
    dst: Annotated[
        Path, typer.Argument(help="Folder to write: new, or an earlier conversion.", readable=False)
    ],
    common: options.CommonOptions,
) -> None:
    """Write the compact form of a data set from its original files, streaming."""
    if source != "kuairec":
        raise InputError("nothing to convert", found=source, expected="kuairec")
    from puidrec.data.sources.kuairec import convert as convert_kuairec

    with steps("converting"):
        facts = convert_kuairec(src, dst)
    if common.as_json:
        print_json(facts)
    else:
        counts = ", ".join(
            f"{value:,} {key}" for key, value in facts.items() if isinstance(value, int)
        )
        say(f"wrote {dst}: {counts}; {sum(facts['bytes'].values()) / 2**20:.1f} MiB")


class DataFormat(StrEnum):
    """Forms that other tools read."""

    recbole = "recbole"
    csr = "csr"
    rectools = "rectools"
    csv = "csv"
    parquet = "parquet"
    jsonl = "jsonl"


@command(
    "puid data export --data ml-100k --data-dir ml-100k --format recbole --out ml-recbole",
    writes="out",
)
def export(
    form: Annotated[
        DataFormat,
        typer.Option(
            "--format",
            help="recbole: .inter, .user, .item; csr: SciPy matrices; rectools: weight and datetime (Parquet); csv, "
            "parquet, jsonl: our columns.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to write; new or empty.", metavar="DIR", readable=False)
    ],
    data: options.DataOptions,
    common: options.CommonOptions,
) -> None:
    """Write a data set in the form of another tool. All of them can be read again with --data files
    or recbole."""
    from puidrec.atomic import atomic_folder, refuse_other_files
    from puidrec.data.sources.formats import write_dataset

    refuse_other_files(out, (), "an empty one", always=())
    with steps("reading") as step:
        loaded = data.load()
        step("writing")
        with atomic_folder(out) as folder:
            rows = write_dataset(loaded, form.value, folder)
    if common.as_json:
        print_json(rows)
    else:
        say(
            f"wrote {out}: " + ", ".join(f"{name} ({count:,} rows)" for name, count in rows.items())
        )


@command("puid data fetch ml-100k --out ml-100k", writes="out")
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="Data set: ml-100k, kuairand; others say how to get them.", metavar="NAME"
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to write; new or empty.", metavar="DIR", readable=False)
    ],
    url: Annotated[
        str | None,
        typer.Option(
            help="Another address of the same file; its checksum must match.", metavar="URL"
        ),
    ] = None,
    *,
    common: options.CommonOptions,
) -> None:
    """Download a data set from its publisher, check it and unpack it; repeat the command to resume."""
    from puidrec.data.fetch import PUBLISHED
    from puidrec.data.fetch import fetch as fetch_data

    if name in PUBLISHED and not common.as_json:
        say(f"licence: {PUBLISHED[name].licence}")
    with progress_bar() as bar:
        task = bar.add_task("downloading", total=None)
        facts = fetch_data(
            name,
            out,
            url=url,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if common.as_json:
        print_json(facts)
    else:
        say(f"wrote {out}\nnext: puid data describe --data {name} --data-dir {out}")


WORLD_NAMES = (
    "entity, pair, mixed, half-complete, proportional, no-confounding, reversed, mixed-sign, trait-genre, "
    "heavy-tailed, ordinal, benign-activity or awkward."
)


@dataclass(frozen=True)
class WorldOptions(Options):
    """What to simulate."""

    world: str = option(
        "mixed",
        WORLD_NAMES,
    )
    users: int = option(800, "Number of users.", min=2)
    items: int = option(500, "Number of items.", min=2)
    rows: int | None = option(
        None, "Expected number of logged rows (default: 5 % of the pairs).", min=1
    )
    uniform_rows: int | None = option(
        None, "Rows drawn uniformly (default: 16 per user; 0 for none).", min=0
    )


@command("puid data simulate --world pair --users 300 --items 300 --out sim", writes="out")
def simulate(
    out: options.OutFolder,
    size: WorldOptions,
    seed: options.Seed = 0,
    *,
    common: options.CommonOptions,
) -> None:
    """Simulate a confounded log with a uniform sample and the truth, up to a million users, in
    chunks."""
    from puidrec.data.synthetic import simulate_to_parquet

    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None)
        facts = simulate_to_parquet(
            out,
            size.world,
            size.users,
            size.items,
            size.rows,
            rng=seed,
            n_uniform=size.uniform_rows,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if common.as_json:
        print_json(facts)
    else:
        say(f"wrote {out}: {facts['rows']:,} logged rows, {facts['uniform_rows']:,} uniform rows")
        say(f"next: puid data describe --data simulated --data-dir {out}")


add_commands(app, describe, convert, export, simulate, fetch)

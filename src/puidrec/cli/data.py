"""Commands on data: `puid data describe|convert|export|simulate|fetch`, and `puid gamma`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from puidrec.cli import options
from puidrec.cli.command import (
    Options,
    add_commands,
    command,
    option,
    print_json,
    print_page,
    progress_bar,
    quick_imports,
    say,
    steps,
)
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset
    from puidrec.exposure.gamma import GammaRule

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
        numbers = {key: value for key, value in facts.items() if isinstance(value, int)}
        counts = ", ".join(f"{value:,} {key}" for key, value in numbers.items())
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
            help="recbole: .inter, .user, .item; csr: SciPy matrices; rectools: weight and "
            "datetime (Parquet); csv, parquet, jsonl: our columns.",
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
    from puidrec.data.sources.files import write_dataset

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
    """Download a data set from its publisher, check it and unpack it; repeat the command to
    resume."""
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
    "entity, pair, mixed, half-complete, proportional, no-confounding, reversed, mixed-sign, "
    "trait-genre, heavy-tailed, ordinal, benign-activity or awkward."
)


@dataclass(frozen=True)
class WorldOptions(Options):
    """What to simulate."""

    world: str = option("mixed", WORLD_NAMES)
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


# How strong hidden confounding may be, pair by pair, and what that rests on

RULES = "paper, information, residual, info, exposure-gap, recovered, global, random, or a number."
WEIGHTED = ("information", "exposure-gap")
"""Sources that α and β act on."""


@dataclass(frozen=True)
class GammaDataOptions(options.DataOptions):
    """A data set; --set takes parts of the rule as well."""

    settings: list[str] | None = option(
        None,
        "data.KEY: an option of the data source; gamma.KEY: a part of the rule "
        "(gamma.entropy=plugin).",
        "--set",
        metavar="KEY=VALUE",
        callback=options.merge_settings,
    )
    sections: ClassVar[Sequence[str] | None] = ("data", "gamma")


@dataclass(frozen=True)
class RuleOptions(Options):
    """Which rule gives Γ, and its weights."""

    rule: str = option("information", RULES, metavar="RULE")
    alpha: str | None = option(None, "Weight of the user part: a number or auto.")
    beta: str | None = option(None, "Weight of the item part: a number or auto.")

    def resolve(self, more: dict[str, Any]) -> GammaRule:
        """The rule with the weights given; a weight that the rule would ignore is an error."""
        from puidrec.exposure.gamma import resolve_gamma

        texts = {"alpha": self.alpha, "beta": self.beta}
        given = {key: text for key, text in texts.items() if text is not None}
        weights = {key: options.parse_value(text) for key, text in given.items()}
        chosen = resolve_gamma(self.rule, **more, **weights)
        if weights and (chosen.source not in WEIGHTED or chosen.link == "info"):
            name = next(iter(weights))
            raise InputError(
                f"--{name} has no effect on this rule", found=self.rule, hint="Leave it out."
            )
        return chosen


@command("puid gamma --data coat --data-dir coat --rule information --out gamma-coat", writes="out")
def gamma(
    data: GammaDataOptions,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder written by puid train: show the Γ that its uniform ratings taught it.",
            metavar="RUN",
            readable=False,
        ),
    ] = None,
    *,
    rule: RuleOptions,
    shards: options.Shards = None,
    propensity: options.PropensityName = "two-way",
    protocol: options.ProtocolName = "rd",
    seed: options.Seed = 0,
    output: options.OutputOptions,
) -> None:
    """Show how strong hidden confounding may be, pair by pair (Γ), what that rests on and what data
    prove of it.

    With RUN: the learned Γ of a spectrum model that uniform ratings calibrated, for whom it is
    largest and how sure.
    """
    if run is not None:
        _learned(run, output)
        return
    with quick_imports():
        from puidrec.gamma_study import study_gamma
        from puidrec.report.gamma import check_target, gamma_summary, write_gamma_study

    chosen = rule.resolve(options.section(data.parsed_settings(), "gamma"))
    if output.out is not None:
        check_target(output.out)
    with steps("reading") as step:
        loaded = data.load(shards)
        study = study_gamma(
            loaded, chosen, protocol=protocol, seed=seed, propensity=propensity, progress=step
        )
        tilt = "" if output.as_json else _tilt(loaded, propensity, protocol, seed)
        if output.out is not None:
            step("writing")
            write_gamma_study(study, output.out)
    summary = gamma_summary(study)
    if output.as_json:
        print_json(summary)
    else:
        print_page("gamma", summary=summary, rule=rule.rule, tilt=tilt, out=output.out)


def _learned(run: Path, output: options.OutputOptions) -> None:
    """The learned Γ of a run; by segments too, where its data are still there."""
    with quick_imports():
        from puidrec.comparing.job import RunData
        from puidrec.report.gamma import (
            check_target,
            learned_summary,
            learned_tables,
            write_learned,
        )
        from puidrec.run_folder import load_run

    model, _ = load_run(run)
    model.uncertainty()  # refused before any data are read
    if output.out is not None:
        check_target(output.out)
    with steps("reading") as step:
        own = RunData.of(run)
        tables: Sequence[Any] = ()
        if own.source is not None:
            loaded = own.source.load()
            own.require(loaded)
            tables = (loaded.users, loaded.items)
        step("asking the posterior")
        table = learned_tables(model, tables)
        summary = learned_summary(model, table)
        if output.out is not None:
            write_learned(table, summary, own.name, output.out)
    if output.as_json:
        print_json(summary)
        return
    print_page("learned_gamma", summary=summary, out=output.out)


def _tilt(data: Dataset, propensity: str, protocol: str, seed: int) -> str:
    """The tilt that uniform rows measure, in words; empty without enough of them."""
    from puidrec.exposure.tilt import measure_tilt

    try:
        return measure_tilt(data, propensity=propensity, protocol=protocol, rng=seed).sentence
    except InputError:
        return ""  # no uniform rows, or too few

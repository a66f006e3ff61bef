"""Commands of many runs: `puid compare`, `tune` and `reproduce`, and the tour `puid demo`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.cli.command import (
    Options,
    command,
    jobs_bar,
    option,
    print_json,
    print_page,
    progress_bar,
    quick_imports,
    say,
)
from puidrec.errors import InputError, PuidError

if TYPE_CHECKING:
    from puidrec.comparing.comparison import Comparison, Plan
    from puidrec.comparing.job import DataSpec
    from puidrec.data.dataset import Dataset

SHOWN_TRIALS = 10
DATA_ROOT = "Folder with the folders coat, yahoo-r3, kuairec, ml-100k; those absent are skipped."
SEEDS = "Number of seeds; each has its own split and initialisation."


@dataclass(frozen=True)
class StudyOptions(options.EngineOptions):
    """Many runs on one data set."""

    seeds: int = option(5, SEEDS, metavar="N")
    seed: int = option(0, "The first seed; the others follow.", min=0)
    protocol: str = option("rd", options.PROTOCOLS, metavar="NAME")
    select: str | None = option(
        None,
        "Rows that choose L2 or the epoch, and the trial: uniform or observational.",
        metavar="ROWS",
    )

    def seed_numbers(self) -> list[int]:
        """The seeds of the study."""
        if self.seeds < 1:
            raise InputError("a study needs a seed", found=self.seeds, expected="--seeds 1 or more")
        return list(range(self.seed, self.seed + self.seeds))

    def model_settings(
        self, context: typer.Context, data: options.ModelDataOptions
    ) -> dict[str, Any]:
        """Settings of the models from -c FILE, --set and options of their own; unknown keys are
        refused."""
        from puidrec.methods.table import params_of_others
        from puidrec.settings import Settings

        chosen = data.model_settings(context, select=self.select, device=self.device)
        taken = next((key for key in ("method", "seed") if key in chosen), None)
        if taken is not None:
            found, expected = f"--set {taken}", "the options of the command"
            raise InputError(f"{taken} is no setting here", found=found, expected=expected)
        known = {*Settings.model_fields, *params_of_others("")}
        unknown = {key: value for key, value in chosen.items() if key not in known}
        if unknown:
            Settings.of("mf", **unknown)  # says which, and what is near
        return chosen


@dataclass(frozen=True)
class TableOptions(Options):
    """What a comparison shows."""

    scores: list[str] | None = option(
        None,
        "Another package's scores (user_id, item_id, score) or lists (user_id, item_id, rank) as "
        "CSV or Parquet.",
        metavar="NAME=FILE",
    )
    methods: str = option(
        "all",
        "a,b,… or all that need no uniform rows; item-rate, bias, pure-svd, all-rank and "
        "ease are always shown.",
        metavar="NAMES",
    )
    budget: int = option(
        1, "Settings tried per method and seed, chosen on validation rows; 1: the defaults."
    )
    reference: str | None = option(
        None, "The method that others are compared with; by default mf.", metavar="NAME"
    )
    metrics: str | None = option(
        None,
        "Metrics of the tables, the first one sorts.",
        show_default="uauc,ndcg@5; for likes and splits by time unseen-recall@10,unseen-ndcg@10",
    )

    def plan(self, data: Dataset, spec: DataSpec, study: StudyOptions, settings: Any) -> Plan:
        """The jobs of the comparison."""
        from puidrec.comparing.comparison import plan_comparison

        whole, asked = self.methods.strip() == "all", self.metrics
        return plan_comparison(
            data,
            spec,
            None if whole else options.parse_names(self.methods, "method"),
            study.seed_numbers(),
            study.protocol,
            settings,
            metrics=None if asked is None else options.parse_names(asked, "metric"),
            reference=self.reference,
            budget=self.budget,
            others=[_named_file(text) for text in self.scores or ()],
        )


def _named_file(text: str) -> tuple[str, Path]:
    """NAME=FILE; a file alone has the name of its stem."""
    name, given, path = text.partition("=")
    if not given:
        return Path(text).stem, Path(text)
    if not (name.strip() and path.strip()):
        raise InputError("scores need a name and a file", found=text, expected="NAME=FILE")
    return name.strip(), Path(path.strip())


def data_spec(data: options.DataOptions) -> tuple[DataSpec, Dataset]:
    """The data set that the options name, loaded once here so that a mistake is reported before
    anything starts."""
    loaded = data.load()
    return data.spec(), loaded


@command(
    "puid compare --data coat --data-dir coat --methods spectrum,mf,dr --seeds 5 --out "
    "compare-coat",
    writes="out",
)
def compare(
    context: typer.Context,
    data: options.ModelDataOptions,
    table: TableOptions,
    study: StudyOptions,
    output: options.OutputOptions,
) -> None:
    """Compare methods over several seeds: means, intervals, and who wins, ties or loses against a
    reference.

    Finished jobs are kept in OUT/cells and never trained again: repeat the command to go on after
    an interruption. Another command in the same folder trains only what is new; the tables are
    those of the last command.
    """
    with quick_imports():
        from puidrec.comparing.comparison import Comparison
        from puidrec.comparing.run import run_jobs

    chosen, (spec, loaded) = study.model_settings(context, data), data_spec(data)
    plan = table.plan(loaded, spec, study, chosen)
    heading = f"{spec.title}, {len(plan.names)} methods × {study.seeds} seeds"
    with jobs_bar(heading) as note:
        results = run_jobs(
            plan.jobs, output.out, engine=study.engine, workers=study.workers, progress=note
        )
    failures = [str(failure) for failure in results.failures]
    if not results:
        _raise_failures(failures, len(failures))  # an earlier comparison stays as it is
    found = Comparison.of(results, plan.reference, plan.metrics)
    if output.out is not None:
        found.save(output.out)
    if output.as_json:
        print_json(found.summary())
    else:
        _show_comparison(found, output.out)
    _raise_failures(failures, len(results) + len(failures))


def _show_comparison(found: Comparison, out: Path | None) -> None:
    """Print one table per metric, and where the files are."""
    from puidrec.comparing.summary import headline, interval, remarks

    print_page(
        "comparison",
        found=found,
        headline=headline,
        interval=interval,
        remarks=remarks(found.rows),
        out=out,
        unfinished=_known((r.job.method, r.context.get("not_converged")) for r in found.results),
    )


def _known(reasons: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Methods or trials that stopped before their optimum, and why."""
    return {name: why for name, why in reasons if why is not None}


def _raise_failures(failures: Sequence[str], total: int) -> None:
    """A study in which jobs failed ends with the first of them and exit code 1."""
    if failures:
        more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
        raise PuidError(f"{len(failures)} of {total} jobs failed: {'; '.join(failures[:3])}{more}")


@dataclass(frozen=True)
class TuneStudyOptions(StudyOptions):
    """Many runs of one method; one seed unless more are asked for."""

    seeds: int = option(1, SEEDS, metavar="N")


@dataclass(frozen=True)
class SearchOptions(Options):
    """What a search tries."""

    method: str = option("spectrum", options.METHODS, metavar="NAME")
    budget: int = option(20, "Settings tried: the defaults, and others from the search space.")
    sampler: str = option(
        "auto", "random, tpe (Optuna), or auto: tpe where Optuna is installed.", metavar="NAME"
    )


@command("puid tune --data coat --data-dir coat --budget 20 --out tune-coat", writes="out")
def tune(
    context: typer.Context,
    search: SearchOptions,
    data: options.ModelDataOptions,
    study: TuneStudyOptions,
    output: options.OutputOptions,
) -> None:
    """Search settings of a method by their score on validation rows; test rows are never looked at.

    What --set gives stays fixed, and what the fit chooses by itself (dim and l2, where they are
    auto) is not searched. best.toml in OUT is for puid train -c. Finished trials are kept in
    OUT/cells and never trained again.
    """
    with quick_imports():
        from puidrec.comparing.job import Job
        from puidrec.comparing.tune import tune_job
        from puidrec.methods import get_method

    row = get_method(search.method)
    chosen = study.model_settings(context, data)
    seeds, (spec, _) = study.seed_numbers(), data_spec(data)
    own = row.own_settings(chosen)
    job = Job(spec, row.name, study.seed, study.protocol, own, budget=search.budget)
    with jobs_bar(f"{row.name} on {spec.title}") as note:
        found = tune_job(
            job,
            seeds,
            output.out,
            sampler=search.sampler,
            engine=study.engine,
            workers=study.workers,
            progress=note,
        )
    if output.out is not None:
        found.save(output.out)
    if output.as_json:
        print_json([trial.plain() for trial in found.trials])
    else:
        unfinished = _known((f"trial {one.number}", one.not_converged) for one in found.trials)
        print_page("trials", found=found, out=output.out, unfinished=unfinished)


@dataclass(frozen=True)
class ReproduceOptions(options.EngineOptions):
    """How much is run, and where."""

    seeds: int = option(3, SEEDS, metavar="N")
    quick: bool = option(
        False, "One seed, few epochs and methods: shows that everything works.", "--quick"
    )
    minutes: float | None = option(
        None, "Stop after so many minutes; the same command goes on.", metavar="N"
    )


@command("puid reproduce paper --data-root data --seeds 3 --out reproduction", writes="out")
def reproduce(
    questions: Annotated[
        list[str],
        typer.Argument(
            help="rq1, rq2, rq3, rq4, ablation, or paper (these five); field; or all.",
            metavar="QUESTION…",
            show_default=False,
        ),
    ],
    data_root: Annotated[Path, typer.Option(help=DATA_ROOT, metavar="DIR", readable=False)],
    out: options.OutFolder,
    study: ReproduceOptions,
    common: options.CommonOptions,
) -> None:
    """Run the paper's questions again: its figure, ours with an interval, and what became of each
    claim.

    Writes paper.md. Finished parts are kept in OUT and never run again: repeat the command to go on
    after an interruption. `field` compares the methods of other papers instead, under the same
    protocols, and writes field.md.
    """
    from puidrec.report.study import claims, field_findings, write_reproduction
    from puidrec.reproduce.run import plan_reproduction
    from puidrec.reproduce.run import reproduce as run

    plan = plan_reproduction(
        questions,
        data_root,
        1 if study.quick else study.seeds,
        quick=study.quick,
        workers=study.workers,
        device=study.device or "cpu",
    )
    for line in plan.found.missing.values():
        typer.echo(f"puid: {line}", err=True)
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        made = run(
            plan,
            out,
            engine=study.engine,
            minutes=study.minutes,
            tell=lambda words, done, total: bar.update(
                task, description=words, completed=done, total=total
            ),
        )
    words = ["puid reproduce", *questions, "--data-root DIR", f"--seeds {plan.seeds}"]
    command = " ".join([*words, *(["--quick"] if plan.quick else []), "--out DIR"])
    paths = write_reproduction(out, made, command)
    if common.as_json:
        print_json(made)
    else:
        for claim, found, sure in claims(made):
            say(claim, bold=True)
            say(f"{found} ({sure})\n")
        for line in field_findings(made["tables"].get("field", ())):
            say(f"* {line}")
        say(f"wrote {out}: {', '.join(path.name for path in paths)}, results.json, summary.json")
    _raise_failures(made["failed"], sum(map(len, plan.jobs.values())))


@command("puid demo --world mixed --seed 1 --out puid-demo", writes="out")
def demo(
    world: Annotated[
        str, typer.Option(help="Simulated world; see puid data simulate --help.")
    ] = "pair",
    out: Annotated[
        Path, typer.Option(help="Folder for report.html and demo.json.", readable=False)
    ] = Path("puid-demo"),
    seed: options.Seed = 0,
    device: options.Device = None,
    *,
    common: options.CommonOptions,
) -> None:
    """Simulate a confounded log with known truth, train, compare with the truth, audit, and write a
    report."""
    with quick_imports():
        from puidrec.atomic import (
            atomic_files,
            output_errors,
            refuse_overwriting,
            write_json,
            write_text,
        )
        from puidrec.demo import METHODS, NAIVE, ROBUST, run_demo
        from puidrec.report.audit import demo_html

    with output_errors(out):
        refuse_overwriting(out, ("report.html",), "demo.json")
        out.mkdir(parents=True, exist_ok=True)  # before any work is spent
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=len(METHODS) + 2)
        facts, audit = run_demo(
            world, seed, lambda step: bar.update(task, advance=1, description=step), device or "cpu"
        )
    content = {**facts, "audit": audit.to_dict()}
    with atomic_files(out) as stage:  # both or neither: the page must show the figures beside it
        write_json(stage / "demo.json", content)
        write_text(stage / "report.html", demo_html(facts, content["audit"]))
    if common.as_json:
        print_json(content)
    else:
        print_page("demo", facts=facts, audit=content["audit"], out=out, naive=NAIVE, robust=ROBUST)

"""Commands of many runs: `puid compare`, `tune` and `reproduce`, and the tour `puid demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.cli.options import option
from puidrec.cli.output import LiveTable, print_json, print_table, progress_bar, say, tells_progress
from puidrec.errors import InputError, PuidError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset
    from puidrec.experiments.job import DataSpec, Job
    from puidrec.experiments.reproduce.run import ReproductionPlan
    from puidrec.experiments.study import Trial
    from puidrec.experiments.summary import SummaryRow

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
        None, "Rows that choose L2 or the epoch, and the trial: uniform or observational.", metavar="ROWS"
    )

    def seed_numbers(self) -> list[int]:
        """The seeds of the study."""
        if self.seeds < 1:
            raise InputError("a study needs a seed", found=self.seeds, expected="--seeds 1 or more")
        return list(range(self.seed, self.seed + self.seeds))

    def model_settings(self, context: typer.Context, data: options.ModelDataOptions) -> dict[str, Any]:
        """Settings of the models from -c FILE, --set and options of their own; unknown keys are refused."""
        from puidrec.methods.table import params_of_others
        from puidrec.settings import Settings

        chosen = data.model_settings(context, select=self.select, device=self.device)
        for key in ("method", "seed"):
            if key in chosen:
                expected = "the options of the command"
                raise InputError(f"{key} is no setting here", found=f"--set {key}", expected=expected)
        known = {*Settings.model_fields, *params_of_others("")}
        unknown = {key: value for key, value in chosen.items() if key not in known}
        if unknown:
            Settings.of("mf", **unknown)  # says which, and what is near
        return chosen


@dataclass(frozen=True)
class TableOptions(options.Options):
    """What a comparison shows."""

    methods: str = option(
        "all",
        "a,b,… or all that need no uniform rows; item-rate, bias, pure-svd, all-rank and ease are always shown.",
        metavar="NAMES",
    )
    budget: int = option(1, "Settings tried per method and seed, chosen on validation rows; 1: the defaults.")
    reference: str | None = option(None, "The method that others are compared with; by default mf.", metavar="NAME")
    metrics: str | None = option(
        None, "Metrics of the tables, the first one sorts.",
        show_default="uauc,ndcg@5; for likes and splits by time unseen-recall@10,unseen-ndcg@10",
    )  # fmt: skip

    def metric_names(self, protocol: str, likes: bool) -> list[str]:
        """The metrics of the table, all of them measured: likes and splits by time are judged by ranking all items."""
        from puidrec.experiments.comparison import shown_metrics
        from puidrec.experiments.run import default_metrics

        measured = default_metrics(protocol, likes)
        return options.parse_names(self.metrics or ",".join(shown_metrics(measured)), "metric", measured)

    def names(self, data: Dataset) -> tuple[list[str], str]:
        """The methods of the table, baselines included, and the reference among them; those that can learn from it."""
        from puidrec.experiments.comparison import compared_methods

        asked = None if self.methods.strip() == "all" else options.parse_names(self.methods, "method")
        return compared_methods(data, asked, self.reference)


def data_spec(data: options.DataOptions) -> tuple[DataSpec, Dataset]:
    """The data set that the options name, loaded once here so that a mistake is reported before anything starts."""
    loaded = data.load()
    return data.spec(), loaded


@options.command(
    "puid compare --data coat --data-dir coat --methods spectrum,mf,dr --seeds 5 --out compare-coat", writes="out"
)
def compare(
    context: typer.Context,
    data: options.ModelDataOptions,
    table: TableOptions,
    study: StudyOptions,
    output: options.OutputOptions,
) -> None:
    """Compare methods over several seeds: means, intervals, and who wins, ties or loses against a reference.

    Finished jobs are kept in OUT/cells and never trained again: repeat the command to go on after an interruption.
    Another command in the same folder trains only what is new; the tables are those of the last command.
    """
    with options.quick_imports():
        from puidrec.experiments.comparison import Comparison
        from puidrec.experiments.job import Job
        from puidrec.experiments.study import run_study
        from puidrec.methods import get_method

    chosen = study.model_settings(context, data)
    seeds, (spec, loaded) = study.seed_numbers(), data_spec(data)
    split = loaded.split(study.protocol, study.seed)  # what it refuses or warns of is said here, not by every job
    names, reference = table.names(loaded)
    metrics = table.metric_names(study.protocol, likes=loaded.positives_only and split.evaluation == "logged")
    jobs = [
        Job(spec, name, seed, study.protocol, get_method(name).own_settings(chosen), budget=table.budget)
        for seed in seeds
        for name in names
    ]
    with LiveTable(f"{spec.title}, {len(names)} methods × {len(seeds)} seeds", metrics) as live:
        results = run_study(jobs, output.out, engine=study.engine, workers=study.workers, progress=live)
    failures = [str(failure) for failure in results.failures]
    if not results:
        _raise_failures(failures, len(failures))  # an earlier comparison stays as it is
    found = Comparison.of(results, reference, metrics)
    rows = found.rows
    if output.out is not None:
        found.save(output.out)
    if output.as_json:
        failed = [failure.row() for failure in results.failures]
        print_json({"reference": reference, "rows": [row.plain() for row in rows], "failed": failed})
    else:
        _show_comparison(rows, reference, metrics, output.out)
        _say_unfinished([(result.job.method, result.context.get("not_converged")) for result in results])
    _raise_failures(failures, len(results) + len(failures))


def _show_comparison(rows: Sequence[SummaryRow], reference: str, metrics: Sequence[str], out: Path | None) -> None:
    """Print one table per metric, and where the files are."""
    from puidrec.experiments.summary import ONE_SEED, grouped, headline, interval, title

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
        head = ("method", metric, "± seeds", f"to {reference}", "95 % interval", "verdict")
        print_table(title(own), head, body)
        for group in grouped(own):
            say(headline(group, metric, reference), bold=True)
    if rows and max(row.n_seeds for row in rows) == 1:
        say(ONE_SEED)
    if out is not None:
        files = "report.html, table.md, results.json, summary.json, charts"
        say(f"wrote {out}: {files}\nnext: open {out}/report.html", wrap=False)


def _say_unfinished(reasons: Sequence[tuple[str, str | None]]) -> None:
    """One line for the methods or trials that stopped before their optimum."""
    found = {name: why for name, why in reasons if why is not None}
    if found:
        name, why = next(iter(found.items()))
        others = f"; so did {len(found) - 1} more" if len(found) > 1 else ""
        say(f"Not converged: {name} ({why}){others}. --set epochs=NUMBER allows more sweeps.")


def _raise_failures(failures: Sequence[str], total: int) -> None:
    """A study in which jobs failed ends with the first of them and exit code 1."""
    if failures:
        more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
        raise PuidError(f"{len(failures)} of {total} jobs failed: {'; '.join(failures[:3])}{more}")


@dataclass(frozen=True)
class TuneStudyOptions(StudyOptions):
    """Many runs of one method; one seed unless more are asked for."""

    seeds: int = option(1, SEEDS, metavar="N")


@options.command("puid tune --data coat --data-dir coat --budget 20 --out tune-coat", writes="out")
def tune(
    context: typer.Context,
    method: Annotated[str, typer.Option(help=options.METHODS, metavar="NAME")] = "spectrum",
    budget: Annotated[int, typer.Option(help="Settings tried: the defaults, and the others drawn at random.")] = 20,
    *,
    data: options.ModelDataOptions,
    study: TuneStudyOptions,
    output: options.OutputOptions,
) -> None:
    """Search settings of a method by their score on validation rows; test rows are never looked at.

    What --set gives stays fixed. best.toml in OUT is for puid train -c. Finished trials are kept in OUT/cells and
    never trained again: a larger --budget tries only the new ones.
    """
    with options.quick_imports():
        from puidrec.experiments.job import Job
        from puidrec.experiments.study import tune as run
        from puidrec.experiments.study import write_tuning
        from puidrec.methods import get_method, require_levels

    row = get_method(method)
    name = row.name
    chosen = study.model_settings(context, data)
    seeds, (spec, loaded) = study.seed_numbers(), data_spec(data)
    if loaded.positives_only:
        require_levels(row, loaded.scale.high)
    loaded.split(study.protocol, study.seed)  # what it refuses or warns of is said here, not by every trial
    job = Job(spec, name, study.seed, study.protocol, row.own_settings(chosen), budget=budget).check()
    with LiveTable(f"{name} on {spec.title}", ("validation",)) as live:
        ranked = run(job, seeds, output.out, engine=study.engine, workers=study.workers, progress=live)
    if output.out is not None:
        write_tuning(output.out, job, ranked)
    if output.as_json:
        print_json([trial.plain() for trial in ranked])
    else:
        _show_trials(job, ranked, output.out)


def _show_trials(job: Job, ranked: Sequence[Trial], out: Path | None) -> None:
    """Print the best trials, and what to do with them."""
    from puidrec.experiments.search import searched

    varied = list(dict.fromkeys(parameter.name for parameter in searched(job)))
    body = [
        (
            "default" if trial.number == 0 else str(trial.number),
            "failed" if trial.error else "–" if trial.score is None else f"{trial.score:.4f}",
            *(str(trial.settings.get(name, getattr(job.resolved, name))) for name in varied),
        )
        for trial in ranked[:SHOWN_TRIALS]
    ]  # fmt: skip
    print_table(f"{job.method} on {job.data.title}: trials by validation score", ("trial", "score", *varied), body)
    _say_unfinished([(f"trial {trial.number}", trial.not_converged) for trial in ranked])
    if not varied:
        say(f"{job.method} has no settings to search: one trial.")
    elif len(ranked) > SHOWN_TRIALS:
        say(f"{len(ranked) - SHOWN_TRIALS} more trials are in trials.json.")
    if out is not None:
        say(f"wrote {out}: trials.json, best.toml", wrap=False)
        say(f"next: puid train -c {out}/best.toml --data {job.data.name} …", wrap=False)


@dataclass(frozen=True)
class ReproduceOptions(options.EngineOptions):
    """How much is run, and where."""

    seeds: int = option(3, SEEDS, metavar="N")
    quick: bool = option(False, "One seed, few epochs and methods: shows that everything works.", "--quick")


@options.command("puid reproduce all --data-root data --seeds 3 --out reproduction", writes="out")
def reproduce(
    questions: Annotated[
        list[str],
        typer.Argument(
            help="rq1, rq2, rq3, rq4, ablation, or all; or field, alone or with names of data sets and protocols.",
            metavar="QUESTION…",
            show_default=False,
        ),
    ],
    data_root: Annotated[Path, typer.Option(help=DATA_ROOT, metavar="DIR", readable=False)],
    out: options.OutFolder,
    study: ReproduceOptions,
    common: options.CommonOptions,
) -> None:
    """Run the paper's questions again: its figure, ours with an interval, the difference, and what does not hold.

    Finished parts are kept in OUT and never run again: repeat the command to go on after an interruption, or to write
    the tables, charts, report.html and results.md anew. `field` compares the methods of other papers instead, under one
    protocol and tuning budget, and writes field.md.
    """
    if questions[0] == "field":
        _reproduce_field(questions, data_root, out, study, common)
        return
    from puidrec.experiments.reproduce.questions import RunSize
    from puidrec.experiments.reproduce.run import plan_reproduction
    from puidrec.experiments.reproduce.run import reproduce as run
    from puidrec.report.reproduce import write_reproduction

    size = RunSize(1 if study.quick else study.seeds, study.quick)
    plan = plan_reproduction(questions, data_root, size, study.workers, study.device or "cpu")
    _announce(plan)
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        made = run(
            plan, out, engine=study.engine,
            tell=lambda words, done, total: bar.update(task, description=words, completed=done, total=total),
        )  # fmt: skip
        bar.update(task, description="writing", total=None)
        paths = write_reproduction(out, made.summary, command_of(questions, plan))
    if common.as_json:
        print_json(made.summary)
    else:
        _show_reproduction(made.summary, out, paths)
    failed = made.summary["failed"]
    named = [f"{row['label']} on {row['data']}, seed {row['seed']}: {row['error']}" for row in failed]
    _raise_failures(named, len(plan.jobs))


def _reproduce_field(
    questions: list[str], data_root: Path, out: Path, study: ReproduceOptions, common: options.CommonOptions
) -> None:
    """`puid reproduce field`."""
    import json

    from puidrec.atomic import write_text
    from puidrec.experiments.reproduce.field import PROTOCOLS_OF, FieldSize, field_jobs, run_field, seconds_by_method
    from puidrec.experiments.reproduce.run import find_sources
    from puidrec.report.field import field_text, findings

    size = FieldSize(1 if study.quick else study.seeds, study.quick)
    found = find_sources(data_root, PROTOCOLS_OF)
    for line in found.missing.values():
        typer.echo(f"puid: {line}", err=True)
    jobs = field_jobs(found.folders, size, questions[1:])
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        made = run_field(
            jobs, out, engine=study.engine, workers=study.workers,
            tell=lambda words, done, total: bar.update(task, description=words, completed=done, total=total),
        )  # fmt: skip
    seconds = seconds_by_method(json.loads((out / "timings.json").read_text(encoding="utf-8"))["cells"])
    words = ["puid reproduce", *questions, "--data-root DIR", f"--seeds {size.seeds}"]
    command = " ".join([*words, *(["--quick"] if size.quick else []), "--out DIR"])
    write_text(out / "field.md", field_text(made, seconds, command))
    if common.as_json:
        print_json(made)
    else:
        for line in findings(made):
            say(f"* {line}")
        say(f"wrote {out}: field.md, results.json, summary.json, timings.json")
    named = [f"{row['label']} on {row['data']}, seed {row['seed']}: {row['error']}" for row in made["failed"]]
    _raise_failures(named, len(jobs))


def _show_reproduction(summary: dict[str, Any], out: Path, paths: Sequence[Path]) -> None:
    """Print what was found, and where the files are."""
    from puidrec.report.reproduce import findings

    for point in findings(summary):
        say(point.title, bold=True)
        say(f"{point.text}\n")
    charts = f"{len(paths) - 3} charts, results.json, summary.json"
    say(f"wrote {out}: {', '.join(path.name for path in paths[:3])}, {charts}")
    say(f"next: open {paths[0]}")


def command_of(questions: list[str], plan: ReproductionPlan) -> str:
    """The command as it is told to readers: without the paths of this machine."""
    words = ["puid reproduce", *questions, "--data-root DIR", f"--seeds {plan.size.seeds}"]
    return " ".join([*words, *(["--quick"] if plan.size.quick else []), "--out DIR"])


def _announce(plan: ReproductionPlan) -> None:
    """How much is going to be run, and what is not; on standard error, so that results stay clean."""
    jobs = len({job.key for job in plan.jobs})
    for line in plan.found.missing.values():
        typer.echo(f"puid: {line}", err=True)
    if jobs and tells_progress():
        typer.echo(
            f"puid: {jobs} fits on {plan.workers} workers, very roughly {max(1, round(plan.seconds / 60))} minutes; "
            "finished ones are not run again",
            err=True,
        )


@options.command("puid demo --world mixed --seed 1 --out puid-demo", writes="out")
def demo(
    world: Annotated[str, typer.Option(help="Simulated world; see puid data simulate --help.")] = "pair",
    out: Annotated[Path, typer.Option(help="Folder for report.html and demo.json.", readable=False)] = Path(
        "puid-demo"
    ),
    seed: options.Seed = 0,
    device: options.Device = None,
    *,
    common: options.CommonOptions,
) -> None:
    """Simulate a confounded log with known truth, train, compare with the truth, audit, and write a report."""
    with options.quick_imports():
        from puidrec.atomic import atomic_files, output_errors, refuse_overwriting, write_json
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
    with atomic_files(out) as stage:  # both or neither: the page must show the figures beside it
        write_json(stage / "demo.json", content)
        write_page(stage / "report.html", demo_page(found.facts, content["audit"]))
    if common.as_json:
        print_json(content)
    else:
        _show_demo(found.facts, content["audit"], out)


def _show_demo(facts: dict[str, Any], audit: dict[str, Any], out: Path) -> None:
    """Two tables, what the truth says, what the audit says, and where the report is."""
    from puidrec.experiments.demo import NAIVE, ROBUST

    gamma = facts["gamma"]
    say(
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
        [_demo_row(row) for row in facts["methods"]],
    )
    best = min(facts["methods"][:-1], key=lambda row: float(row["true_mse"]))
    say(
        f"On all pairs {best['method']} is best: it repairs {best['repaired']:.0%} of what knowing the true "
        f"propensities would. Audit of {NAIVE} against {ROBUST}, from the log and its uniform ratings alone:\n"
    )
    say(f"  {audit['sentence']}\n", bold=True)
    files = "report.html, demo.json"
    say(f"wrote {out}: {files}\nnext: open {out / 'report.html'}, then puid train --help", wrap=False)


def _demo_row(row: dict[str, Any]) -> tuple[str, ...]:
    repaired = "" if row["method"] in ("item-rate", "mf") else f"{row['repaired']:.0%}"
    return row["method"], f"{row['naive_mse']:.4f}", f"{row['true_mse']:.4f}", repaired, f"{row['seconds']:.1f}"

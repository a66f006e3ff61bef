"""Commands of many runs: `puid compare`, `tune` and `reproduce`, and the tour `puid demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.cli.command import Options, command, option, quick_imports
from puidrec.cli.output import LiveTable, print_json, print_table, progress_bar, say
from puidrec.errors import InputError, PuidError

if TYPE_CHECKING:
    from puidrec.comparing.job import DataSpec
    from puidrec.comparing.summary import SummaryRow
    from puidrec.comparing.tune import Trial, Tuning
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
        for key in ("method", "seed"):
            if key in chosen:
                expected = "the options of the command"
                raise InputError(
                    f"{key} is no setting here", found=f"--set {key}", expected=expected
                )
        known = {*Settings.model_fields, *params_of_others("")}
        unknown = {key: value for key, value in chosen.items() if key not in known}
        if unknown:
            Settings.of("mf", **unknown)  # says which, and what is near
        return chosen


@dataclass(frozen=True)
class TableOptions(Options):
    """What a comparison shows."""

    methods: str = option(
        "all",
        "a,b,… or all that need no uniform rows; item-rate, bias, pure-svd, all-rank and ease are always shown.",
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

    def metric_names(self, protocol: str, likes: bool) -> list[str]:
        """The metrics of the table, all of them measured: likes and splits by time are judged by
        ranking all items."""
        from puidrec.comparing.comparison import shown_metrics
        from puidrec.run_folder import default_metrics

        measured = default_metrics(protocol, likes)
        return options.parse_names(
            self.metrics or ",".join(shown_metrics(measured)), "metric", measured
        )

    def names(self, data: Dataset) -> tuple[list[str], str]:
        """The methods of the table, baselines included, and the reference among them; those that
        can learn from it."""
        from puidrec.comparing.comparison import compared_methods

        asked = (
            None if self.methods.strip() == "all" else options.parse_names(self.methods, "method")
        )
        return compared_methods(data, asked, self.reference)


def data_spec(data: options.DataOptions) -> tuple[DataSpec, Dataset]:
    """The data set that the options name, loaded once here so that a mistake is reported before
    anything starts."""
    loaded = data.load()
    return data.spec(), loaded


@command(
    "puid compare --data coat --data-dir coat --methods spectrum,mf,dr --seeds 5 --out compare-coat",
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
        from puidrec.comparing.comparison import Comparison, comparison_jobs
        from puidrec.comparing.run import run_jobs

    chosen = study.model_settings(context, data)
    seeds, (spec, loaded) = study.seed_numbers(), data_spec(data)
    split = loaded.split(
        study.protocol, study.seed
    )  # what it refuses or warns of is said here, not by every job
    names, reference = table.names(loaded)
    metrics = table.metric_names(
        study.protocol, likes=loaded.positives_only and split.evaluation == "logged"
    )
    jobs = comparison_jobs(spec, names, seeds, study.protocol, chosen, table.budget)
    with LiveTable(f"{spec.title}, {len(names)} methods × {len(seeds)} seeds", metrics) as live:
        results = run_jobs(
            jobs, output.out, engine=study.engine, workers=study.workers, progress=live
        )
    failures = [str(failure) for failure in results.failures]
    if not results:
        _raise_failures(failures, len(failures))  # an earlier comparison stays as it is
    found = Comparison.of(results, reference, metrics)
    rows = found.rows
    if output.out is not None:
        found.save(output.out)
    if output.as_json:
        print_json(found.summary())
    else:
        _show_comparison(rows, reference, metrics, output.out)
        _say_unfinished(
            [(result.job.method, result.context.get("not_converged")) for result in results]
        )
    _raise_failures(failures, len(results) + len(failures))


def _show_comparison(
    rows: Sequence[SummaryRow], reference: str, metrics: Sequence[str], out: Path | None
) -> None:
    """Print one table per metric, and where the files are."""
    from puidrec.comparing.summary import ONE_SEED, grouped, headline, interval, title

    for metric in metrics:
        own = [row for row in rows if row.metric == metric]
        if not own:
            continue
        body = [
            (
                row.label,
                f"{row.mean:.4f}",
                "" if row.seed_high is None else f"{row.seed_high - row.mean:.4f}",
                "reference"
                if row.is_reference
                else ""
                if row.difference is None
                else f"{row.difference:+.4f}",
                interval(row),
                row.verdict or "",
            )
            for row in own
        ]
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
    with LiveTable(f"{row.name} on {spec.title}", ("validation",)) as live:
        found = tune_job(
            job,
            seeds,
            output.out,
            sampler=search.sampler,
            engine=study.engine,
            workers=study.workers,
            progress=live,
        )
    if output.out is not None:
        found.save(output.out)
    if output.as_json:
        print_json([trial.plain() for trial in found.trials])
    else:
        _show_trials(found, output.out)


def _show_trials(found: Tuning, out: Path | None) -> None:
    """Print the best trials, how the best score grew, and what to do with them."""
    job, ranked = found.job, found.trials
    body = [
        (
            "default" if trial.number == 0 else str(trial.number),
            _score(trial),
            *(
                str(trial.settings.get(name, getattr(job.resolved, name)))
                for name in found.searched
            ),
        )
        for trial in ranked[:SHOWN_TRIALS]
    ]
    by = f"validation {found.metric}" if found.metric else "nothing: no validation rows"
    print_table(
        f"{job.method} on {job.data.title}: {len(ranked)} trials ({found.sampler}), chosen by {by}",
        ("trial", found.metric or "score", *found.searched),
        body,
    )
    steps = [f"{best:.4f} after {n + 1}" for n, best in _rises(found.curve())]
    if len(steps) > 1:
        say(f"Best score: {', '.join(steps)} trials.")
    _say_unfinished([(f"trial {trial.number}", trial.not_converged) for trial in ranked])
    if not found.searched:
        say(
            f"{job.method} has no settings to search: one trial. dim and l2 are chosen by the fit where they are auto."
        )
    elif len(ranked) > SHOWN_TRIALS:
        say(f"{len(ranked) - SHOWN_TRIALS} more trials are in trials.json.")
    if out is not None:
        curve = ", chart-search.png" if len(found.curve()) > 1 else ""
        say(f"wrote {out}: trials.json, best.toml{curve}", wrap=False)
        say(f"next: puid train -c {out}/best.toml --data {job.data.name} …", wrap=False)


def _score(trial: Trial) -> str:
    if trial.error or trial.pruned:
        return "failed" if trial.error else "given up"
    return "–" if trial.score is None else f"{trial.score:.4f}"


def _rises(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The steps of a curve at which it rises, the first included."""
    return [at for k, at in enumerate(curve) if k == 0 or at[1] > curve[k - 1][1]]


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
    from puidrec.report.reproduce import claims, field_findings, write_reproduction
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
        from puidrec.demo import METHODS, run_demo
        from puidrec.report.audit import demo_html

    with output_errors(out):
        refuse_overwriting(out, ("report.html",), "demo.json")
        out.mkdir(parents=True, exist_ok=True)  # before any work is spent
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=len(METHODS) + 2)
        found = run_demo(
            world, seed, lambda step: bar.update(task, advance=1, description=step), device or "cpu"
        )
    content = {**found.facts, "audit": found.audit.to_dict()}
    with atomic_files(out) as stage:  # both or neither: the page must show the figures beside it
        write_json(stage / "demo.json", content)
        write_text(stage / "report.html", demo_html(found.facts, content["audit"]))
    if common.as_json:
        print_json(content)
    else:
        _show_demo(found.facts, content["audit"], out)


def _show_demo(facts: dict[str, Any], audit: dict[str, Any], out: Path) -> None:
    """Two tables, what the truth says, what the audit says, and where the report is."""
    from puidrec.demo import NAIVE, ROBUST

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
            (
                row["name"],
                f"{row['value']:.3f}",
                f"{row['half_width']:.3f}",
                f"{row['error']:+.3f}",
                row["needs"],
            )
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
    say(
        f"wrote {out}: {files}\nnext: open {out / 'report.html'}, then puid train --help",
        wrap=False,
    )


def _demo_row(row: dict[str, Any]) -> tuple[str, ...]:
    repaired = "" if row["method"] in ("item-rate", "mf") else f"{row['repaired']:.0%}"
    return (
        row["method"],
        f"{row['naive_mse']:.4f}",
        f"{row['true_mse']:.4f}",
        repaired,
        f"{row['seconds']:.1f}",
    )

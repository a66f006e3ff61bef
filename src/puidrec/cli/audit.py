"""`puid audit`: how strong must hidden confounding be to overturn what a log says of a run, or of its lead?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.cli.options import option
from puidrec.cli.output import print_json, say, steps
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.auditing.audit import Audit
    from puidrec.model import Recommender

SHARED = {"data_sha256": "data", "protocol": "protocol", "seed": "seed", "select": "rows that chose the epoch"}
"""What two runs must have in common, and what to call it."""


@dataclass(frozen=True)
class AuditOptions(options.Options):
    """What the audit assumes, and how far it looks."""

    gamma_limit: float | None = option(None, "Largest Γ to look at; chosen to fit when left out.", metavar="NUMBER")
    gamma: str = option("information", "Rule of the personalised shape: information, exposure-gap, …", metavar="RULE")
    propensity: str = option("two-way", options.PROPENSITY, metavar="NAME")
    replicates: int = option(200, "Bootstrap draws of users; 0 for none.", min=0, max=100_000)
    seed: int = option(0, "Seed of everything random.", min=0)


@options.command("puid audit runs/puid-dr --against runs/mf --out audit-coat", writes="out")
def audit(
    run: options.RunFolder,
    against: Annotated[
        Path | None, typer.Option(help="Another run: audit the lead over it.", metavar="RUN2", readable=False)
    ] = None,
    device: options.Device = None,
    *,
    data: options.RunDataOptions,
    asked: AuditOptions,
    output: options.OutputOptions,
) -> None:
    """Say how strong hidden confounding must be to overturn a run's result, or its lead over another run.

    The runs remember their data. Other data, recognised by their content, are refused, unless --other-data insists.
    Writes audit.json, summary.txt and report.html.
    """
    from puidrec.auditing.audit import audit as audit_models
    from puidrec.auditing.audit import check_target

    if output.out is not None:
        check_target(output.out)
    with steps("reading") as step:
        runs = [_open_run(folder, device or "cpu") for folder in (run, against) if folder is not None]
        _require_alike(runs)
        loaded, _ = data.load_for(run)
        step("auditing")
        found = audit_models(
            runs[0].model, loaded, runs[1].model if len(runs) > 1 else None,
            protocol=runs[0].facts["protocol"], gamma=asked.gamma, gamma_limit=asked.gamma_limit,
            propensity=asked.propensity, replicates=asked.replicates, rng=asked.seed, names=_names(runs),
        )  # fmt: skip
        if output.out is not None:
            step("writing")
            found.save(output.out)
    if output.as_json:
        print_json(found.to_dict())
    else:
        _show(found, output.out)


@dataclass(frozen=True)
class _Run:
    """A run folder: its model, and what it was trained on."""

    folder: Path
    model: Recommender
    facts: dict[str, Any]


def _open_run(folder: Path, device: str) -> _Run:
    from puidrec.experiments.run import load_run, read_environment

    model, _ = load_run(folder, device)
    environment = read_environment(folder, "data_sha256", "protocol", "seed")
    return _Run(folder, model, {"data": None, **environment, "select": model.settings.select})


def _require_alike(runs: list[_Run]) -> None:
    """Two runs compare only where both had the same rows to learn from."""
    for key, word in SHARED.items():
        values = [run.facts[key] for run in runs]
        if len(set(map(str, values))) > 1:
            short = [str(value)[:12] for value in values]
            raise InputError(
                f"the two runs differ in {word}, so they cannot be compared", found=f"{short[0]} and {short[1]}",
                expected="runs of one data set, protocol, seed and selection",
            )  # fmt: skip


def _names(runs: list[_Run]) -> tuple[str, str] | None:
    """Methods tell two runs apart; where they are the same, folders do."""
    methods = [run.model.settings.method for run in runs]
    if len(runs) == 1 or methods[0] != methods[1]:
        return None
    first, second = (run.folder.resolve().name for run in runs)
    return (first, second) if first != second else None


def _show(found: Audit, out: Path | None) -> None:
    sentence, _, rest = found.summary().partition("\n")
    say(sentence, bold=True)
    say(rest.rstrip("\n"))
    if out is not None:
        say(f"\nwrote {out}: audit.json, summary.txt, report.html")

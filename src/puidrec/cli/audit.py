"""`puid audit`: how strong must hidden confounding be to overturn what a log says of a model, or of
its lead?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.cli.command import (
    Options,
    command,
    option,
    path_option,
    print_json,
    quick_imports,
    say,
    steps,
)
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.auditing.result import Audit
    from puidrec.data.dataset import Dataset

SHARED = {
    "data_sha256": "data",
    "protocol": "protocol",
    "seed": "seed",
    "select": "rows that chose the epoch",
}
"""What two runs must have in common, and what to call it."""

TAKEN = (
    "unseen",
    "folds",
    "metric",
    "k",
    "believe",
    "gamma",
    "gamma_limit",
    "propensity",
    "replicates",
)
"""Options that are arguments of `puidrec.audit` under the same name."""


@dataclass(frozen=True)
class AuditOptions(Options):
    """What the audit assumes, and how far it looks."""

    rows: Path | None = path_option(
        "Logged pairs to judge by, which no model has seen: user_id, item_id.", "FILE"
    )
    unseen: bool = option(
        False, "My word: models given as scores have seen none of the logged ratings.", "--unseen"
    )
    folds: int | None = option(
        None,
        "Train runs again without each of so many parts of the log; 1 holds a part out once.",
        min=1,
        max=50,
        metavar="NUMBER",
        show_default="only where no row was held out",
    )
    metric: str = option(
        "auto",
        "What the verdict is about: auto, error, ranking, precision or ndcg.",
        metavar="NAME",
    )
    k: int = option(10, "Where ranked lists are cut: DCG@K, precision@K.", min=1)
    believe: float | None = option(
        None,
        "The largest Γ you think possible: a lead that survives it is robust.",
        metavar="GAMMA",
    )
    protocol: str = option(
        "", options.PROTOCOLS, metavar="NAME", show_default="the run's own, or rd"
    )
    sequential: bool = option(
        False,
        "Say whether the random ratings (--uniform) settle it, valid whenever you look.",
        "--sequential",
    )
    gamma_limit: float | None = option(
        None, "Largest Γ to look at; chosen to fit when left out.", metavar="NUMBER"
    )
    gamma: str = option(
        "information",
        "Rule of the personalised shape: information, exposure-gap, …",
        metavar="RULE",
    )
    propensity: str = option("two-way", options.PROPENSITY, metavar="NAME")
    replicates: int = option(
        200, "Bootstrap draws of users for the bands; 0 for none.", min=0, max=100_000
    )
    seed: int = option(0, "Seed of everything random.", min=0)


Audited = Annotated[
    Path,
    typer.Argument(
        help="Folder written by puid train, or scores as CSV or Parquet: user_id, item_id, score.",
        metavar="RUN|SCORES",
        readable=False,
    ),
]


@command("puid audit runs/coat --against runs/mf --out audit-coat", writes="out")
def audit(
    run: Audited,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another run or file of scores: audit the lead over it.",
            metavar="RUN2|SCORES2",
            readable=False,
        ),
    ] = None,
    device: options.Device = None,
    *,
    data: options.RunDataOptions,
    asked: AuditOptions,
    output: options.OutputOptions,
) -> None:
    """Say how strong hidden confounding must be to overturn a model's result, or its lead over
    another.

    The runs remember their data. Other data, recognised by their content, are refused, unless
    --other-data insists. Models are judged by logged rows that they have not seen: those that their
    split held out; runs are trained again where it held none out, or where --folds asks for it.
    Where there are uniform rows, the lead is measured on them. Scores of a model trained elsewhere
    need --data, and --rows or --unseen. Writes audit.json, summary.txt and report.html; for a run
    also its MODEL_CARD.md with the verdict. The run stays.
    """
    from puidrec.auditing.audit import audit as audit_models
    from puidrec.auditing.result import check_target
    from puidrec.auditing.rows import read_rows

    if output.out is not None:
        check_target(output.out)
    with steps("reading") as step:
        audited = [_open(path, device or "cpu") for path in (run, against) if path is not None]
        runs = [one for one in audited if one.facts is not None]
        _require_alike(runs)
        loaded = _load(data, runs)
        step("auditing")
        found = audit_models(
            audited[0].model,
            loaded,
            audited[1].model if len(audited) > 1 else None,
            rows=None if asked.rows is None else read_rows(asked.rows),
            protocol=asked.protocol or None,
            rng=asked.seed,
            **{name: getattr(asked, name) for name in TAKEN},
            names=_names(audited),
            progress=step,
        )
        if asked.sequential and found.parts["sequential"] is None:
            expected = "--uniform FILE and --against RUN2"
            problem = "--sequential needs random ratings and two models"
            raise InputError(problem, expected=expected)
        if output.out is not None:
            step("writing")
            found.save(output.out, card=_card(audited[0], loaded, found))
    if output.as_json:
        print_json(found.to_dict())
    else:
        _show(found, output.out, sequential=asked.sequential)


def _show(found: Audit, out: Path | None, *, sequential: bool) -> None:
    sentence, _, rest = found.summary().partition("\n")
    say(sentence, bold=True)
    say(rest.rstrip("\n"))
    if out is not None:
        say(f"\nwrote {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    if sequential:
        say(found.parts["sequential"]["sentence"], bold=True)


@dataclass(frozen=True)
class _Audited:
    """What the command line names: the model of a run folder with what it was trained on, or a file
    of scores."""

    path: Path
    model: Any
    facts: dict[str, Any] | None

    @property
    def method(self) -> str:
        return self.path.stem if self.facts is None else str(self.model.settings.method)


def _open(path: Path, device: str) -> _Audited:
    with quick_imports():
        from puidrec.run_folder import load_run, read_environment

    if path.is_file():
        return _Audited(path, path, None)
    if not path.exists():
        raise InputError(
            "no such run or file",
            file=path,
            expected="a run folder, or scores as CSV or Parquet",
            hint="Check the path.",
        )
    model, _ = load_run(path, device)
    environment = read_environment(path, "data_sha256", "protocol", "seed")
    if not model.used_every_uniform_row:  # folders of earlier versions say it in this file alone
        model.report_.setdefault("split", {key: environment[key] for key in ("protocol", "seed")})
    return _Audited(path, model, {"data": None, **environment, "select": model.settings.select})


def _load(data: options.RunDataOptions, runs: list[_Audited]) -> Dataset:
    """The data of a run, or those that the options name."""
    if runs:
        return data.load_for(runs[0].path)[0]
    if not data.data:
        raise InputError(
            "scores do not say which data they are of",
            expected="--data NAME, or --data files --logged FILE",
            hint="Give the log that the model was trained on, and --rows or --unseen.",
        )
    return data.load()


def _require_alike(runs: list[_Audited]) -> None:
    """Two runs compare only where both had the same rows to learn from."""
    for key, word in SHARED.items():
        values = [run.facts[key] for run in runs if run.facts is not None]
        if len(set(map(str, values))) > 1:
            short = [str(value)[:12] for value in values]
            raise InputError(
                f"the two runs differ in {word}, so they cannot be compared",
                found=f"{short[0]} and {short[1]}",
                expected="runs of one data set, protocol, seed and selection",
            )


def _names(audited: list[_Audited]) -> tuple[str, str] | None:
    """Methods tell two runs apart; where they are the same, folders do."""
    folders = [one.path.resolve().name for one in audited]
    if len({one.method for one in audited}) == len(audited) or len(set(folders)) < 2:
        return None
    return folders[0], folders[1]


def _card(audited: _Audited, data: Dataset, found: Audit) -> str | None:
    """The card of an audited run, as its training wrote it, with the verdict; of a file of scores
    nothing is known.

    Where other data were audited than the run was trained on, the card has no metrics: those of the
    run are elsewhere.
    """
    from puidrec.run_folder import measure

    if audited.facts is None:
        return None
    model = audited.model
    if data.sha256 != audited.facts["data_sha256"]:
        return str(model.to_card(audit=found))
    split = model.split_of(data)
    evaluation = measure(model, split, data=data)[0] if len(split.test) else None
    return str(model.to_card(data, split, evaluation, found))

"""Options that the commands of many runs share, and the step from options to the jobs of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.cli import options
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.experiments.job import DataSpec

Seeds = Annotated[int, typer.Option(help="Number of seeds; each has its own split and initialisation.", metavar="N")]
FirstSeed = Annotated[int, typer.Option(help="The first seed; the others follow.", min=0)]
Workers = Annotated[
    int | None, typer.Option(help="Jobs that run at the same time, one thread each; by default one per core.")
]
EngineName = Annotated[
    str,
    typer.Option(help="Where jobs run: local (processes), inline, ray; none takes what is finished.", metavar="NAME"),
]
Select = Annotated[
    str | None, typer.Option(help="Rows that choose the epoch and the trial: uniform or observational.", metavar="ROWS")
]


def seeds_from(first: int, number: int) -> list[int]:
    """The seeds of a study."""
    if number < 1:
        raise InputError("a study needs a seed", found=number, expected="--seeds 1 or more")
    return list(range(first, first + number))


def data_spec(name: str, folder: Path | None, given: dict[str, Any], files: Mapping[str, Any]) -> DataSpec:
    """The data set that the options name, loaded once here so that a mistake is told before anything starts."""
    from puidrec.experiments.job import DataSpec

    options.open_dataset(name, folder, given, **files)
    named = {key: value for key, value in files.items() if value is not None}
    if "scale" in named:
        named["scale"] = options.parse_scale(named["scale"])
    return DataSpec(name, folder, {**options.section(given, "data"), **named})


def model_settings(context: typer.Context, given: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Settings of the models from -c FILE, --set and options of their own; unknown keys are refused."""
    from puidrec.settings import Settings

    chosen = options.model_settings(context, given)
    chosen |= {key: value for key, value in named.items() if value is not None}
    for key in ("method", "seed"):
        if key in chosen:
            raise InputError(f"{key} is no setting here", found=f"--set {key}", expected="the options of the command")
    unknown = {key: value for key, value in chosen.items() if key not in Settings.model_fields}
    if unknown:
        Settings.of("mf", **unknown)  # says which, and what is near
    return chosen


def settings_for(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that a method has: Γ means nothing to one without uncertainty, a rule nothing to one Γ."""
    from puidrec.methods import get_method

    uncertainty = get_method(method).uncertainty
    gamma = settings.get("gamma")
    rule = isinstance(gamma, str) and gamma not in ("auto", "certified", "global")
    absent = {"none": {"gamma", "alpha", "beta"}, "global": {"alpha", "beta"}}.get(uncertainty, set())
    if uncertainty == "global" and rule:
        absent = absent | {"gamma"}
    return {key: value for key, value in settings.items() if key not in absent}


def parse_names(text: str, what: str, known: Sequence[str] = ()) -> list[str]:
    """Read a,b,c: each once, none empty, all of them known where the known ones are given."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"no {what} given", found=text, expected="names, separated by commas")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"a {what} was named twice", found=twice)
    stranger = next((name for name in names if known and name not in known), None)
    if stranger is not None:
        raise InputError(f"unknown {what}", found=stranger, expected=f"some of {', '.join(known)}")
    return names

"""Options that several commands share, and the step from options to a data set."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset

DataName = Annotated[
    str, typer.Option("--data", help="coat, yahoo-r3, kuairec, ml-100k, simulated or files.", metavar="NAME")
]
# Paths are not checked by the parser (readable=False): the loaders say in one line what is wrong with them.
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the data set.", metavar="DIR", readable=False)
]
Logged = Annotated[
    Path | None,
    typer.Option(help="files: the log, CSV or Parquet: user_id, item_id, rating.", metavar="FILE", readable=False),
]
Uniform = Annotated[
    Path | None,
    typer.Option(help="files: ratings of items drawn at random, same columns.", metavar="FILE", readable=False),
]
Users = Annotated[
    Path | None, typer.Option(help="files: user table, user_id and features.", metavar="FILE", readable=False)
]
Items = Annotated[
    Path | None, typer.Option(help="files: item table, item_id and features.", metavar="FILE", readable=False)
]
Shards = Annotated[
    Path | None,
    typer.Option(
        help="files: keep a Parquet log larger than memory on disk, sorted once into this folder.", metavar="DIR",
        readable=False,
    ),
]  # fmt: skip
Scale = Annotated[str | None, typer.Option(help="files: lowest and highest possible rating.", metavar="LOW,HIGH")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE",
        help="A setting of the model: dim, epochs, l2, gamma, ids, select, …; or data.KEY, one of the data source.",
    ),
]  # fmt: skip
DataSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="data.KEY=VALUE: an option of the data source, such as data.seed=1.", metavar="KEY=VALUE"
    ),
]
METHODS = (
    "mf, ips, dr, rd-ips, rd-dr, brd-ips, brd-dr, puid-ips, puid-dr, bpuid-ips, bpuid-dr, multi-ips, multi-dr, "
    "signed-rd, signed-puid, sharp-rd, sharp-puid, item-rate, bias or pure-svd."
)
"""Written out, so that help needs no torch; a test holds it to the table of methods."""
Method = Annotated[str, typer.Option(help=METHODS, metavar="NAME")]
Metrics = Annotated[
    str,
    typer.Option(
        help="Separated by commas: uauc, auc, ndcg@K, ndcg-graded@K, recall@K, precision@K, map@K, mse, mae, logloss.",
        metavar="NAMES",
    ),
]
Device = Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, …", show_default="cpu")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder to write; without it, nothing is written.", metavar="DIR", readable=False)
]


def _load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read `-c FILE`: keys named like options become their defaults; others are settings, where the command has some.

    What is given on the command line wins over the file.
    """
    if path is None:
        return None
    values = {key.replace("-", "_"): value for key, value in read_toml(path).items()}
    options = {parameter.name for parameter in context.command.params} - {"config", "help"}
    context.default_map = {key: value for key, value in values.items() if key in options}
    rest = {key: value for key, value in values.items() if key not in options}
    if rest and context.command.name not in TAKES_SETTINGS:
        expected = f"one of {', '.join(sorted(str(name) for name in options))}"
        raise InputError("unknown key", file=path, column=next(iter(rest)), expected=expected)
    context.meta["settings"] = rest
    return path


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a mapping."""
    if path.exists() and not path.is_file():
        raise InputError("cannot read", file=path, found="no file", expected="TOML")  # a pipe might never end
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError("cannot read", file=path, found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError("not TOML", file=path, found=str(error)[:80], hint="One KEY = VALUE per line.") from error


TAKES_SETTINGS = ("train", "compare", "tune")
"""Commands whose file may hold settings of the model beside options."""
Config = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help="TOML file: options of this command, and settings where it takes some.",
        metavar="FILE", readable=False,
        callback=_load_config, is_eager=True,
    ),
]  # fmt: skip
ProtocolName = Annotated[
    str,
    typer.Option(
        help="What counts as liked: rd (4 and 5), paper (4 and 5, without 3) or ge3 (3 to 5).", metavar="NAME"
    ),
]
PROPENSITIES = "cells, logistic, two-way, naive-bayes or given"
PropensityName = Annotated[
    str,
    typer.Option(help=f"Nominal propensity: {PROPENSITIES}. What it explains is not held against Γ.", metavar="NAME"),
]


def parse_settings(settings: Sequence[str] | None, sections: Sequence[str] | None = None) -> dict[str, Any]:
    """Read `key=value` pairs; a value is TOML where it parses as such, else text.

    With `sections`, every key must be of the form `section.key`: one that nobody would read is an error.
    """
    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError("not a setting", found=setting, expected="KEY=VALUE", hint="Example: --set data.seed=1")
        name = key.strip()
        if sections is not None and not any(name.startswith(f"{s}.") and len(name) > len(s) + 1 for s in sections):
            raise InputError(
                "unknown setting",
                found=name,
                expected=" or ".join(f"{section}.KEY" for section in sections),
            )
        parsed[name] = parse_value(value)
    return parsed


def model_settings(context: typer.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of models: those of -c FILE, and over them those of --set that are not for the data source."""
    own = {key: value for key, value in given.items() if not key.startswith("data.")}
    return {**context.meta.get("settings", {}), **own}


def section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings `name.KEY`, without the name."""
    return {key.removeprefix(f"{name}."): value for key, value in settings.items() if key.startswith(f"{name}.")}


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def parse_scale(text: str | None) -> tuple[float, float] | None:
    """Read LOW,HIGH."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError("not a rating scale", found=text, expected="LOW,HIGH", hint="Example: --scale 1,5") from None
    return low, high


def open_dataset(
    name: str,
    folder: Path | None,
    settings: dict[str, Any],
    *,
    logged: Path | None = None,
    uniform: Path | None = None,
    users: Path | None = None,
    items: Path | None = None,
    scale: str | None = None,
    shards: Path | None = None,
) -> Dataset:
    """Load the data set that the options name; file options are for `files` only."""
    from puidrec.data.sources import load_dataset

    files = {"logged": logged, "uniform": uniform, "users": users, "items": items, "scale": parse_scale(scale),
             "shards": shards}  # fmt: skip
    given = {key: value for key, value in files.items() if value is not None}
    if given and name != "files":
        raise InputError(
            f"--{next(iter(given))} belongs to --data files",
            found=f"--data {name}",
            hint="Use --data files, or leave the option out.",
        )
    more = section(settings, "data")
    reserved = next((key for key in ("name", "path") if key in more), None)
    if reserved is not None:
        raise InputError("unknown setting", found=f"data.{reserved}", hint="Use --data NAME and --data-dir DIR.")
    twice = next((key for key in given if key in more), None)
    if twice is not None:
        raise InputError(f"{twice} was given twice", found=f"--{twice} and --set data.{twice}", expected="one of them")
    return load_dataset(name, folder, **more, **given)

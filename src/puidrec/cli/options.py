"""Options that several commands share, and what is made of them (a data set, settings)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from puidrec.cli.command import Options, option, path_option, show_progress
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.comparing.job import DataSpec, RunData
    from puidrec.data.dataset import Dataset

METHODS = (
    "spectrum, mf, ips, dr, rd-ips, rd-dr, brd-ips, brd-dr, puid-ips, puid-dr, bpuid-ips, "
    "bpuid-dr, mrdr, dr-mse, tdr, d-ips, d-dr, stable-dr, bal-ips, bal-dr, res-ips, res-dr, "
    "ips-v2, dr-v2, kernel-ips, kernel-dr, auto-debias, cvib, dcf, idcf, multi-ips, multi-dr, "
    "signed-rd, signed-puid, item-rate, bias, popularity, pure-svd, all-rank or ease."
)
"""Written out, as the other names here, so that help needs no torch; tests compare them with the
tables of names."""
PROPENSITIES = "cells, logistic, two-way, balanced, kernel, naive-bayes or given"
PROPENSITY = (
    f"Nominal propensity: {PROPENSITIES}. What it explains does not count as hidden confounding."
)
METRICS = (
    "uauc, auc, ndcg@K, ndcg-graded@K, recall@K, catalogue-recall@K, precision@K, map@K, mse, "
    "rmse, mae, logloss; likes among all unseen items: unseen-recall@K, -ndcg, -hit, -mrr, "
    "-coverage, -novelty"
)
PROTOCOLS = (
    "What is liked and tested: rd (4 and 5), paper (without 3), ge3 (3 to 5), cvib (3 to 5, all "
    "uniform rows test), idcf (30 % validate), unlogged (as rd, never logged pairs), big-small "
    "(KuaiRec), temporal (the latest 10 % of the log test), leave-last-out (the last row of each "
    "user), kuairand-random (tested on its randomly shown rows) or kuairand-standard (on its "
    "later ones)."
)
OVERLAP = "Uniform rows whose pair is in the log: drop, or keep (for comparison with print)."
MODEL_SETTINGS = (
    "A setting of the model: dim, epochs, l2, gamma, ids, select, …; or data.KEY, one of the data "
    "source."
)
SOURCES = "coat, yahoo-r3, kuairec, kuairand, ml-100k, simulated, recbole or files."
DEVICES = "Where to compute: cpu, cuda, …"
PATHS = ("logged", "uniform", "users", "items", "shards")
"""Options of the source `files` that are paths."""
TAKES_SETTINGS = ("train", "compare", "tune")
"""Commands whose -c FILE may hold settings of the model beside options."""


def _load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Read `-c FILE`: keys named like options become their defaults; others are settings, where the
    command has some.

    What is given on the command line wins over the file; settings of --set are merged one by one
    (`merge_settings`).
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


def merge_settings(context: typer.Context, given: list[str] | None) -> list[str] | None:
    """The `settings` of -c FILE, and after them those of --set: of two for one key, the later one
    counts."""
    stored = (context.default_map or {}).get("settings")
    source = context.get_parameter_source("settings")
    if stored is None or source is None or source.name != "COMMANDLINE":
        return given
    return [*([stored] if isinstance(stored, str) else map(str, stored)), *(given or [])]


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a mapping."""
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size):
            # a pipe might never end, nor do files that the system makes up (/proc/kmsg), of size 0
            raise InputError("no file, or an empty one", file=path, expected="TOML")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError("cannot read", file=path, found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        hint = "One KEY = VALUE per line."
        raise InputError("not TOML", file=path, found=str(error)[:80], hint=hint) from error


# Options that commands take one by one, not in groups.
RunFolder = Annotated[
    Path, typer.Argument(help="Folder written by puid train.", metavar="RUN", readable=False)
]
OutFolder = Annotated[Path, typer.Option(help="Folder to write.", metavar="DIR", readable=False)]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
Device = Annotated[str | None, typer.Option(help=DEVICES, show_default="cpu")]
Shards = Annotated[
    Path | None,
    typer.Option(
        help="files: keep a Parquet log larger than memory on disk, sorted once into this folder.",
        metavar="DIR",
        readable=False,
    ),
]
ProtocolName = Annotated[str, typer.Option(help=PROTOCOLS, metavar="NAME")]
PropensityName = Annotated[str, typer.Option(help=PROPENSITY, metavar="NAME")]


@dataclass(frozen=True)
class CommonOptions(Options):
    """What every command takes."""

    config: Path | None = option(
        None,
        "TOML file: options of this command, and settings where it takes some.",
        "-c",
        "--config",
        metavar="FILE",
        readable=False,
        callback=_load_config,
        is_eager=True,
    )
    as_json: bool = option(False, "Print JSON for machines instead of tables.", "--json")
    quiet: bool = option(False, "No progress on standard error.", "-q", "--quiet")
    verbose: bool = option(
        False,
        "Every step on a line of standard error, and the trace of an internal error.",
        "-v",
        "--verbose",
    )

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise InputError(
                "--quiet and --verbose contradict each other", hint="Leave one of them out."
            )
        show_progress("quiet" if self.quiet else "verbose" if self.verbose else "shown")


@dataclass(frozen=True)
class OutputOptions(CommonOptions):
    """What commands take that may write a folder."""

    out: Path | None = path_option("Folder to write; without it, nothing is written.")


@dataclass(frozen=True)
class DataOptions(Options):
    """Which data set: a name and a folder, or the user's own files."""

    data: str = option("simulated", SOURCES, metavar="NAME")
    data_dir: Path | None = path_option("Folder of the data set.")
    logged: Path | None = path_option(
        "files: the log: user_id, item_id, rating. CSV, Parquet (also a folder or pattern of "
        "parts), JSON lines, RecBole or a CSR matrix.",
        "FILE",
    )
    uniform: Path | None = path_option(
        "files: ratings of items drawn at random, same columns.", "FILE"
    )
    users: Path | None = path_option("files: user table, user_id and features.", "FILE")
    items: Path | None = path_option("files: item table, item_id and features.", "FILE")
    scale: str | None = option(
        None, "files: lowest and highest possible rating.", metavar="LOW,HIGH"
    )
    liked_from: float | None = option(
        None, "files: ratings from here on are likes (1), lower ones are not (0)."
    )
    columns: str | None = option(
        None,
        "files: columns of a log without header line, in order (- skips one), or ours=theirs,…",
        metavar="NAMES",
    )
    overlap: str | None = option(None, OVERLAP, metavar="RULE", show_default="drop")
    settings: list[str] | None = option(
        None,
        "data.KEY=VALUE: an option of the data source, such as data.seed=1.",
        "--set",
        metavar="KEY=VALUE",
        callback=merge_settings,
    )
    sections: ClassVar[Sequence[str] | None] = ("data",)
    """Sections that keys of --set may have; None: any key, settings of the model among them."""

    def parsed_settings(self) -> dict[str, Any]:
        """The keys and values of --set."""
        return parse_settings(self.settings, self.sections)

    def source_options(self, shards: Path | None = None) -> dict[str, Any]:
        """What the data source is told: file options, which are for `files` only, and --set
        data.KEY; nothing twice."""
        tables = ("logged", "uniform", "users", "items", "liked_from")
        files = {
            **{key: getattr(self, key) for key in tables},
            "scale": parse_scale(self.scale),
            "shards": shards,
            "columns": parse_columns(self.columns),
        }
        given: dict[str, Any] = {key: value for key, value in files.items() if value is not None}
        if given and self.data not in ("files", "recbole"):
            raise InputError(
                f"--{next(iter(given)).replace('_', '-')} belongs to --data files",
                found=f"--data {self.data}",
                hint="Use --data files, or leave the option out.",
            )
        if self.overlap is not None:
            given["overlap"] = self.overlap
        more = section(self.parsed_settings(), "data")
        reserved = next((key for key in ("name", "path") if key in more), None)
        if reserved is not None:
            hint = "Use --data NAME and --data-dir DIR."
            raise InputError("unknown setting", found=f"data.{reserved}", hint=hint)
        twice = next((key for key in given if key in more), None)
        if twice is not None:
            found = f"--{twice.replace('_', '-')} and --set data.{twice}"
            raise InputError(f"{twice} was given twice", found=found, expected="one of them")
        if self.data == "files":  # paths, so that they are found again from any folder
            own = {key: value for key, value in more.items() if key in PATHS}
            more |= {key: Path(value) for key, value in own.items() if isinstance(value, str)}
        return {**more, **given}

    def spec(self, shards: Path | None = None) -> DataSpec:
        """Which data, as plain values that a run or a study can keep."""
        from puidrec.comparing.job import DataSpec

        return DataSpec(self.data, self.data_dir, self.source_options(shards))

    def load(self, shards: Path | None = None) -> Dataset:
        """The data set; with `shards`, its log stays on disk."""
        from puidrec.data.sources import load_dataset

        return load_dataset(self.data, self.data_dir, **self.source_options(shards))


@dataclass(frozen=True)
class RunDataOptions(DataOptions):
    """The data of a trained run, which it remembers; options given here come on top, --data starts
    anew."""

    data: str = option("", SOURCES, metavar="NAME", show_default="the run's own data")
    other_data: bool = option(
        False, "Take data that differ from those the run was trained on.", "--other-data"
    )

    def load_for(self, run: Path) -> tuple[Dataset, RunData]:
        """The data of a run, or those that the options name, and what the run says of its own.

        Data of another content are refused, unless --other-data insists.
        """
        from puidrec.comparing.job import RunData
        from puidrec.data.sources import load_dataset

        own = RunData.of(run)
        if self.data:
            loaded = self.load()
        elif own.source is None:
            raise InputError(
                "the run does not say where its data are",
                file=run,
                found=own.name,
                hint="Give the --data, --data-dir and --set data.KEY=VALUE of puid train.",
            )
        else:
            given = replace(self, data=own.source.name).source_options()
            folder = own.source.folder if self.data_dir is None else self.data_dir
            loaded = load_dataset(own.source.name, folder, **{**own.source.options, **given})
        if not self.other_data:
            own.require(loaded)
        return loaded, own


@dataclass(frozen=True)
class ModelDataOptions(DataOptions):
    """A data set to train on: --set takes settings of the model as well."""

    settings: list[str] | None = option(
        None, MODEL_SETTINGS, "--set", metavar="KEY=VALUE", callback=merge_settings
    )
    sections: ClassVar[Sequence[str] | None] = None

    def model_settings(self, context: typer.Context, **named: Any) -> dict[str, Any]:
        """The settings of the model: those of -c FILE, over them those of --set, and over them
        named options given."""
        parsed = self.parsed_settings()
        own = {key: value for key, value in parsed.items() if not key.startswith("data.")}
        given = {key: value for key, value in named.items() if value is not None}
        return {**context.meta.get("settings", {}), **own, **given}


@dataclass(frozen=True)
class EngineOptions(Options):
    """Where many runs are computed."""

    workers: int | None = option(
        None, "Jobs that run at the same time, one thread each; by default one per core."
    )
    engine: str = option(
        "local",
        "Where jobs run: local (processes), inline, ray, dask; none takes what is finished.",
        metavar="NAME",
    )
    device: str | None = option(None, DEVICES, show_default="cpu")


def parse_settings(
    settings: Sequence[str] | None, sections: Sequence[str] | None = None
) -> dict[str, Any]:
    """Read `key=value` pairs; a value is TOML where it parses as such, else text.

    With `sections`, every key must be of the form `section.key`: one that nothing would read is an
    error.
    """
    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key:
            hint = "Example: --set data.seed=1"
            raise InputError("not a setting", found=setting, expected="KEY=VALUE", hint=hint)
        name = key.strip()
        head, _, rest = name.partition(".")
        if sections is not None and not (head in sections and rest):
            expected = " or ".join(f"{section}.KEY" for section in sections)
            raise InputError("unknown setting", found=name, expected=expected)
        parsed[name] = parse_value(value)
    return parsed


def section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings `name.KEY`, without the name."""
    return {
        key.removeprefix(f"{name}."): value
        for key, value in settings.items()
        if key.startswith(f"{name}.")
    }


def parse_value(text: str) -> Any:
    """A TOML value, a number as Python reads it (.1, 1e-3), or the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        try:
            return float(text)
        except ValueError:
            return text
    return parsed["value"] if len(parsed) == 1 else text


def parse_scale(text: str | None) -> tuple[float, float] | None:
    """Read LOW,HIGH."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            "not a rating scale", found=text, expected="LOW,HIGH", hint="Example: --scale 1,5"
        ) from None
    return low, high


def parse_columns(text: str | None) -> list[str] | dict[str, str] | None:
    """Read the names of all columns, a,b,c, or a renaming, ours=theirs,…."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    pairs = [part.partition("=") for part in parts]
    if not all(parts) or len({equals for _, equals, _ in pairs}) > 1:
        expected = "user_id,item_id,rating,timestamp, or user_id=uid,rating=stars"
        raise InputError("not names of columns", found=text, expected=expected)
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs} if "=" in text else parts


def parse_names(text: str, what: str, known: Sequence[str] = ()) -> list[str]:
    """Read a,b,c: each once, none empty, all of them known where the known ones are given."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"no {what} given", found=text, expected="names, separated by commas")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"a {what} was named twice", found=twice)
    unknown = next((name for name in names if known and name not in known), None)
    if unknown is not None:
        raise InputError(f"unknown {what}", found=unknown, expected=f"some of {', '.join(known)}")
    return names

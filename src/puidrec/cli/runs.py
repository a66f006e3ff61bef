"""Commands on one model: `puid train`, `evaluate`, `recommend`, `export` and `serve`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from puidrec.cli import options
from puidrec.cli.command import (
    Options,
    command,
    option,
    path_option,
    print_json,
    print_page,
    progress_bar,
    quick_imports,
    say,
    steps,
)
from puidrec.errors import InputError
from puidrec.serve import Seen, Unknown

if TYPE_CHECKING:
    import polars as pl
    from rich.progress import Progress, TaskID

    from puidrec.serve.limits import Policy


SORTING = "sorting the log into shards, unless it was before"
SHOWN_ROWS = 200
"""Recommendations that go into a table on the terminal."""


@dataclass(frozen=True)
class ModelOptions(Options):
    """Which model to train; what is not given is left to the defaults of `Settings`."""

    method: str | None = option(None, options.METHODS, metavar="NAME", show_default="spectrum")
    device: str | None = option(None, options.DEVICES, show_default="cpu")
    seed: int | None = option(None, "Seed of split and initialisation.", min=0, show_default="0")


@dataclass(frozen=True)
class TrainOptions(options.OutputOptions):
    """What is measured and kept."""

    protocol: str | None = option(
        None,
        options.PROTOCOLS,
        metavar="NAME",
        show_default="every uniform row calibrates, none tests; without such rows rd",
    )
    log: str | None = option(None, "mlflow: log settings, metrics and files there.", metavar="NAME")


@command("puid train --data coat --data-dir coat --out runs/coat")
def train(
    context: typer.Context,
    data: options.ModelDataOptions,
    model: ModelOptions,
    shards: options.Shards = None,
    *,
    asked: TrainOptions,
) -> None:
    """Train a recommender, and measure it on test rows where there are any (--protocol rd).

    A run that was interrupted goes on where its last checkpoint left off: repeat the command.
    """
    with quick_imports():
        from puidrec.data.schema import check_choice
        from puidrec.run_folder import mlflow_run, train_run
        from puidrec.settings import Settings, check_parameters
        from puidrec.world import join_world

    given = data.model_settings(context, **asdict(model))
    chosen = Settings.of(**given)
    check_parameters(chosen.method, given)
    if asked.log is not None:
        check_choice("--log", asked.log, ("mlflow",))
    nothing = contextlib.nullcontext
    with (
        join_world(chosen.device, lambda words: typer.echo(words, err=True)) as world,
        progress_bar() as bar,
    ):
        task = bar.add_task("reading the data" if shards is None else SORTING, total=None)
        with nothing() if shards is None else world.first_ahead():
            loaded = data.load(shards)
        chosen = chosen.replace(device=world.device) if world.size > 1 else chosen
        bar.update(task, description=f"{chosen.method}: propensities, Γ and noise of the log")
        logged = mlflow_run(chosen, loaded.name) if asked.log and world.first else nothing()
        with logged as record:
            run = train_run(
                loaded,
                chosen,
                protocol=asked.protocol,
                out=asked.out,
                progress=_told_of(bar, task, chosen.method),
                world=world,
                source=data.spec(shards).to_source(),
            )
            if record is not None:
                record(run, asked.out)
    if asked.as_json:
        print_json(run.metrics)
    else:
        print_page("run", run=run, data=loaded.name, out=asked.out, **_said(run.metrics))


def _told_of(
    bar: Progress, task: TaskID, method: str
) -> Callable[[str, int, int, dict[str, float]], None]:
    """Shows how far training is, its loss, and the last validation score of a stage."""
    judged: dict[str, str] = {}

    def show(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        if "score" in figures:  # not every epoch is judged: the last score of a stage stays
            judged[stage] = f", validation {figures['score']:.4f}"
        losses = [value for name, value in figures.items() if name.startswith("loss_")]
        loss = f": loss {losses[0]:.4f}" if losses else ""
        words = f"{method} ({stage}){loss}{judged.get(stage, '')}"
        bar.update(task, completed=done, total=total, description=words)

    return show


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a run's figures wherever they are shown: how many uniform rows are logged
    pairs, and how many recommendations would stay if hidden confounding were stronger."""
    from puidrec.data.tables import overlap_words

    shares = facts.get("spectrum", {}).get("stable") or {}
    return {
        "facts": facts,
        "overlap_words": overlap_words(
            facts["overlap"], facts["uniform_rows"], facts["uniform_rows_in_log"]
        ),
        "shares": sorted(shares.items(), key=lambda one: float(one[0].replace("∞", "inf"))),
    }


@command("puid evaluate runs/coat --metrics uauc,ndcg@5")
def evaluate(
    run: options.RunFolder,
    data: options.RunDataOptions,
    metrics: Annotated[
        str | None,
        typer.Option(
            help=f"Separated by commas: {options.METRICS}.",
            metavar="NAMES",
            show_default="as puid train",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help=options.PROTOCOLS, metavar="NAME", show_default="the run's own"),
    ] = None,
    device: options.Device = None,
    *,
    common: options.CommonOptions,
) -> None:
    """Measure a trained model on the test rows of its data (the split of the run's own seed).

    The run remembers its data. Other data are refused, unless --other-data insists.
    """
    with quick_imports():
        from puidrec.run_folder import load_run, measure

    model, _ = load_run(run, device or "cpu")
    with steps("reading") as step:
        loaded, own = data.load_for(run)
        step("measuring")
        protocol = protocol or own.protocol
        split = loaded.split(protocol, model.settings.seed, select=model.settings.select)
        names = None if metrics is None else options.parse_names(metrics, "metric")
        evaluation, figures = measure(model, split, names, loaded)
    if common.as_json:
        print_json(figures)
        return
    heading = f"{model.settings.method} on {loaded.name}, protocol {protocol}"
    print_page("evaluation", evaluation=evaluation, split=split, heading=heading, **_said(figures))


@dataclass(frozen=True)
class RecommendOptions(options.CommonOptions):
    """Whose best items, how many, and where to."""

    users: str | None = option(None, "Users, separated by commas; all users when left out.")
    k: int = option(10, "Items per user.", min=1, max=100_000)
    items: str | None = option(None, "The only items to recommend, separated by commas.")
    exclude: str | None = option(None, "Items not to recommend, separated by commas.")
    include_seen: bool = option(False, "Also items that the user has in the log.", "--include-seen")
    include_held_out: bool = option(
        False,
        "Also logged items that training left out: to look for them with other tools.",
        "--include-held-out",
    )
    stable: bool = option(
        False, "Add gamma_max: up to which Γ each item stays (spectrum models).", "--stable"
    )
    out: Path | None = path_option("Write CSV or Parquet instead of a table.", "FILE")
    device: str | None = option(None, options.DEVICES, show_default="cpu")


@command("puid recommend runs/coat --users 0,1,2 --k 5 --out top.csv")
def recommend(run: options.RunFolder, asked: RecommendOptions) -> None:
    """The best items of each user: user_id, item_id, score, rank."""
    with quick_imports():
        from puidrec.atomic import atomic_path
        from puidrec.run_folder import load_run

    model, _ = load_run(run, asked.device or "cpu")
    known, out = model.user_ids_.ids, asked.out
    if out is not None and out.suffix not in (".csv", ".parquet"):
        found = out.suffix or str(out)
        raise InputError("unknown format", found=found, expected=".csv or .parquet")
    wanted: Any = known if asked.users is None else _ids(asked.users, known.dtype.is_integer())
    whole = model.item_ids_.ids.dtype.is_integer()
    named = {"items": asked.items, "exclude": asked.exclude}
    only: dict[str, Any] = {
        key: _ids(text, whole, "item") for key, text in named.items() if text is not None
    }
    exclude: bool | Literal["training"] = not asked.include_seen and (
        "training" if asked.include_held_out else True
    )
    with steps("ranking the items of each user"):
        frame = model.recommend(
            wanted, k=asked.k, exclude_seen=exclude, stable=asked.stable, **only
        )
    if out is not None:
        with atomic_path(out) as temporary:
            if out.suffix == ".parquet":
                frame.write_parquet(temporary)
            else:
                _no_formulas(frame).write_csv(temporary)
        say(f"wrote {out}: {frame.height:,} rows")
    elif asked.as_json:
        print_json(frame.to_dicts())
    else:
        shown = frame.head(SHOWN_ROWS)
        print_page("recommendations", rows=shown.to_dicts(), more=frame.height - shown.height)


def _no_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Text that a spreadsheet would compute (=, +, -, @ first) after an apostrophe, which makes it
    text there too."""
    import polars as pl

    risky = r"^([=+\-@\t\r])"
    return frame.with_columns(pl.col(pl.String).str.replace(risky, "'${1}"))


def _ids(text: str, integers: bool, what: str = "user") -> list[Any]:
    """Ids from a comma-separated option, of the type the model knows."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError(f"no {what}s named", found=text, expected="ids separated by commas")
    if not integers:
        return parts
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise InputError(
            f"{what} ids of this model are integers", found=text, expected="for example 0,1,2"
        ) from None


class ExportFormat(StrEnum):
    """What an export holds."""

    onnx = "onnx"
    parquet = "parquet"
    npy = "npy"
    csr = "csr"
    recbole = "recbole"


@command("puid export runs/coat --format parquet --out vectors", writes="out")
def export(
    run: options.RunFolder,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="onnx: scores of pairs; parquet, npy, recbole: vectors whose inner product is "
            "the score, and the seen pairs; csr: the seen pairs as a SciPy matrix.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to write; an earlier export is replaced.", metavar="DIR", readable=False
        ),
    ],
    common: options.CommonOptions,
) -> None:
    """Write a trained model for other systems: an ONNX graph, or vectors for any vector index."""
    with quick_imports():
        from puidrec.export import export_model
        from puidrec.run_folder import ENVIRONMENT, load_run, read_environment

    model, _ = load_run(run)
    with steps("writing"):
        about = read_environment(run) if (run / ENVIRONMENT).exists() else {}
        written = export_model(model, form.value, out, data_sha256=about.get("data_sha256"))
    if common.as_json:
        print_json(written)
        return
    for name, size in written["files"].items():
        say(f"{size:>12,} bytes  {out / name}", wrap=False)
    say(f"score: {written['score']}", wrap=False)
    if "largest_difference_to_predict" in written:
        say(f"largest difference to predict: {written['largest_difference_to_predict']:.1e}")


# In service


@dataclass(frozen=True)
class ServeOptions(options.CommonOptions):
    """Where the server listens, and what clients get."""

    host: str = option("127.0.0.1", "Address to listen on; the default answers this machine only.")
    port: int = option(8000, "Port; 0 takes a free one.", min=0, max=65535)
    api_key_file: Path | None = path_option(
        "Keys, one per line; clients must send one. Needed when others can reach the server.",
        "FILE",
    )
    allowed_host: list[str] | None = option(
        None,
        "Name by which clients call the server, such as api.example.com; may be repeated.",
        metavar="NAME",
    )
    cors_origin: list[str] | None = option(
        None,
        "Origin of web pages whose scripts may ask, such as https://example.com; may be repeated.",
        metavar="URL",
    )
    proxy: list[str] | None = option(
        None,
        "Address of a proxy before the server; its X-Forwarded-For is believed. May be repeated.",
        metavar="ADDRESS",
    )
    unknown: Unknown = option(
        Unknown.PRIOR, "Users without training rows or features: the average user's answer, or 404."
    )
    seen: Seen = option(
        Seen.CATALOGUE,
        "Where items that a user rated are left out: of the catalogue, also of lists of "
        "items, or never.",
    )
    max_k: int = option(1000, "Most items per user that a client may ask for.", min=1, max=100_000)
    device: str | None = option(None, options.DEVICES, show_default="cpu")
    as_json: bool = option(False, "Print the address as JSON, once it answers.", "--json")
    quiet: bool = option(False, "No log lines of requests on standard error.", "-q", "--quiet")


@command("puid serve runs/coat --port 8000")
def serve(run: options.RunFolder, asked: ServeOptions) -> None:
    """Serve recommendations over HTTP until Ctrl+C: POST /recommend and /score, GET /health, /model
    and /metrics.

    The page /docs says what they take and give; it needs no network. SIGHUP takes the run folder
    anew.
    """
    try:
        from puidrec.serve.app import serve_run
        from puidrec.serve.server import address_of, open_socket, serve_forever, survive_hangup
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving needs {error.name}, which is not installed",
            hint="pip install 'puidrec[serve]'",
        ) from error

    policy = _policy(asked)
    with open_socket(asked.host, asked.port) as listener:
        app = serve_run(run, policy)
        survive_hangup()
        listener.listen()  # clients may connect, and are answered once the loop runs
        _announce(app.state.serving.answers.card, address_of(listener), asked.as_json)
        log = None if asked.quiet else sys.stderr
        serve_forever(app, listener, proxies=asked.proxy or (), log=log)
    if not asked.as_json:
        say("stopped")


def _policy(asked: ServeOptions) -> Policy:
    """What the options ask of the server; refused where it would let in anybody."""
    from puidrec.serve.limits import (
        ApiKeys,
        Limits,
        Policy,
        allowed_hosts,
        require_key_beyond_loopback,
    )

    keys = None if asked.api_key_file is None else ApiKeys(asked.api_key_file)
    require_key_beyond_loopback(asked.host, keys)
    origins = asked.cors_origin or []
    for origin in origins:
        if not origin.startswith(("http://", "https://")):
            expected = "http:// or https://, a name, and a port if need be"
            raise InputError("not an origin", found=origin, expected=expected)
    limits = Limits(k=asked.max_k, results=max(Limits.results, asked.max_k))
    return Policy(
        unknown=asked.unknown,
        seen=asked.seen,
        limits=limits,
        device=asked.device or "cpu",
        keys=keys,
        hosts=allowed_hosts(asked.host, asked.allowed_host or []),
        origins=origins,
    )


def _announce(card: dict[str, Any], url: str, as_json: bool) -> None:
    """Say what is served and where."""
    if as_json:
        print_json({"url": url, "method": card["method"]})
        sys.stdout.flush()  # the reader waits for it
    else:
        what = f"{card['method']}, {card['users']:,} users × {card['items']:,} items"
        say(f"{what}, on {url} (what it answers: {url}/docs)", wrap=False)

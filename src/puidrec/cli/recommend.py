"""`puid recommend` and `puid evaluate`: use a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from puidrec.cli import options
from puidrec.errors import InputError

RECOMMEND_EXAMPLE = "Example: puid recommend runs/puid-dr --users 0,1,2 --k 5 --out top.csv"
EVALUATE_EXAMPLE = "Example: puid evaluate runs/puid-dr --data coat --data-dir coat --metrics uauc,ndcg@5"
RunFolder = Annotated[Path, typer.Argument(help="Folder written by puid train.", metavar="RUN", readable=False)]


def recommend(
    run: RunFolder,
    users: Annotated[str | None, typer.Option(help="Users, separated by commas; all users when left out.")] = None,
    k: Annotated[int, typer.Option(help="Items per user.", min=1, max=100_000)] = 10,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Also items the user has rated.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write CSV or Parquet instead of a table.", metavar="FILE", readable=False)
    ] = None,
    device: options.Device = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """The best items of each user: user_id, item_id, score, rank."""
    from puidrec.atomic import atomic_path
    from puidrec.cli.output import console, print_json, print_table
    from puidrec.experiments.run import load_run

    model, _ = load_run(run, device or "cpu")
    wanted: Any = model.user_ids_.ids if users is None else _ids(users, model.user_ids_.ids.dtype.is_integer())
    frame = model.recommend(wanted, k=k, exclude_seen=not include_seen)
    if out is not None:
        if out.suffix not in (".csv", ".parquet"):
            raise InputError("unknown format", found=out.suffix or str(out), expected=".csv or .parquet")
        with atomic_path(out) as temporary:
            (frame.write_parquet if out.suffix == ".parquet" else frame.write_csv)(temporary)
        console.print(f"wrote {out}: {frame.height:,} rows", markup=False)
    elif as_json:
        print_json(frame.to_dicts())
    else:
        shown = frame.head(200)
        rows = [(str(r["user_id"]), str(r["rank"]), str(r["item_id"]), f"{r['score']:.4f}") for r in shown.to_dicts()]
        print_table("Recommendations", ("user", "rank", "item", "score"), rows)
        if frame.height > shown.height:
            console.print(f"{frame.height - shown.height:,} more rows; --out FILE writes all.")


def evaluate(
    run: RunFolder,
    data: options.DataName = "simulated",
    data_dir: options.DataDir = None,
    metrics: options.Metrics = "uauc,ndcg@5,auc,mse",
    protocol: options.ProtocolName = "rd",
    settings: options.DataSettings = None,
    logged: options.Logged = None,
    uniform: options.Uniform = None,
    users: options.Users = None,
    items: options.Items = None,
    scale: options.Scale = None,
    device: options.Device = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a trained model on the test rows of a data set (the split of the run's own seed)."""
    from puidrec.cli.output import console, print_json, print_table
    from puidrec.experiments.run import load_run, measure

    model, _ = load_run(run, device or "cpu")
    loaded = options.open_dataset(
        data, data_dir, options.parse_settings(settings, ("data",)),
        logged=logged, uniform=uniform, users=users, items=items, scale=scale,
    )  # fmt: skip
    split = loaded.split(protocol, model.settings.seed, select=model.settings.select)
    evaluation, figures = measure(model, split, [name.strip() for name in metrics.split(",") if name.strip()])
    if as_json:
        print_json(figures)
        return
    rows = []
    for name, value in evaluation.items():
        interval = evaluation.interval(name) if name in evaluation.per_user else None
        rows.append((name, f"{value:.4f}", f"{interval.low:.4f} … {interval.high:.4f}" if interval else ""))
    print_table(
        f"{model.settings.method} on {loaded.name}, protocol {protocol}", ("metric", "test", "95 % over users"), rows
    )
    console.print(f"{len(split.test):,} {split.evaluation} test rows, {split.positive_rate:.1%} liked", markup=False)


def _ids(text: str, integers: bool) -> list[Any]:
    """User ids from a comma-separated option, of the type the model knows."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError("no users named", found=text, expected="ids separated by commas")
    if not integers:
        return parts
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise InputError("user ids of this model are integers", found=text, expected="for example 0,1,2") from None

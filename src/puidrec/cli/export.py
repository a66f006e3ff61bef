"""`puid export`: a run folder's model for other systems."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from puidrec.cli import options

EXAMPLE = "Example: puid export runs/puid-dr --format parquet --out vectors"


class ExportFormat(StrEnum):
    """What an export holds."""

    onnx = "onnx"
    parquet = "parquet"
    npy = "npy"


def export(
    run: Annotated[Path, typer.Argument(help="Folder written by puid train.", metavar="RUN", readable=False)],
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="onnx: scores of pairs; parquet, npy: vectors whose inner product is the score."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to write; an earlier export is replaced.", metavar="DIR", readable=False)
    ],
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a trained model for other systems: an ONNX graph, or vectors for any vector index."""
    from puidrec.cli.output import console, print_json
    from puidrec.experiments.run import load_run
    from puidrec.export import export_model

    model, _ = load_run(run)
    written = export_model(model, form.value, out, data_sha256=_data_digest(run))
    if as_json:
        print_json({**written.description, "files": written.files})
        return
    for name, size in written.files.items():
        console.print(f"{size:>12,} bytes  {out / name}", markup=False, soft_wrap=True)
    console.print(f"score: {written.description['score']}", markup=False, soft_wrap=True)
    if "largest_difference_to_predict" in written.description:
        console.print(f"largest difference to predict: {written.description['largest_difference_to_predict']:.1e}")


def _data_digest(run: Path) -> str | None:
    """Which data the model was trained on, where the run says so."""
    from puidrec.store import read_json

    path = run / "environment.json"
    digest = read_json(path).get("data_sha256") if path.exists() else None
    return digest if isinstance(digest, str) else None

"""An export is a folder that appears whole: the numbers, the ids of their rows, and a JSON file that explains both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from puidrec import __version__
from puidrec.atomic import atomic_folder, write_json
from puidrec.errors import InputError
from puidrec.export.onnx import write_onnx
from puidrec.export.vectors import write_npy, write_parquet
from puidrec.model import Recommender
from puidrec.train.validate import Scale

DESCRIPTION = "export.json"


class Format(StrEnum):
    """What an export holds."""

    ONNX = "onnx"
    PARQUET = "parquet"
    NPY = "npy"


WRITERS = {Format.ONNX: write_onnx, Format.PARQUET: write_parquet, Format.NPY: write_npy}


@dataclass(frozen=True)
class Export:
    """What was written: the description, and the size of each file in bytes."""

    description: dict[str, Any]
    files: dict[str, int]


def export_model(model: Recommender, form: Format, out: Path, *, data_sha256: str | None = None) -> Export:
    """Write a fitted model for other systems; the folder appears whole or not at all.

    A folder that holds anything but an earlier export is never replaced.
    """
    if out.exists() and not (out / DESCRIPTION).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(
            "an export would replace what is there", file=out, expected="a new folder, or one that holds an export"
        )
    with atomic_folder(out) as folder:
        details = WRITERS[form](model, folder)
        description = {**describe(model, form), **details, "data_sha256": data_sha256}
        write_json(folder / DESCRIPTION, description)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return Export(description, files)


def describe(model: Recommender, form: Format) -> dict[str, Any]:
    """What every export says of itself."""
    return {
        "format": form.value,
        "puidrec": __version__,
        "method": model.settings.method,
        "users": len(model.user_ids_),
        "items": len(model.item_ids_),
        "dim": int(model.user_factors_.shape[1]),
        "score": score_words(Scale.of(model.settings)),
    }


def score_words(scale: Scale) -> str:
    """How a score comes from two vectors. The link is increasing: an index of inner products ranks as it does."""
    inner = "inner product of the user's and the item's vector; biases are folded into the last two columns"
    if not scale.log_odds:
        return inner
    return f"{'tanh(x / 2)' if scale.signed else '1 / (1 + exp(-x))'} with x the {inner}"

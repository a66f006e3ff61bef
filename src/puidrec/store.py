"""Saved models: `model.safetensors` for numbers, `model.json` for the rest; nothing in them can
run."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json
from puidrec.data.dataset import IdMap
from puidrec.data.schema import RatingScale
from puidrec.entities import PairsByUser
from puidrec.errors import InputError
from puidrec.methods.table import params_of_others
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_prefix
from puidrec.settings import REMOVED, Settings
from puidrec.view import History

if TYPE_CHECKING:
    from puidrec.model import Recommender

TENSORS, DESCRIPTION = "model.safetensors", "model.json"
MAX_JSON = 2**24
"""Bytes of a JSON file without ids."""
MAX_DESCRIPTION = 2**30
JSON_PER_TENSOR = 64
"""Bytes of a description per byte of the tensors: each id has a row of factors there, of 20 bytes
and more."""
CHUNK = 2**20
HINT = "The folder is damaged or not written by puidrec; write it again."


class Description(BaseModel):
    """The JSON part of a saved model, checked on reading."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    settings: dict[str, Any]
    user_ids: list[int] | list[str]
    item_ids: list[int] | list[str]
    encoders: dict[str, list[dict[str, Any]]]
    history: list[dict[str, Any]]
    report: dict[str, Any]
    scale: list[float] | None = None
    """Lowest and highest rating; not in folders of earlier versions."""


FORMAT = "puidrec-model-1"


def save_model(model: Recommender, folder: Path) -> None:
    """Write a fitted model; the folder appears whole or not at all."""
    description = Description(
        format=FORMAT,
        settings=model.settings.model_dump(),
        user_ids=model.user_ids_.ids.to_list(),
        item_ids=model.item_ids_.ids.to_list(),
        encoders=model.encoders_,
        history=model.history_,
        report=model.report_,
        scale=[model.rating_scale_.low, model.rating_scale_.high],
    )
    tensors = {"user_factors": model.user_factors_, "item_factors": model.item_factors_}
    for name, pairs in (("seen", model.seen_), ("held_out", model.held_out_)):
        if pairs is not None:
            tensors[f"{name}_start"] = pairs[0].astype(np.int64)
            tensors[f"{name}_item"] = pairs[1].astype(np.int32, copy=False)
    with warnings.catch_warnings():
        # torch minds arrays that must not be written; these are read only
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        named = {name: torch.from_numpy(np.asarray(value)) for name, value in tensors.items()}
    named |= {f"parameter.{name}": value for name, value in model.parameters_.items()}
    files = (TENSORS, DESCRIPTION)
    with locked(folder):
        refuse_other_files(folder, files, "one that holds a model", always=files)
        with atomic_folder(folder) as temporary:
            write_json(temporary / DESCRIPTION, description.model_dump())
            state = {"kind": "model", "description": _digest(description)}
            save_checkpoint(temporary / TENSORS, Checkpoint(named, state))


def load_model(folder: Path) -> Recommender:
    """Read a saved model; everything is checked before anything is used."""
    from puidrec.model import Recommender

    path = folder / DESCRIPTION
    description = _read_description(path, _most_json(folder))
    saved = load_checkpoint(folder / TENSORS)
    settings, model = description.settings, Recommender()
    foreign = {*REMOVED, *params_of_others(str(settings.get("method")))}  # 0.1 wrote those of all
    model.settings = Settings.of(**{k: value for k, value in settings.items() if k not in foreign})
    if saved.state.get("description", "") not in ("", _digest(description)):
        raise InputError(f"damaged, or not written together with {TENSORS}", file=path, hint=HINT)
    model.user_ids_ = _id_map(path, description.user_ids)
    model.item_ids_ = _id_map(path, description.item_ids)
    sizes = len(model.user_ids_), len(model.item_ids_)
    model.user_factors_, model.item_factors_ = _factors(folder / TENSORS, saved.tensors, *sizes)
    model.seen_ = _pairs(folder / TENSORS, saved.tensors, "seen", *sizes)
    if with_prefix(saved.tensors, "held_out_"):  # not in folders of earlier versions
        model.held_out_ = _pairs(folder / TENSORS, saved.tensors, "held_out", *sizes)
    model.parameters_ = with_prefix(saved.tensors, "parameter.")
    model.rating_scale_ = RatingScale.of(description.scale) or RatingScale(0.0, 1.0)
    model.encoders_, model.report_ = description.encoders, description.report
    model.history_ = History(description.history)
    return model


def _most_json(folder: Path) -> int:
    """How large a description may be beside its tensors, so that neither can claim much memory
    alone."""
    try:
        tensors = (folder / TENSORS).stat().st_size
    except (OSError, ValueError):
        tensors = 0  # reported when they are opened
    return min(MAX_JSON + JSON_PER_TENSOR * tensors, MAX_DESCRIPTION)


def read_json(path: Path, most: int = MAX_JSON) -> dict[str, Any]:
    """A JSON object of at most so many bytes from a file of unknown origin.

    No pipe is waited for, nothing endless read, NaN is no number. It ends at the first zero byte,
    which no JSON holds: a file of gigabytes that takes no room on the disk takes none in memory
    either.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError("not a file", file=path)  # reading a pipe or a device might never end
        size = path.stat().st_size
        if not 0 < size <= most:  # empty: as /proc/kmsg, which never ends
            problem, found = "too large" if size else "not JSON", f"{size:,} bytes"
            expected = f"at most {most:,}"
            raise InputError(problem, file=path, found=found, expected=expected, hint=HINT)
        text = _without_zeros(path, most)
        content = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise InputError(
            "cannot read", file=path, found=error.strerror or str(error), hint="Check the path."
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("not JSON", file=path, found=str(error)[:60], hint=HINT) from error
    if not isinstance(content, dict):
        raise InputError("not a JSON object", file=path, found=type(content).__name__, hint=HINT)
    return content


def _without_zeros(path: Path, most: int) -> str:
    """The text of a file of at most so many bytes; refused at the first zero byte."""
    read = bytearray()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            if b"\0" in chunk or len(read) + len(chunk) > most:
                raise ValueError("zero bytes" if b"\0" in chunk else "it grew while it was read")
            read += chunk
    return read.decode("utf-8")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _digest(description: Description) -> str:
    """What answers depend on: a changed id would answer for another. The report is left out, for it
    holds the clock."""
    left_out = {"report"} if description.scale is not None else {"report", "scale"}
    content = json.dumps(description.model_dump(exclude=left_out), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _read_description(path: Path, most: int) -> Description:
    try:
        description = Description.model_validate(read_json(path, most))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"not a model description ({where}: {first['msg']})", file=path, hint=HINT
        ) from error
    if description.format != FORMAT:
        raise InputError("unknown format", file=path, found=description.format, expected=FORMAT)
    return description


def _id_map(path: Path, ids: list[int] | list[str]) -> IdMap:
    """Ids of one kind, each once; anything else would answer for the wrong entity."""
    text = bool(ids) and isinstance(ids[0], str)
    try:
        series = pl.Series("id", ids, dtype=pl.String if text else pl.Int64)
    except (OverflowError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            "ids are not text or 64-bit integers", file=path, found=str(error)[:60]
        ) from error
    if series.n_unique() != series.len():
        raise InputError(
            "an id occurs twice", file=path, found=series.filter(series.is_duplicated())[0]
        )
    return IdMap(series)


def _tensor(
    path: Path, tensors: Mapping[str, torch.Tensor], name: str, kind: torch.dtype, *shape: int
) -> np.ndarray:
    """An array of a model, of the type and shape that the ids demand; −1: of any length."""
    own = tensors.get(name)
    fits = own is not None and len(own.shape) == len(shape) and own.dtype is kind
    if (
        own is None
        or not fits
        or any(n not in (-1, m) for n, m in zip(shape, own.shape, strict=True))
    ):
        found = "none" if own is None else f"{own.dtype} {tuple(own.shape)}"
        expected = f"{kind} {shape}"
        raise InputError(f"{name} does not fit the ids", file=path, found=found, expected=expected)
    return np.asarray(own.numpy())


def _factors(
    path: Path, tensors: Mapping[str, torch.Tensor], n_users: int, n_items: int
) -> tuple[np.ndarray, np.ndarray]:
    left = _tensor(path, tensors, "user_factors", torch.float32, n_users, -1)
    right = _tensor(path, tensors, "item_factors", torch.float32, n_items, left.shape[1])
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise InputError("the factors hold values that are not finite", file=path)
    return left, right


def _pairs(
    path: Path, tensors: Mapping[str, torch.Tensor], name: str, n_users: int, n_items: int
) -> PairsByUser:
    """Items by user, with codes inside the population."""
    start = _tensor(path, tensors, f"{name}_start", torch.int64, n_users + 1)
    item = _tensor(path, tensors, f"{name}_item", torch.int32, -1)
    in_order = start[0] == 0 and start[-1] == item.size and bool((np.diff(start) >= 0).all())
    if not in_order or (item.size and not (item.min() >= 0 and item.max() < n_items)):
        raise InputError(f"the list of {name} items is damaged", file=path)
    return start, item

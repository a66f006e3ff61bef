"""A finished cell as one file: written whole or not at all, read only if it is undamaged and of the same data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puidrec.errors import InputError
from puidrec.evaluation.significance import PerUser
from puidrec.experiments.cells import Cell, Result
from puidrec.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

KIND = "puidrec-cell-1"


@dataclass(frozen=True)
class CellFolder:
    """Where the cells of a study lie."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        """The file of a cell."""
        return self.folder / f"{cell.key}.safetensors"

    def save(self, result: Result, digest: str) -> None:
        """Write a result; `digest` is that of the data it was made from."""
        tensors, ids = _pack(result.per_user)
        plain = {name: _finite(value) for name, value in _plain_parts(result).items()}
        state = {"kind": KIND, "key": result.cell.key, "data_sha256": digest, "ids": ids, **plain}
        save_checkpoint(self.path(result.cell), Checkpoint(tensors, state))

    def load(self, cell: Cell, digest: str) -> Result | None:
        """A finished cell; None where there is none, or where the file is damaged, foreign, or of other data."""
        path = self.path(cell)
        if not path.is_file():
            return None
        try:
            stored = load_checkpoint(path)
            state = stored.state
            if (state["kind"], state["key"], state["data_sha256"]) != (KIND, cell.key, digest):
                return None
            per_user = _unpack(stored.tensors, state["ids"])
            figures = {name: float(value) for name, value in state["metrics"].items()}
            parts = state["context"], state["validation"], dict(state["settings"])
            return Result(cell, figures, *parts, per_user=per_user, seconds=float(state["seconds"]))
        except (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError):
            return None


def _plain_parts(result: Result) -> dict[str, Any]:
    """The plain parts of a result; its cell is known by its key, its values per user are tensors."""
    names = ("metrics", "context", "validation", "settings", "seconds")
    return {name: getattr(result, name) for name in names}


def _pack(per_user: Mapping[str, PerUser]) -> tuple[dict[str, torch.Tensor], list[str] | None]:
    """Arrays by name; ids that are text become positions in a list."""
    tensors: dict[str, torch.Tensor] = {}
    text = any(values.users.dtype.kind not in "iu" for values in per_user.values())
    ids = sorted({str(user) for values in per_user.values() for user in values.users.tolist()}) if text else None
    table = None if ids is None else np.array(ids, dtype=object)
    for name, values in per_user.items():
        users = values.users if table is None else np.searchsorted(table, values.users.astype(object))
        parts = {"users": users.astype(np.int64), "values": values.values.astype(np.float64)}
        if values.size is not None:
            parts["size"] = values.size.astype(np.float64)
        tensors |= {f"{part} {name}": torch.from_numpy(np.array(array)) for part, array in parts.items()}
    return tensors, ids


def _unpack(tensors: Mapping[str, torch.Tensor], ids: list[str] | None) -> dict[str, PerUser]:
    table = None if ids is None else np.array(ids, dtype=object)
    per_user = {}
    for key in sorted(name for name in tensors if name.startswith("values ")):
        name = key.removeprefix("values ")
        users = tensors[f"users {name}"].numpy()
        size = tensors.get(f"size {name}")
        per_user[name] = PerUser(
            users if table is None else table[users], tensors[key].numpy(), None if size is None else size.numpy()
        )
    return per_user


def _finite(value: Any) -> Any:
    """Plain values as JSON allows them: what is not finite is not there."""
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

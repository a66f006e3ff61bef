"""Checkpoints: one safetensors file, replaced atomically, holding tensors and a JSON state. Nothing
is unpickled."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from puidrec.atomic import atomic_path
from puidrec.errors import InputError

FORMAT = "puidrec-checkpoint-1"
ABOUT = "about"
HINT = "The file is damaged or not one of ours; remove it and train again, or restore a copy."


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and plain values."""

    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a reader sees the old one or the new one, never a part. Tensors are not
    copied on the way."""
    tensors = _apart(
        {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    )
    state = json.dumps(dict(checkpoint.state), sort_keys=True)
    about = {"format": FORMAT, "state": state, "sha256": _digest(tensors, state)}
    with atomic_path(path) as temporary:
        try:
            save_file(
                tensors, temporary, {ABOUT: json.dumps(about)}
            )  # one entry: the library shuffles several
        except SafetensorError as error:  # a full disk, say
            raise OSError(errno.EIO, str(error)[:80]) from error


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The file format wants no memory shared by two names: a tensor seen before is copied."""
    known: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in known else tensor
        known.add(storage)
    return apart


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; anything else is refused with one line, and nothing in it is ever run."""
    if path.exists() and not path.is_file():
        raise InputError("not a file", file=path)  # reading a pipe or a device might never end
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            # copies, aligned as tensors are: kernels sum in another order where they are not
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
        if about.get("format") != FORMAT:
            raise InputError(
                "not a file of this format", file=path, found=about.get("format"), expected=FORMAT
            )
        if about.get("sha256") != _digest(tensors, about["state"]):
            raise InputError(
                "damaged: the content does not match its checksum", file=path, hint=HINT
            )
        state = json.loads(about["state"])
    except OSError as error:
        raise InputError("cannot read", file=path, found=error.strerror or str(error)) from error
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        OverflowError,
        AttributeError,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "not a readable checkpoint", file=path, found=str(error)[:80], hint=HINT
        ) from error
    if not isinstance(state, dict):
        raise InputError(
            "not a readable checkpoint", file=path, found=type(state).__name__, expected="an object"
        )
    return Checkpoint(tensors, state)


def _digest(tensors: Mapping[str, torch.Tensor], state: str) -> str:
    """A checksum of names, types, shapes and bytes: a flipped bit in a number is still a number, so
    it must be told."""
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def with_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of one part, under their own names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }

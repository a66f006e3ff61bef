from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from puidrec.optimise.checkpoint import ABOUT, FORMAT, Checkpoint, load_checkpoint, save_checkpoint


@pytest.fixture
def saved(tmp_path):
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(3.0, dtype=torch.float64),
        "c": torch.zeros(0, 4, dtype=torch.int32),
        "shared": torch.arange(6.0)[::2],
    }
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, Checkpoint(tensors, {"stage": "main", "x": [1, 0.1, None, "Γ"]}))
    return path, tensors


def test_a_round_trip_is_exact(saved) -> None:
    path, tensors = saved
    loaded = load_checkpoint(path)
    assert loaded.state == {"stage": "main", "x": [1, 0.1, None, "Γ"]}
    assert set(loaded.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)


def test_equal_content_is_equal_bytes(saved, tmp_path) -> None:
    path, _ = saved
    for _ in range(5):
        save_checkpoint(tmp_path / "copy", load_checkpoint(path))
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()


def test_a_write_that_ends_half_way_leaves_the_old_one(saved, monkeypatch) -> None:
    path, tensors = saved
    before = path.read_bytes()

    def half(tensors, target, about) -> None:
        save_file(tensors, target, about)
        os.truncate(target, 100)
        raise KeyboardInterrupt

    monkeypatch.setattr("puidrec.optimise.checkpoint.save_file", half)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, Checkpoint(tensors, {"stage": "next"}))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_every_flipped_bit_is_noticed(saved, refusal) -> None:
    path, _ = saved
    content, rng = path.read_bytes(), np.random.default_rng(0)
    unnoticed = []
    for position in rng.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            refusal(lambda: load_checkpoint(path), str(path))
        except pytest.fail.Exception:
            unnoticed.append(int(position))
    header = int.from_bytes(content[:8], "little")
    assert all(8 <= position < 8 + header for position in unnoticed), (
        "flips in the numbers must be noticed"
    )
    assert len(unnoticed) <= 4  # white space of the header


def test_every_truncation_is_noticed(saved, refusal) -> None:
    path, _ = saved
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refusal(lambda: load_checkpoint(path), str(path))


def test_other_checkpoints_are_refused(tmp_path, refusal) -> None:
    path = tmp_path / "x.safetensors"
    refusal(lambda: load_checkpoint(path), "cannot read")
    save_file({"a": torch.zeros(2)}, path)
    refusal(lambda: load_checkpoint(path), "not a file of this format", FORMAT)
    for about in (
        {"format": FORMAT},
        {"format": FORMAT, "state": "[1]"},
        {"format": FORMAT, "state": 3},
        [],
        None,
        "{",
    ):
        save_file({"a": torch.zeros(2)}, path, {ABOUT: json.dumps(about)})
        refusal(lambda: load_checkpoint(path))
    path.unlink()
    path.mkdir()
    refusal(lambda: load_checkpoint(path), "not a file")


def test_deeply_nested_state_is_refused(tmp_path, refusal) -> None:
    path = tmp_path / "x.safetensors"
    deep = "[" * 100_000 + "]" * 100_000
    save_file({}, path, {ABOUT: deep})
    refusal(lambda: load_checkpoint(path), "not a readable checkpoint")
    digest = hashlib.sha256(deep.encode()).hexdigest()
    save_file({}, path, {ABOUT: json.dumps({"format": FORMAT, "state": deep, "sha256": digest})})
    refusal(lambda: load_checkpoint(path), "not a readable checkpoint")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, refusal) -> None:
    os.mkfifo(tmp_path / "pipe")
    refusal(lambda: load_checkpoint(tmp_path / "pipe"), "not a file")

"""Mutated model files: a typed refusal, or a model that answers as before, and without much
memory."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.errors import PuidError
from puidrec.model import Recommender
from puidrec.store import DESCRIPTION, TENSORS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(0)]

ODD = [None, True, -1, 2**70, 1e308, "x", "../../etc/passwd", [], {}, [None], {"a": [1]}, "\x00"]
HUGE = [[2**40, 2**20], [2**62, 8], [-1], [0, 2**50], [2**31]]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Flipped bits, a cut, bytes put in, a stretch overwritten."""
    data, kind, at = bytearray(content), rng.randrange(4), rng.randrange(len(content))
    if kind == 0:
        for _ in range(rng.choice([1, 1, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 64))
    else:
        data[at : at + 16] = rng.randbytes(16)
    return bytes(data)


def swapped(content: bytes, rng: random.Random) -> bytes:
    """A description whose value, or setting, has another type."""
    whole = json.loads(content)
    inner = whole if rng.random() < 0.4 else whole["settings"]
    inner[rng.choice(sorted(inner))] = rng.choice(ODD)
    return json.dumps(whole).encode()


def reshaped(content: bytes, rng: random.Random) -> bytes:
    """A header that declares a shape the file cannot hold."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    name = rng.choice(sorted(set(header) - {"__metadata__"}))
    header[name]["shape"] = rng.choice(HUGE)
    if rng.random() < 0.5:
        header[name]["data_offsets"] = [0, rng.choice([2**62, 2**33, -1])]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def stretched(content: bytes, rng: random.Random) -> int:
    """A size that no model of this folder has; the file gets it by a hole, which takes no room on
    the disk."""
    return rng.choice([len(content) + 1, 2**24, 2**30, 2**34])


WAYS = (
    (TENSORS, mutated),
    (TENSORS, reshaped),
    (TENSORS, stretched),
    (DESCRIPTION, mutated),
    (DESCRIPTION, swapped),
    (DESCRIPTION, stretched),
)


def test_a_mutated_model_is_refused_or_answers_as_before(
    repeats: Callable[[int], int], tmp_path: Path
) -> None:
    data = simulate("mixed", 12, 9, density=0.3, rng=0).data
    model = Recommender("mf", epochs=2, dim=2, l2=0.1).fit(data)
    folder = tmp_path / "model"
    model.save(folder)
    good = {name: (folder / name).read_bytes() for name in (TENSORS, DESCRIPTION)}
    encoders = json.loads(json.dumps(model.encoders_))
    rng, refused = random.Random(0), 0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(repeats(400)):
        name, change = rng.choice(WAYS)
        changed = change(good[name], rng)
        if isinstance(changed, int):
            os.truncate(folder / name, changed)
        else:
            (folder / name).write_bytes(changed)
        try:
            loaded = Recommender.load(folder)
        except PuidError as error:
            refused += str(error).splitlines() == [str(error)]
        else:
            assert np.array_equal(loaded.user_factors_, model.user_factors_)
            assert np.array_equal(loaded.item_factors_, model.item_factors_)
            assert loaded.user_ids_.ids.equals(model.user_ids_.ids)
            assert loaded.item_ids_.ids.equals(model.item_ids_.ids)
            assert all(
                np.array_equal(*pair) for pair in zip(loaded.seen_, model.seen_, strict=True)
            )
            assert (loaded.settings, loaded.history_) == (model.settings, model.history_)
            assert loaded.encoders_ == encoders
        (folder / name).write_bytes(good[name])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    print(f"{refused} of {repeats(400)} refused, {grown:.0f} MiB more")  # noqa: T201
    assert refused > 0.85 * repeats(
        400
    )  # the report of a model, which nothing depends on, may say anything
    assert grown < 200
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["model", DESCRIPTION, TENSORS]

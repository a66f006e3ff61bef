from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError, OutputError
from puidrec.methods import METHODS
from puidrec.methods.table import DEFAULT_METHOD
from puidrec.model import Recommender
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from puidrec.store import DESCRIPTION, MAX_JSON, TENSORS, read_json

OPTIONS = {"epochs": 3, "dim": 3, "l2": 0.1, "propensity": "cells"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data():
    return simulate("mixed", 12, 9, density=0.3, rng=0).data


@pytest.fixture(scope="module")
def model(data):
    return Recommender("puid-dr", gamma="random", select="observational", **OPTIONS).fit(data)


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("method", METHODS)
def test_a_round_trip_is_bit_identical(method, data, suited, tmp_path) -> None:
    gamma = {"gamma": "random"} if METHODS[method].uncertainty == "personalised" else {}
    data, options = suited(method, data, OPTIONS | gamma)
    if method == DEFAULT_METHOD:
        del options["l2"]  # what was chosen is reported, and kept
    model = Recommender(method, **options).fit(data)
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert np.array_equal(model.user_factors_, loaded.user_factors_)
    assert np.array_equal(model.item_factors_, loaded.item_factors_)
    assert model.settings == loaded.settings
    assert model.history_ == loaded.history_
    assert model.report_ == loaded.report_
    assert json.loads(json.dumps(model.encoders_)) == loaded.encoders_
    assert all(
        torch.equal(value, loaded.parameters_[name]) for name, value in model.parameters_.items()
    )
    users, items = data.user_ids.ids, data.item_ids.ids
    pairs = (users.gather(np.arange(9)), items.gather(np.arange(9)))
    assert np.array_equal(model.predict(*pairs), loaded.predict(*pairs))
    assert model.recommend(users, k=4).equals(loaded.recommend(users, k=4))
    loaded.save(tmp_path / "again")
    for name in (TENSORS, DESCRIPTION):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_text_ids_survive(tmp_path) -> None:
    users = ["", "a\nb", "Γ", "7", "naïve"]
    table = pl.DataFrame(
        {"user_id": users * 2, "item_id": ["x", "y", "z", "x", "y", "y", "z", "x", "z", "x"]}
    )
    table = table.with_columns(rating=pl.Series([1.0, 2, 3, 4, 5, 5, 4, 3, 2, 1])).filter(
        pl.col("user_id") != ""
    )
    model = Recommender("mf", **OPTIONS).fit(Dataset.from_frame(table, scale=(1, 5)))
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.user_ids_.ids.equals(model.user_ids_.ids)
    assert loaded.recommend(["Γ"], k=1)["user_id"].to_list() == ["Γ"]


def test_saving_replaces_a_model_and_nothing_else(model, tmp_path, refusal) -> None:
    model.save(tmp_path / "new" / "deep")
    model.save(tmp_path / "new" / "deep")
    assert sorted(path.name for path in (tmp_path / "new" / "deep").iterdir()) == [
        DESCRIPTION,
        TENSORS,
    ]
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    refusal(lambda: model.save(home), "other files", "thesis.tex")
    (tmp_path / "file").write_text("x")
    refusal(lambda: model.save(tmp_path / "file"), "not a folder")
    assert (home / "thesis.tex").read_text() == "years of work"


def test_a_failed_save_leaves_the_old_model(model, folder, monkeypatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("puidrec.store.write_json", full)
    with pytest.raises(OutputError, match="No space left"):
        model.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def load_or_refuse(folder):
    """Load, or be refused in one line; nothing else may happen."""
    try:
        loaded = Recommender.load(folder)
    except InputError as error:
        message = str(error)
        assert message.splitlines() == [message]
        assert len(message) < 1000
        loaded = None
    if loaded is not None:
        users, items = loaded.user_ids_.ids, loaded.item_ids_.ids
        if len(users) and len(items):
            assert np.isfinite(loaded.predict(users[:1], items[:1])).all()
            loaded.recommend(users[:2], k=2)
    return loaded


def mutate(content, rng):
    """A file damaged in one of many ways."""
    data, kind = bytearray(content), rng.randrange(7)
    at = rng.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 3:
        del data[at : at + rng.randrange(1, 40)]
    elif kind == 4:
        for position in range(at, min(at + rng.randrange(2, 30), len(data))):
            data[position] = rng.randrange(256)
    elif kind == 5:
        other = rng.randrange(len(data))
        data[at : at + 16] = data[other : other + 16]
    else:
        data += rng.randbytes(rng.randrange(1, 100))
    return bytes(data)


@pytest.mark.parametrize("name", [TENSORS, DESCRIPTION])
def test_damaged_files_are_refused_or_fine(name, folder) -> None:
    content, rng, refused = (folder / name).read_bytes(), random.Random(name), 0
    for _ in range(300):
        (folder / name).write_bytes(mutate(content, rng))
        refused += load_or_refuse(folder) is None
    assert refused > 200


def test_damaged_headers_are_refused_or_fine(folder) -> None:
    path, rng = folder / TENSORS, random.Random(0)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    for _ in range(200):
        header = mutate(content[8 : 8 + size], rng)
        path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
        load_or_refuse(folder)


NESTED = "[" * 50_000 + "]" * 50_000
VALUES = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "x",
    "",
    [],
    {},
    [[]],
    [None],
    ["a", 1],
    {"a": {"b": []}},
    "\u0000\n",
    NESTED,
]


def every_edit(content):
    """Each value of the description, and each setting, replaced by each odd value, and removed."""
    places = [(key,) for key in content] + [("settings", key) for key in content["settings"]]
    for place in places:
        for value in VALUES:
            yield place, value
        yield place, KeyError


def test_edited_descriptions_are_refused_or_fine(folder) -> None:
    content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    refused = total = 0
    for place, value in every_edit(content):
        edited = json.loads(json.dumps(content))
        inner = edited if len(place) == 1 else edited["settings"]
        if value is KeyError:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        text = json.dumps(edited).replace(json.dumps(NESTED), NESTED)
        (folder / DESCRIPTION).write_text(text, encoding="utf-8")
        refused += load_or_refuse(folder) is None
        total += 1
    assert total > 500
    assert refused > 0.6 * total


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        NESTED,
        '{"format": "puidrec-model-1"}',
        "\ufeff{}",
        "1" * 5000,
        '{"a": NaN}',
        "\x00" * 100,
    ],
    ids=range(10),
)
def test_descriptions_that_are_none(text, folder) -> None:
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    assert load_or_refuse(folder) is None


def unbind(folder) -> None:
    """A model as it was written before its tensors knew its description."""
    good = load_checkpoint(folder / TENSORS)
    save_checkpoint(folder / TENSORS, Checkpoint(good.tensors, {"kind": "model"}))


def test_ids_must_be_what_the_tensors_are_about(folder, refusal) -> None:
    unbind(folder)
    content = json.loads((folder / DESCRIPTION).read_text())
    ids = content["user_ids"]
    for odd in (
        ids[:-1],
        [*ids, 10**6],
        ids[:-1] + ids[:1],
        [2**64, *ids[1:]],
        [float(i) for i in ids],
    ):
        (folder / DESCRIPTION).write_text(json.dumps({**content, "user_ids": odd}))
        refusal(lambda: Recommender.load(folder))
    for unknown in ({"colour": 1}, {"cls": 1}, {"self": 1}):
        (folder / DESCRIPTION).write_text(
            json.dumps({**content, "settings": {**content["settings"], **unknown}})
        )
        refusal(lambda: Recommender.load(folder), "unknown setting")


def test_a_description_is_bound_to_its_tensors(data, folder, tmp_path, refusal) -> None:
    """A changed id would answer for another user; the description of another model for another
    model."""
    path = folder / DESCRIPTION
    content = json.loads(path.read_text())
    ids = content["user_ids"]
    for change in (
        {"user_ids": [ids[1], ids[0], *ids[2:]]},
        {"settings": {**content["settings"], "loss": "cross-entropy"}},
    ):
        path.write_text(json.dumps({**content, **change}))
        refusal(lambda: Recommender.load(folder), DESCRIPTION, TENSORS)
    Recommender("puid-dr", gamma="random", **{**OPTIONS, "epochs": 2}).fit(data).save(
        tmp_path / "other"
    )
    shutil.copy(tmp_path / "other" / DESCRIPTION, path)
    refusal(lambda: Recommender.load(folder), DESCRIPTION, TENSORS)


def test_models_written_before_descriptions_were_bound_still_load(folder) -> None:
    unbind(folder)
    assert load_or_refuse(folder) is not None


def resave(folder, **changes):
    """Well-formed files of this format whose tensors are not those of a model; None leaves one
    out."""
    good = load_checkpoint(folder / TENSORS)
    tensors = {
        name: tensor for name, tensor in {**good.tensors, **changes}.items() if tensor is not None
    }
    save_checkpoint(folder / TENSORS, Checkpoint(tensors, good.state))


@pytest.mark.parametrize(
    "name",
    ["user_factors", "item_factors", "seen_start", "seen_item", "held_out_start", "held_out_item"],
)
def test_tensors_of_the_wrong_shape_type_or_content(name, folder, refusal) -> None:
    whole = (folder / TENSORS).read_bytes()
    tensor = load_checkpoint(folder / TENSORS).tensors[name]
    spoiled = tensor.clone()
    spoiled.view(-1)[0] = -1 if "factors" not in name else float("nan")
    endless = tensor.clone()
    endless.view(-1)[-1] = 10**6 if "factors" not in name else float("inf")
    odd = [
        None,
        tensor[:-1],
        tensor[None],
        tensor.reshape(-1)[:0],
        tensor.to(torch.bfloat16),
        tensor.double(),
        spoiled,
    ]
    odd += [
        endless,
        tensor.bool(),
        tensor.to(torch.complex64),
        torch.tensor(0.0),
        tensor.to(torch.float8_e5m2),
    ]
    for value in odd:
        (folder / TENSORS).write_bytes(whole)
        resave(folder, **{name: value})
        refusal(lambda: Recommender.load(folder), TENSORS)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}},
        {"a": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}},
        {"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}},
        {"a": {"dtype": "F8_E8M0", "shape": [16], "data_offsets": [0, 16]}},
        {"__metadata__": {"about": '{"format": "puidrec-checkpoint-1"}'}},
        {
            "__metadata__": {
                "about": '{"format": "puidrec-checkpoint-1", "state": "{}", "sha256": "0"}'
            }
        },
        {"__metadata__": []},
        [],
    ],
    ids=range(11),
)
def test_hostile_headers(header, folder) -> None:
    text = json.dumps(header).encode()
    (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    assert load_or_refuse(folder) is None


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63 - 1, 2**64 - 1])
def test_claimed_lengths_are_not_believed(length, folder) -> None:
    (folder / TENSORS).write_bytes(struct.pack("<Q", length) + b"{}" * 20)
    assert load_or_refuse(folder) is None


@pytest.mark.parametrize("name", [TENSORS, DESCRIPTION])
def test_what_is_not_a_file(name, folder, refusal) -> None:
    path, kept = folder / name, folder.parent / "kept"
    shutil.move(path, kept)
    refusal(lambda: Recommender.load(folder), "cannot read")
    path.symlink_to(kept)
    assert load_or_refuse(folder) is not None
    path.unlink()
    path.symlink_to(path)
    refusal(lambda: Recommender.load(folder))
    path.unlink()
    path.mkdir()
    refusal(lambda: Recommender.load(folder), "not a file")
    path.rmdir()
    for device in ("/dev/zero", "/dev/stdin"):
        if os.path.exists(device):  # noqa: PTH110
            path.symlink_to(device)
            assert load_or_refuse(folder) is None
            path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        refusal(lambda: Recommender.load(folder), "not a file")


def _make_sparse(path: Path, size: int, start: bytes = b"{") -> None:
    """A file of many bytes that takes no room on the disk."""
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(size)


def test_a_description_far_larger_than_its_tensors_is_not_read(
    folder, refusal, monkeypatch
) -> None:
    _make_sparse(folder / DESCRIPTION, 2**30)
    opened = lambda *_: pytest.fail("the file was read")  # noqa: E731
    monkeypatch.setattr("puidrec.store._without_zeros", opened)
    refusal(lambda: Recommender.load(folder), "too large", "1,073,741,824 bytes")


def test_a_description_of_holes_is_not_read_to_its_end(folder, refusal) -> None:
    """Also where the tensors are large enough for it."""
    _make_sparse(folder / DESCRIPTION, 2**30)
    with (folder / TENSORS).open("r+b") as stream:
        stream.truncate(2**30)
    tracemalloc.start()
    refusal(lambda: Recommender.load(folder), "not JSON", "zero bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_a_run_s_figures_of_a_gigabyte_are_not_read(tmp_path, refusal) -> None:
    _make_sparse(tmp_path / "metrics.json", MAX_JSON + 1)
    refusal(lambda: read_json(tmp_path / "metrics.json"), "too large")


def test_a_pickle_is_not_run(folder, refusal, tmp_path) -> None:
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    torch.save({"user_factors": Bomb()}, folder / TENSORS)
    refusal(lambda: Recommender.load(folder), TENSORS)
    assert not (tmp_path / "exploded").exists()


def test_a_folder_that_is_not_there(tmp_path, refusal) -> None:
    refusal(lambda: Recommender.load(tmp_path / "nothing"), "cannot read", "nothing")

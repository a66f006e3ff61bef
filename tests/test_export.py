"""Exports: what is written ranks and scores as the model does, and appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from puidrec import export as module
from puidrec.data.dataset import Dataset
from puidrec.data.sources.reading import read_table
from puidrec.data.synthetic import simulate
from puidrec.errors import OutputError, PuidError
from puidrec.export import export_model
from puidrec.model import Recommender

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "signed log-odds": {"loss": "cross-entropy", "target": "binary"},
    "log-odds of ratings": {"loss": "cross-entropy"},
}


@pytest.fixture(scope="module")
def models() -> dict[str, Recommender]:
    """One model per link, and one under text ids."""
    data = simulate("mixed", 40, 25, density=0.2, rng=0).data
    made = {
        name: Recommender("mf", dim=4, epochs=4, rng=0, **more).fit(data)
        for name, more in SETTINGS.items()
    }
    log = data.logged.to_frame().with_columns(pl.format("ü{}", "user_id").alias("user_id"))
    made["text"] = Recommender("mf", dim=4, epochs=4, rng=0).fit(Dataset.from_frame(log))
    return made


def linked(description: dict[str, Any], inner: np.ndarray) -> np.ndarray:
    """The score as the export's own words define it."""
    words = description["score"]
    if words.startswith("tanh"):
        return np.tanh(inner / 2)
    return 1 / (1 + np.exp(-inner)) if words.startswith("1 / (1") else inner


def all_pairs(model: Recommender) -> tuple[np.ndarray, np.ndarray]:
    n_users, n_items = len(model.user_ids_), len(model.item_ids_)
    return np.repeat(np.arange(n_users), n_items), np.tile(np.arange(n_items), n_users)


def predicted(model: Recommender, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    return model.predict(model.user_ids_.decode(users), model.item_ids_.decode(items), scale="unit")


@pytest.mark.parametrize("name", [*SETTINGS, "text"])
def test_parquet_vectors_score_as_predict(
    models: dict[str, Recommender], name: str, tmp_path: Path
) -> None:
    model = models[name]
    description = export_model(model, "parquet", tmp_path / "out")
    users, items = (
        pl.read_parquet(tmp_path / "out" / f"{side}.parquet") for side in ("users", "items")
    )
    assert users["user_id"].to_list() == model.user_ids_.ids.to_list()
    left, right = users["vector"].to_numpy(), items["vector"].to_numpy()
    scores = linked(description, left @ right.T)
    np.testing.assert_allclose(scores.ravel(), predicted(model, *all_pairs(model)), atol=1e-5)


@pytest.mark.parametrize("name", [*SETTINGS, "text"])
def test_npy_vectors_score_as_predict(
    models: dict[str, Recommender], name: str, tmp_path: Path
) -> None:
    model = models[name]
    description = export_model(model, "npy", tmp_path / "out")
    left, right = (
        np.load(tmp_path / "out" / f"{side}.npy", allow_pickle=False) for side in ("users", "items")
    )
    ids = [
        json.loads((tmp_path / "out" / f"{side}_ids.json").read_text()) for side in ("user", "item")
    ]
    assert ids == [model.user_ids_.ids.to_list(), model.item_ids_.ids.to_list()]
    assert left.dtype == np.float32
    scores = linked(description, left @ right.T)
    np.testing.assert_allclose(scores.ravel(), predicted(model, *all_pairs(model)), atol=1e-5)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", [*SETTINGS, "text"])
def test_onnx_scores_are_predictions(
    models: dict[str, Recommender],
    name: str,
    large: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if large:
        monkeypatch.setattr(module, "MAX_INLINE", 0)
    model, out = models[name], tmp_path / "out"
    written = export_model(model, "onnx", out)
    assert ("scores.bin" in written["files"]) is large
    assert written["largest_difference_to_predict"] <= 1e-5
    session = runtime.InferenceSession(out / "scores.onnx", providers=["CPUExecutionProvider"])
    users, items = all_pairs(model)
    found = session.run(None, {"user": users, "item": items})[0]
    np.testing.assert_allclose(found, predicted(model, users, items), atol=1e-5)
    unknown = written["unknown_user"], written["unknown_item"]
    unknown_scores = session.run(
        None, {"user": np.array([unknown[0], 0]), "item": np.array([3, unknown[1]])}
    )[0]
    nobody: Any = ["nobody"] if name == "text" else [10**6]
    known_user, known_item = model.user_ids_.ids[:1], model.item_ids_.ids[3:4]
    expected = [
        model.predict(nobody, known_item, scale="unit")[0],
        model.predict(known_user, [10**6], scale="unit")[0],
    ]
    np.testing.assert_allclose(unknown_scores, expected, atol=1e-5)


def test_a_graph_that_is_wrong_is_not_written(
    models: dict[str, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    wrong = dict.fromkeys(module.LINKS, "score = Identity (raw)")
    monkeypatch.setattr(module, "LINKS", wrong)
    with pytest.raises(PuidError, match="differs from predict"):
        export_model(models["signed log-odds"], "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_says_what_it_is(models: dict[str, Recommender], tmp_path: Path) -> None:
    export_model(models["plain"], "npy", tmp_path / "out", data_sha256="ab")
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (said["format"], said["method"], said["users"], said["items"], said["dim"]) == (
        "npy",
        "mf",
        40,
        25,
        6,
    )
    assert said["data_sha256"] == "ab"
    assert "folded" in said["score"]


def test_an_earlier_export_is_replaced_and_nothing_else(
    models: dict[str, Recommender], tmp_path: Path, refusal: Any
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export_model(models["plain"], "npy", out)
    export_model(models["plain"], "parquet", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "export.json",
        "items.parquet",
        "seen.parquet",
        "users.parquet",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    refusal(lambda: export_model(models["plain"], "npy", tmp_path / "mine"), "other files", "mine")
    refusal(
        lambda: export_model(models["plain"], "npy", tmp_path / "mine" / "thesis.tex"),
        "not a folder",
    )
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_failure_leaves_the_earlier_export(
    models: dict[str, Recommender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_model(models["plain"], "npy", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OutputError, match="No space left"):
        export_model(models["plain"], "npy", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_missing_library_is_one_line(
    models: dict[str, Recommender], tmp_path: Path, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refusal(
        lambda: export_model(models["plain"], "onnx", tmp_path / "out"),
        "onnxruntime",
        "puidrec[onnx]",
    )


def test_a_format_that_does_not_exist_is_refused(
    models: dict[str, Recommender], tmp_path: Path, refusal: Any
) -> None:
    refusal(
        lambda: export_model(models["plain"], "pickle", tmp_path / "out"),
        "pickle",
        "onnx, parquet, npy",
    )
    assert not (tmp_path / "out").exists()


def test_seen_pairs_go_with_the_vectors(models: dict[str, Recommender], tmp_path: Path) -> None:
    model = models["text"]
    for form in ("parquet", "npy", "csr", "recbole"):
        export_model(model, form, tmp_path / form)
    row_start, items = model.logged_pairs()
    assert items.size > model.seen_[1].size  # held-out rows of the log are among them
    pairs = pl.read_parquet(tmp_path / "parquet" / "seen.parquet")
    assert pairs.height == items.size
    for form in ("npy", "csr"):
        matrix = sparse.load_npz(tmp_path / form / "seen.npz")
        np.testing.assert_array_equal(matrix.indptr, row_start)
        np.testing.assert_array_equal(matrix.indices, items)
    ids = json.loads((tmp_path / "csr" / "user_ids.json").read_text())
    first = pairs.filter(pl.col("user_id") == ids[0])["item_id"]
    assert first.to_list() == model.item_ids_.decode(items[: row_start[1]]).to_list()
    again = read_table(tmp_path / "recbole" / "model.inter")
    assert again.rows() == pairs.rows()
    users = read_table(tmp_path / "recbole" / "model.useremb")
    np.testing.assert_array_equal(
        users.drop("user_id").to_numpy().astype(np.float32), model.user_factors_
    )


def test_a_folder_that_another_process_writes_is_left_alone(
    models: dict[str, Recommender], tmp_path: Path, refusal: Any, lock_holder: Any
) -> None:
    model = next(iter(models.values()))
    with lock_holder(tmp_path / "out"):
        refusal(lambda: export_model(model, "npy", tmp_path / "out"), "has been writing there")
        refusal(lambda: model.save(tmp_path / "out"), "has been writing there")
    assert not (tmp_path / "out").exists()
    model.save(tmp_path / "out")

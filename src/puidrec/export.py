"""Models for other systems: scores as ONNX, or vectors whose inner product is the score, for any
vector index.

An export is a folder that appears whole: the numbers, the ids of their rows, and a JSON file that
explains both. Vectors come with the pairs of the log, held-out ones too, so that another system can
leave out what a user has seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy import sparse

from puidrec import __version__
from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json, write_text
from puidrec.data.schema import Origin
from puidrec.data.sources.files import atomic_text
from puidrec.data.tables import pair_matrix
from puidrec.errors import InputError, PuidError
from puidrec.evaluation.metrics import TargetScale
from puidrec.model import Recommender

if TYPE_CHECKING:
    from onnx import ModelProto

DESCRIPTION = "export.json"
MODEL, WEIGHTS = "scores.onnx", "scores.bin"
FILES = (
    DESCRIPTION,
    MODEL,
    WEIGHTS,
    "user_ids.json",
    "item_ids.json",
    "users.npy",
    "items.npy",
    "users.parquet",
    "items.parquet",
    "seen.parquet",
    "seen.npz",
    "model.inter",
    "model.useremb",
    "model.itememb",
)
"""All that an export ever holds."""
MAX_INLINE = 2**30
"""Bytes of factors that go into the file itself; a protocol buffer ends at 2 GB, so larger ones
stand beside it."""
SMALL = 64
"""Bytes up to which a tensor is a constant of the graph, which a runtime must see in the file
itself."""
TOLERANCE = 1e-5
CHECKED_PAIRS = 10_000


def export_model(
    model: Recommender, form: str, out: Path, *, data_sha256: str | None = None
) -> dict[str, Any]:
    """Write a fitted model for other systems; the folder appears whole or not at all. Returns its
    description, and the size of each file in bytes.

    form: `onnx`, `parquet`, `npy`, `csr` or `recbole`. A folder with anything but an earlier export
    stays.
    """
    if form not in _WRITERS:
        raise InputError(
            "unknown format of an export", found=form, expected=f"one of {', '.join(_WRITERS)}"
        )
    with locked(out):
        refuse_other_files(out, FILES, "one that holds an export", always=(DESCRIPTION,))
        with atomic_folder(out) as folder:
            description = {
                "format": form,
                "puidrec": __version__,
                "method": model.settings.method,
                "users": len(model.user_ids_),
                "items": len(model.item_ids_),
                "dim": int(model.user_factors_.shape[1]),
                "score": _score_words(model.settings.target_scale),
                **_WRITERS[form](model, folder),
                "data_sha256": data_sha256,
            }
            write_json(folder / DESCRIPTION, description)
            files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {**description, "files": files}


def _score_words(scale: TargetScale) -> str:
    """How a score comes from two vectors. The link is increasing: an index of inner products ranks
    as it does."""
    inner = (
        "inner product of the user's and the item's vector; biases are folded into the last "
        "two columns"
    )
    if not scale.log_odds:
        return inner
    return f"{'tanh(x / 2)' if scale.signed else '1 / (1 + exp(-x))'} with x the {inner}"


def write_parquet(model: Recommender, folder: Path) -> dict[str, Any]:
    """`users.parquet` and `items.parquet`: an id and a fixed-size list of float32 per row."""
    for side, (ids, factors) in _sides(model).items():
        vectors = pl.Series(factors, dtype=pl.Array(pl.Float32, factors.shape[1]))
        table = pl.DataFrame({f"{side}_id": ids, "vector": vectors})
        table.write_parquet(folder / f"{side}s.parquet")
    _seen_pairs(model).write_parquet(folder / "seen.parquet")
    return {
        "columns": ["user_id or item_id", "vector"],
        "seen": "seen.parquet: user_id, item_id of the log",
    }


def _seen_pairs(model: Recommender) -> pl.DataFrame:
    """The pairs of the log under the caller's ids."""
    row_start, items = model.logged_pairs()
    users = np.repeat(np.arange(row_start.size - 1), np.diff(row_start))
    known = model.user_ids_.decode(users), model.item_ids_.decode(np.asarray(items))
    return pl.DataFrame({"user_id": known[0], "item_id": known[1]})


def write_csr(model: Recommender, folder: Path) -> dict[str, Any]:
    """`seen.npz` for `scipy.sparse.load_npz`: 1 for each pair of the log; rows and columns in the
    order of the ids."""
    row_start, items = model.logged_pairs()
    ones = np.ones(items.size, np.float32)
    matrix = pair_matrix(row_start, np.asarray(items), ones, len(model.item_ids_))
    sparse.save_npz(folder / "seen.npz", sparse.csr_matrix(matrix))
    _write_ids(model, folder)
    return {"seen": "seen.npz: CSR matrix, users × items, 1 for each pair of the log"}


def write_recbole(model: Recommender, folder: Path) -> dict[str, Any]:
    """RecBole's atomic files: `model.inter` (the pairs of the log), `model.useremb`,
    `model.itememb` (the vectors)."""
    write_text(folder / "model.inter", atomic_text(_seen_pairs(model), Origin("model.inter")))
    for side, (ids, factors) in _sides(model).items():
        vectors = pl.Series([" ".join(map(repr, row)) for row in factors.tolist()], dtype=pl.String)
        table = pl.DataFrame({f"{side}_id": ids, "vector": vectors})
        text = atomic_text(table, Origin(f"model.{side}emb"))
        heading = f"{side}_emb:float_seq"
        write_text(folder / f"model.{side}emb", text.replace("vector:token", heading, 1))
    return {
        "columns": ["user_id:token or item_id:token", "user_emb:float_seq or item_emb:float_seq"]
    }


def write_npy(model: Recommender, folder: Path) -> dict[str, Any]:
    """`users.npy` and `items.npy`, float32; row k belongs to entry k of `user_ids.json` and
    `item_ids.json`."""
    for side, (_, factors) in _sides(model).items():
        np.save(folder / f"{side}s.npy", factors, allow_pickle=False)
    return {
        "rows": "row k belongs to entry k of user_ids.json or item_ids.json",
        **write_csr(model, folder),
    }


def _sides(model: Recommender) -> dict[str, tuple[pl.Series, np.ndarray]]:
    """Ids and vectors of both sides; biases are folded into the vectors."""
    return {
        "user": (model.user_ids_.ids, model.user_factors_),
        "item": (model.item_ids_.ids, model.item_factors_),
    }


def _write_ids(model: Recommender, folder: Path) -> None:
    """The ids in order of their rows, as JSON lists."""
    for side, (ids, _) in _sides(model).items():
        text = json.dumps(ids.to_list(), ensure_ascii=False)
        write_text(folder / f"{side}_ids.json", f"{text}\n")


def write_onnx(model: Recommender, folder: Path) -> dict[str, Any]:
    """`scores.onnx` and the ids; run against `predict` before anybody sees it."""
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped, unused-ignore]  # noqa: F401 (needed by `_check`)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this format needs {error.name}, which is not installed",
            hint="pip install 'puidrec[onnx]'",
        ) from error
    path = folder / MODEL
    size = model.user_factors_.nbytes + model.item_factors_.nbytes
    onnx.save_model(
        score_graph(model),
        path,
        save_as_external_data=size > MAX_INLINE,
        location=WEIGHTS,
        size_threshold=SMALL,
    )
    onnx.checker.check_model(path)
    _write_ids(model, folder)
    return {
        "inputs": {
            "user": "int64 [n], row of user_ids.json",
            "item": "int64 [n], row of item_ids.json",
        },
        "output": {"score": "float32 [n], as Recommender.predict(…, scale='unit')"},
        "unknown_user": len(model.user_ids_),
        "unknown_item": len(model.item_ids_),
        "largest_difference_to_predict": _check(model, path),
    }


GRAPH = """
<ir_version: 8, opset_import: ["": 17], producer_name: "puidrec">
puidrec_scores (int64[n] user, int64[n] item) => (float[n] score) {
    user_vector = Gather (users, user)
    item_vector = Gather (items, item)
    product = Mul (user_vector, item_vector)
    axis = Constant <value = int64[1] {1}> ()
    raw = ReduceSum <keepdims = 0> (product, axis)
"""
"""Version 8 is readable by every runtime of the last years."""
LINKS = {
    (False, False): "score = Identity (raw)",
    (False, True): "score = Identity (raw)",
    (True, False): "score = Sigmoid (raw)",
    (
        True,
        True,
    ): "half = Constant <value = float {0.5}> () halved = Mul (raw, half) score = Tanh (halved)",
}
"""By log-odds and ±1: from log-odds to the mean they stand for, tanh(x/2) or the logistic
function."""


def score_graph(model: Recommender) -> ModelProto:
    """score[n] = link(Σ_k users[user[n], k] · items[item[n], k]); one row more per side is the
    average entity.

    Two look-ups, a product, a sum, and the link of the loss: written out rather than traced, so
    that the graph is what `predict` does and nothing else.
    """
    from onnx import numpy_helper, parser

    scale = model.settings.target_scale
    made = parser.parse_model(GRAPH + LINKS[scale.log_odds, scale.signed] + "}")
    for side, (_, factors) in _sides(model).items():
        rows = np.concatenate([factors, factors.mean(0, keepdims=True, dtype=np.float32)])
        table = numpy_helper.from_array(np.ascontiguousarray(rows), f"{side}s")
        made.graph.initializer.append(table)
    return made


def _check(model: Recommender, path: Path) -> float:
    """Largest difference between the graph and `predict` over random pairs, unknown ids among them;
    within 1e-5."""
    import onnxruntime

    n_users, n_items = len(model.user_ids_), len(model.item_ids_)
    rng = np.random.default_rng(0)
    users = rng.integers(0, n_users + 1, CHECKED_PAIRS)
    items = rng.integers(0, n_items + 1, CHECKED_PAIRS)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(["score"], {"user": users, "item": items})[0]
    known = (users < n_users) & (items < n_items)
    ids = model.user_ids_.decode(users[known]), model.item_ids_.decode(items[known])
    expected = model.predict(*ids, scale="unit")
    difference = float(np.abs(found[known] - expected).max(initial=0.0))
    most = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
    if not (difference <= most and np.isfinite(found).all()):
        raise PuidError(
            f"the ONNX graph differs from predict by {difference:g}; nothing was written"
        )
    return difference


_WRITERS = {
    "onnx": write_onnx,
    "parquet": write_parquet,
    "npy": write_npy,
    "csr": write_csr,
    "recbole": write_recbole,
}

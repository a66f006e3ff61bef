"""Scores as an ONNX graph: two look-ups, a product, a sum, and the link of the loss where it has one.

Built node by node rather than traced: the graph is what `predict` does, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from puidrec.errors import InputError, PuidError
from puidrec.export.vectors import write_ids
from puidrec.model import Recommender
from puidrec.train.validate import Scale

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MODEL, WEIGHTS = "scores.onnx", "scores.bin"
OPSET = 17
MAX_INLINE = 2**30
"""Bytes of factors that go into the file itself; a protocol buffer ends at 2 GB, so larger ones stand beside it."""
SMALL = 64
"""Bytes up to which a tensor is a constant of the graph, which a runtime must see in the file itself."""
TOLERANCE = 1e-5
CHECKED_PAIRS = 10_000


def write_onnx(model: Recommender, folder: Path) -> dict[str, Any]:
    """`scores.onnx` and the ids; run against `predict` before anybody sees it."""
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped, unused-ignore]  # noqa: F401 (needed by `check`)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this format needs {error.name}, which is not installed", hint="pip install 'puidrec[onnx]'"
        ) from error
    path, large = folder / MODEL, model.user_factors_.nbytes + model.item_factors_.nbytes > MAX_INLINE
    onnx.save_model(score_graph(model), path, save_as_external_data=large, location=WEIGHTS, size_threshold=SMALL)
    onnx.checker.check_model(path)
    write_ids(model, folder)
    return {
        "inputs": {"user": "int64 [n], row of user_ids.json", "item": "int64 [n], row of item_ids.json"},
        "output": {"score": "float32 [n], as Recommender.predict"},
        "unknown_user": len(model.user_ids_),
        "unknown_item": len(model.item_ids_),
        "largest_difference_to_predict": check(model, path),
    }


def score_graph(model: Recommender) -> ModelProto:
    """score[n] = link(Σ_k users[user[n], k] · items[item[n], k]); one row more per side is the average entity."""
    from onnx import TensorProto, helper, numpy_helper

    tables = []
    for name, factors in (("users", model.user_factors_), ("items", model.item_factors_)):
        rows = np.concatenate([factors, factors.mean(0, keepdims=True, dtype=np.float32)])
        tables.append(numpy_helper.from_array(np.ascontiguousarray(rows), name))
    links, constants = _link(Scale.of(model.settings))
    nodes = [
        helper.make_node("Gather", ["users", "user"], ["user_vector"]),
        helper.make_node("Gather", ["items", "item"], ["item_vector"]),
        helper.make_node("Mul", ["user_vector", "item_vector"], ["product"]),
        helper.make_node("ReduceSum", ["product", "axis"], ["raw" if links else "score"], keepdims=0),
        *links,
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    graph = helper.make_graph(
        nodes, "puidrec_scores",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("user", "item")],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])],
        [*tables, axis, *constants],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="puidrec")
    made.ir_version = 8  # readable by every runtime of the last years
    return made


def check(model: Recommender, path: Path) -> float:
    """Largest difference between the graph and `predict` over random pairs, unknown ids among them; within 1e-5."""
    import onnxruntime

    n_users, n_items = len(model.user_ids_), len(model.item_ids_)
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, n_users + 1, CHECKED_PAIRS), rng.integers(0, n_items + 1, CHECKED_PAIRS)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(["score"], {"user": users, "item": items})[0]
    known = (users < n_users) & (items < n_items)
    expected = model.predict(model.user_ids_.decode(users[known]), model.item_ids_.decode(items[known]))
    difference = float(np.abs(found[known] - expected).max(initial=0.0))
    if not (difference <= TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0))) and np.isfinite(found).all()):
        raise PuidError(f"the ONNX graph differs from predict by {difference:g}; nothing was written")
    return difference


def _link(scale: Scale) -> tuple[list[NodeProto], list[Any]]:
    """From log-odds to the mean they stand for: tanh(x/2) on ±1, the logistic function on [0, 1]."""
    from onnx import helper, numpy_helper

    if not scale.log_odds:
        return [], []
    if not scale.signed:
        return [helper.make_node("Sigmoid", ["raw"], ["score"])], []
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    nodes = [helper.make_node("Mul", ["raw", "half"], ["halved"]), helper.make_node("Tanh", ["halved"], ["score"])]
    return nodes, [half]

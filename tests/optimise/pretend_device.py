"""A device that is not there, to find what assumes the CPU: it computes on the CPU, and refuses
what a GPU would.

Its tensors report a device of their own, do not mix with others (scalars excepted) and are no NumPy
arrays. Run as a program it trains models there and here and says how far apart they are; torch
takes one such device per process.

    python pretend_device.py FITS FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
MOVES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
"""The operations that may see two devices."""


class Far(torch.Tensor):
    """A tensor of the device; `near` is what it stands for."""

    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=torch.device(NAME, 0),
        )
        self.near = near
        return self

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None) -> Any:
        return compute(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """Makes `device="pretend"` known to what has no tensor among its arguments."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        return compute(function, args, kwargs or {})


def compute(function, args, kwargs) -> Any:
    """Run an operation on the CPU, and put its results where a real device would."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    far = [x for x in tensors if isinstance(x, Far)]
    elsewhere = [x for x in tensors if not isinstance(x, Far) and x.dim() > 0]
    kind = function._overloadpacket
    if far and elsewhere and kind not in MOVES:
        raise RuntimeError(f"{function}: expected all tensors on one device, found {NAME} and cpu")
    asked = kwargs.get("device")
    goes_far = bool(far) if asked is None else torch.device(asked).type == NAME
    near_args, near_kwargs = tree_map(lambda x: x.near if isinstance(x, Far) else x, (args, kwargs))
    result = function(
        *near_args, **(near_kwargs | ({"device": "cpu"} if asked is not None else {}))
    )
    if kind is torch.ops.aten.copy_:
        return args[0]
    if not goes_far:
        return result
    known = {id(x.near): x for x in far}  # what was changed in place is still itself

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Far(x)

    return tree_map(placed, result)


class Stopped(Exception):
    """In the middle, to go on from a checkpoint."""


def stop(stage: str, done: int, *_) -> None:
    """Interrupt the last stage."""
    if stage == "main" and done == 3:
        raise Stopped


def distance(options: dict[str, Any], checkpoint: Path) -> float:
    """The largest difference between the factors of a model trained here and one trained there,
    interrupted."""
    from puidrec import fitting
    from puidrec.data.synthetic import simulate
    from puidrec.model import Recommender

    fitting.CHECKPOINT_SECONDS = 0.0
    data = simulate("mixed", 40, 25, density=0.2, rng=0).data
    given = {
        "dim": 3,
        "epochs": 4,
        "l2": 0.1,
        "propensity": "cells",
        **options,
    }  # p is made by NumPy
    here, there = Recommender(**given).fit(data), Recommender(**given, device=NAME)
    try:
        there.fit(data, checkpoint=checkpoint, progress=stop)
    except Stopped:
        there.fit(data, checkpoint=checkpoint)
    return float(np.abs(there.user_factors_ - here.user_factors_).max())


def scores_apart() -> float:
    """The largest difference between scores made here and there, by the library and by the
    server."""
    from puidrec.data.synthetic import simulate
    from puidrec.model import Recommender
    from puidrec.serve.answers import Engine, Query

    data = simulate("mixed", 40, 25, density=0.2, rng=0).data
    model = Recommender("mf", dim=3, l2=0.1, epochs=2).fit(data)
    users, items = data.user_ids.ids[:20], data.item_ids.ids[:20]

    def answers() -> list[np.ndarray]:
        engine = Engine(model)
        some = engine.choose(np.arange(9), model.item_factors_[:2] * 0.5)
        four, none = model.user_factors_[:4], np.zeros(0, np.int64)
        best = [
            engine.best(Query(four, np.arange(4), 3, candidates, none)).scores
            for candidates in (engine.catalogue, some)
        ]
        return [model.predict(users, items), model.recommend(users, 4)["score"].to_numpy(), *best]

    here = answers()
    model.to(NAME)
    return max(float(np.abs(a - b).max()) for a, b in zip(here, answers(), strict=True))


def main() -> None:
    """Write {"scores": a distance, "fits": distances, "mixing": what two devices together cause,
    "numpy": likewise}."""
    torch.set_num_threads(1)
    _setup_privateuseone_for_python_backend(NAME)
    # as a GPU's module has it: gradients of recomputed tiles enter its autocast, switched off
    getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]
    fits, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    found: dict[str, Any] = {}
    with Device():
        for name, attempt in (
            ("mixing", lambda: torch.ones(2, device=NAME) + torch.ones(2)),
            ("numpy", lambda: torch.ones(2, device=NAME).numpy()),
        ):
            try:
                attempt()
            except (RuntimeError, TypeError) as error:
                found[name] = str(error)
        found["scores"] = scores_apart()
        found["fits"] = [
            distance(options, folder / f"{k}.safetensors") for k, options in enumerate(fits)
        ]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

"""Evaluation: ranking and pointwise metrics, unbiased estimates, and paired comparisons.

`puidrec.evaluate` is this package and, called, its main function: `puidrec.evaluate(model, rows)`. Python binds a
package's name to it on import, so the package answers the call instead of hiding the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from puidrec.evaluate.evaluator import Evaluation, evaluate, evaluate_scores

__all__ = ["Evaluation", "evaluate", "evaluate_scores"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Evaluation:
        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable

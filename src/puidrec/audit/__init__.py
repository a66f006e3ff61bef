"""Audits: how strong must hidden confounding be to overturn what a log says of a model?

`puidrec.audit` is this package and, called, its main function: `puidrec.audit(model, data, against=other)`. Python
binds a package's name to it on import, so the package answers the call instead of hiding the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from puidrec.audit.audit import audit
from puidrec.audit.result import Audit

__all__ = ["Audit", "audit"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Audit:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable

"""puidrec: train, evaluate and audit recommenders learned from logs with hidden confounding.

Names are loaded on first use, so importing the package stays instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from puidrec.auditing.audit import audit as audit
    from puidrec.auditing.result import AuditResult as AuditResult
    from puidrec.comparing.comparison import Comparison as Comparison
    from puidrec.comparing.comparison import compare as compare
    from puidrec.comparing.tune import Tuning as Tuning
    from puidrec.comparing.tune import tune as tune
    from puidrec.data.dataset import Dataset as Dataset
    from puidrec.data.sources import load_dataset as load_dataset
    from puidrec.errors import InputError as InputError
    from puidrec.errors import PuidError as PuidError
    from puidrec.evaluation import evaluate as evaluate
    from puidrec.exposure.certificate import Certificate as Certificate
    from puidrec.exposure.certify import certify as certify
    from puidrec.exposure.tilt import measure_tilt as measure_tilt
    from puidrec.model import Recommender as Recommender
    from puidrec.settings import Settings as Settings

__version__ = "0.2.0"

_HOME = {
    "AuditResult": "puidrec.auditing.result",
    "Certificate": "puidrec.exposure.certificate",
    "Comparison": "puidrec.comparing.comparison",
    "Dataset": "puidrec.data.dataset",
    "InputError": "puidrec.errors",
    "PuidError": "puidrec.errors",
    "Recommender": "puidrec.model",
    "Settings": "puidrec.settings",
    "Tuning": "puidrec.comparing.tune",
    "audit": "puidrec.auditing.audit",
    "certify": "puidrec.exposure.certify",
    "compare": "puidrec.comparing.comparison",
    "evaluate": "puidrec.evaluation.evaluator",
    "load_dataset": "puidrec.data.sources",
    "measure_tilt": "puidrec.exposure.tilt",
    "tune": "puidrec.comparing.tune",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'puidrec' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""Who trains what, in which stages: the table of methods, and one module for each idea behind its
rows."""

from puidrec.methods.table import (
    ALL_LOSSES,
    DEFAULT_METHOD,
    GAMMA_SCALE,
    METHODS,
    ONE_GAMMA,
    TRAINED,
    MethodSpec,
    get_method,
    learning_from_likes,
    require_levels,
)

__all__ = [
    "ALL_LOSSES",
    "DEFAULT_METHOD",
    "GAMMA_SCALE",
    "METHODS",
    "ONE_GAMMA",
    "TRAINED",
    "MethodSpec",
    "get_method",
    "learning_from_likes",
    "require_levels",
]

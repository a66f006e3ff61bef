"""Propensities: P(o = 1 | what is known of a pair), by name. A new one is a file, a line here, a
contract test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity, Rated
from puidrec.plugins import Registry, named

__all__ = [
    "PROPENSITIES",
    "Exposure",
    "FittedPropensity",
    "Rated",
    "make_propensity",
    "require_propensity",
]

_BUILT_IN: dict[str, str | Callable[..., FittedPropensity]] = {
    "cells": "puidrec.exposure.base:Cells",
    "logistic": "puidrec.exposure.additive:Logistic",
    "two-way": "puidrec.exposure.additive:TwoWay",
    "balanced": "puidrec.exposure.balancing:Balanced",
    "kernel": "puidrec.exposure.balancing:Kernel",
    "naive-bayes": "puidrec.exposure.base:NaiveBayes",
    "given": "puidrec.exposure.base:Given",
}
PROPENSITIES = Registry(
    "puidrec.propensities",
    _BUILT_IN,
    lambda _, kind: kind if callable(kind) else None,
    "a class of propensities",
)
"""Name → "module:Class", imported when asked for, or the class of a plug-in."""


def require_propensity(name: str) -> None:
    """Refuse a name that is not in the table."""
    if name not in PROPENSITIES:
        raise InputError(
            "unknown propensity", found=name, expected=f"one of {PROPENSITIES.names()}"
        )


def make_propensity(name: str, **options: Any) -> FittedPropensity:
    """Build an unfitted propensity by name; options are those of its constructor."""
    require_propensity(name)
    try:
        propensity: FittedPropensity = named(PROPENSITIES[name])(**options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise InputError(f"propensity {name}: {str(error).split('() ')[-1]}") from error
    return propensity

"""Propensities: P(o = 1 | what is known of a pair), by name. A new one is a file, a line here, a contract test."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from puidrec.errors import InputError
from puidrec.propensity.base import Exposure, Propensity, Rated
from puidrec.propensity.clip import Clipped, clip

__all__ = ["PROPENSITIES", "Clipped", "Exposure", "Propensity", "Rated", "clip", "make_propensity"]

PROPENSITIES = {
    "cells": "puidrec.propensity.cells:Cells",
    "logistic": "puidrec.propensity.logistic:Logistic",
    "two-way": "puidrec.propensity.two_way:TwoWay",
    "naive-bayes": "puidrec.propensity.naive_bayes:NaiveBayes",
    "given": "puidrec.propensity.given:Given",
}
"""Name → "module:Class", imported when asked for."""


def make_propensity(name: str, **options: Any) -> Propensity:
    """Build an unfitted propensity by name; options are those of its constructor."""
    if name not in PROPENSITIES:
        raise InputError("unknown propensity", found=name, expected=f"one of {', '.join(PROPENSITIES)}")
    module, kind = PROPENSITIES[name].split(":")
    try:
        propensity: Propensity = getattr(import_module(module), kind)(**options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise InputError(f"propensity {name}: {str(error).split('() ')[-1]}") from error
    return propensity

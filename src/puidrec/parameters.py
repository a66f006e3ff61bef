"""Which parameters a method has: a parameter that it would never read is refused, not taken in
silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from puidrec.errors import InputError
from puidrec.methods.table import MethodSpec, get_method
from puidrec.settings import Parameters, Settings


def looks_at_unseen(spec: MethodSpec) -> bool:
    """Whether the method puts a value on unseen ratings."""
    return spec.uses_propensity == "without ids" or spec.name == "spectrum"


OWN: dict[str, Callable[[MethodSpec], bool]] = {
    "gamma": lambda spec: spec.uncertainty != "none" or spec.name == "spectrum",
    "alpha": lambda spec: spec.uncertainty == "personalised",
    "beta": lambda spec: spec.uncertainty == "personalised",
    "normalise": lambda spec: spec.uses_propensity is True,
    "head": lambda spec: spec.imputes or spec.name == "stable-dr",
    "unseen_weight": lambda spec: "unseen_weight" in spec.search_space or looks_at_unseen(spec),
    "adjust": looks_at_unseen,
    "liked": looks_at_unseen,
    "warm_start": lambda spec: spec.benchmark,
    "benchmark": lambda spec: spec.benchmark,
    "cross_fit": lambda spec: spec.imputes,
    "shrink_to": lambda spec: spec.estimator != "naive" and not spec.exposure_head,
}
"""Parameters of several methods → which; a single method declares its own (`MethodSpec.params`)."""


def check_parameters(method: str, given: Mapping[str, Any]) -> None:
    """Refuse parameters that a method of this package does not have, and numbers that are text or
    truth values.

    A parameter at its default is no request, so copies of all parameters are taken. Methods of
    other packages may read any.
    """
    spec = get_method(method)
    fields = Settings.model_fields
    for name, value in given.items():
        if name in fields:
            _check_kind(name, value)
    if not str(spec.build).startswith("puidrec."):
        return
    wanted = [name for name, has in OWN.items() if name in given and not has(spec)]
    asked = [name for name in wanted if given[name] != fields[name].default]
    if asked:
        own = [name for name in fields if name != "method" and (name not in OWN or OWN[name](spec))]
        own += [] if spec.own_params is None else list(spec.own_params.model_fields)
        raise InputError(
            f"{spec.name} has no parameter {asked[0]}",
            found=given[asked[0]],
            expected=f"one of {', '.join(own)}",
        )


def _check_kind(name: str, value: Any) -> None:
    """Refuse text and truth values where a number is meant: 16 in quotes, or True, would count as
    16 and 1."""
    hint = get_type_hints(Parameters).get(name)
    kinds = set(get_args(hint) or (hint,))
    numeric = bool(kinds & {int, float})
    if numeric and isinstance(value, bool) and bool not in kinds:
        expected = "a whole number" if float not in kinds else "a number"
        raise InputError(f"parameter {name} is no number", found=value, expected=expected)
    words = {
        word for kind in kinds for word in get_args(kind)
    }  # text may be a rule, or one of some words
    if numeric and isinstance(value, str) and str not in kinds and value not in words:
        expected = "a whole number" if float not in kinds else "a number"
        raise InputError(
            f"parameter {name} is no number", found=value, expected=f"{expected}, without quotes"
        )

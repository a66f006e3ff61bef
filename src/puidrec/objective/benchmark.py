"""The benchmark of BRD and BPUID: measure the loss relative to frozen φ⁰, θ⁰.

Subtracting the benchmark's base and coef *inside* the maximum changes which weights are worst: a pair the new model
predicts better than the benchmark has a negative coefficient and gets its smallest weight. The loss is 0 at
φ = φ⁰, θ = θ⁰, so a minimiser is never above 0: it is no worse than the benchmark for any weights in the box.
"""

from __future__ import annotations

from torch import Tensor

from puidrec.errors import InputError


def subtract(value: Tensor, reference: Tensor) -> Tensor:
    """value − reference, the reference constant (`eq:bpuid-ips`, `eq:bpuid-dr`, `eq:bpuid-dr-imp`)."""
    if value.shape != reference.shape:
        raise InputError(
            "a benchmark must speak of the same pairs", found=tuple(reference.shape), expected=str(tuple(value.shape))
        )
    return value - reference.detach()

"""Which weights the rows of the table of methods give logged pairs: `module:function` in
`MethodSpec.log_weights` and `MethodSpec.imputation_weights`. Each takes the prepared log and
returns a function from propensities to weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from puidrec.losses import log_weights as formulas
from puidrec.settings import MethodParams

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared

WeightRule = Callable[[np.ndarray], np.ndarray]
"""Propensities of logged pairs → weights, not all of them 0."""


class DrMseParams(MethodParams):
    """What only `dr-mse` has."""

    bias_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the bias in what the imputation minimises; 0: variance only.",
    )


def least_variance(prepared: Prepared) -> WeightRule:
    """`mrdr`: the imputation model is most exact where its errors make DR vary."""
    return formulas.variance_weight


def least_squared_error(prepared: Prepared) -> WeightRule:
    """`dr-mse`: between bias and variance, as its parameter `bias_share` says."""
    share = prepared.settings.own(DrMseParams).bias_share
    return lambda p: formulas.mean_square_weight(p, share)


def dynamic(prepared: Prepared) -> WeightRule:
    """`d-ips`, `d-dr`."""
    return formulas.dynamic_weight


def targeted(prepared: Prepared) -> WeightRule:
    """`tdr`: weights that reproduce the mean of 1/p − 1 over all pairs."""
    log = prepared.log
    w = log.inverse
    log_sum = log.total(lambda rows: w(rows) * (w(rows) - 1.0))
    square_sum = log.total(lambda rows: w(rows) * np.square(w(rows) - 1.0))
    everywhere = log.nominal.mean_over_pairs(lambda p: 1.0 / p - 1.0)
    slope = formulas.targeting_slope(everywhere, log_sum, square_sum, log.nominal.exposure.n_pairs)
    return lambda p: formulas.targeted_weight(p, slope)

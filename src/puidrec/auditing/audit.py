"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn the conclusion?"""

from __future__ import annotations

import numpy as np

from puidrec.auditing.content import audit_values
from puidrec.auditing.curves import Bootstrap
from puidrec.auditing.envelope import gamma_grid
from puidrec.auditing.gather import Gathered, audit_rows
from puidrec.auditing.models import Audited, Predictor, check_comparable, names_of
from puidrec.auditing.result import Audit
from puidrec.data.dataset import Dataset
from puidrec.data.protocol import Protocol
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.sensitivity.gamma import GammaSpec


def audit(
    model: Predictor,
    data: Dataset,
    against: Predictor | None = None,
    *,
    split: Split | None = None,
    protocol: str | Protocol = "rd",
    gamma: GammaSpec = "information",
    gamma_limit: float | None = None,
    propensity: str = "two-way",
    min_propensity: float | None = None,
    replicates: int = 200,
    level: float = 0.95,
    rng: int = 0,
    names: tuple[str, str] | None = None,
) -> Audit:
    """Bound what the log says of a model, or of its lead over another, if something hidden drove the log.

    split: the one that both were trained with; by default that of their protocol, seed and `select`. Held-out logged
    rows are used where it has some, else its training rows (and the audit says so).
    gamma: the rule of the personalised shape Γ_ui. gamma_limit: the largest Γ looked at; by default wide enough for
    the tipping point and all yardsticks. propensity, min_propensity: nominal propensities and where they are clipped
    (by default at 0.01, or a tenth of the overall rate where that is less). replicates: of the bootstrap over users; 0
    draws none. names: what to call the two.
    """
    _check(replicates, level, gamma_limit)
    first = Audited.of(model, data)
    second = Audited.of(against, data) if against is not None else None
    if second is not None:
        check_comparable(first, second, split is not None)
    chosen = split or _split(first, data, protocol)
    rows, part = audit_rows(chosen)
    if not len(rows):
        raise InputError("no logged row to audit with", found=f"protocol {chosen.protocol.name}", expected="some")
    gathered = Gathered(data, chosen, rows, part, propensity, min_propensity, gamma, rng)
    case = gathered.case(first, second)
    bootstrap = Bootstrap(replicates, level, rng)
    return Audit(audit_values(gathered, case, (first, second), names_of(first, second, names), bootstrap, gamma_limit))


def _check(replicates: int, level: float, gamma_limit: float | None) -> None:
    if not isinstance(replicates, int | np.integer) or replicates < 0:
        raise InputError("replicates must be a whole number", found=replicates, expected="0 or more")
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="between 0 and 1")
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)


def _split(model: Audited, data: Dataset, protocol: str | Protocol) -> Split:
    """The split that the model says it was trained with."""
    select = model.params.get("select", "uniform")
    return data.split(protocol, int(model.params.get("seed", 0)), select=select)

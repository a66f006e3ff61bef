"""`gamma="learned"`: Γ of every pair from the posterior mean of `spectrum`, for methods that take a
Γ.

`spectrum` is fitted first, on the same rows. Where the log says q (`mf`) and uniform ratings make
it expect r, Γ_ui is the smallest under which r is possible (`uncertainty.gamma_of`). One Γ for all
pairs (`rd-*`) is that of their means. Signed methods move ratings one way only, so that Γ is 1
where r lies on the other side of q.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from puidrec.errors import InputError
from puidrec.exposure.bounds import Gamma, bin_mean, require_pairs
from puidrec.exposure.gamma import GammaRule
from puidrec.methods.spectrum.uncertainty import PREFIX, gamma_of

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared

CAP = 20.0
MOST_OTHERS = 1_000
"""Items (users) that the mean log Γ of a user (an item) is taken over."""
ROWS = 4_096


@dataclass(frozen=True)
class PairGamma(Gamma):
    """log Γ_ui = log max(q/r, (1 − q)/(1 − r)) of two low-rank scores; one of the two for a signed
    method."""

    q: tuple[np.ndarray, np.ndarray]
    r: tuple[np.ndarray, np.ndarray]
    signed: bool | None
    """True: q/r alone (people pick what they like); False: (1 − q)/(1 − r); None: the larger."""

    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """By two inner products."""
        require_pairs(users, items)
        q, r = (
            np.einsum("...k,...k->...", left[users], right[items])
            for left, right in (self.q, self.r)
        )
        return self._log(q, r)

    def _log(self, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        if self.signed is not None:  # scores on the other side of q stay where they are
            r = np.minimum(q, r) if self.signed else np.maximum(q, r)
        return np.asarray(np.minimum(np.log(gamma_of(q, r)), np.log(self.cap)))

    def user_mean_log(self) -> np.ndarray:
        """Over at most `MOST_OTHERS` items, evenly spaced."""
        return self._means[0]

    def item_mean_log(self) -> np.ndarray:
        """Over as many users."""
        return self._means[1]

    @property
    def max(self) -> float:
        """The largest of the pairs that means are taken over."""
        return float(np.exp(self._means[2]))

    def cell_mean_log(self) -> np.ndarray:
        """By the means of users and items."""
        users, items, _ = self._means
        mean = (
            bin_mean(users, self.user_bin)[:, None] + bin_mean(items, self.item_bin) - users.mean()
        )
        return np.asarray(np.maximum(mean, 0.0))

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray, float]:
        (left, right), (r_left, r_right) = self.q, self.r
        some = [
            np.unique(np.linspace(0, len(side) - 1, MOST_OTHERS).astype(np.int64))
            for side in (left, right)
        ]

        def mean(
            a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray
        ) -> tuple[np.ndarray, float]:
            blocks = [slice(k, k + ROWS) for k in range(0, len(a), ROWS)]
            parts = [self._log(a[rows] @ b.T, c[rows] @ d.T) for rows in blocks]
            return np.concatenate([part.mean(1) for part in parts]), max(
                float(part.max()) for part in parts
            )

        users, top = mean(left, right[some[1]], r_left, r_right[some[1]])
        items, other = mean(right, left[some[0]], r_right, r_left[some[0]])
        return users, items, max(top, other)


def learned_gamma(prepared: Prepared) -> Gamma:
    """Fit `spectrum` to the same rows and read Γ off its posterior mean; refused where no uniform
    row calibrates."""
    from puidrec.methods.stages import train_stages

    settings, spec = prepared.settings, prepared.settings.spec
    if not prepared.calibration_rows().user.size or prepared.data.positives_only:
        raise InputError(
            "a learned Γ needs uniform ratings beside a log of ratings: the log alone cannot tell",
            found=prepared.data.name,
            hint="Give uniform interactions, or a number for gamma.",
        )
    usual = {
        "solver": "auto",
        "loss": "squared",
        "head": "label",
        "shrink_to": None,
        "cross_fit": 0,
    }
    usual |= {"backbone": "mf" if settings.backbone == "mf" else "mf-linear", "normalise": False}
    own = type(prepared).of(
        prepared.data,
        prepared.split,
        settings.replace(method="spectrum", gamma="auto", **usual),
        prepared.log.world,
    )
    fitted = train_stages(own)
    q = tuple(
        fitted.parameters[f"{PREFIX}mf.{side}"].double().numpy() for side in ("left", "right")
    )
    r = tuple(side[0].cpu().double().numpy() for side in (fitted.phi.lefts, fitted.phi.rights))
    means = [np.array([left.mean(0) @ right.mean(0)]) for left, right in (q, r)]
    counts = prepared.log.evidence.counts
    if spec.uncertainty == "global":
        one = min(float(gamma_of(*means)[0]), CAP)
        return GammaRule.constant(one).fit(prepared.log.evidence)
    signed = settings.picks_liked if spec.calibrates_gamma else None
    return PairGamma(counts.user_bin, counts.item_bin, CAP, 0.0, q, r, signed)  # type: ignore[arg-type]

"""The learned Γ: the smallest under which the expected unseen rating r is possible where the log
says q (`mf`): q/r where r is below q, (1 − q)/(1 − r) where it is above.

`gamma_frame` is what `Recommender.gamma` gives: of users, items, segments and pairs, with
intervals. `learned_gamma` is `gamma="learned"` of methods that take a Γ: `spectrum` is fitted
first, on the same rows, and Γ_ui read off its posterior mean. One Γ for all pairs (`rd-*`) is that
of their means. Signed methods move ratings one way only, so that Γ is 1 where r lies on the other
side of q.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import ndtri

from puidrec.data.dataset import IdMap
from puidrec.errors import InputError
from puidrec.exposure.bounds import Gamma, require_pairs
from puidrec.exposure.gamma import GammaRule
from puidrec.methods.spectrum.from_log import EDGE
from puidrec.methods.spectrum.uncertainty import (
    PREFIX,
    SIDES,
    Means,
    SideName,
    Uncertainty,
    require_level,
)

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared

MOST_VALUES = 12
"""Different numbers from which a column is cut into four bins."""
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

    @cached_property
    def _means(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean logs of users and of items, and the largest log."""
        means, top = [], 0.0
        for k in (0, 1):
            n, others = len(self.q[k]), len(self.q[1 - k])
            some = np.unique(np.linspace(0, others - 1, MOST_OTHERS).astype(np.int64))
            across = [one[1 - k][some].T for one in (self.q, self.r)]
            found = np.empty(n)
            for rows in (slice(start, start + ROWS) for start in range(0, n, ROWS)):
                log = self._log(self.q[k][rows] @ across[0], self.r[k][rows] @ across[1])
                found[rows], top = log.mean(1), max(top, float(log.max()))
            means.append(found)
        return means[0], means[1], top


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
    # what the method was given, but for what spectrum does not take
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


def gamma_frame(
    known: Uncertainty,
    by: str,
    level: float,
    *,
    ids: tuple[IdMap, IdMap],
    pairs: tuple[Any, Any] | None = None,
    tables: Sequence[pl.DataFrame | None] = (),
) -> pl.DataFrame:
    """The learned Γ of users, items, pairs (by ids) or the values of a column of a side table."""
    require_level(level)
    if "mf.left" not in known.tensors:
        raise InputError(
            "a log of likes has no ratings that Γ could move",
            found="likes",
            expected="a log of ratings",
        )
    if pairs is not None:
        user, item = (own.encode(given) for own, given in zip(ids, pairs, strict=True))
        if (user < 0).any() or (item < 0).any():
            raise InputError(
                "unknown users or items", found="ids", expected="those of the training data"
            )
        names = {"user_id": ids[0].decode(user), "item_id": ids[1].decode(item)}
        return _with_gamma(names, known.pairs(user, item), level)
    if by in SIDES:
        side = SIDES[by == "item"]
        return _with_gamma({f"{by}_id": ids[by == "item"].ids}, known.means(side), level)
    side, values, code = _column(by, ids, tables)
    groups, group = np.unique(values, return_inverse=True)
    # whoever has no row in the table is in a group of its own, the last
    whole = np.full(len(ids[side == "item"]), groups.size)
    whole[code] = group
    means = known.segments(side, whole, groups.size + 1)
    return _with_gamma({by: groups}, Means(*(part[:-1] for part in means)), level)


def _column(
    by: str, ids: tuple[IdMap, IdMap], tables: Sequence[pl.DataFrame | None]
) -> tuple[SideName, np.ndarray, np.ndarray]:
    """Which side a column belongs to, its values (numbers in four quantile bins), and the code of
    each row's entity."""
    for table in tables:
        if table is None or by not in table.columns:
            continue
        side: SideName = "user" if "user_id" in table.columns else "item"
        code = ids[0 if side == "user" else 1].encode(table[f"{side}_id"])
        column = table[by].filter(pl.Series(code >= 0))
        if column.dtype.is_numeric() and column.n_unique() > MOST_VALUES:
            column = _quarters(column)
        return side, column.cast(pl.String).fill_null("missing").to_numpy(), code[code >= 0]
    known = {name for table in tables if table is not None for name in table.columns}
    found = sorted(known - {"user_id", "item_id"})
    raise InputError(
        "no such column in a side table",
        found=by,
        expected=f"user, item, pair or one of {', '.join(found) or 'none'}",
        hint="Give table=, a side table with user_id or item_id, where the model was loaded.",
    )


def _quarters(column: pl.Series) -> pl.Series:
    """Numbers as four ranges with about as many rows each, in words."""
    values = column.cast(pl.Float64).to_numpy()
    edges = np.unique(np.nanquantile(values, [0.25, 0.5, 0.75]))
    between = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    names = np.array([f"up to {edges[0]:.4g}", *between, f"above {edges[-1]:.4g}"], dtype=object)
    found = names[np.searchsorted(edges, values)]
    found[np.isnan(values)] = None
    return pl.Series(found, dtype=pl.String)


def _with_gamma(names: Mapping[str, Any], means: Means, level: float) -> pl.DataFrame:
    own = gamma_interval(means, level)
    return pl.DataFrame({**names, **own._asdict(), "rows": means.rows.astype(np.int64)})


class LearnedGamma(NamedTuple):
    """Γ with its interval, and whether unseen ratings are below or above what the log says."""

    gamma: np.ndarray
    low: np.ndarray
    high: np.ndarray
    direction: np.ndarray


def gamma_interval(means: Means, level: float) -> LearnedGamma:
    """The smallest Γ under which the expected unseen rating is possible, and its interval."""
    reach = float(ndtri(0.5 + level / 2.0)) * np.sqrt(means.variance)
    q = means.logged
    gamma, at_low, at_high = (gamma_of(q, means.expected + step) for step in (0.0, -reach, reach))
    inside = (means.expected - reach <= q) & (q <= means.expected + reach)
    low = np.where(inside, 1.0, np.minimum(at_low, at_high))
    direction = np.where(inside, "open", np.where(means.expected < q, "below", "above"))
    return LearnedGamma(gamma, low, np.maximum(at_low, at_high), direction)


def gamma_of(q: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Γ that moves q to r: q/r down, (1 − q)/(1 − r) up."""
    q, r = np.clip(q, EDGE, 1.0 - EDGE), np.clip(r, EDGE, 1.0 - EDGE)
    return np.asarray(np.maximum(q / r, (1.0 - q) / (1.0 - r)))

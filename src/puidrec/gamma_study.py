"""Everything there is to say about Γ on one data set: its distribution, what it rests on, and what
data prove of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from puidrec.auditing.diagnostics import MAX_PAIRS, population_pairs
from puidrec.data.dataset import Dataset
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.certify import all_labelled, with_checks
from puidrec.exposure.counts import ESTIMATORS, Gains
from puidrec.exposure.estimate import NominalExposure, Outcome, estimate_exposure
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import PRESETS, Gamma, GammaRule, GammaSpec, resolve_gamma
from puidrec.exposure.tilt import CLEAR_T, OPEN, MeanGap, SignCheck, sign_by_means
from puidrec.features.bins import SideBins
from puidrec.methods.prepare import Prepared
from puidrec.methods.spectrum.from_log import out_of_fold
from puidrec.rng import generator
from puidrec.settings import Settings

PAPER_WEIGHTS = float(PRESETS["paper"].alpha), float(PRESETS["paper"].beta)
"""α and β of the paper: 2 and 5."""
Progress = Callable[[str], None]
"""Called with the name of each step as it starts."""


@dataclass(frozen=True)
class PrintedEquation:
    """`eq:gamma_ui` as printed, α·IG_u + β·IG_i, which is a factor only where it is at least 1."""

    alpha: float
    beta: float
    value: float
    share_below_one: float
    """Of D, with the averages that the equation prints: 0 or 1."""
    share_below_one_local: float
    """Of D, with every pair's own gains instead of the averages."""


class Proof(NamedTuple):
    """A certificate and what it is about."""

    outcome: str
    """`label`: the protocol's positive label; `rating`: every rating level."""
    certificate: Certificate


@dataclass(frozen=True)
class SignStudy:
    """Whether people pick what they like: by means of uniform rows, and by what the log itself
    shows."""

    means: tuple[MeanGap, ...]
    """All pairs first, then segments; empty without enough uniform rows."""
    log: SignCheck | None
    """Of logged rows by fits without them; None for a large log on disk, or a log of likes."""

    @property
    def sentence(self) -> str:
        """What is shown and by what; an assumption is called one."""
        from puidrec.report.page import sentence_of

        return sentence_of("sign", means=self.means, log=self.log, open=OPEN, clear=CLEAR_T)


@dataclass(frozen=True)
class GammaStudy:
    """The result for one data set, rule, protocol and seed."""

    data: Dataset
    split: Split
    rule: GammaRule
    evidence: Evidence
    gamma: Gamma
    pairs: np.ndarray
    """Γ of every pair of D, or of `MAX_PAIRS` pairs drawn at random."""
    gains: dict[str, Gains]
    printed: PrintedEquation
    propensity: str
    """The nominal propensity that adjusted certificates take out."""
    proofs: tuple[Proof, ...]
    means: tuple[MeanGap, ...]
    """Ratings of seen and of unseen pairs."""

    @property
    def sampled(self) -> bool:
        """Whether `pairs` is a sample of D."""
        return self.data.n_pairs > MAX_PAIRS

    @property
    def share_at_cap(self) -> float:
        """Share of D whose Γ is as large as the rule allows; a constant rule has no cap to hit."""
        if self.rule.source == "constant":
            return 0.0
        return float((self.pairs >= self.gamma.cap * (1.0 - 1e-9)).mean())

    @property
    def proved(self) -> float | None:
        """The adjusted lower limit of Γ, by rating level where there are levels; None without
        uniform rows.

        One certificate, chosen beforehand: the larger of two limits would be wrong more often than
        each.
        """
        adjusted = [proof.certificate.lower for proof in self.proofs if proof.certificate.adjusted]
        return adjusted[-1] if adjusted else None

    @cached_property
    def sign(self) -> SignStudy:
        """Whether people pick what they like; asked of the log too, which takes fits of `mf`."""
        return SignStudy(self.means, _sign_of_log(self.data, self.split))

    @cached_property
    def sides(self) -> tuple[SideBins, SideBins]:
        """Groups of users and of items under which Γ is tabulated, with labels for people."""
        return (
            _side(self.gamma.user_bin, self.evidence.user_bins, "user"),
            _side(self.gamma.item_bin, self.evidence.item_bins, "item"),
        )

    def table(self) -> pl.DataFrame:
        """One long table: `kind` is cell (user group × item group), user or item; Γ is a geometric
        mean over pairs."""
        users, items = self.sides
        by_user = self.gamma.user_table().with_columns(user_id=self.data.user_ids.ids)
        by_item = self.gamma.item_table().with_columns(item_id=self.data.item_ids.ids)
        kinds = {"cell": self.gamma.bin_table(), "user": by_user, "item": by_item}
        tables = [table.with_columns(kind=pl.lit(kind)) for kind, table in kinds.items()]
        return pl.concat(tables, how="diagonal_relaxed").select(
            "kind",
            "user_id",
            "item_id",
            pl.col("user_bin", "item_bin").cast(pl.Int32),
            _label_of("user_bin", users).alias("user_group"),
            _label_of("item_bin", items).alias("item_group"),
            "n_users",
            "n_items",
            "gamma",
        )


def study_gamma(
    data: Dataset,
    rule: GammaSpec = "information",
    *,
    protocol: str = "rd",
    seed: int = 0,
    propensity: str = "two-way",
    progress: Progress | None = None,
) -> GammaStudy:
    """Fit a Γ rule to the training rows of a split and gather what it rests on.

    Training rows count as seen. The certificates compare them with all uniform rows, whatever share
    the split sets
    apart for tests: they describe the data, and no model learns from them. They are adjusted by
    `propensity`, the nominal one that Γ is put around; `cells` alone leaves features finer than
    bins to be taken for hidden ones.
    """
    tell = progress or (lambda _: None)
    chosen = resolve_gamma(rule)
    tell("counting exposure")
    split = data.split(protocol, seed)
    rows = split.train
    if not len(rows):
        raise InputError(
            "the protocol leaves no row to learn from",
            found=protocol,
            expected="another --protocol",
        )
    evidence = Evidence.of_rows(data, rows)
    tell("estimating entropies")
    gains = {name: evidence.gains(name, chosen.n_permutations, seed) for name in ESTIMATORS}  # type: ignore[arg-type]
    tell("fitting Γ")
    nominal = estimate_exposure(
        data, rows, split.propensity, propensity, chosen, seed=seed, evidence=evidence
    )
    tell("hiding features")
    _ = evidence.calibration  # computed here, where progress says so
    tell("certifying")
    proofs, means = _prove(nominal, split)
    rng = generator(seed, "gamma-study")
    pairs = nominal.gamma.at(*population_pairs(data.n_users, data.n_items, rng, MAX_PAIRS))
    own = chosen if chosen.source == "information" else PRESETS["paper"]
    alpha, beta = (
        usual if part == "auto" else float(part)
        for part, usual in zip((own.alpha, own.beta), PAPER_WEIGHTS, strict=True)
    )
    printed = printed_equation(evidence, gains["plugin"], alpha, beta)
    return GammaStudy(
        data,
        split,
        chosen,
        evidence,
        nominal.gamma,
        pairs,
        gains,
        printed,
        propensity,
        proofs,
        means,
    )


def printed_equation(
    evidence: Evidence, gains: Gains, alpha: float, beta: float
) -> PrintedEquation:
    """What the equation gives as it is printed, and for how many pairs that is no bound."""
    shares = [
        resolve_gamma("paper", scope=scope, alpha=alpha, beta=beta).fit(evidence).share_clipped
        for scope in ("global", "local")
    ]
    return PrintedEquation(alpha, beta, alpha * gains.gain_user + beta * gains.gain_item, *shares)


def _sign_of_log(data: Dataset, split: Split) -> SignCheck | None:
    """The sign that the log shows by itself: rows against a model and exposure factors made without
    their part."""
    settings = Settings(method="mf", backbone="mf", seed=split.seed, select="none")
    shown = None if data.positives_only else out_of_fold(Prepared.of(data, split, settings))
    return None if shown is None else shown.sign


def _prove(nominal: NominalExposure, split: Split) -> tuple[tuple[Proof, ...], tuple[MeanGap, ...]]:
    """Certificates from all uniform rows: by label and by rating level, plain and adjusted for the
    features.

    The last one, adjusted, is the one that counts: its segments and its placebo are looked at as
    well, and the means of its outcome.
    """
    data, rule = nominal.data, all_labelled(split.protocol)
    if data.uniform is None or not len(data.uniform):
        return (), ()
    uniform, logged = data.uniform.labelled(rule), data.logged.labelled(rule)
    if len(logged) != len(nominal.seen):  # the protocol drops ratings, but shares are of all pairs
        nominal = estimate_exposure(
            data, logged, split.propensity, nominal.propensity_name, seed=nominal.seed
        )
    levels = nominal.certifies_levels(uniform)
    outcomes: tuple[Outcome, ...] = ("label", "rating") if levels else ("label",)
    proofs = []
    for outcome in outcomes:
        plain = nominal.certificate(outcome, uniform, adjust=False)
        adjusted = nominal.certificate(outcome, uniform)
        if outcome == outcomes[-1]:
            adjusted = with_checks(adjusted, nominal, uniform, outcome)
        proofs += [Proof(outcome, plain), Proof(outcome, adjusted)]
    return tuple(proofs), sign_by_means(nominal, uniform, outcomes[-1])


def _side(codes: np.ndarray, bins: SideBins | None, side: str) -> SideBins:
    """The feature groups where Γ lives on them; else groups that no feature describes (one Γ,
    random classes)."""
    if bins is not None and np.array_equal(codes, bins.codes):
        return bins
    n = int(codes.max()) + 1
    labels = tuple(f"random class {k + 1}" for k in range(n)) if n > 1 else (f"all {side}s",)
    return SideBins(codes, labels, ())


def _label_of(column: str, side: SideBins) -> pl.Expr:
    return pl.col(column).replace_strict(list(range(side.n_bins)), list(side.labels), default=None)

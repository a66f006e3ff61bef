"""From a split to what problems need: targets, propensities, Γ, weights, feature matrices; each
computed once.

`TrainingLog` is what all stages of a method share; `Prepared` adds what depends on the stage's own
method (Γ and L2). The log may be in memory or on disk. Whatever is computed per logged row goes
over the log some users at a time (`TrainingLog.parts`): in memory that is one part, on disk as many
as fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
import torch

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.split import Split
from puidrec.data.tables import Matrix, pair_matrix, pairs_among, row_starts
from puidrec.errors import InputError
from puidrec.evaluation.metrics import TargetScale
from puidrec.exposure.bounds import Bounds, bounds
from puidrec.exposure.estimate import NominalExposure, estimate_exposure
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import Gamma, GammaSpec, resolve_gamma
from puidrec.features.encode import FeatureEncoder, feature_columns
from puidrec.losses.pair_loss import PairError, pointwise_error
from puidrec.losses.signed import MIN_UNIFORM, raise_to_default_gamma, require_uniform
from puidrec.methods.table import require_levels
from puidrec.optimise.stopping import Validator, with_drawn_pairs
from puidrec.plugins import named
from puidrec.rng import derive_seed, generator
from puidrec.scores import make_backbone
from puidrec.scores.log import Column, Log
from puidrec.scores.towers import Backbone, Design
from puidrec.settings import Settings
from puidrec.world import ALONE, World

DEFAULT_GAMMA = 1.5
"""One Γ for all pairs, where the caller gives none: about what the uniform ratings of Coat prove on
binary labels."""
DEFAULT_RULE = "information"
"""The rule for a Γ per pair, where the caller gives none."""
RULE_WITHOUT_FEATURES = "exposure-gap"
"""The same where the log has no features: information gains are 0 there, so Γ is read from exposure
residuals."""
MAX_GAMMA = 20.0
"""A Γ set by uniform rows is at most this."""
FEWEST_UNIFORM = 20
"""Uniform rows below which they calibrate nothing."""
DOUBLE = 2_000_000
"""Logged pairs × dimensions up to which training is in double precision."""
Weights = Literal["unit", "box", "inverse"]
"""Of logged pairs: 1; between the ends that Γ allows around 1/p; 1/p itself, 1 on average."""
Columns = Mapping[str, Column]
"""Numbers of logged pairs by name, as losses read them."""


@dataclass(frozen=True, eq=False)
class TrainingLog:
    """The training rows of a data set and what is estimated from them, whatever the method. Made
    when first asked."""

    data: Dataset
    split: Split
    settings: Settings
    """Those of the method; stages before it differ in nothing that matters here."""
    world: World = ALONE

    @property
    def rows(self) -> Interactions | StoredInteractions:
        """Training rows, sorted by user."""
        return self.split.train

    @property
    def scale(self) -> TargetScale:
        """What predictions live on."""
        return self.settings.target_scale

    @cached_property
    def row_start(self) -> np.ndarray:
        """Training rows before each user, and all of them, [users + 1]."""
        return row_starts(self.rows.user, self.data.n_users)

    @property
    def items(self) -> np.ndarray:
        """Item of each training row."""
        return self.rows.item

    def total(self, values: Callable[[Interactions], np.ndarray]) -> float:
        """The sum over the training rows of what is made of each."""
        return sum(float(np.sum(values(part), dtype=np.float64)) for part in self.rows.parts())

    def target(self, rows: Interactions) -> np.ndarray:
        """What predictions aim at: ratings in [0, 1]; labels ±1, or 0/1 where the method bounds a
        mean in [0, 1]."""
        return (
            self.scale.of_labels(rows.label)
            if self.scale.labels
            else self.data.scale.unit(rows.rating)
        )

    @cached_property
    def target_mean(self) -> float:
        """The mean of the targets: where models start."""
        return self.total(self.target) / len(self.rows)

    @property
    def ratings(self) -> Matrix:
        """The targets of the training rows, in memory wherever the log is."""
        values = [self.target(part).astype(np.float64) for part in self.rows.parts()]
        return pair_matrix(self.row_start, self.items, np.concatenate(values), self.data.n_items)

    @cached_property
    def evidence(self) -> Evidence:
        """Counts of the training rows by bins of features: what Γ rules read."""
        return Evidence.of_rows(self.data, self.rows)

    @cached_property
    def nominal(self) -> NominalExposure:
        """Propensities that the training rows give."""
        chosen = self.settings
        return estimate_exposure(
            self.data,
            self.rows,
            self.split.propensity,
            chosen.propensity,
            min_propensity=chosen.min_propensity,
            seed=chosen.seed,
            evidence=self.evidence,
        )

    @cached_property
    def inverse_mean(self) -> float:
        """The mean of 1/p over the training rows."""
        return self.total(self.inverse) / len(self.rows)

    def inverse(self, rows: Interactions) -> np.ndarray:
        """1/p of rows."""
        return 1.0 / self.nominal.propensity_of(rows)

    @cached_property
    def activity(self) -> tuple[np.ndarray, np.ndarray]:
        """z of users and of items: log(1 + rows), standardised."""
        rows = np.diff(self.row_start), np.bincount(self.items, minlength=self.data.n_items)
        users, items = ((x - x.mean()) / (x.std() or 1.0) for x in map(np.log1p, rows))
        return users, items

    @cached_property
    def side_tables(self) -> dict[str, pl.DataFrame]:
        """The side tables as the backbone reads them: with the columns of users that the method
        makes from the log."""
        tables, columns = {"user_id": self.data.users, "item_id": self.data.items}, []
        if self.settings.spec.user_columns:
            columns = [tables["user_id"], named(self.settings.spec.user_columns)(self)]
            columns = [table for table in columns if table is not None and table.width]
            tables["user_id"] = pl.concat(columns, how="horizontal") if columns else None
        return {key: table for key, table in tables.items() if table is not None}

    @cached_property
    def encoders(self) -> dict[str, FeatureEncoder]:
        """How the side tables become feature matrices; empty for a backbone without features."""
        tables = {} if self.settings.backbone == "mf" else self.side_tables
        return {key: FeatureEncoder.fit(table, key) for key, table in tables.items()}

    @cached_property
    def designs(self) -> dict[str, Design]:
        """The feature matrices of users and items."""
        found = {key: one.encode(self.side_tables[key]) for key, one in self.encoders.items()}
        device, dtype = self.settings.device, self.dtype
        return {key: Design.of(matrix).to(device, dtype) for key, matrix in found.items()}

    @cached_property
    def operator(self) -> Log:
        """The training rows as an operator, for the users of this process."""
        return Log(
            self.row_start,
            self.items,
            self.data.n_items,
            self.world,
            self.settings.device,
            self.dtype,
            self.rows.scratch if isinstance(self.rows, StoredInteractions) else None,
        )

    def column(self, values: Callable[[Interactions], np.ndarray]) -> Column:
        """A number per training row, made of the rows: all at once in memory, some at a time on
        disk."""
        if isinstance(self.rows, StoredInteractions):
            stored = self.rows
            return self.operator.filled(lambda rows: values(stored.part(rows)))
        return self.wrap(values(self.rows))

    def wrap(self, values: np.ndarray) -> Column:
        """A column of numbers at hand, one per training row."""
        return self.operator.filled(lambda rows: values[rows])

    @property
    def dtype(self) -> torch.dtype:
        """Precision of training: double where it takes no longer. The optimum of a small log may be
        so flat that the rounding of single precision, which differs from one processor to the next,
        moves scores by more than 1e-4."""
        small = len(self.rows) * self.settings.dim_number <= DOUBLE
        return torch.float64 if small and self.settings.device == "cpu" else torch.float32

    def tensor(self, values: np.ndarray) -> torch.Tensor:
        """Numbers as the model trains with them, where it trains."""
        return torch.tensor(values, dtype=self.dtype, device=self.settings.device)


class UniformRows(NamedTuple):
    """Uniform rows that calibrate: none of them trains a model of the log, none of them tests."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    liked: np.ndarray


@dataclass(frozen=True, eq=False)
class Prepared:
    """A training log seen through the settings of one stage of a method."""

    log: TrainingLog
    settings: Settings

    @classmethod
    def of(cls, data: Dataset, split: Split, settings: Settings, world: World = ALONE) -> Prepared:
        """A data set, in memory or on disk, through a method's settings; there must be rows to
        learn from."""
        if not len(split.train):
            raise InputError(
                "no training rows", found=f"protocol {split.protocol.name}", expected="at least one"
            )
        if isinstance(split.train, StoredInteractions) and settings.propensity == "given":
            raise InputError(
                "propensity needs the log in memory",
                found="given",
                expected="one that is estimated",
            )
        if data.positives_only:
            require_levels(settings.spec, data.scale.high)
        return cls(TrainingLog(data, split, settings, world), settings)

    def first_stage(self, method: str) -> Prepared:
        """The same log for the model that a method builds on; what both need is computed once."""
        return replace(
            self, settings=self.settings.replace(method=method, gamma="auto", normalise=False)
        )

    @property
    def data(self) -> Dataset:
        """The data set."""
        return self.log.data

    @property
    def split(self) -> Split:
        """Which rows train and validate."""
        return self.log.split

    @property
    def rows(self) -> Interactions | StoredInteractions:
        """Training rows."""
        return self.log.rows

    @property
    def error(self) -> PairError:
        """The loss of a single pair."""
        return pointwise_error(self.settings.loss, "signed" if self.log.scale.signed else "unit")

    @property
    def scales_gamma(self) -> bool:
        """Whether the scale of Γ was left to the data: methods that put a value on unseen ratings,
        unless Γ is given."""
        settings = self.settings
        return settings.spec.calibrates_gamma and settings.gamma in ("auto", "certified")

    def uniform_rows(self) -> Interactions:
        """Uniform rows that may train: those held out for propensities, which neither validate nor
        test."""
        rows, method = self.split.propensity, self.settings.method
        if rows is None or len(rows) < MIN_UNIFORM:
            raise InputError(
                f"{method} trains on uniform ratings beside the log",
                found=f"{0 if rows is None else len(rows)} held out for it in {self.data.name}",
                expected=f"at least {MIN_UNIFORM}",
                hint="Give uniform interactions, or choose another method.",
            )
        return rows

    def calibration_rows(self) -> UniformRows:
        """Uniform rows held out for calibration and validation, without pairs of the log; none
        where they are few."""
        split, log = self.split, self.log
        parts = [split.propensity] if split.propensity is not None else []
        if split.selection == "uniform" and self.settings.select != "none":
            parts.append(split.validation)
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
        some = [(part.user, part.item, log.target(part), part.label == 1) for part in parts]
        user, item, target, liked = map(np.concatenate, zip(none, *some, strict=True))
        kept = ~pairs_among(user, item, log.row_start, log.items)
        kept &= kept.sum() >= FEWEST_UNIFORM
        return UniformRows(user[kept], item[kept], target[kept], liked[kept])

    @cached_property
    def gamma(self) -> Gamma:
        """The fitted Γ of the method: 1, one number, a rule, or what uniform ratings teach
        (`learned`) or prove (`certified`)."""
        settings, spec, uniform = self.settings, self.settings.spec, self.split.propensity
        given = settings.gamma
        wanted: GammaSpec = given
        if spec.uncertainty == "none":
            wanted = 1.0
        elif given == "learned":
            learned: Gamma = named("puidrec.methods.spectrum.learned:learned_gamma")(self)
            return learned
        elif given == "certified" and not self.scales_gamma:
            require_uniform(0 if uniform is None else len(uniform), self.data.name)
            assert uniform is not None  # noqa: S101 (required above)
            wanted = min(self.log.nominal.certificate("label", uniform).lower, MAX_GAMMA)
        elif given in ("auto", "certified") and spec.uncertainty == "global":
            wanted = DEFAULT_GAMMA
        elif given in ("auto", "certified"):
            tables = ((self.data.users, "user_id"), (self.data.items, "item_id"))
            features = any(feature_columns(*table) for table in tables)
            wanted = DEFAULT_RULE if features else RULE_WITHOUT_FEATURES
        weights = {"alpha": settings.alpha, "beta": settings.beta}
        rule = resolve_gamma(wanted, **{k: x for k, x in weights.items() if x is not None})
        gamma = rule.fit(self.log.evidence, rng=settings.seed)
        return raise_to_default_gamma(gamma) if self.scales_gamma else gamma

    def columns(self, weights: Weights) -> Columns:
        """The training rows as losses read them: ratings `r` and the ends `a` and `b` of their
        weights."""
        log = self.log
        if weights == "unit":
            return self.weighted(log.column(lambda rows: np.ones(len(rows))))
        if weights == "inverse":
            return self.weighted(log.column(lambda rows: log.inverse(rows) / log.inverse_mean))

        def box(rows: Interactions) -> Bounds:
            p = log.nominal.propensity_of(rows)
            return bounds(p, self.gamma.at(rows.user, rows.item))

        b = log.column(lambda rows: box(rows).b)
        return self.weighted(b, log.column(lambda rows: box(rows).a) if self.has_interval else b)

    def weighted(self, b: Column, a: Column | None = None) -> Columns:
        """Ratings with these weights, or these ends of weights."""
        return {"r": self.log.column(self.log.target), "a": b if a is None else a, "b": b}

    @property
    def has_interval(self) -> bool:
        """Whether the weights of logged pairs are intervals: Γ is above 1 somewhere."""
        return self.settings.spec.uncertainty != "none" and self.gamma.max > 1.0

    def backbone(self, stage: str, mean: float | None = None) -> Backbone:
        """A fresh backbone for a stage of training; it starts at the mean of the targets."""
        settings, log = self.settings, self.log
        start = log.target_mean if mean is None else mean
        if settings.loss == "cross-entropy" and mean is None:
            chance = np.clip(0.5 * (start + 1.0) if log.scale.signed else start, 1e-3, 1 - 1e-3)
            start = float(np.log(chance / (1.0 - chance)))
        backbone = make_backbone(
            settings.backbone,
            self.data.n_users,
            self.data.n_items,
            settings.dim_number,
            user_features=log.designs.get("user_id"),
            item_features=log.designs.get("item_id"),
            ids=settings.ids,
            hidden=settings.hidden,
            mean=start,
            rng=derive_seed(settings.seed, "init", stage),
        )
        return backbone.to(settings.device, log.dtype)

    def validator(self) -> Validator | None:
        """Held-out rows that choose L2 or the epoch; self-selected rows are weighted by inverse
        propensity."""
        if self.settings.select == "none":
            return None
        rows, metric, scale = self.split.validation, self.settings.metric, self.log.scale
        if self.split.selection == "uniform":
            return Validator.from_rows(rows, metric, scale=scale)
        if self.data.positives_only:
            rows = with_drawn_pairs(
                rows, (self.log.row_start, self.log.items), generator(self.settings.seed, "drawn")
            )
            return Validator.from_rows(rows, metric, scale=scale)
        weight = self.log.inverse(rows) if len(rows) else None
        return Validator.from_rows(rows, metric, weight, scale)

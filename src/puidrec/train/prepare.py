"""From a split to what objectives need: targets, propensities, Γ, bounds, designs; each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from puidrec.backbones import make_backbone
from puidrec.backbones.base import Backbone, Firmness
from puidrec.backbones.features import Design
from puidrec.backbones.share import Share
from puidrec.backbones.sparse import LogPattern
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.features.encode import FeatureEncoder
from puidrec.objective.estimators import Observed
from puidrec.objective.pointwise import PointwiseError, pointwise_error
from puidrec.objective.worst_case import Box
from puidrec.propensity import Exposure, Propensity, make_propensity
from puidrec.rng import derive_seed
from puidrec.sensitivity.bounds import bounds
from puidrec.sensitivity.certify import certify_parts
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.gamma import Gamma, GammaRule, resolve_gamma
from puidrec.settings import Settings
from puidrec.train.closed import closed_form
from puidrec.train.noise import Noise, half_slope, measure_noise
from puidrec.train.pieces import IN_MEMORY
from puidrec.train.problem import Log
from puidrec.train.row_matrix import RowMatrix
from puidrec.train.strength import lifted, require_uniform
from puidrec.train.validate import Scale, Validator, pair_scores

SHARED = ("target", "pattern", "encoders", "designs")
Weights = Literal["unit", "box", "inverse"]
"""Of logged pairs: 1; between the ends that Γ allows around 1/p; 1/p itself, 1 on average."""


@dataclass(frozen=True)
class Prepared:
    """A data set and its split, seen through one method's settings. Parts are made when first asked for."""

    data: Dataset
    split: Split
    settings: Settings
    scale: Scale
    """What predictions live on; the first stage of a method uses that of the method."""
    piece_pairs: int = IN_MEMORY
    """Logged pairs worked on at once."""

    @classmethod
    def of(cls, data: Dataset, split: Split, settings: Settings) -> Prepared:
        """A data set through a method's settings; there must be rows to learn from."""
        if not len(split.train):
            raise InputError("no training rows", found=f"protocol {split.protocol.name}", expected="at least one")
        return cls(data, split, settings, Scale.of(settings))

    def first_stage(self, settings: Settings) -> Prepared:
        """The same data for the model a method builds on; what both need is computed once."""
        other = replace(self, settings=settings)
        shared = [*SHARED, "propensity", "row_propensity"] if settings.spec.estimator != "naive" else [*SHARED]
        shared += ["noise"] if settings.l2_vectors == "auto" else []
        other.__dict__.update({name: getattr(self, name) for name in shared})
        return other

    @property
    def rows(self) -> Interactions:
        """Training rows."""
        return self.split.train

    def parts(self, *known: str) -> Iterator[Prepared]:
        """The same settings seeing some of the rows at a time; here, all of them.

        known: what a part must take from the whole (`propensity`, `gamma`), since it cannot be made of a part.
        """
        yield self

    def matrix(self, values: Callable[[Prepared], np.ndarray]) -> RowMatrix:
        """A number per training row, made part by part."""
        return RowMatrix(self.crow, self.rows.item, values(self), self.data.n_items)

    @cached_property
    def target(self) -> np.ndarray:
        """What predictions aim at: ratings in [0, 1]; labels ±1, or 0/1 where the method bounds a mean in [0, 1]."""
        rows = self.rows
        return self.scale.of_labels(rows.label) if self.scale.labels else self.data.scale.unit(rows.rating)

    @cached_property
    def target_mean(self) -> float:
        """The mean of the targets: where models start."""
        return sum(float(part.target.sum(dtype=np.float64)) for part in self.parts()) / len(self.rows)

    @cached_property
    def inverse_mean(self) -> float:
        """The mean of 1/p over the training rows."""
        return sum(float((1.0 / part.row_propensity).sum()) for part in self.parts("propensity")) / len(self.rows)

    @property
    def reweighted_mean(self) -> float:
        """The mean of the targets if every row counted 1/p."""
        parts = self.parts("propensity")
        return sum(float((part.target / part.row_propensity).sum()) for part in parts) / (
            self.inverse_mean * len(self.rows)
        )

    def uniform_target(self) -> np.ndarray:
        """Targets of the uniform rows set apart for propensities and certificates; empty where there are none."""
        rows = self.split.propensity
        if rows is None or not len(rows):
            return np.zeros(0)
        if self.settings.target == "rating":
            return self.data.scale.unit(rows.rating).astype(np.float64)
        return rows.label.astype(np.float64)

    @property
    def error(self) -> PointwiseError:
        """The loss of a single pair."""
        return pointwise_error(self.settings.loss, "signed" if self.scale.signed else "unit")

    @cached_property
    def exposure(self) -> Exposure:
        """Seen and unseen pairs, and the bins that explain them."""
        return Exposure.from_rows(self.data, self.rows, self.split.propensity, self.evidence.counts)

    @cached_property
    def propensity(self) -> Propensity:
        """The fitted nominal propensity."""
        return make_propensity(self.settings.propensity, low=self.settings.min_propensity).fit(self.exposure)

    @cached_property
    def row_propensity(self) -> np.ndarray:
        """The propensity of each training row."""
        return self.propensity.predict(self.rows.user, self.rows.item, self.rows.rating)

    @cached_property
    def gamma(self) -> Gamma:
        """The fitted Γ of the method: 1, one number, or a rule."""
        gamma = self._rule().fit(self.evidence, rng=self.settings.seed)
        scales = self.settings.spec.family == "unseen" and self.settings.gamma in ("auto", "certified")
        return lifted(gamma) if scales else gamma

    @cached_property
    def evidence(self) -> Evidence:
        """What a Γ rule may look at: the training rows and the side tables."""
        data, rows = self.data, self.rows
        return Evidence.from_log(
            rows.user, rows.item, n_users=data.n_users, n_items=data.n_items, users=data.users, items=data.items
        )

    def _rule(self) -> GammaRule:
        settings, uncertainty = self.settings, self.settings.spec.uncertainty
        if uncertainty == "none":
            return resolve_gamma(1.0)
        chosen: Any = settings.gamma
        if chosen == "certified" and settings.spec.family == "grid":
            chosen = self._certified()
        elif chosen in ("auto", "certified"):
            chosen = DEFAULT_GAMMA if uncertainty == "global" else DEFAULT_RULE
        weights = {k: v for k, v in (("alpha", settings.alpha), ("beta", settings.beta)) if v is not None}
        return resolve_gamma(chosen, **weights)

    def _certified(self) -> float:
        """The smallest Γ that the labels of uniform rows prove, beyond what the propensity explains."""
        uniform = self.split.propensity
        require_uniform(0 if uniform is None else len(uniform), self.data.name)
        assert uniform is not None  # noqa: S101 (required above)
        logged = ((part.rows.label, part.row_propensity, part.rows.user) for part in self.parts("propensity"))
        certificate = certify_parts(
            logged, uniform.label, uniform.user, n_users=self.data.n_users, logged_levels=np.array([0.0, 1.0]),
            mean_propensity=self.exposure.rate, n_bootstrap=2, rng=self.settings.seed,
        )  # fmt: skip
        return min(certificate.gamma, MAX_GAMMA)

    @cached_property
    def crow(self) -> np.ndarray:
        """Training rows before each user, and all of them, [users + 1]."""
        return np.searchsorted(self.rows.user, np.arange(self.data.n_users + 1)).astype(np.int64)

    @property
    def items(self) -> np.ndarray:
        """Item of each training row."""
        return self.rows.item

    @cached_property
    def pattern(self) -> LogPattern:
        """Where the training rows are."""
        pattern = LogPattern.from_pairs(self.rows.user, self.rows.item, self.data.n_users, self.data.n_items)
        return pattern.to(self.settings.device)

    def observed(self, weights: Weights) -> Observed:
        """Training rows with the box of their weights."""
        if weights == "unit":
            limits = Box.exactly(torch.ones(len(self.rows), device=self.settings.device))
        elif weights == "inverse":
            limits = Box.exactly(self.tensor(1.0 / self.row_propensity / self.inverse_mean))
        else:
            box = bounds(self.row_propensity, self.gamma.at(self.rows.user, self.rows.item))
            a = self.tensor(box.a)
            limits = Box.exactly(a) if self.settings.spec.uncertainty == "none" else Box(a, self.tensor(box.b))
        return Observed(self.pattern, self.tensor(self.target), limits)

    def log(self, weights: Weights) -> Log:
        """The same block by block, as a problem asks for them; all in memory here."""
        return self.observed(weights)

    @cached_property
    def encoders(self) -> dict[str, FeatureEncoder]:
        """How the side tables become design matrices; empty for a backbone without features."""
        tables = {"user_id": self.data.users, "item_id": self.data.items}
        if self.settings.backbone == "mf":
            return {}
        return {key: FeatureEncoder.fit(table, key) for key, table in tables.items() if table is not None}

    @cached_property
    def designs(self) -> dict[str, Design]:
        """The design matrices of users and items."""
        tables = {"user_id": self.data.users, "item_id": self.data.items}
        return {
            key: Design.of(encoder.encode(table)).to(self.settings.device)
            for key, encoder in self.encoders.items()
            if (table := tables[key]) is not None
        }

    @property
    def ratings(self) -> RowMatrix:
        """The targets of the training rows."""
        return self.matrix(lambda part: part.target.astype(np.float64))

    @cached_property
    def noise(self) -> Noise:
        """How much of the log is noise, as seen from a fit of the biases."""
        biases = closed_form("bias", self.ratings, 1, 0)

        def slope(part: Prepared) -> np.ndarray:
            prediction = pair_scores(biases, part.rows.user, part.rows.item).astype(np.float64)
            return half_slope(prediction - part.target, self.settings.loss, signed=self.scale.signed) / len(self.rows)

        designs = (self.designs.get("user_id"), self.designs.get("item_id"))
        return measure_noise(self.matrix(slope), *designs, self.settings.seed)

    @property
    def load(self) -> float:
        """How much of the noise a method takes in: once per model or head trained on the log, times its weights."""
        settings, spec = self.settings, self.settings.spec
        heads = 1 + spec.imputes + (spec.family == "multi")
        if spec.family != "grid" or spec.estimator == "naive" or settings.normalise:
            return float(heads)
        total = 0.0
        for part in self.parts("propensity", "gamma"):
            total += float(bounds(part.row_propensity, self.gamma.at(part.rows.user, part.rows.item)).b.sum())
        return heads * total / (self.data.n_users * self.data.n_items)

    @cached_property
    def firmness(self) -> Firmness:
        """How firmly vectors are held: as the settings say, or as the noise of the log asks for."""
        given = self.settings.l2_vectors
        return self.noise.firmness(REFERENCE_L2, self.load) if given == "auto" else Firmness(ids=given)

    def backbone(self, stage: str, mean: float | None = None, own_users: Share | None = None) -> Backbone:
        """A fresh backbone for a stage of training, of all users or some; it starts at the mean of the targets."""
        settings = self.settings
        start = self.target_mean if mean is None else mean
        if settings.loss == "cross-entropy" and mean is None:
            chance = np.clip(0.5 * (start + 1.0) if self.scale.signed else start, 1e-3, 1 - 1e-3)
            start = float(np.log(chance / (1.0 - chance)))
        backbone = make_backbone(
            settings.backbone, self.data.n_users, self.data.n_items, settings.dim,
            user_features=self.designs.get("user_id"), item_features=self.designs.get("item_id"),
            ids=settings.ids, hidden=settings.hidden, mean=start, rng=derive_seed(settings.seed, "init", stage),
            own_users=own_users,
        )  # fmt: skip
        return backbone.hold(self.firmness).to(settings.device)

    def validator(self) -> Validator | None:
        """Held-out rows that choose the epoch; self-selected rows are weighted by inverse propensity."""
        if self.settings.select == "none":
            return None
        rows = self.split.validation
        if self.split.selection == "uniform":
            return Validator.from_rows(rows, self.settings.metric, scale=self.scale)
        weight = 1.0 / self.propensity.predict(rows.user, rows.item, rows.rating) if len(rows) else None
        return Validator.from_rows(rows, self.settings.metric, weight, self.scale)

    def tensor(self, values: np.ndarray) -> torch.Tensor:
        """Numbers as float32 where the model trains."""
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(self.settings.device)


DEFAULT_GAMMA = 1.5
"""One Γ for all, where nobody says: what the classic sets certify on binary labels starts here."""
DEFAULT_RULE = "information"
MAX_GAMMA = 20.0
REFERENCE_L2 = 0.1
"""The l2 at which `auto` holds vectors just as firmly as the noise of the log asks for; others are in proportion."""

"""From a split to what objectives need: targets, propensities, Γ, bounds, designs; each computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from puidrec.backbones import make_backbone
from puidrec.backbones.base import Backbone, Firmness
from puidrec.backbones.features import Design, FeatureEncoder
from puidrec.backbones.sparse import LogPattern
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.objective.estimators import Observed
from puidrec.objective.pointwise import PointwiseError, pointwise_error
from puidrec.objective.worst_case import Box
from puidrec.propensity import Exposure, Propensity, make_propensity
from puidrec.rng import derive_seed
from puidrec.sensitivity.bounds import bounds
from puidrec.sensitivity.certify import certify
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.gamma import Gamma, GammaRule, resolve_gamma
from puidrec.settings import Settings
from puidrec.train.closed import closed_form
from puidrec.train.noise import Noise, half_slope, measure_noise
from puidrec.train.problem import Log
from puidrec.train.strength import lifted, require_uniform
from puidrec.train.validate import Scale, Validator, pair_scores

SHARED = ("target", "pattern", "encoders", "designs")


@dataclass(frozen=True)
class Prepared:
    """A data set and its split, seen through one method's settings. Parts are made when first asked for."""

    data: Dataset
    split: Split
    settings: Settings
    scale: Scale
    """What predictions live on; the first stage of a method uses that of the method."""
    piece_pairs: int = 10_000_000
    """Logged pairs worked on at once: about 400 MB of temporaries."""

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

    @cached_property
    def target(self) -> np.ndarray:
        """What predictions aim at: ratings in [0, 1]; labels ±1, or 0/1 where the method bounds a mean in [0, 1]."""
        rows = self.rows
        return self.scale.of_labels(rows.label) if self.scale.labels else self.data.scale.unit(rows.rating)

    @property
    def target_mean(self) -> float:
        """The mean of the targets: where models start."""
        return float(self.target.mean(dtype=np.float64))

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
        evidence = self.evidence
        return Exposure.from_split(self.data, self.split, user_bins=evidence.user_bins, item_bins=evidence.item_bins)

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
        certificate = certify(
            self.rows.label, uniform.label, mean_propensity=self.exposure.rate,
            logged_propensity=self.row_propensity, n_bootstrap=2, rng=self.settings.seed,
        )  # fmt: skip
        return min(certificate.gamma, MAX_GAMMA)

    @cached_property
    def crow(self) -> np.ndarray:
        """Training rows before each user, and all of them, [users + 1]."""
        return np.searchsorted(self.rows.user, np.arange(self.data.n_users + 1)).astype(np.int64)

    @cached_property
    def pattern(self) -> LogPattern:
        """Where the training rows are."""
        pattern = LogPattern.from_pairs(self.rows.user, self.rows.item, self.data.n_users, self.data.n_items)
        return pattern.to(self.settings.device)

    def observed(self, *, weighted: bool) -> Observed:
        """Training rows with the box of their weights: [a, b] around 1/p, or unit weights."""
        if weighted:
            box = bounds(self.row_propensity, self.gamma.at(self.rows.user, self.rows.item))
            a = self._tensor(box.a)
            limits = Box.exactly(a) if self.settings.spec.uncertainty == "none" else Box(a, self._tensor(box.b))
        else:
            limits = Box.exactly(torch.ones(len(self.rows), device=self.settings.device))
        return Observed(self.pattern, self._tensor(self.target), limits)

    def log(self, *, weighted: bool) -> Log:
        """The same block by block, as a problem asks for them; all in memory here."""
        return self.observed(weighted=weighted)

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
            key: encoder.encode(table).to(self.settings.device)
            for key, encoder in self.encoders.items()
            if (table := tables[key]) is not None
        }

    @cached_property
    def noise(self) -> Noise:
        """How much of the log is noise, as seen from a fit of the biases."""
        rows, shape = self.rows, (self.data.n_users, self.data.n_items)
        scores = closed_form("bias", rows.user, rows.item, self.target.astype(np.float64), shape, 1, 0)
        residual = pair_scores(scores, rows.user, rows.item).astype(np.float64) - self.target
        slope = half_slope(residual, self.settings.loss, signed=self.scale.signed) / len(rows)
        designs = (self.designs.get("user_id"), self.designs.get("item_id"))
        return measure_noise(csr_matrix((slope, (rows.user, rows.item)), shape=shape), *designs, self.settings.seed)

    @property
    def load(self) -> float:
        """How much of the noise a method takes in: once per model or head trained on the log, times its weights."""
        settings, spec, rows = self.settings, self.settings.spec, self.rows
        heads = 1 + spec.imputes + (spec.family == "multi")
        if spec.family != "grid" or spec.estimator == "naive" or settings.normalise:
            return float(heads)
        weight = bounds(self.row_propensity, self.gamma.at(rows.user, rows.item)).b
        return heads * float(weight.sum()) / (self.data.n_users * self.data.n_items)

    @property
    def firmness(self) -> Firmness:
        """How firmly vectors are held: as the settings say, or as the noise of the log asks for."""
        given = self.settings.l2_vectors
        return self.noise.firmness(REFERENCE_L2, self.load) if given == "auto" else Firmness(ids=given)

    def backbone(self, stage: str, mean: float | None = None) -> Backbone:
        """A fresh backbone for a stage of training; it starts at the mean of the targets."""
        settings = self.settings
        start = self.target_mean if mean is None else mean
        if settings.loss == "cross-entropy" and mean is None:
            chance = np.clip(0.5 * (start + 1.0) if self.scale.signed else start, 1e-3, 1 - 1e-3)
            start = float(np.log(chance / (1.0 - chance)))
        backbone = make_backbone(
            settings.backbone, self.data.n_users, self.data.n_items, settings.dim,
            user_features=self.designs.get("user_id"), item_features=self.designs.get("item_id"),
            ids=settings.ids, hidden=settings.hidden, mean=start, rng=derive_seed(settings.seed, "init", stage),
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

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(self.settings.device)


DEFAULT_GAMMA = 1.5
"""One Γ for all, where nobody says: what the classic sets certify on binary labels starts here."""
DEFAULT_RULE = "information"
MAX_GAMMA = 20.0
REFERENCE_L2 = 0.1
"""The l2 at which `auto` holds vectors just as firmly as the noise of the log asks for; others are in proportion."""

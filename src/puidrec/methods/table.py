"""Methods are rows of a table. A row says how the method trains and what it needs, so that no other
module has to ask which method it is dealing with.

The methods of the paper lie on a grid, (estimator) × (uncertainty) × (benchmark); the others share
the same columns. A package can bring a method of its own: an entry point of the group
`puidrec.methods` that names a `MethodSpec` (`docs/extending.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from puidrec.errors import InputError
from puidrec.plugins import Registry, named

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared
    from puidrec.methods.problem import Stage
    from puidrec.settings import Settings

Estimator = Literal["naive", "ips", "dr"]
Uncertainty = Literal["none", "global", "personalised"]
Build = Callable[["Prepared"], Sequence["Stage"]]
"""Data seen through the settings → the stages to run, the last of them the method."""
ALL_LOSSES = ("squared", "absolute", "cross-entropy")
TRAINED = ("l2", "l2_features", "dim", "hidden", "lr")
"""Settings that every trained method searches, where its backbone has them."""


@dataclass(frozen=True)
class MethodSpec:
    """One method: how it is built, and what other modules must know of it."""

    name: str
    build: str | Build = field(repr=False)
    """What makes its stages; `module:function` for those of this package, so that listing methods
    imports no torch."""
    description: str = ""
    estimator: Estimator = "naive"
    uncertainty: Uncertainty = "none"
    benchmark: bool = False
    """Whether the loss is measured against a model trained first (BRD, BPUID)."""
    target_scale: Literal["signed", "unit"] = "signed"
    """What `target=binary` means: labels ±1, or 0 and 1 where a mean in [0, 1] is bounded."""
    trains: bool = True
    """Whether parameters are fitted iteratively; closed forms have no epochs, nothing to validate
    and no search."""
    uses_propensity: bool | Literal["without ids"] = False
    """Whether logged pairs are weighted by inverse propensities; some methods do so for models
    without IDs only."""
    uses_uniform: str = ""
    """What uniform rows decide during training, beside choosing the model; empty where they decide
    nothing."""
    needs_uniform: bool = False
    """Whether it cannot be trained without uniform rows."""
    user_columns: str = ""
    """Features of users that are made from the log, for the backbone: `module:function`, from the
    log to a table."""
    needs_levels: bool = True
    """Whether the log must hold at least two rating levels; methods that look at unseen pairs can
    do with likes."""
    losses: tuple[str, ...] = ALL_LOSSES
    search_space: tuple[str, ...] = TRAINED
    """Settings worth searching; `comparing.job` has their ranges."""
    chooses_unseen_weight: bool = False
    """Whether a log of likes chooses dim, L2 and the weight of unseen pairs by held-out likes."""
    needs: str = "a log of ratings"
    """What the method asks of the data, for reports."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which this method departs from the common defaults."""
    params: str | type[Any] = ""
    """Parameters that no other method has: a subclass of `settings.MethodParams`, or where it is.
    """

    def __post_init__(self) -> None:
        if self.benchmark and self.uncertainty == "none":
            raise InputError(
                "a benchmark without uncertainty is vacuous: the benchmark's loss is a constant",
                found=self.name,
                hint="Use uncertainty 'global' (BRD) or 'personalised' (BPUID).",
            )
        if self.benchmark and self.estimator == "naive":
            raise InputError("a benchmark needs the estimator ips or dr", found=self.name)

    @property
    def imputes(self) -> bool:
        """Whether an imputation model θ is trained beside the prediction model φ."""
        return self.estimator == "dr"

    @property
    def reads_bins(self) -> bool:
        """Whether it asks of a log of ratings who saw what, by bins of features."""
        return (self.estimator, self.uncertainty, self.uses_uniform) != ("naive", "none", "")

    @property
    def calibrates_gamma(self) -> bool:
        """Whether the scale of Γ, unless given, is set so that unseen ratings have the mean that
        uniform rows show."""
        return self.uses_uniform == GAMMA_SCALE

    def takes_gamma(self, gamma: object) -> bool:
        """Whether a value of the setting `gamma` has a meaning here: a rule has none where all
        pairs share one Γ."""
        one = not isinstance(gamma, str) or gamma in ONE_GAMMA
        return self.uncertainty == "personalised" or (self.uncertainty == "global" and one)

    def own_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the settings of a comparison that this method has; Γ means nothing to one
        without uncertainty."""
        absent = set() if self.takes_gamma(settings.get("gamma")) else {"gamma"}
        absent |= set() if self.uncertainty == "personalised" else {"alpha", "beta"}
        absent |= params_of_others(self.name)
        return {key: value for key, value in settings.items() if key not in absent}

    def weighs_rows(self, settings: Settings) -> bool:
        """Whether these settings weigh logged pairs by inverse propensities."""
        return settings.adjusts if self.uses_propensity == "without ids" else self.uses_propensity

    @property
    def own_params(self) -> type[Any] | None:
        """The class of its own parameters; None where it has only those that all methods share."""
        return named(self.params) if self.params else None


def params_of_others(method: str) -> set[str]:
    """Parameters that belong to single methods, and not to this one."""
    kinds = {name: METHODS[name].own_params for name in METHODS}
    own = kinds.pop(method, None)
    taken = {field for kind in kinds.values() if kind is not None for field in kind.model_fields}
    return taken - set(() if own is None else own.model_fields)


DEFAULT_METHOD = "spectrum"
"""What is trained where none is named."""
GAMMA_SCALE = "scale of Γ"
ONE_GAMMA = ("auto", "certified", "global", "learned")
"""Words for `gamma` that give one Γ for all pairs; other words are rules, which give one per pair.
"""
ROBUST = "puidrec.methods.robust:stages"
ALL_PAIRS = "puidrec.methods.all_pairs:"
SIGNED = "puidrec.methods.unseen:stages"
BASELINE = "puidrec.methods.baselines:stages"
FIELD = "puidrec.methods.field."
WEIGHTS, DECONFOUNDED = f"{FIELD}weights:", f"{FIELD}deconfounded:"
FROM_LOG = "a log of ratings; propensities are estimated from it"
FROM_UNIFORM = (
    "a log of ratings and at least 50 uniform ratings beside those that validate and test; it "
    "trains on both"
)
UNIFORM_WEIGHTS = "training (weights of the log)"
UNIFORM_RESIDUALS = "training (residuals of the propensity)"


WEIGHTED = (*TRAINED, "min_propensity")
WORDS: dict[Estimator, str] = {"ips": "inverse propensity scoring", "dr": "doubly robust"}


def _weighted(
    name: str,
    estimator: Estimator,
    words: str,
    build: str = ROBUST,
    uniform: str = "",
    **more: Any,
) -> MethodSpec:
    """IPS or DR in some form; `uniform`: what it needs uniform rows for, where it does."""
    common: dict[str, Any] = {
        "uses_propensity": True,
        "uses_uniform": uniform,
        "needs_uniform": bool(uniform),
        "search_space": WEIGHTED,
        "needs": FROM_UNIFORM if uniform else FROM_LOG,
    }
    return MethodSpec(name, build, words, estimator, **common | more)


def _grid(
    prefix: str, words: str = "", uncertainty: Uncertainty = "none", benchmark: bool = False
) -> list[MethodSpec]:
    """The IPS and DR rows of one kind of uncertainty."""
    space = (*WEIGHTED, *(["gamma"] if uncertainty != "none" else []))
    kind: dict[str, Any] = {"uncertainty": uncertainty, "benchmark": benchmark}
    return [
        _weighted(f"{prefix}{name}", name, f"{label}{words}", search_space=space, **kind)
        for name, label in WORDS.items()
    ]


def _multi(name: str, estimator: Estimator, words: str) -> MethodSpec:
    return MethodSpec(name, f"{ALL_PAIRS}multi_stages", words, estimator, losses=("squared",))


def _baseline(name: str, words: str, build: str = BASELINE, **more: Any) -> MethodSpec:
    return MethodSpec(name, build, words, trains=False, search_space=(), **more)


_UNIT: dict[str, Any] = {"target_scale": "unit", "losses": ("squared",)}
_UNSEEN: dict[str, Any] = {**_UNIT, "needs_levels": False}
"""Methods that put a value on unseen pairs: ratings in [0, 1], likes will do."""


def _signed(name: str, uncertainty: Uncertainty, words: str, gamma: Sequence[str]) -> MethodSpec:
    return MethodSpec(
        name,
        SIGNED,
        words,
        uncertainty=uncertainty,
        uses_propensity="without ids",
        uses_uniform=GAMMA_SCALE,
        search_space=(*WEIGHTED, *gamma, "unseen_weight"),
        needs="a log of ratings; 50 uniform ratings set the scale of Γ, else it is 1.1; 500 may "
        "choose another and λ",
        **_UNIT,
    )


_BUILT_IN = (
    MethodSpec(
        "spectrum",
        "puidrec.methods.spectrum.blend:stages",
        "models along Γ and exposure factors, mixed by what a few uniform ratings show",
        uses_uniform="mixing weights",
        search_space=("l2", "l2_features", "dim", "min_propensity"),
        needs="a log of ratings, or of likes (then all-rank); uniform ratings, from 20 on, mix the "
        "members",
        chooses_unseen_weight=True,
        **_UNSEEN,
    ),
    MethodSpec("mf", ROBUST, "matrix factorisation on the log as it is"),
    *_grid(""),
    *_grid("rd-", ", worst case within one Γ", "global"),
    *_grid("brd-", ", worst case within one Γ against a frozen benchmark", "global", True),
    *_grid("puid-", ", worst case within Γ per user and item", "personalised"),
    *_grid(
        "bpuid-",
        ", worst case within Γ per user and item against a frozen benchmark",
        "personalised",
        True,
    ),
    _weighted(
        "mrdr",
        "dr",
        "doubly robust, imputation of least variance",
        f"{WEIGHTS}least_variance",
    ),
    _weighted(
        "dr-mse",
        "dr",
        "doubly robust, imputation of least bias and variance",
        f"{WEIGHTS}least_squared_error",
        params=f"{WEIGHTS}DrMseParams",
        search_space=(*WEIGHTED, "bias_share"),
    ),
    _weighted(
        "tdr",
        "dr",
        "doubly robust, targeted: weights calibrated to all pairs",
        f"{WEIGHTS}targeted",
    ),
    _weighted(
        "d-ips",
        "ips",
        "dynamic inverse propensities: a power of each for bias and variance",
        f"{WEIGHTS}dynamic",
    ),
    _weighted(
        "d-dr",
        "dr",
        "doubly robust with dynamic inverse propensities",
        f"{WEIGHTS}dynamic",
    ),
    _weighted(
        "stable-dr",
        "ips",
        "normalised IPS, weights balanced by an imputation model: stable doubly robust",
        f"{WEIGHTS}stable_stages",
    ),
    _weighted(
        "bal-ips",
        "ips",
        "IPS, weights balanced so that the log's loss is that of uniform rows",
        f"{WEIGHTS}uniform_stages",
        UNIFORM_WEIGHTS,
    ),
    _weighted(
        "bal-dr",
        "dr",
        "doubly robust, weights balanced by the loss of uniform rows",
        f"{WEIGHTS}uniform_stages",
        UNIFORM_WEIGHTS,
    ),
    _weighted(
        "res-ips",
        "ips",
        "IPS, residual of the propensity learned from uniform rows",
        f"{WEIGHTS}residual_stages",
        UNIFORM_RESIDUALS,
        losses=("squared",),
    ),
    _weighted(
        "res-dr",
        "dr",
        "doubly robust, residuals of propensity and imputation learned from uniform rows",
        f"{WEIGHTS}residual_stages",
        UNIFORM_RESIDUALS,
        losses=("squared",),
    ),
    _weighted(
        "ips-v2",
        "ips",
        "IPS, propensities that balance the features of pairs",
        defaults={"propensity": "balanced"},
    ),
    _weighted(
        "dr-v2",
        "dr",
        "doubly robust, propensities that balance the features of pairs",
        defaults={"propensity": "balanced"},
    ),
    _weighted(
        "kernel-ips",
        "ips",
        "IPS, weights of most entropy that balance kernels of pairs",
        defaults={"propensity": "kernel"},
    ),
    _weighted(
        "kernel-dr",
        "dr",
        "doubly robust, weights of most entropy that balance kernels of pairs",
        defaults={"propensity": "kernel"},
    ),
    MethodSpec(
        "auto-debias",
        f"{ALL_PAIRS}auto_debias_stages",
        "weights and imputed values learned so that a step on the log lowers the error of uniform "
        "rows",
        uses_uniform="training (weights and imputed values)",
        needs_uniform=True,
        search_space=(*TRAINED, "unseen_weight"),
        needs=FROM_UNIFORM,
        **_UNIT,
    ),
    MethodSpec(
        "cvib",
        f"{ALL_PAIRS}cvib_stages",
        "cross-entropy, means of logged and unseen pairs drawn together by an information term",
        target_scale="unit",
        losses=("cross-entropy",),
        search_space=(*TRAINED, "information_weight", "confidence_penalty"),
        defaults={"loss": "cross-entropy"},
        params=f"{ALL_PAIRS}CvibParams",
    ),
    MethodSpec(
        "dcf",
        f"{DECONFOUNDED}deconfounded_stages",
        "matrix factorisation beside the reconstructed exposure of each user",
        losses=("squared",),
    ),
    MethodSpec(
        "idcf",
        f"{DECONFOUNDED}identified_stages",
        "matrix factorisation with users described by what they chose to see",
        user_columns=f"{DECONFOUNDED}exposure_columns",
        needs="a log of ratings; features of users help to read their exposure",
    ),
    _multi("multi-ips", "ips", "exposure and rating heads share representations, IPS"),
    _multi("multi-dr", "dr", "exposure, rating and imputation heads share representations"),
    _signed(
        "signed-rd",
        "global",
        "unseen ratings are lower by one Γ: people pick what they like",
        ["gamma"],
    ),
    _signed("signed-puid", "personalised", "unseen ratings are lower by Γ per user and item", []),
    _baseline("item-rate", "mean rating of the item, shrunk: the baseline to beat"),
    _baseline("bias", "user and item means, shrunk"),
    _baseline(
        "popularity",
        "share of users who have the item: the baseline of likes",
        "puidrec.methods.baselines:popularity_stages",
        target_scale="unit",
        needs_levels=False,
        needs="a log of likes, or of ratings",
    ),
    _baseline("pure-svd", "truncated SVD of the centred log"),
    MethodSpec(
        "all-rank",
        "puidrec.methods.unseen:all_rank_stages",
        "least squares over all pairs, unseen = lowest rating",
        search_space=(*TRAINED, "unseen_weight"),
        needs="a log of ratings, or of positives alone",
        chooses_unseen_weight=True,
        **_UNSEEN,
    ),
    _baseline(
        "ease",
        "items predict each other by one ridge regression, unseen = 0",
        "puidrec.methods.baselines:ease_stages",
        needs="a log of ratings, or of positives alone, with at most 20,000 items",
        **_UNSEEN,
    ),
)


METHODS: Registry[MethodSpec] = Registry(
    "puidrec.methods",
    {spec.name: spec for spec in _BUILT_IN},
    lambda name, row: row if isinstance(row, MethodSpec) and row.name == name else None,
    "a MethodSpec of that name",
)


def learning_from_likes() -> list[str]:
    """Names of the methods that a log without rating levels is enough for."""
    return [name for name in METHODS if not METHODS[name].needs_levels]


def require_levels(spec: MethodSpec, rating: float) -> None:
    """Refuse a method that needs rating levels for a log in which every row is a like."""
    if spec.needs_levels:
        raise InputError(
            f"{spec.name} needs rating levels, and the log holds likes only (implicit feedback)",
            found=f"{rating:g} in every row",
            expected=f"one of {', '.join(learning_from_likes())}",
            hint="Choose one of these methods, or add what was shown and not liked.",
        )


def get_method(method: str | MethodSpec) -> MethodSpec:
    """Look a method up by name."""
    if isinstance(method, MethodSpec):
        return method
    if not isinstance(method, str) or method not in METHODS:
        near = get_close_matches(str(method).lower().replace("_", "-")[:40], METHODS, 1)
        hint = f"Did you mean {near[0]}?" if near else None
        raise InputError(
            "unknown method", found=method, expected=f"one of {METHODS.names()}", hint=hint
        )
    return METHODS[method]

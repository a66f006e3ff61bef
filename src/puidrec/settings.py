"""Every hyperparameter, declared once: typed, described, checked; and which method has which. All
other modules receive this object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from puidrec.errors import InputError
from puidrec.exposure import PROPENSITIES
from puidrec.exposure.gamma import PRESETS
from puidrec.methods.table import ALL_LOSSES, DEFAULT_METHOD, MethodSpec, get_method
from puidrec.plugins import named

if TYPE_CHECKING:
    from puidrec.evaluation.metrics import TargetScale

DEFAULT_DIM, DEFAULT_L2 = 16, 0.1
"""Where nothing chooses them: training by adam without IDs, logs of likes."""
REMOVED = {
    "l2_vectors": "Use l2: l2=0.1 is what l2_vectors=1.0 was.",
    "block_users": "Least squares needs no blocks of users; leave it out.",
    "checkpoint_every": "Checkpoints are written by time; leave it out.",
}
"""Settings of 0.1 that are gone, and what to do instead."""
VALIDATION_METRICS = ("auto", "auc", "uauc", "mse")
NAMED = {
    "backbone": "puidrec.scores:BACKBONES",
    "loss": ALL_LOSSES,
    "head": "puidrec.losses.pair_loss:HEADS",
    "propensity": PROPENSITIES,
    "metric": VALIDATION_METRICS,
}
"""Settings that name a row of a table, which is looked up where it is not the default."""


class Parameters(TypedDict, total=False):
    """The fields of `Settings` beside the method, as a type checker sees them:
    `Recommender(dimm=4)` is an error there.

    A test compares names and types with `Settings`, where they are declared, described and checked.
    """

    backbone: str
    ids: bool | Literal["bias"]
    dim: int | Literal["auto"]
    hidden: int
    target: Literal["rating", "binary"]
    loss: str
    head: str
    propensity: str
    min_propensity: float
    gamma: str | float
    alpha: float | None
    beta: float | None
    normalise: bool
    unseen_weight: float
    bias_share: float
    information_weight: float
    confidence_penalty: float
    adjust: bool | None
    liked: bool | None
    warm_start: bool
    solver: Literal["auto", "least-squares", "adam"]
    epochs: int
    patience: int
    lr: float
    l2: float | Literal["auto"]
    l2_features: float
    shrink_to: Literal["mf"] | None
    cross_fit: int
    benchmark: Literal["own", "mf"]
    metric: str
    select: Literal["uniform", "observational", "none"]
    device: str
    seed: int


class MethodParams(BaseModel):
    """Parameters that belong to one method: subclass it, and name the class in the method's row.

    They are given, checked, saved and shown like all others: `Recommender("cvib",
    information_weight=0.3)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Own = TypeVar("Own", bound=MethodParams)


class Settings(BaseModel):
    """How a recommender is trained: what all methods share, and what this one alone has (`own`)."""

    # what is not declared here must be a parameter of the method's own: `_check_own`
    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, validate_default=True, allow_inf_nan=False
    )

    method: str = Field(DEFAULT_METHOD, description="A row of the table of methods.")
    backbone: str = Field(
        "mf-linear",
        description="mf: IDs; mf-linear: IDs and linear features; mf-mlp: two-layer MLPs.",
    )
    ids: bool | Literal["bias"] = Field(
        True, description="ID embeddings beside features; 'bias' keeps the biases only."
    )
    dim: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        "auto", description="Length of the representations; auto: with l2, by held-out logged rows."
    )
    hidden: int = Field(64, ge=1, le=65536, description="Hidden units of mf-mlp.")
    target: Literal["rating", "binary"] = Field(
        "rating", description="Levels scaled to [0, 1], or labels ±1."
    )
    loss: str = Field("squared", description="squared, absolute or cross-entropy.")
    head: str = Field(
        "label",
        description="What the imputation model predicts: label, label-squared, residual or direct.",
    )
    propensity: str = Field(
        "two-way", description="cells, logistic, two-way, balanced, kernel, naive-bayes or given."
    )
    min_propensity: float = Field(
        0.01, gt=0, lt=1, description="Propensities are clipped from below here."
    )
    gamma: str | float = Field(
        "auto",
        description="A Γ rule, a number, certified or learned (both by uniform rows), or auto "
        "(as the method needs).",
    )
    alpha: float | None = Field(
        None, ge=0, description="User-side weight of the Γ rule; None: the rule's own."
    )
    beta: float | None = Field(
        None, ge=0, description="Item-side weight of the Γ rule; None: the rule's own."
    )
    normalise: bool = Field(
        False, description="Divide the worst case by its weights (Hájek), as IPS with one Γ needs."
    )
    unseen_weight: float = Field(
        1.0, ge=0, description="λ of the unseen pairs in signed, sharp, all-rank and auto-debias."
    )
    adjust: bool | None = Field(
        None,
        description="signed, sharp: weigh seen pairs by inverse propensity; None: where the model "
        "has no IDs.",
    )
    liked: bool | None = Field(
        None,
        description="People pick what they like (False: dislike); None: signed assumes it, "
        "spectrum asks the log.",
    )
    warm_start: bool = Field(True, description="Benchmarked methods start at the benchmark.")
    solver: Literal["auto", "least-squares", "adam"] = Field(
        "auto",
        description="least-squares: to the optimum; adam: with early stopping; auto: adam only "
        "where the first cannot.",
    )
    epochs: int = Field(300, ge=1, description="Most passes over the log (least-squares: sweeps).")
    patience: int = Field(
        50,
        ge=0,
        description="adam: epochs without a better smoothed score before stopping (every 5th is "
        "judged); 0 runs all.",
    )
    lr: float = Field(0.02, gt=0, description="Adam's step size.")
    l2: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="L2 of an entity's vector and bias, per mean number of rows; auto: as dim.",
    )
    l2_features: float = Field(0.02, ge=0, description="L2 on feature weights, which are shared.")
    shrink_to: Literal["mf"] | None = Field(
        None,
        description="What L2 pulls the vectors of weighted fits to: mf, the unweighted fit; "
        "None: 0.",
    )
    cross_fit: int = Field(
        0,
        ge=0,
        le=20,
        description="DR: folds over which the imputation is fitted on other rows than it corrects.",
    )
    benchmark: Literal["own", "mf"] = Field(
        "own",
        description="brd-*, bpuid-*: what they are measured against, the estimator without Γ "
        "or mf.",
    )
    metric: str = Field(
        "auto", description="Validation metric; auto: uauc where users have enough rows, else auc."
    )
    select: Literal["uniform", "observational", "none"] = Field(
        "uniform", description="Rows that choose the epoch of adam."
    )
    device: str = Field("cpu", description="Where to train: cpu, cuda, …")
    seed: int = Field(0, ge=0, description="Seed of everything random.")

    @classmethod
    def of(cls, method: str = DEFAULT_METHOD, /, **given: Any) -> Self:
        """Settings of a method: its own defaults, then what the caller gives. Mistakes come back as
        one line."""
        spec = get_method(given.pop("method", method))
        try:
            return cls(**{"method": spec.name, **spec.defaults, **given})
        except ValidationError as error:
            raise _as_input_error(error, cls) from error

    @property
    def spec(self) -> MethodSpec:
        """The method's row."""
        return get_method(self.method)

    @property
    def target_scale(self) -> TargetScale:
        """The scale that the method predicts on."""
        from puidrec.evaluation.metrics import TargetScale

        spec, labels = self.spec, self.target == "binary"
        return TargetScale(
            labels,
            labels and spec.target_scale == "signed",
            self.loss == "cross-entropy" and spec.trains,
        )

    @property
    def is_linear(self) -> bool:
        """Whether scores are linear in the parameters of either side, and least squares may solve
        for them."""
        return self.backbone in ("mf", "mf-linear") and self.solver != "adam"

    @property
    def dim_number(self) -> int:
        """`dim` as a number: what stands in for auto before it is chosen, or where nothing can
        choose it."""
        return DEFAULT_DIM if self.dim == "auto" else self.dim

    @property
    def l2_number(self) -> float:
        """`l2` as a number, likewise."""
        return DEFAULT_L2 if self.l2 == "auto" else self.l2

    @property
    def picks_liked(self) -> bool:
        """Whether people are taken to pick what they like, where a method has to assume one or the
        other."""
        return self.liked is not False

    @property
    def adjusts(self) -> bool:
        """Whether seen pairs are reweighted: IDs already stand for what belongs to users and items,
        features do not."""
        without_ids = self.ids is not True and self.backbone != "mf"
        return without_ids if self.adjust is None else self.adjust

    def own(self, kind: type[Own]) -> Own:
        """The parameters that only this method has."""
        return kind(**(self.model_extra or {}))

    def given(self, *without: str) -> dict[str, Any]:
        """What departs from the defaults, the method's own parameters included."""
        kind, extra = self.spec.own_params, self.model_extra or {}
        fields = {} if kind is None else kind.model_fields
        usual = {name for name, value in extra.items() if value == fields[name].default}
        return self.model_dump(exclude_defaults=True, exclude={"method", *without, *usual})

    def replace(self, **changes: Any) -> Self:
        """A checked copy with some settings changed; another method has other parameters of its
        own."""
        another = changes.get("method", self.method) != self.method
        values = self.model_dump(exclude=set(self.model_extra or ()) if another else None)
        return type(self).of(**{**values, **changes})

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """NumPy's numbers are numbers; text and truth values are none."""
        return value.item() if isinstance(value, np.generic) else value

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        """Refuse unknown names and settings that contradict each other, with a sentence that says
        why."""
        for name, place in NAMED.items():
            value = getattr(self, name)
            if value == type(self).model_fields[name].default:
                continue  # it is in the table, which loads torch
            table = named(place)
            if value not in table:
                words = "validation metric" if name == "metric" else name
                expected = f"one of {', '.join(table)}"
                raise InputError(f"unknown {words}", found=value, expected=expected)
        spec = self.spec
        spec = self.spec
        if self.loss not in spec.losses:
            raise InputError(
                f"{spec.name} cannot be trained with this loss",
                found=self.loss,
                expected=f"loss {' or '.join(spec.losses)}",
                hint="Leave loss out, or name another method, such as mf.",
            )
        self._check_gamma()
        self._check_own()
        return self

    def _check_own(self) -> None:
        """What is not declared above must be declared by the method; what is not given gets its
        default."""
        kind, extra = self.spec.own_params, self.__pydantic_extra__
        assert extra is not None  # noqa: S101 (extras are allowed)
        own = {} if kind is None else kind.model_fields
        unknown = next((name for name in extra if name not in own), None)
        if unknown is not None:
            names = [*type(self).model_fields, *own]
            near = get_close_matches(unknown, names, 1)
            raise InputError(
                "unknown setting",
                found=unknown,
                expected=f"one of {', '.join(names)}",
                hint=REMOVED.get(unknown) or (f"Did you mean {near[0]}?" if near else None),
            )
        if kind is not None:
            try:
                extra.update(kind(**extra).model_dump())
            except ValidationError as error:
                raise _as_input_error(error, kind) from error

    def _check_gamma(self) -> None:
        """One Γ for the global methods, any rule for the personalised ones, never below 1."""
        gamma, spec = self.gamma, self.spec
        if isinstance(gamma, float):
            if not 1.0 <= gamma < float("inf"):
                raise InputError(
                    "Γ below 1 would put the lower bound above the upper one",
                    found=gamma,
                    expected="finite, Γ >= 1",
                )
        elif spec.uncertainty == "global" and not spec.takes_gamma(gamma):
            raise InputError(
                f"{spec.name} takes one Γ for all pairs",
                found=gamma,
                expected="a number, certified or learned",
                hint=f"For a personalised rule use {spec.name.replace('rd', 'puid')}.",
            )
        elif gamma not in ("auto", "certified", "learned") and gamma not in PRESETS:
            raise InputError(
                "unknown Γ rule",
                found=gamma,
                expected=f"a number, or one of auto, {PRESETS.names()}",
            )


def _as_input_error(error: ValidationError, model: type[BaseModel]) -> InputError:
    """The first error of a validation as one line."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"][:1]))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    expected = model.model_fields[key].description if key in model.model_fields else None
    return InputError(
        f"setting {key}: {first['msg'].lower()}", found=first["input"], expected=expected
    )


def _looks_at_unseen(spec: MethodSpec) -> bool:
    """Whether the method puts a value on unseen ratings."""
    return spec.uses_propensity == "without ids" or spec.name == "spectrum"


OWN: dict[str, Callable[[MethodSpec], bool]] = {
    "gamma": lambda spec: spec.uncertainty != "none" or spec.name == "spectrum",
    "alpha": lambda spec: spec.uncertainty == "personalised",
    "beta": lambda spec: spec.uncertainty == "personalised",
    "normalise": lambda spec: spec.uses_propensity is True,
    "head": lambda spec: spec.imputes or spec.name == "stable-dr",
    "unseen_weight": lambda spec: "unseen_weight" in spec.search_space or _looks_at_unseen(spec),
    "adjust": _looks_at_unseen,
    "liked": _looks_at_unseen,
    "warm_start": lambda spec: spec.benchmark,
    "benchmark": lambda spec: spec.benchmark,
    "cross_fit": lambda spec: spec.imputes,
    "shrink_to": lambda spec: spec.uses_propensity is True,
}
"""Parameters of several methods → which; a single method declares its own (`MethodSpec.params`)."""


def check_parameters(method: str, given: Mapping[str, Any]) -> None:
    """Refuse parameters that a method of this package would never read.

    A parameter at its default is no request, so copies of all parameters are taken. Methods of
    other packages may read any.
    """
    spec, fields = get_method(method), Settings.model_fields
    absent = [name for name, has in OWN.items() if not has(spec)]
    asked = [
        name for name in absent if given.get(name, fields[name].default) != fields[name].default
    ]
    if asked and str(spec.build).startswith("puidrec."):
        own = [name for name in fields if name not in ("method", *absent)]
        own += [] if spec.own_params is None else list(spec.own_params.model_fields)
        raise InputError(
            f"{spec.name} has no parameter {asked[0]}",
            found=given[asked[0]],
            expected=f"one of {', '.join(own)}",
        )

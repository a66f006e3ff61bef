"""`Recommender`: parameters in the constructor, `fit`, then predict, recommend, save; ids of the
caller's own type.

Each method is a call into the room that does it, which is imported when it is needed: an object is
there at once, and torch is loaded with the first fit or prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, IdMap, Interactions
from puidrec.data.schema import Frame, Origin, RatingScale, to_polars
from puidrec.data.split import Protocol, Split
from puidrec.data.tables import pairs_among
from puidrec.entities import CALIBRATED, PairsByUser, Side, merged_pairs, paired_ids
from puidrec.errors import InputError, not_fitted
from puidrec.methods.table import DEFAULT_METHOD
from puidrec.settings import Parameters, Settings, check_parameters
from puidrec.view import History, html_table, view

if TYPE_CHECKING:
    from torch import Tensor

    from puidrec.auditing.result import Audit
    from puidrec.cold_start import ColdStart
    from puidrec.evaluation import Evaluation
    from puidrec.fold_in import Prior
    from puidrec.methods.spectrum.uncertainty import Uncertainty
    from puidrec.recommending import Asked, ScoreScale
    from puidrec.view import Progress
    from puidrec.world import World


class Recommender:
    """A recommender trained by any method of the table; parameters are the fields of `Settings`.

    `rng` is the seed; `random_state`, scikit-learn's name for it, is accepted as well.

    Fitted state: `user_factors_`, `item_factors_` (inner product = score on 0..1, or log-odds for a
    cross-entropy), `rating_scale_` (which maps it to ratings), `user_ids_`, `item_ids_`, `seen_`
    (the training pairs), `held_out_` (the other pairs of the log), `history_`, `report_` (what was
    estimated on the way: propensity, Γ, seconds, epochs).
    """

    device_: str = "cpu"
    """Where scores are computed; the factors themselves stay arrays."""
    user_factors_: np.ndarray
    item_factors_: np.ndarray
    user_ids_: IdMap
    item_ids_: IdMap
    parameters_: dict[str, Tensor]
    encoders_: dict[str, list[dict[str, Any]]]
    history_: History
    report_: dict[str, Any]
    rating_scale_: RatingScale
    seen_: PairsByUser
    train_rows_: Interactions | None = None
    """Training rows with their ratings, in the order of `seen_`: of a fit in this process with a
    log in memory."""
    held_out_: PairsByUser | None = None
    """Pairs of the log that are not among the training rows, where there are some."""
    _tables: tuple[pl.DataFrame | None, pl.DataFrame | None] = (None, None)
    """Side tables of the training data, which a saved model does not keep."""
    _priors: Mapping[Side, tuple[np.ndarray, Prior]] = MappingProxyType({})
    """What users are folded in with, and the factors that it was made from."""
    _cold_start: ColdStart | None = None
    """What features say of users and items that were not in training; made when first asked for."""

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        *,
        rng: int | None = None,
        random_state: int | None = None,
        **params: Unpack[Parameters],
    ) -> None:
        given = _with_seed({**params, "rng": rng, "random_state": random_state})
        check_parameters(given.get("method", method), given)
        self.settings = Settings.of(method, **given)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.settings.given().items())
        shown = f"Recommender({self.settings.method!r}{given})"
        return f"{shown}\n  {self._fitted_on()}" if self._is_fitted else shown

    def _repr_html_(self) -> str:
        """Method, parameters given and what was fitted, as a notebook shows them."""
        rows = self.settings.given() | (self.report_ if self._is_fitted else {})
        plain = [
            (key, value) for key, value in rows.items() if isinstance(value, str | float | int)
        ]
        table = html_table(("parameter or result", "value"), plain)
        words = self._fitted_on() if self._is_fitted else "not fitted"
        return view(self.settings.method, words, table)

    @property
    def _is_fitted(self) -> bool:
        return hasattr(self, "user_factors_")

    def _fitted_on(self) -> str:
        users, items = len(self.user_ids_), len(self.item_ids_)
        return f"fitted on {self.seen_[1].size:,} logged rows of {users:,} users × {items:,} items"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, as scikit-learn's tools expect them."""
        return self.settings.model_dump()

    def set_params(self, **params: Any) -> Self:
        """Change parameters; checked like the constructor's."""
        given = _with_seed(params)
        check_parameters(given.get("method", self.settings.method), given)
        self.settings = self.settings.replace(**given)
        return self

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy: scikit-learn's own check wants the very same objects back, which
        checked values are not."""
        copy = type(self)()
        copy.settings = self.settings
        return copy

    def fit(
        self,
        data: Dataset | Frame,
        split: Split | None = None,
        *,
        protocol: str | Protocol | None = None,
        checkpoint: str | PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        world: World | None = None,
    ) -> Self:
        """Train on the logged rows of `data`. Uniform rows calibrate: they mix the members of
        `spectrum`, and choose the epoch (`select`). All of them do, and no row is left to test
        with, unless a split or protocol says so. Of ratings without uniform rows one in ten
        validates (none where `select="none"`); a log of likes is trained on whole.

        data: a data set, or a log alone as a Polars, pandas or Arrow table (`user_id, item_id,
        rating`).
        split: which rows train, calibrate and validate; by default the protocol's with the model's
        seed. protocol: the name of one, such as `rd`, which keeps 90 % of the uniform rows for
        testing, or 10 % of the log where there are none; None: nothing is kept for testing.
        checkpoint: a file to write while training, at most once a second, and to resume from where
        it exists.
        progress: True shows a bar, as a notebook does by itself where a fit takes longer than a
        second; False none; or a function that is called with the stage, sweeps or epochs done in
        all stages, the most that there may be in all (the same number in the last call), and
        figures.
        world: the processes that train this model together (`train.distributed.join_world`); all
        end with all of it.
        """
        from puidrec.fitting import fit_model
        from puidrec.world import ALONE

        fit_model(self, data, split, protocol, checkpoint, progress, world or ALONE)
        return self

    @property
    def dim_(self) -> int:
        """Length of the representations, as it was given or chosen."""
        return int(self.report_.get("dim", self.settings.dim_number))

    @property
    def l2_(self) -> float:
        """L2 of an entity's vector and bias, per mean number of rows, as it was given or chosen."""
        return float(self.report_.get("l2", self.settings.l2_number))

    def to(self, device: str) -> Self:
        """Score on this device from now on; where it trains is a setting."""
        from puidrec.world import require_device

        require_device(device)
        self.device_ = device
        return self

    @overload
    def predict(
        self,
        users: Frame,
        items: None = None,
        *,
        interval: float | None = ...,
        **asked: Unpack[Asked],
    ) -> pl.DataFrame: ...

    @overload
    def predict(
        self, users: Any, items: Any, *, interval: float, **asked: Unpack[Asked]
    ) -> pl.DataFrame: ...

    @overload
    def predict(self, users: Any, items: Any, **asked: Unpack[Asked]) -> np.ndarray: ...

    def predict(
        self,
        users: Any,
        items: Any = None,
        *,
        scale: ScoreScale = "rating",
        user_features: Frame | None = None,
        item_features: Frame | None = None,
        interval: float | None = None,
    ) -> np.ndarray | pl.DataFrame:
        """Predicted ratings of pairs given by ids, float32. A single id goes with every id of the
        other side; unknown ids get the average entity (cold start).

        A table of pairs (`user_id, item_id`) in place of ids comes back as `user_id, item_id,
        score, known`: `known` is false where the user or the item was neither in training nor in
        the features given.

        scale: `rating`, on the scale of the log's ratings (such as 1 to 5), or `unit`, as the model
        was trained: ratings scaled to 0..1. A model of labels (`target="binary"`) predicts labels,
        0..1 or ±1, on either scale.
        user_features, item_features: side tables (id and features) of users and items that were not
        in training: their scores rest on the features.
        interval: a share such as 0.9: a frame `score, low, high` instead, with the interval that
        holds so many of the ratings that these users would give (models with a posterior:
        `spectrum` with uniform rows).
        """
        from puidrec.recommending import predict

        features = user_features, item_features
        return predict(self._fitted(), users, items, scale, features, interval)

    def gamma(
        self,
        by: str = "user",
        *,
        users: Any = None,
        items: Any = None,
        table: Frame | None = None,
        level: float = 0.9,
    ) -> pl.DataFrame:
        """The learned Γ: how strong hidden confounding must be for the unseen ratings that uniform
        rows show.

        A frame with `gamma`, its interval `low, high` at `level`, `direction` (unseen ratings are
        `below` or `above` what the log says; `open` where the interval holds Γ = 1) and `rows`, the
        uniform rows behind it.

        by: `user`, `item`, `pair` (then `users` and `items` are the ids of pairs), or a column of a
        side table. The table is that of the training data; for a model that was loaded give it
        again.
        """
        from puidrec.methods.spectrum.learned import gamma_frame

        known, ids = self.uncertainty(), (self.user_ids_, self.item_ids_)
        if by == "pair":
            return gamma_frame(known, by, level, ids=ids, pairs=paired_ids(users, items))
        tables = self._tables if table is None else (to_polars(table, Origin("table")),)
        return gamma_frame(known, by, level, ids=ids, tables=tables)

    def score(self, rows: Frame, y: None = None) -> float:
        """How good predictions are, higher is better: what scikit-learn's `cross_val_score` and
        `GridSearchCV` ask for.

        rows: a table as for `fit`. Minus the RMSE of its ratings; of likes (no column `rating`) the
        share of rows of known users and items that are among their user's 10 best unseen ones.
        """
        from puidrec.recommending import score

        self._fitted()
        if y is not None:
            raise InputError(
                "ratings belong into the column rating of the table", found="y", expected="nothing"
            )
        return score(self, rows)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may assume: no target apart from the table."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def trained_on(self, users: Any, items: Any) -> np.ndarray:
        """Which pairs, given by ids, are among the training rows: `evaluate` leaves them out, for
        they are known.

        So are uniform rows, where all of them calibrated the model.
        """
        self._fitted()
        user, item = self.user_ids_.encode(users), self.item_ids_.encode(items)
        known = (user >= 0) & (item >= 0)
        used = pairs_among(user[known], item[known], *self.seen_)
        if self.used_every_uniform_row:
            n_items, pairs = len(self.item_ids_), self.parameters_[CALIBRATED].numpy()
            used |= np.isin(
                user[known].astype(np.int64) * n_items + item[known], pairs[0] * n_items + pairs[1]
            )
        known[known] = used
        return known

    def split_of(self, data: Dataset) -> Split:
        """Which rows of its data it was trained on, and which were held out."""
        from puidrec.fitting import split_of

        return split_of(self._fitted(), data)

    @property
    def used_every_uniform_row(self) -> bool:
        """Whether it was fitted without a protocol to data with uniform rows: none is left to test
        on."""
        return CALIBRATED in self.parameters_

    def logged_pairs(self) -> PairsByUser:
        """All pairs of the log, those held out from training too: nobody gets them again."""
        self._fitted()
        if self.held_out_ is None:
            return self.seen_
        users = np.repeat(np.arange(self.held_out_[0].size - 1), np.diff(self.held_out_[0]))
        return merged_pairs(self.seen_, users, self.held_out_[1], len(self.user_ids_))

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        exclude_seen: bool | Literal["training"] = True,
        *,
        history: Frame | None = None,
        items: Any = None,
        exclude: Any = None,
        filter: Frame | None = None,  # noqa: A002 (as Polars names it)
        user_features: Frame | None = None,
        item_features: Frame | None = None,
        stable: bool = False,
        cautious: bool = False,
        scale: ScoreScale = "rating",
    ) -> pl.DataFrame:
        """The k best items of each user: `user_id, item_id, score, rank`; ties are broken by item
        order.

        exclude_seen: leave out what a user has in the log, held-out rows too; `"training"`: what
        the model was trained on, so that other tools can look for the held-out rows; False:
        nothing.
        scale: of the scores, as in `predict`.
        stable: add `gamma_max`, the largest Γ up to which the item would stay among the k best; for
        models with a path along Γ (`spectrum`).
        cautious: rank by the lower end of the 80 % interval of the expected rating, which is then
        the score; for models with a posterior (`spectrum` with uniform rows).

        users: ids in any one-dimensional container, or a single id.
        history: a table `user_id, item_id, rating` of users by what they did: they are folded in
        (`fold_in`), and recommended other items; users may then be left out, or be the one whose
        rows these are, where the table does not say it.
        items: the only ones to recommend. exclude: items not to recommend. filter: a table
        `user_id, item_id` of the pairs that may be recommended.
        user_features, item_features: as in `predict`; such items join the candidates, after the
        others.
        """
        from puidrec.recommending import recommend

        return recommend(
            self._fitted(),
            users,
            k,
            exclude_seen,
            history=history,
            which=(items, exclude, filter),
            features=(user_features, item_features),
            stable=stable,
            cautious=cautious,
            scale=scale,
        )

    def fold_in(self, rows: Frame) -> Recommender:
        """A copy in which the users of `rows` (`user_id, item_id, rating`) are as these rows say,
        new users too.

        One exact least-squares step with the items held fixed; the rows are all that is known of
        these users. For `mf` whose L2 is a number, a user folded in with the training rows scores
        as trained. Items that the model does not know count for nothing. Without `rating` every row
        is a like.
        """
        from puidrec.fold_in import fold_in_users

        return fold_in_users(self._fitted(), rows)

    def partial_fit(self, rows: Frame) -> Self:
        """Take new rows in: their users and items, new ones too, are solved again from where they
        stand; others stay.

        `report_["partial_fit"]` says how many rows, users and items this concerned, and which share
        of all rows came after the last full fit: the larger, the more `fit` would gain.
        """
        from puidrec.fold_in import partial_update

        self._fitted()
        done = partial_update(self, rows)
        self.report_ = {**self.report_, "partial_fit": [*self.report_.get("partial_fit", []), done]}
        return self

    def similar_items(self, items: Any, k: int = 10) -> pl.DataFrame:
        """The k items most like each of the given ones: `item_id, similar_id, similarity, rank`.

        Similarity: the correlation of two items' scores over all users, less each user's mean.
        """
        from puidrec.recommending import similar

        return similar(self._fitted(), "item", items, k)

    def similar_users(self, users: Any, k: int = 10) -> pl.DataFrame:
        """The k users most like each of the given ones, as `similar_items`."""
        from puidrec.recommending import similar

        return similar(self._fitted(), "user", users, k)

    def explain(self, user: Any, item: Any, history: Frame | None = None) -> pl.DataFrame:
        """What carries a predicted rating: `part, item_id, rating, contribution`; contributions add
        up to it.

        Parts: the average user, the user's features, each rated item, and the rest that these do
        not explain: next to 0 for `mf` whose L2 is a number. history: the user's ratings (`item_id,
        rating`), for a loaded model.
        """
        from puidrec.recommending import explain_score

        return explain_score(self._fitted(), user, item, history)

    def cold_start(self) -> ColdStart:
        """What features say of users and items that were not in training."""
        from puidrec.cold_start import ColdStart

        if self._cold_start is None:
            self._cold_start = ColdStart(self)
        return self._cold_start

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model as safetensors and JSON, atomically."""
        from puidrec.store import save_model

        self._fitted()
        save_model(self, Path(folder))

    def to_card(
        self,
        data: Dataset | None = None,
        split: Split | None = None,
        evaluation: Evaluation | None = None,
        audit: Audit | None = None,
    ) -> str:
        """A model card in Markdown: data, method, assumptions, metrics with intervals, and the
        verdict of an audit; what is not given is left out, or said to be unknown."""
        from puidrec.report.page import model_card

        return model_card(self._fitted(), data, split, evaluation, audit)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Recommender:
        """Read a saved model; a damaged or hostile folder gives one clear line and runs nothing."""
        from puidrec.store import load_model

        return load_model(Path(folder))

    def uncertainty(self) -> Uncertainty:
        """The posterior of the mixture; refused where there is none."""
        from puidrec.methods.spectrum.uncertainty import Uncertainty

        self._fitted()
        factors = self.user_factors_, self.item_factors_
        known = Uncertainty.of(self.parameters_, *factors, self.seen_)
        if known is not None:
            return known
        raise InputError(
            "no uniform ratings calibrated this model, and the log alone cannot tell",
            found=self.settings.method,
            expected="spectrum, fitted with uniform ratings",
            hint="Give uniform interactions: some 50 ratings of items drawn at random. A model "
            "that took rows in since its fit (fold_in, partial_fit) has no intervals.",
        )

    def _fitted(self) -> Self:
        """Itself; refused where it is not fitted."""
        if not self._is_fitted:
            raise not_fitted(f"this {self.settings.method} model")
        return self


SEEDS = ("rng", "random_state", "seed")


def _with_seed(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters in which the seed goes by its own name; None leaves it as it is."""
    given = [name for name in SEEDS if params.get(name) is not None]
    if len(given) > 1:
        expected = "rng, random_state or seed"
        raise InputError("the seed was given twice", found=" and ".join(given), expected=expected)
    others = {name: value for name, value in params.items() if name not in SEEDS}
    return {**others, "seed": params[given[0]]} if given else others

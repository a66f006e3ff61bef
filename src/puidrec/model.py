"""`Recommender`: parameters in the constructor, `fit`, then predict, recommend, save; ids of the
caller's own type."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, get_args, overload

import numpy as np
import polars as pl
import torch

from puidrec.candidates import Candidates, PairsByUser
from puidrec.cold_start import (
    ColdStart,
    Entities,
    Side,
    is_single_id,
    one_id,
    pairs_of,
    require_ids,
)
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.overlap import pairs_among, rows_outside
from puidrec.data.protocol import Protocol
from puidrec.data.schema import (
    Frame,
    Origin,
    RatingScale,
    check_choice,
    clean_interactions,
    to_polars,
    with_our_names,
)
from puidrec.data.split import Split, split_without_test
from puidrec.errors import InputError, not_fitted
from puidrec.evaluation.ranking import top_k
from puidrec.evaluation.unseen_items import find_liked
from puidrec.explain import explain_score
from puidrec.fold_in import fold_in_users, partial_update, training_mse
from puidrec.history import History
from puidrec.methods import DEFAULT_METHOD
from puidrec.methods.prepare import Prepared
from puidrec.methods.report import shown_progress, training_report
from puidrec.methods.spectrum.stability import gamma_max
from puidrec.methods.spectrum.uncertainty import (
    Uncertainty,
    gamma_frame,
    lower_scores,
    score_interval,
)
from puidrec.methods.stages import train_stages
from puidrec.neighbours import similar
from puidrec.optimise.adam import Progress
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from puidrec.optimise.devices import require_device, threads_for
from puidrec.optimise.stopping import pair_scores
from puidrec.parameters import check_parameters
from puidrec.scores.low_rank import LowRank
from puidrec.settings import Parameters, Settings
from puidrec.view import html_table, view
from puidrec.world import ALONE, World

if TYPE_CHECKING:
    from puidrec.auditing.result import Audit
    from puidrec.evaluation import Evaluation

USERS_PER_BLOCK = 1024
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 1.0, 0.05
"""Least time between two checkpoints, and the share of the time that they may take."""
CHECKPOINT_SMALL, WRITTEN_PER_MINUTE = 32_000_000, 2.0
"""Bytes from which checkpoints are written so seldom that a minute writes at most this many times
the model's size."""
CALIBRATED = "calibrated.pairs"
"""Users and items of the uniform rows, where all of them were used: nothing is left to evaluate
with."""
ScoreScale = Literal["rating", "unit"]


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
    rating_scale_: RatingScale
    seen_: PairsByUser
    train_rows_: Interactions | None = None
    """Training rows with their ratings, in the order of `seen_`: of a fit in this process with a
    log in memory."""
    held_out_: PairsByUser | None = None
    """Pairs of the log that are not among the training rows; None: there are none, or none are
    known."""
    _tables: tuple[pl.DataFrame | None, pl.DataFrame | None] = (None, None)
    """Side tables of the training data, which a saved model does not keep."""
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
        given = self.settings.given()
        shown = f"Recommender({self.settings.method!r}{''.join(f', {k}={v!r}' for k, v in given.items())})"
        if not hasattr(self, "user_factors_"):
            return shown
        users, items = len(self.user_ids_), len(self.item_ids_)
        return f"{shown}\n  fitted on {self.seen_[1].size:,} logged rows of {users:,} users × {items:,} items"

    def _repr_html_(self) -> str:
        """Method, parameters given and what was fitted, as a notebook shows them."""
        given = self.settings.given()
        rows: list[tuple[str, Any]] = list(given.items())
        fitted = "not fitted"
        if hasattr(self, "user_factors_"):
            users, items = len(self.user_ids_), len(self.item_ids_)
            fitted = (
                f"fitted on {self.seen_[1].size:,} logged rows of {users:,} users × {items:,} items"
            )
            rows += [
                (key, value)
                for key, value in self.report_.items()
                if isinstance(value, str | float | int)
            ]
        return view(
            self.settings.method, fitted, html_table(("parameter or result", "value"), rows)
        )

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
        world: World = ALONE,
    ) -> Self:
        """Train on the logged rows of `data`. Uniform rows calibrate: they mix the members of
        `spectrum`, and choose L2 or the epoch (`select`). All of them do, and none is left to test
        with, unless a split or protocol says so.

        data: a data set, or a log alone as a Polars, pandas or Arrow table (`user_id, item_id,
        rating`).
        split: which rows train, calibrate and validate; by default the protocol's with the model's
        seed. protocol: the name of one, such as `rd`, which keeps 90 % of the uniform rows for
        testing; None: every uniform row is used.
        checkpoint: a file to write while training, at most once a second, and to resume from where
        it exists.
        progress: True shows a bar, as a notebook does by itself where a fit takes longer than a
        second; False none; or a function that is called with stage, sweeps or epochs done in all
        stages, those and the most that is left, and figures; in its last call both numbers are the
        same.
        world: the processes that train this model together (`train.distributed.join_world`); all
        end with all of it.
        """
        started = time.perf_counter()
        require_device(self.settings.device)
        data = data if isinstance(data, Dataset) else Dataset.from_frame(data)
        if not isinstance(split, Split | None):
            raise InputError(
                "split is no Split",
                found=type(split).__name__,
                expected="data.split(…), or nothing",
                hint="Ratings belong into the column rating of the log, not into a second argument.",
            )
        every = split is None and protocol is None and data.uniform is not None
        if split is None and protocol is None:
            split = split_without_test(data, self.settings.seed, select=self.settings.select)
        split = split or data.split(
            protocol or "rd", self.settings.seed, select=self.settings.select
        )
        prepared = Prepared.of(data, split, self.settings, world)
        path = Path(checkpoint) if checkpoint is not None else None
        fingerprint = {
            "settings": self.settings.model_dump(exclude={"device"}),
            "data": data.sha256,
            "split": _split_digest(split),
        }
        resume = self._resume(path, fingerprint) if path is not None and path.exists() else None
        written, pause = started, CHECKPOINT_SECONDS

        def save(make: Callable[[], Checkpoint]) -> None:
            nonlocal written, pause
            due = world.first and path is not None and time.perf_counter() - written >= pause
            if not world.sum_number(float(due)):  # all processes help to make one, or none does
                return
            begun, state = time.perf_counter(), make()
            if world.first and path is not None:
                save_checkpoint(
                    path, Checkpoint(state.tensors, {**state.state, "run": fingerprint})
                )
            written = time.perf_counter()
            pause = _pause(
                written - begun,
                state,
                4 * (data.n_users + data.n_items) * (self.settings.dim_number + 2),
            )

        with (
            threads_for(len(split.train), self.settings.dim_number),
            shown_progress(progress) as told,
        ):
            fitted = train_stages(prepared, save if path is not None else None, resume, told)
        users, items = (
            side[0].cpu().float().contiguous().numpy()
            for side in (fitted.phi.lefts, fitted.phi.rights)
        )
        self.user_factors_, self.item_factors_ = users, items  # laid out as they will be loaded
        self.user_ids_, self.item_ids_ = data.user_ids, data.item_ids
        self.seen_, self.rating_scale_ = (prepared.log.row_start, prepared.log.items), data.scale
        held_out = rows_outside(data.logged.user, data.logged.item, *self.seen_)
        self.held_out_ = held_out if held_out[1].size else None
        self._cold_start = None
        in_memory = not isinstance(split.train, StoredInteractions)
        self.train_rows_ = (
            split.train if in_memory and len(split.train) == self.seen_[1].size else None
        )
        self._tables = (data.users, data.items)
        self.history_ = History(fitted.history)
        self.parameters_ = {
            name: value.float() if value.is_floating_point() else value
            for name, value in (
                (name, value.detach().cpu()) for name, value in fitted.parameters.items()
            )
        }
        if every:
            assert data.uniform is not None  # noqa: S101 (asked above)
            pairs = np.stack([data.uniform.user, data.uniform.item]).astype(np.int64)
            self.parameters_[CALIBRATED] = torch.from_numpy(pairs)
        self.encoders_ = {key: encoder.state() for key, encoder in prepared.log.encoders.items()}
        self.report_ = training_report(prepared, fitted, time.perf_counter() - started)
        if (
            self.train_rows_ is not None
            and not self.settings.target_scale.labels
            and self.settings.loss == "squared"
        ):
            self.report_["training_mse"] = training_mse(self, self.train_rows_)
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
        require_device(device)
        self.device_ = device
        return self

    @overload
    def predict(
        self,
        users: Frame,
        items: None = None,
        *,
        scale: ScoreScale = ...,
        user_features: Frame | None = ...,
        item_features: Frame | None = ...,
        interval: float | None = ...,
    ) -> pl.DataFrame: ...

    @overload
    def predict(
        self,
        users: Any,
        items: Any,
        *,
        scale: ScoreScale = ...,
        user_features: Frame | None = ...,
        item_features: Frame | None = ...,
        interval: float,
    ) -> pl.DataFrame: ...

    @overload
    def predict(
        self,
        users: Any,
        items: Any,
        *,
        scale: ScoreScale = "rating",
        user_features: Frame | None = None,
        item_features: Frame | None = None,
    ) -> np.ndarray: ...

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
        """Predicted ratings of pairs given by ids, float32. Unknown ids get the average entity
        (cold start).

        A table of pairs (`user_id, item_id`) in place of ids comes back as `user_id, item_id,
        score, known`: `known` is false where the user or the item was neither in training nor in
        the features given.

        interval: a share such as 0.9: a frame `score, low, high` instead, with the interval that
        holds so many of the ratings that these users would give (models with a posterior:
        `spectrum` with uniform rows).

        scale: `rating`, on the scale of the log's ratings (such as 1 to 5), or `unit`, as the model
        was trained: ratings scaled to 0..1. A model of labels (`target="binary"`) predicts labels,
        0..1 or ±1, on either scale.
        user_features, item_features: side tables (id and features) of users and items that were not
        in training; where an id has a row there, its score rests on the features. Those that were
        in training are scored as trained. A single id goes with every id of the other side; two
        single ids give an array of one score.
        """
        self._require_fitted()
        check_choice("scale", scale, get_args(ScoreScale))
        pairs = pairs_of(users) if items is None else None
        users, items = _paired(users, items) if pairs is None else pairs
        left, right = self._entities("user", user_features), self._entities("item", item_features)
        user, item = left.rows(users), right.rows(items)
        if user.shape != item.shape:
            raise InputError(
                "users and items must be of one length", found=f"{user.size} and {item.size}"
            )
        factors = LowRank.of(
            *(torch.from_numpy(side.with_average).to(self.device_) for side in (left, right))
        )
        scores = pair_scores(factors, user, item)
        ends = {"score": scores}
        if interval is not None:
            ends = score_interval(self.uncertainty(), scores, user, item, interval)
        scaled = {name: self._on_scale(values, scale) for name, values in ends.items()}
        if pairs is not None:
            known = (user < len(left.ids)) & (item < len(right.ids))
            return pl.DataFrame(
                {"user_id": pairs[0], "item_id": pairs[1], **scaled, "known": known}
            )
        return scaled["score"] if interval is None else pl.DataFrame(scaled)

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
        self._require_fitted()
        known, ids = self.uncertainty(), (self.user_ids_, self.item_ids_)
        if by == "pair":
            return gamma_frame(known, by, level, ids=ids, pairs=_paired(users, items))
        tables = self._tables if table is None else (to_polars(table, Origin("table")),)
        return gamma_frame(known, by, level, ids=ids, tables=tables)

    def score(self, rows: Frame, y: None = None) -> float:
        """How good predictions are, higher is better: what scikit-learn's `cross_val_score` and
        `GridSearchCV` ask for.

        rows: a table as for `fit`. Minus the RMSE of its ratings; of a log of likes (no column
        `rating`) the share of rows of known users and items that are among their user's 10 best
        unseen ones.
        """
        self._require_fitted()
        if y is not None:
            raise InputError(
                "ratings belong into the column rating of the table", found="y", expected="nothing"
            )
        table, origin = with_our_names(to_polars(rows, Origin("rows"))), Origin("rows")
        likes = "rating" not in table.columns
        frame = clean_interactions(table.with_columns(rating=1.0) if likes else table, None, origin)
        if likes:
            pair = self.user_ids_.encode(frame["user_id"]), self.item_ids_.encode(frame["item_id"])
            known = (pair[0] >= 0) & (pair[1] >= 0)
            factors = self.user_factors_, self.item_factors_
            found = find_liked(factors, (pair[0][known], pair[1][known]), [self.seen_], 10)
            return float(found.within(10).mean()) if known.any() else 0.0
        if self.settings.target_scale.labels:
            raise InputError(
                "a model of labels has no RMSE",
                found="target=binary",
                hint="Give scoring= a function.",
            )
        error = self.predict(frame["user_id"], frame["item_id"]) - frame["rating"].to_numpy()
        return -float(np.sqrt(np.mean(error.astype(np.float64) ** 2)))

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may assume: no target apart from the table."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def trained_on(self, users: Any, items: Any) -> np.ndarray:
        """Which pairs, given by ids, are among the training rows: `evaluate` leaves them out, for
        they are known.

        So are uniform rows, where all of them calibrated the model.
        """
        self._require_fitted()
        user, item = self.user_ids_.encode(users), self.item_ids_.encode(items)
        known = (user >= 0) & (item >= 0)
        used = pairs_among(user[known], item[known], *self.seen_)
        if CALIBRATED in self.parameters_:
            n_items, pairs = len(self.item_ids_), self.parameters_[CALIBRATED].numpy()
            used |= np.isin(
                user[known].astype(np.int64) * n_items + item[known], pairs[0] * n_items + pairs[1]
            )
        known[known] = used
        return known

    def logged_pairs(self) -> PairsByUser:
        """All pairs of the log, those held out from training too: what nobody is recommended again."""
        self._require_fitted()
        if self.held_out_ is None:
            return self.seen_
        n_users, n_items = len(self.user_ids_), len(self.item_ids_)
        key = np.concatenate(
            [
                np.repeat(np.arange(n_users), np.diff(row_start)) * n_items + np.asarray(items)
                for row_start, items in (self.seen_, self.held_out_)
            ]
        )
        key.sort(kind="stable")  # two sorted runs
        return self.seen_[0] + self.held_out_[0], (key % n_items).astype(np.int32)

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
        history: a table `user_id, item_id, rating` of users by what they did, in training or not:
        they are folded in (`fold_in`), and recommended other items; users may then be left out.
        items: the only ones to recommend. exclude: items not to recommend. filter: a table
        `user_id, item_id` of the pairs that may be recommended.
        user_features: a side table (id and features) of users who were not in training, and are
        asked for.
        item_features: the same of items; those that were not in training join the candidates, after
        the others.
        """
        self._require_fitted()
        check_choice("scale", scale, get_args(ScoreScale))
        if exclude_seen not in (True, False, "training"):
            raise InputError(
                "exclude_seen out of range",
                found=exclude_seen,
                expected="True, False or 'training'",
            )
        if not isinstance(k, int | np.integer) or k < 1:
            raise InputError("k must be a positive integer", found=k)
        if history is not None:
            folded = fold_in_users(self, history, alone=True)
            options: dict[str, Any] = {
                "items": items,
                "exclude": exclude,
                "filter": filter,
                "scale": scale,
            }
            options |= {
                "user_features": user_features,
                "item_features": item_features,
                "stable": stable,
            }
            return folded.recommend(
                folded.user_ids_ if users is None else users, k, exclude_seen, **options
            )
        if users is None:
            raise InputError(
                "users must be ids", found="NoneType", expected="one id, several, or history=frame"
            )
        users = one_id(users)
        users = [users] if is_single_id(users) else require_ids(users, "users")
        excluded = (
            [self.seen_, self.held_out_][: 1 if exclude_seen == "training" else 2]
            if exclude_seen
            else []
        )
        left, right = self._entities("user", user_features), self._entities("item", item_features)
        codes = left.ids.encode(users)
        if (codes < 0).any():
            raise InputError(
                f"{int((codes < 0).sum())} unknown user(s)",
                found=list(users)[int(np.argmax(codes < 0))],
                expected=f"users of the training data ({self.user_ids_.ids.dtype} ids), or of user_features or history",
            )
        candidates = Candidates.of(right.ids, left.ids, codes, items, exclude, filter)
        k = min(int(k), candidates.items.size)
        if stable:
            self._require_path(user_features, item_features)
        factors = left.factors, torch.from_numpy(right.factors[candidates.items]).to(self.device_)
        known = self.uncertainty() if cautious else None
        blocks = [
            slice(start, start + USERS_PER_BLOCK) for start in range(0, codes.size, USERS_PER_BLOCK)
        ]
        parts = [
            self._best(codes[rows], rows, k, excluded, candidates, factors, stable, known)
            for rows in blocks
        ]
        if not parts:
            parts = [(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32), np.zeros((0, k)))]
        items, scores, last = (np.concatenate(part) for part in zip(*parts, strict=True))
        frame = pl.DataFrame(
            {
                "user_id": left.ids.decode(np.repeat(codes, k)),
                "item_id": right.ids.decode(items.ravel()),
                "score": scores.ravel(),  # unseen items only: what was seen scores -inf
                "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), codes.size),
            }
        )
        if stable:
            frame = frame.with_columns(gamma_max=last.ravel())
        frame = frame.filter(pl.col("score").is_finite())
        return frame.with_columns(score=self._on_scale(frame["score"].to_numpy(), scale))

    def fold_in(self, rows: Frame) -> Recommender:
        """A copy in which the users of `rows` (`user_id, item_id, rating`) are as these rows say,
        new users too.

        One exact least-squares step with the items held fixed; the rows are all that is known of
        these users. For `mf` whose L2 is a number, a user folded in with the training rows scores
        as trained. Items that the model does not know count for nothing. Without `rating` every row
        is a like.
        """
        self._require_fitted()
        return fold_in_users(self, rows)

    def partial_fit(self, rows: Frame) -> Self:
        """Take new rows in: their users and items, new ones too, are solved again from where they
        stand; others stay.

        What old rows say of them is what the fit ended at. `report_["partial_fit"]` says how many
        rows, users and items this concerned, and which share of all rows came after the last full
        fit: the larger, the more `fit` would gain.
        """
        self._require_fitted()
        done = partial_update(self, rows)
        self.report_ = {**self.report_, "partial_fit": [*self.report_.get("partial_fit", []), done]}
        self.train_rows_ = None
        return self

    def similar_items(self, items: Any, k: int = 10) -> pl.DataFrame:
        """The k items most like each of the given ones: `item_id, similar_id, similarity, rank`.

        Similarity: the correlation of two items' scores over all users, each user's mean score
        taken off; −1 to 1.
        """
        self._require_fitted()
        return similar(self, "item", items, k)

    def similar_users(self, users: Any, k: int = 10) -> pl.DataFrame:
        """The k users most like each of the given ones, as `similar_items`."""
        self._require_fitted()
        return similar(self, "user", users, k)

    def explain(self, user: Any, item: Any, history: Frame | None = None) -> pl.DataFrame:
        """What carries a predicted rating: `part, item_id, rating, contribution`; contributions add
        up to it.

        Parts: the average user, the user's features, each rated item, and the rest that these do
        not explain: next to 0 for `mf` whose L2 is a number. history: the user's ratings (`item_id,
        rating`), for a loaded model.
        """
        self._require_fitted()
        return explain_score(self, user, item, history)

    def cold_start(self) -> ColdStart:
        """What features say of users and items that were not in training; made when first asked
        for."""
        if self._cold_start is None:
            self._cold_start = ColdStart(self)
        return self._cold_start

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model as safetensors and JSON, atomically."""
        from puidrec.store import save_model

        self._require_fitted()
        save_model(self, Path(folder))

    def to_card(
        self,
        data: Dataset | None = None,
        split: Split | None = None,
        evaluation: Evaluation | None = None,
        audit: Audit | None = None,
    ) -> str:
        """A model card in Markdown: data, method, assumptions, metrics with intervals, and the
        verdict of an audit.

        What is not given is left out, or said to be unknown. Every run folder holds the card of its
        run.
        """
        from puidrec.report.card import model_card

        self._require_fitted()
        return model_card(self, data, split, evaluation, audit)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Recommender:
        """Read a saved model; a damaged or hostile folder gives one clear line and runs nothing."""
        from puidrec.store import load_model

        return load_model(Path(folder))

    def _on_scale(self, scores: np.ndarray, scale: ScoreScale) -> np.ndarray:
        """Inner products of factors as what they predict."""
        target = self.settings.target_scale
        values = target.of_scores(scores)
        return (
            self.rating_scale_.of_unit(values)
            if scale == "rating" and not target.labels
            else values
        )

    def _entities(self, side: Side, table: Frame | None) -> Entities:
        """One side as trained, and after it the cold-start entities of a table."""
        trained = (
            (self.user_ids_, self.user_factors_)
            if side == "user"
            else (self.item_ids_, self.item_factors_)
        )
        if table is None:
            return Entities(*trained)
        return Entities(*trained).with_cold_start(self.cold_start(), side, table)

    def _best(
        self,
        codes: np.ndarray,
        rows: slice,
        k: int,
        excluded: list[PairsByUser | None],
        candidates: Candidates,
        factors: tuple[np.ndarray, torch.Tensor],
        stable: bool,
        known: Uncertainty | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Best items of a block of users, one product, then a partial sort; and up to which Γ they
        stay, if asked."""
        scores = (torch.from_numpy(factors[0][codes]).to(self.device_) @ factors[1].T).cpu().numpy()
        if known is not None:
            scores = lower_scores(known, scores, codes, candidates.items)
        candidates.mask(scores, codes, rows, excluded)
        columns, best = top_k(scores, k)
        stays = np.ones(columns.shape)
        if stable:
            stays = gamma_max(scores, codes, columns, self.parameters_, candidates.items)
        return candidates.items[columns], best, stays

    def uncertainty(self) -> Uncertainty:
        """The posterior of the mixture; refused where there is none."""
        factors = self.user_factors_, self.item_factors_
        known = Uncertainty.of(self.parameters_, *factors, self.seen_)
        if known is None:
            raise InputError(
                "no uniform ratings calibrated this model, and the log alone cannot tell",
                found=self.settings.method,
                expected="spectrum, fitted with uniform ratings",
                hint="Give uniform interactions: some 50 ratings of items drawn at random.",
            )
        return known

    def _require_path(self, *features: Frame | None) -> None:
        """Refuse to speak of stability where the model has no path along Γ, or for entities that
        are not on it."""
        if "path.gamma" not in self.parameters_:
            raise InputError(
                "stable recommendations need a path along Γ",
                found=self.settings.method,
                expected="a spectrum model of a log with rating levels",
            )
        if any(table is not None for table in features):
            raise InputError(
                "stable recommendations are for users and items of training", found="features"
            )

    def _resume(self, path: Path, fingerprint: dict[str, Any]) -> Checkpoint:
        checkpoint = load_checkpoint(path)
        if checkpoint.state.get("run") != fingerprint:
            raise InputError(
                "the checkpoint belongs to other settings or data",
                file=path,
                hint="Remove it to start anew, or resume with the settings it was made with.",
            )
        return checkpoint

    def _require_fitted(self) -> None:
        if not hasattr(self, "user_factors_"):
            raise not_fitted(f"this {self.settings.method} model")


def _pause(seconds: float, state: Checkpoint, model_bytes: int) -> float:
    """How long to wait for the next checkpoint, after one that took so long."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors.values())
    by_size = 60.0 / WRITTEN_PER_MINUTE * size / model_bytes if size > CHECKPOINT_SMALL else 0.0
    return max(CHECKPOINT_SECONDS, seconds / CHECKPOINT_SHARE, by_size)


def _with_seed(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters in which the seed goes by its own name, not by `rng` or `random_state`; None
    leaves it as it is."""
    names = [name for name in ("rng", "random_state", "seed") if params.get(name) is not None]
    if len(names) > 1:
        raise InputError(
            "the seed was given twice",
            found=" and ".join(names),
            expected="rng, random_state or seed",
        )
    others = {
        name: value for name, value in params.items() if name not in ("rng", "random_state", "seed")
    }
    return {**others, **({"seed": params[names[0]]} if names else {})}


def _paired(users: Any, items: Any) -> tuple[Any, Any]:
    """Ids of pairs: a single id of one side goes with every id of the other."""
    users, items = one_id(users), one_id(items)
    alone = is_single_id(users), is_single_id(items)
    users = [users] if alone[0] else require_ids(users, "users")
    items = [items] if alone[1] else require_ids(items, "items")
    if alone == (True, False):
        users = users * len(items)
    elif alone == (False, True):
        items = items * len(users)
    return users, items


def _split_digest(split: Split) -> str:
    """Which rows train and choose: a checkpoint must not go on with others."""
    digest = hashlib.sha256(f"{split.protocol.name} {split.selection}".encode())
    if isinstance(split.train, StoredInteractions):
        digest.update(split.train.sha256.encode())
    in_memory = () if isinstance(split.train, StoredInteractions) else (split.train,)
    for rows in (
        *in_memory,
        split.validation,
        *([split.propensity] if split.propensity is not None else []),
    ):
        for column in (rows.user, rows.item, rows.label):
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()

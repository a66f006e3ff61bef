"""Which rows of a user carry a score: the sum of what each rated item, the features and the means
add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from puidrec.data.schema import Frame
from puidrec.entities import known_codes, one_id
from puidrec.errors import InputError
from puidrec.fold_in import prior_of, read_history, require_foldable

if TYPE_CHECKING:
    from puidrec.model import Recommender


def contributions(
    model: Recommender, user: int, item: int, rows: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """s_ui in parts that add up to it, on 0..1.

    With x = Bᵀ q (see `fold_in`), a rated item j with rating r adds x_iᵀ (Σ x xᵀ + ρ I)⁻¹ x_j (r −
    ⟨m_u, q_j⟩). What is left is `rest`: 0 up to the tolerance of the solver where the users'
    factors are at that optimum (`mf`).
    """
    prior = prior_of(model, "user")
    q = model.item_factors_.astype(np.float64)
    others, target = rows
    mean, x = prior.mean[user], q @ prior.basis
    own = x[others]
    weights = np.linalg.solve(own.T @ own + prior.penalty * np.eye(x.shape[1]), x[item])
    by_row = (own @ weights) * (target - q[others] @ mean)
    average = prior.unknown
    parts = {
        "average user": float(q[item] @ average),
        "features of the user": float(q[item] @ (mean - average)),
        "rows": by_row,
    }
    score = float(model.user_factors_[user].astype(np.float64) @ q[item])
    parts["rest"] = (
        score - parts["average user"] - parts["features of the user"] - float(by_row.sum())
    )
    return parts


def explain_score(model: Recommender, user: Any, item: Any, history: Frame | None) -> pl.DataFrame:
    """A table `part, item_id, rating, contribution` in ratings; the contributions add up to the
    predicted rating."""
    require_foldable(model)
    known = (
        int(known_codes(model.user_ids_, one_id(user, "user"), "user")[0]),
        int(known_codes(model.item_ids_, one_id(item, "item"), "item")[0]),
    )
    rows = _rows_of(model, known[0], history)
    if rows is None:
        raise InputError(
            "an explanation needs the ratings of the user",
            found="a loaded model, which keeps pairs and no ratings",
            hint="Give them: explain(user, item, history=frame).",
        )
    return _table(model, contributions(model, *known, rows), rows)


def _rows_of(
    model: Recommender, user: int, history: Frame | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Item codes and ratings (on 0..1) of a user: as given, or of training where this process knows
    them."""
    if history is not None:
        frame = read_history(model, history)
        item, rating = model.item_ids_.encode(frame["item_id"]), frame["rating"].to_numpy()
        item, rating = item[item >= 0], rating[item >= 0]
    elif model.train_rows_ is not None:
        own = slice(*model.seen_[0][user : user + 2])
        item, rating = model.train_rows_.item[own], model.train_rows_.rating[own]
    else:
        return None
    return item.astype(np.int64), model.rating_scale_.unit(rating).astype(np.float64)


def _table(
    model: Recommender, parts: dict[str, Any], rows: tuple[np.ndarray, np.ndarray]
) -> pl.DataFrame:
    """The parts in ratings, the largest rated items first."""
    scale = model.rating_scale_
    width = scale.high - scale.low
    order = np.argsort(-np.abs(parts["rows"]), kind="stable")
    rated = pl.DataFrame(
        {
            "part": pl.Series(["rated item"] * order.size, dtype=pl.String),
            "item_id": model.item_ids_.decode(rows[0][order]),
            "rating": scale.of_unit(rows[1][order]),
            "contribution": parts["rows"][order] * width,
        }
    )
    sums = {name: parts[name] * width for name in ("features of the user", "rest")}
    shown = {name: value for name, value in sums.items() if abs(value) > 1e-9 * width}
    first = {"part": ["average user"], "contribution": [parts["average user"] * width + scale.low]}
    last = pl.DataFrame(
        {"part": list(shown), "contribution": list(shown.values())},
        schema={"part": pl.String, "contribution": pl.Float64},
    )
    whole = pl.concat([pl.DataFrame(first), rated, last], how="diagonal")
    return whole.select(rated.columns)

"""The calls that users of implicit, RecTools and LensKit write first: each works, or is refused in
one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array

import puidrec as pr
from puidrec.errors import PuidError


@pytest.fixture(scope="module")
def given() -> SimpleNamespace:
    """Logs as the three packages have them, and a model of each kind of log."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((40, 25)) < 0.4)
    log = pd.DataFrame(
        {
            "user_id": [f"u{k}" for k in pairs[:, 0]],
            "item_id": [f"i{k}" for k in pairs[:, 1]],
            "rating": rng.integers(1, 6, len(pairs)),
        }
    )
    likes = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(40, 25))
    data = pr.Dataset.from_frame(log, scale=(1, 5))
    model = pr.Recommender("mf", dim=3, l2=0.1).fit(data, protocol="rd")
    implicit = pr.Recommender("all-rank", dim=3, l2=0.1).fit(pr.Dataset.from_matrix(likes))
    recos = model.recommend(log.user_id.unique(), k=5)
    return SimpleNamespace(
        log=log, likes=likes, data=data, model=model, implicit=implicit, recos=recos
    )


NEW = pd.DataFrame({"user_id": ["new"] * 3, "item_id": ["i1", "i2", "i3"], "rating": [5, 4, 1]})
CALLS: dict[str, Callable[[SimpleNamespace], Any]] = {
    # implicit
    "fit a CSR matrix of likes": lambda g: pr.Recommender("all-rank", dim=2, l2=0.1).fit(
        pr.Dataset.from_matrix(g.likes)
    ),
    "fit ALS by its name there": lambda g: pr.Recommender("als", factors=8),
    "recommend one user": lambda g: g.implicit.recommend(0, 10),
    "recommend many users": lambda g: g.implicit.recommend(np.arange(5), 10),
    "keep what they liked": lambda g: g.implicit.recommend(0, 10, exclude_seen=False),
    "leave items out": lambda g: g.implicit.recommend(0, 5, exclude=[1, 2, 3]),
    "only some items": lambda g: g.implicit.recommend(np.arange(3), 5, items=np.array([3, 4, 5])),
    "similar items": lambda g: g.implicit.similar_items(3, 5),
    "similar users": lambda g: g.implicit.similar_users([0, 1], 5),
    "a new user by a history": lambda g: g.implicit.recommend(history={"item_id": [1, 2, 3]}, k=5),
    "new rows": lambda g: pr.Recommender("mf", dim=2, l2=0.1).fit(g.log).partial_fit(NEW),
    "explain": lambda g: g.model.explain("u1", "i1"),
    "the factors": lambda g: (g.implicit.user_factors_, g.implicit.item_factors_),
    "save": lambda g: g.model.save(Path(g.folder) / "m"),
    "load": lambda g: pr.Recommender.load(Path(g.folder) / "nothing"),
    # RecTools
    "columns of RecTools": lambda g: pr.Dataset.from_frame(
        g.log.rename(columns={"rating": "weight"})
    ),
    "fit a pandas table": lambda g: pr.Recommender("bias").fit(g.log),
    "all users, as pandas has them": lambda g: g.model.recommend(g.log.user_id.unique(), k=10),
    "all users of the model": lambda g: g.model.recommend(g.model.user_ids_, k=10),
    "filter by a table": lambda g: g.model.recommend(
        ["u1", "u2"], k=5, exclude_seen=False, filter=g.log[["user_id", "item_id"]]
    ),
    "an unknown user": lambda g: g.model.recommend(["nobody"]),
    "metrics of a table of recommendations": lambda g: pr.evaluate(
        g.recos.to_pandas(),
        g.data.test,
        ["unseen-recall@5", "unseen-novelty@5", "unseen-mrr@5"],
        exclude=g.data.train,
    ),
    "a popularity baseline": lambda g: pr.Recommender("popularity").fit(g.log).recommend("u1", k=3),
    "metrics by activity": lambda g: pr.evaluate(g.model, g.data.test, "mse", by="activity").strata,
    "a table for slides": lambda g: pr.evaluate(g.model, g.data.test).to_frame(),
    # LensKit
    "columns of LensKit": lambda g: pr.Dataset.from_frame(
        g.log.set_axis(["user", "item", "rating"], axis=1)
    ),
    "predict a table of pairs": lambda g: g.model.predict(g.log[["user_id", "item_id"]]),
    "predict one user, many items": lambda g: g.model.predict("u1", g.log.item_id.unique()),
    "RMSE of predictions": lambda g: pr.evaluate(g.model, g.data.test, "rmse"),
    "a foreign model": lambda g: pr.evaluate(
        SimpleNamespace(predict=lambda u, i: np.zeros(len(u))), g.data.test, "mse"
    ),
    "a parameter that is not there": lambda g: pr.Recommender("mf", features=50),  # type: ignore[call-arg]
    "compare": lambda g: pr.compare(
        g.data, ["bias"], seeds=1, baselines=False, reference="bias"
    ).to_frame(),
    "compare with a table of scores": lambda g: compared(
        g, ("mine", g.log.rename(columns={"rating": "score"}))
    ),
    "compare with a fitted model": lambda g: compared(g, g.model.predict),
    "compare with what can be fitted": lambda g: compared(g, Mean, ("again", Mean())),
    "compare with lists where rows are rated": lambda g: compared(g, g.recos[["user_id", "rank"]]),
}


class Mean:
    """A wrapper around another package."""

    def fit(self, train: pl.DataFrame) -> None:
        self.mean = train["rating"].mean()

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return np.full(len(users), self.mean)


def compared(g: SimpleNamespace, *models: Any) -> pl.DataFrame:
    options: dict[str, Any] = {"seeds": 1, "baselines": False, "metrics": ["uauc", "mse"]}
    return pr.compare(g.data, ["bias", *models], **options).to_frame()


REFUSED = {
    "fit ALS by its name there": "unknown method",
    "load": "nothing",
    "an unknown user": "unknown user",
    "a parameter that is not there": "unknown setting",
    "compare with lists where rows are rated": "missing column",
}


def test_there_are_thirty() -> None:
    assert len(CALLS) >= 30


@pytest.mark.parametrize("name", CALLS)
def test_a_first_call(name: str, given: SimpleNamespace, tmp_path: Path) -> None:
    given.folder = tmp_path
    if name not in REFUSED:
        found = CALLS[name](given)
        if isinstance(found, pl.DataFrame | np.ndarray):
            assert len(found) > 0
            numbers = (
                found.select(pl.col(pl.Float32, pl.Float64)).to_numpy()
                if isinstance(found, pl.DataFrame)
                else found
            )
            assert not np.isinf(np.nan_to_num(numbers.astype(float))).any()
        return
    with pytest.raises(PuidError) as caught:
        CALLS[name](given)
    assert str(caught.value).splitlines() == [str(caught.value)]
    assert REFUSED[name] in str(caught.value)

"""dim and L2 chosen together on held-out logged rows: what is found, by whom, and what it costs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.methods import METHODS, dim_and_l2
from puidrec.model import Recommender
from puidrec.optimise.l2_path import DIMS, FACTORS, Choice
from puidrec.settings import DEFAULT_L2


def planted(columns: int, seed: int = 0, strength: float = 0.25) -> tuple[Dataset, np.ndarray]:
    """A log whose tastes lie in so many directions, and the expected ratings of all pairs."""
    rng, shape = np.random.default_rng(seed), (150, 100)
    left, right = (rng.normal(size=(n, columns)) for n in shape)
    truth = 0.5 + strength * left @ right.T / max(columns, 1) ** 0.5
    user, item = np.nonzero(rng.random(shape) < 0.3)
    rating = truth[user, item] + rng.normal(0, 0.1, user.size)
    log = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating})
    low, high = float(rating.min()), float(rating.max())
    return Dataset.from_frame(log, scale=(low, high)), (truth - low) / (high - low)


def fit(data: Dataset, method: str = "mf", **options) -> Recommender:
    return Recommender(method, backbone="mf", select="none", rng=0, **options).fit(data)


def error(model: Recommender, truth: np.ndarray) -> float:
    return float(np.mean((model.user_factors_ @ model.item_factors_.T - truth) ** 2))


@pytest.fixture(scope="module")
def chosen() -> dict[int, tuple[Recommender, Dataset, np.ndarray]]:
    """Logs of no, two and six directions, and the model of each."""
    found = {}
    for columns in (0, 2, 6):
        data, truth = planted(columns)
        found[columns] = fit(data), data, truth
    return found


def test_an_l2_that_leaves_no_vectors_does_not_end_the_path(chosen) -> None:
    """At the default L2 all vectors are 0, at half of it one column is left: only a quarter shows
    what there is."""
    _, data, _ = chosen[2]
    assert np.abs(fit(data, dim=2, l2=DEFAULT_L2).user_factors_[:, :2]).max() < 1e-3
    assert np.abs(fit(data, dim=2, l2=DEFAULT_L2 / 2).user_factors_[:, :2]).max(0).min() < 1e-3
    assert chosen[2][0].report_["chosen"]["l2_factor"] < 0.5


@pytest.mark.parametrize("columns", [0, 2, 6])
def test_no_fixed_choice_is_much_better_in_true_error(columns, chosen) -> None:
    """The rows that chose were held out of the log; the truth of all pairs, which nobody saw,
    agrees."""
    model, data, truth = chosen[columns]
    fixed = [
        error(fit(data, dim=dim, l2=l2), truth) for dim in (1, 2, 8) for l2 in (0.025, 0.1, 0.4)
    ]
    assert error(model, truth) <= 1.1 * min(fixed)
    assert error(model, truth) < 0.8 * max(fixed)


def test_the_report_has_the_numbers_that_were_used(chosen) -> None:
    model = chosen[2][0]
    about = model.report_["chosen"]
    assert (
        about["dim"] == model.report_["dim"] == model.dim_ == model.user_factors_.shape[1] - 2 > 1
    )
    assert model.l2_ == pytest.approx(DEFAULT_L2 * about["l2_factor"])
    assert about["l2_factor"] in FACTORS
    assert len(DIMS) <= about["tried"] + 3
    again = fit(chosen[2][1], dim=model.dim_, l2=model.l2_, l2_features=0.02 * about["l2_factor"])
    np.testing.assert_allclose(again.user_factors_, model.user_factors_, atol=1e-4)


def test_a_number_that_is_given_is_kept(chosen) -> None:
    data = chosen[2][1]
    both, dim, l2 = fit(data, dim=3, l2=0.2), fit(data, dim=3), fit(data, l2=0.2)
    assert "chosen" not in both.report_
    assert (dim.dim_, l2.l2_) == (3, 0.2)
    assert dim.report_["chosen"]["dim"] == 3
    assert l2.report_["chosen"]["l2_factor"] == 1.0


@pytest.mark.parametrize("method", ["ips", "puid-dr", "signed-rd"])
def test_dim_and_l2_are_those_of_the_log_whatever_the_method(method, chosen) -> None:
    model, data, _ = chosen[2]
    other = fit(data, method)
    assert (other.dim_, other.l2_) == (model.dim_, model.l2_)


def test_uniform_ratings_choose_nothing() -> None:
    data = simulate("mixed", 60, 40, density=0.3, rng=0).data
    flipped = Dataset.from_frame(
        data.logged.to_frame(),
        uniform=data.uniform.to_frame().with_columns(rating=6 - pl.col("rating")),
        scale=(1, 5),
    )
    one, other = (
        Recommender("mf", rng=0, backbone="mf").fit(d).report_["chosen"] for d in (data, flipped)
    )
    assert one == other


@pytest.mark.parametrize("bound", ["PATH_ROWS", "PATH_USERS"])
def test_large_logs_walk_it_on_some_of_their_users(bound, chosen, monkeypatch) -> None:
    model, data, truth = chosen[2]
    sizes = {"PATH_ROWS": len(data.logged), "PATH_USERS": data.n_users}
    monkeypatch.setattr(dim_and_l2, bound, sizes[bound] // 3)
    walked, choose = [], dim_and_l2.choose
    monkeypatch.setattr(
        dim_and_l2, "choose", lambda *a, **k: walked.append(a[0].log.n_users) or choose(*a, **k)
    )
    some = fit(data)
    assert "chosen" in some.report_
    assert walked == [data.n_users // 3]
    assert error(some, truth) < 1.2 * error(model, truth)


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].trains])
@pytest.mark.parametrize("with_uniform", [True, False])
def test_features_without_bins_are_refused_before_it_is_walked(
    method, with_uniform, monkeypatch, refusal
) -> None:
    """Whatever refuses them where dim and L2 are given."""
    given = simulate("mixed", 60, 40, density=0.3, rng=0).data
    ids = given.user_ids.ids
    names = pl.DataFrame({"user_id": ids, "street": [f"street {k}" for k in ids]})
    tables = {"uniform": given.uniform.to_frame()} if with_uniform else {}
    data = Dataset.from_frame(given.logged.to_frame(), users=names, scale=(1, 5), **tables)
    monkeypatch.setattr(dim_and_l2, "_walk", lambda *_: pytest.fail("walked"))
    try:
        Recommender(method, rng=0, dim=2, l2=0.1, epochs=1).fit(data)
    except InputError:
        words = METHODS[method].needs_uniform and not with_uniform
        expected = ["uniform"] if words else ["street", "an id cannot be a feature"]
        refusal(lambda: Recommender(method, rng=0).fit(data), *expected)


def test_one_tenth_is_held_out_where_rows_are_many(chosen, monkeypatch) -> None:
    model, data, truth = chosen[2]
    monkeypatch.setattr(dim_and_l2, "FEW_ROWS", 100)
    assert error(fit(data), truth) < 1.2 * error(model, truth)


def test_progress_tells_of_the_path(chosen) -> None:
    told: list[tuple[str, int]] = []
    model = Recommender("mf", backbone="mf", rng=0).fit(
        chosen[2][1], progress=lambda stage, done, *_: told.append((stage, done))
    )
    path = [done for stage, done in told if stage == "choice of dim and l2"]
    assert path == list(
        range(1, model.report_["chosen"]["tried"] + 1)
    )  # a step per fit that is compared
    assert told[: len(path)] == [("choice of dim and l2", k) for k in path]
    assert Choice(2, 0.5, 0.1, ((1, 1.0, 0.2),)).describe() == {
        "dim": 2,
        "l2_factor": 0.5,
        "tried": 1,
    }

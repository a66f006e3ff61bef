"""Ids in any container, parameters that a method has, and results that show themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import puidrec as pr
from puidrec.comparing.comparison import markdown
from puidrec.comparing.summary import DETERMINISTIC
from puidrec.errors import NoValueWarning
from puidrec.methods import METHODS
from puidrec.report.charts import canvas
from puidrec.settings import OWN, check_parameters


@pytest.fixture(scope="module")
def named() -> pd.DataFrame:
    """A log with text ids, as pandas 3 holds them."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((30, 20)) < 0.5)
    return pd.DataFrame(
        {
            "user_id": [f"u{k}" for k in pairs[:, 0]],
            "item_id": [f"i{k}" for k in pairs[:, 1]],
            "rating": rng.integers(1, 6, len(pairs)),
        }
    )


@pytest.fixture(scope="module")
def model(named: pd.DataFrame) -> pr.Recommender:
    return pr.Recommender("mf", dim=3, l2=0.1, epochs=20).fit(
        pr.Dataset.from_frame(named), protocol="rd"
    )


def test_an_object_is_there_before_torch_is() -> None:
    """Importing torch takes ten times as long as everything else that a new object needs."""
    code = "import sys, puidrec; repr(puidrec.Recommender()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


CONTAINERS: dict[str, Callable[[list[str]], Any]] = {
    "pandas unique": lambda ids: pd.Series(ids).unique(),
    "pandas index": pd.Index,
    "pandas categories": lambda ids: pd.Series(ids).astype("category").unique(),
    "text of NumPy": np.array,
    "objects of NumPy": lambda ids: np.array(ids, object),
    "new text of NumPy": lambda ids: np.array(ids, np.dtypes.StringDType()),
    "Polars": lambda ids: pl.Series("x", ids),
    "tuple": tuple,
    "IdMap": lambda ids: (
        pr.Dataset.from_frame(pl.DataFrame({"user_id": ids, "item_id": ids})).user_ids
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_ids_come_in_any_container(model: pr.Recommender, name: str) -> None:
    ids = sorted(["u1", "u2", "u7"])
    given = CONTAINERS[name](ids)
    assert model.recommend(given, k=2).equals(model.recommend(ids, k=2))
    np.testing.assert_array_equal(model.predict(given, "i1"), model.predict(ids, ["i1"] * 3))


def test_a_scalar_array_is_one_id(model: pr.Recommender) -> None:
    assert model.recommend(np.array("u1"), k=2).equals(model.recommend("u1", k=2))
    assert model.predict(np.array("u1"), np.str_("i1")).shape == (1,)


def test_a_table_of_pairs_says_which_are_known(
    model: pr.Recommender, refusal: Callable[..., str]
) -> None:
    pairs = pd.DataFrame({"user_id": ["u1", "nobody", "u1"], "item_id": ["i1", "i1", "nothing"]})
    frame = model.predict(pairs)
    assert frame.columns == ["user_id", "item_id", "score", "known"]
    assert frame["known"].to_list() == [True, False, False]
    np.testing.assert_array_equal(frame["score"], model.predict(pairs.user_id, pairs.item_id))
    refusal(lambda: model.predict(["u1"]), "items are missing")


@pytest.mark.parametrize(
    ("method", "given", "parts"),
    [
        ("mf", {"gamma": 2}, ("mf has no parameter gamma", "dim")),
        ("ips", {"alpha": 2.0}, ("ips has no parameter alpha", "min_propensity")),
        ("mf", {"liked": False}, ("mf has no parameter liked",)),
        ("mf", {"dim": "16"}, ("setting dim", "valid integer", "16")),
        ("mf", {"dim": True}, ("setting dim", "valid integer", "True")),
        ("mf", {"dim": -3}, ("dim", "-3", "1")),
        ("mf", {"l2": "0.1"}, ("setting l2", "valid number")),
    ],
)
def test_parameters_that_mean_nothing_are_refused(
    method: str, given: dict[str, Any], parts: tuple[str, ...], refusal: Callable[..., str]
) -> None:
    refusal(lambda: pr.Recommender(method, **given), *parts)  # type: ignore[arg-type]
    refusal(lambda: pr.Recommender(method).set_params(**given), *parts)


def test_a_method_has_what_a_search_would_vary() -> None:
    for spec in METHODS.values():
        own = [name for name in spec.search_space if name in OWN]
        assert all(OWN[name](spec) for name in own), spec.name


def test_copies_of_all_parameters_are_taken() -> None:
    for name in METHODS:
        params = pr.Recommender(name).get_params()
        check_parameters(name, params)
        assert pr.Recommender(**params).get_params() == params


def test_a_scale_that_is_not_the_ratings_is_no_silent_nan(named: pd.DataFrame) -> None:
    data = pr.Dataset.from_frame(named, scale=(0, 10))
    fitted = pr.Recommender("bias").fit(data, protocol="rd")
    with pytest.warns(
        NoValueWarning, match=re.escape("ratings from 7.5 on the scale 0 to 10 liked")
    ):
        pr.evaluate(fitted, data.test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pr.evaluate(fitted, data.test, "mse")["mse"] > 0.0


def test_one_metric_may_be_named_alone(model: pr.Recommender, named: pd.DataFrame) -> None:
    test = pr.Dataset.from_frame(named).test
    assert pr.evaluate(model, test, "auc").means == pr.evaluate(model, test, ["auc"]).means


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Any, refusal: Callable[..., str]) -> None:
    (tmp_path / "u.data").write_text("1\t2\t3\n")
    refusal(lambda: pr.load_dataset("files", tmp_path / "u.data"), "a folder", "--logged", "u.data")


def test_equal_ratings_are_said_to_be_likes(named: pd.DataFrame) -> None:
    assert "every one a like" in repr(pr.Dataset.from_frame(named.assign(rating=3)))
    assert "like" not in repr(pr.Dataset.from_frame(named))


def test_an_evaluation_is_a_table(model: pr.Recommender, named: pd.DataFrame) -> None:
    result = pr.evaluate(model, pr.Dataset.from_frame(named).test, ["uauc", "rmse"])
    frame = result.to_frame()
    assert frame["metric"].to_list() == ["uauc", "rmse"]
    assert frame["value"].to_list() == [result["uauc"], result["rmse"]]
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    assert frame["users"][0] == len(result.per_user["uauc"])


def test_the_history_is_a_table_and_a_chart(model: pr.Recommender, tmp_path: Any) -> None:
    frame = model.history_.to_frame()
    assert frame.height == len(model.history_) == model.report_["epochs"]
    (line,) = model.history_.plot().lines
    np.testing.assert_allclose(line.get_ydata(), frame["loss_phi"])
    model.save(tmp_path / "m")
    assert pr.Recommender.load(tmp_path / "m").history_.to_frame().equals(frame)


def test_results_show_themselves_escaped(model: pr.Recommender, named: pd.DataFrame) -> None:
    data = pr.Dataset.from_frame(named, name="<b>")
    shown = [
        data,
        model,
        pr.Recommender("mf"),
        pr.evaluate(model, data.test, "auc"),
        model.history_,
    ]
    for result in shown:
        page = result._repr_html_()
        assert page.startswith("<div>")
        assert page.count("<") == page.count(">")
        assert "<b>" not in page


def test_seeds_that_change_nothing_are_said_to(named: pd.DataFrame) -> None:
    timed = pr.Dataset.from_frame(named.assign(timestamp=range(len(named))))
    several = pr.compare(
        timed, ["bias"], seeds=2, protocol="temporal", baselines=False, reference="bias"
    )
    page = markdown(several.rows, several.metrics, "bias")
    assert "± 0.0000" not in page
    assert DETERMINISTIC in page


def test_a_chart_is_a_picture_in_a_notebook(model: pr.Recommender) -> None:
    for chart in (model.history_.plot(), canvas(4.0, 3.0, "title", "caption")[0]):
        assert chart._repr_png_().startswith(b"\x89PNG")

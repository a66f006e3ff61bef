from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import IdMap
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.base import Exposure
from puidrec.exposure.given import Given
from puidrec.testing.propensity import all_pairs, small_exposure


def test_log_rows_get_exactly_their_own_value():
    data = small_exposure()
    np.testing.assert_array_equal(
        Given().fit(data).predict(data.log.user, data.log.item), data.given
    )


def test_a_pair_that_was_not_given_is_refused_or_gets_the_overall_rate():
    data = small_exposure()
    with pytest.raises(InputError, match=r"no propensity was given for [\d,]+ of 2,400 pairs"):
        Given().fit(data).predict(*all_pairs(data))
    p = Given(missing="rate").fit(data).predict(*all_pairs(data))
    seen = np.zeros(data.n_pairs, bool)
    seen[data.log.user * data.counts.n_items + data.log.item] = True
    assert (p[~seen] == data.rate).all()
    np.testing.assert_array_equal(np.sort(p[seen]), np.sort(data.given))


@pytest.mark.parametrize("form", ["array", "npy", "text"])
def test_a_matrix_answers_for_every_pair(form, tmp_path):
    data = small_exposure()
    matrix = np.random.default_rng(0).uniform(0.1, 0.9, (data.counts.n_users, data.counts.n_items))
    if form == "array":
        given = Given(matrix=matrix)
    elif form == "npy":
        np.save(tmp_path / "p.npy", matrix)
        given = Given(file=tmp_path / "p.npy")
    else:
        np.savetxt(tmp_path / "p.ascii", matrix)
        given = Given(file=str(tmp_path / "p.ascii"))
    np.testing.assert_allclose(
        given.fit(data).predict(*all_pairs(data)), matrix.ravel(), rtol=1e-12
    )
    assert given.describe()["source"] == ("matrix" if form == "array" else "file")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_is_read_in_the_callers_ids(form, tmp_path):
    data = small_exposure()
    users = IdMap(pl.Series([f"u{k:03}" for k in range(data.counts.n_users)]))
    items = IdMap(pl.Series(range(1000, 1000 + data.counts.n_items)))
    table = pl.DataFrame(
        {
            "user_id": users.decode(data.log.user),
            "item_id": items.decode(data.log.item),
            "propensity": data.given,
        }
    ).vstack(pl.DataFrame({"user_id": ["stranger"], "item_id": [1000], "propensity": [0.5]}))
    path = tmp_path / f"p.{form}"
    table.sample(fraction=1, shuffle=True, seed=0).write_csv(
        path
    ) if form == "csv" else table.write_parquet(path)
    fitted = Given(file=path).fit(replace(data, given=None, ids=(users, items)))
    np.testing.assert_allclose(fitted.predict(data.log.user, data.log.item), data.given)
    with pytest.raises(InputError, match="needs the caller's ids"):
        Given(file=path).fit(replace(data, ids=None))


def test_wrong_sources_are_input_errors(tmp_path):
    data = small_exposure()
    with pytest.raises(InputError, match="no propensities were given"):
        Given().fit(replace(data, given=None))
    with pytest.raises(InputError, match=r"wrong shape; found \(3, 3\); expected \(60, 40\)"):
        Given(matrix=np.ones((3, 3))).fit(data)
    with pytest.raises(InputError, match="not both"):
        Given(matrix=np.ones((3, 3)), file="p.npy")
    with pytest.raises(InputError, match="missing"):
        Given(missing="guess")
    for name in ("absent.npy", "absent.txt"):
        with pytest.raises(InputError, match="cannot read a matrix"):
            Given(file=tmp_path / name).fit(data)
    ids = (IdMap(pl.Series(range(60))), IdMap(pl.Series(range(40))))
    with pytest.raises(InputError, match="cannot read a table"):
        Given(file=tmp_path / "absent.csv").fit(replace(data, ids=ids))
    (tmp_path / "short.csv").write_text("user_id,item_id\n1,2\n")
    with pytest.raises(InputError, match="propensity"):
        Given(file=tmp_path / "short.csv").fit(replace(data, ids=ids))
    (tmp_path / "foreign.csv").write_text("user_id,item_id,propensity\n100,200,0.5\n")
    with pytest.raises(InputError, match="no pair of the table"):
        Given(file=tmp_path / "foreign.csv").fit(replace(data, ids=ids))


def test_nan_in_a_matrix_is_an_error_and_zero_is_clipped_and_counted():
    data = small_exposure()
    matrix = np.full((60, 40), 0.5)
    matrix[data.log.user[0], data.log.item[0]] = 0.0
    fitted = Given(matrix=matrix, low=0.01).fit(data)
    assert fitted.describe()["share_clipped"] == pytest.approx(1 / data.n_seen)
    assert fitted.describe()["smallest"] == 0.01
    matrix[data.log.user[0], data.log.item[0]] = np.nan
    with pytest.raises(InputError, match=r"1 of .* not a number"):
        Given(matrix=matrix).fit(data)


def test_rows_that_a_split_holds_out_keep_the_propensity_they_came_with():
    simulation = simulate("pair", n_users=40, n_items=30, rng=1)
    log = simulation.data.logged
    column = pl.Series("propensity", np.random.default_rng(0).uniform(0.1, 0.9, len(log)))
    data = replace(simulation.data, logged=replace(log, frame=log.frame.with_columns(column)))
    split = data.split("rd", 0, select="observational")
    held_out = split.validation
    assert len(held_out)
    fitted = Given().fit(Exposure.from_rows(data, split.train, split.propensity))
    np.testing.assert_array_equal(fitted.predict(held_out.user, held_out.item), held_out.propensity)

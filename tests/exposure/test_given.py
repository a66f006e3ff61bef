from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, Given
from puidrec.testing.propensity import all_pairs, small_exposure


def test_log_rows_get_exactly_their_own_value():
    data = small_exposure()
    np.testing.assert_array_equal(
        Given().fit(data).predict(data.log.user, data.log.item), data.given
    )


def test_a_pair_that_was_not_given_is_refused():
    data = small_exposure()
    with pytest.raises(InputError, match=r"no propensity was given for [\d,]+ of 2,400 pairs"):
        Given().fit(data).predict(*all_pairs(data))


def test_without_the_column_it_says_so():
    with pytest.raises(InputError, match="no propensities were given"):
        Given().fit(replace(small_exposure(), given=None))


def test_nan_is_an_error_and_zero_is_clipped_and_counted():
    data = small_exposure()
    values = data.given.copy()
    values[0] = 0.0
    fitted = Given(low=0.01).fit(replace(data, given=values))
    assert fitted.describe()["share_clipped"] == pytest.approx(1 / data.n_seen)
    assert fitted.describe()["smallest"] == 0.01
    values[0] = np.nan
    with pytest.raises(InputError, match=r"1 of .* not a number"):
        Given().fit(replace(data, given=values))


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

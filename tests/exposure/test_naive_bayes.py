from dataclasses import replace

import numpy as np
import pytest

from puidrec.data import on_disk
from puidrec.errors import InputError
from puidrec.exposure import base
from puidrec.exposure.base import Exposure, NaiveBayes, Rated
from puidrec.testing.propensity import small_exposure


def selected(n_users=400, n_items=200, seed=0):
    """Ratings in which only the rating drives exposure; returns the data and P(o | r)."""
    random = np.random.default_rng(seed)
    rating = random.choice([1.0, 2.0, 3.0], p=[0.6, 0.3, 0.1], size=(n_users, n_items))
    by_level = np.array([0.02, 0.05, 0.3])
    user, item = np.nonzero(random.random(rating.shape) < by_level[rating.astype(int) - 1])
    some = random.permutation(rating.size)[:20_000]
    bins = np.zeros(n_users, np.int32), np.zeros(n_items, np.int32)
    uniform = Rated(some // n_items, some % n_items, rating.ravel()[some])
    log = {"user_bin": bins[0], "item_bin": bins[1], "rating": rating[user, item]}
    return Exposure.from_log(user, item, **log, uniform=uniform), by_level


def test_recovers_exposure_that_depends_on_the_rating():
    data, by_level = selected()
    p = (
        NaiveBayes()
        .fit(data)
        .predict(np.zeros(3, int), np.zeros(3, int), rating=np.array([1.0, 2.0, 3.0]))
    )
    np.testing.assert_allclose(p, by_level, rtol=0.08)


def test_an_unknown_rating_gets_the_overall_rate_which_is_the_mean_over_ratings(monkeypatch):
    monkeypatch.setattr(base, "SMOOTHING", 1e-9)
    data, _ = selected()
    fitted = NaiveBayes().fit(data)
    mean = fitted.predict(data.uniform.user, data.uniform.item, rating=data.uniform.rating).mean()
    overall = fitted.predict(np.zeros(1, int), np.zeros(1, int))[0]
    assert overall == pytest.approx(data.n_seen / data.n_pairs, rel=1e-3)
    assert overall == pytest.approx(mean, rel=1e-6)


def test_the_harmonic_identity_of_the_log(monkeypatch):
    """Σ over the log of 1/P(o|r) is |D| when nothing is smoothed: the weights rebuild the
    population."""
    monkeypatch.setattr(base, "SMOOTHING", 1e-9)
    data, _ = selected()
    p = NaiveBayes().fit(data).predict(data.log.user, data.log.item, rating=data.log.rating)
    assert (1 / p).sum() == pytest.approx(data.n_pairs, rel=1e-3)


def test_smoothing_spreads_pseudo_ratings_evenly(monkeypatch):
    """By hand: log 5, 5, 1 and uniform 1, 1, 5, 1 with two pseudo-ratings: shares (2, 3)/5 and (4,
    2)/6."""
    monkeypatch.setattr(base, "SMOOTHING", 2.0)
    user, item = np.array([0, 0, 1]), np.array([0, 1, 1])
    uniform = Rated(np.zeros(4, int), np.zeros(4, int), np.array([1.0, 1.0, 5.0, 1.0]))
    bins = {"user_bin": np.zeros(2, np.int32), "item_bin": np.zeros(3, np.int32)}
    data = Exposure.from_log(user, item, rating=np.array([5.0, 5.0, 1.0]), uniform=uniform, **bins)
    p = NaiveBayes().fit(data).predict(user[:2], item[:2], rating=np.array([1.0, 5.0]))
    np.testing.assert_allclose(p, [data.rate * 2 / 5 / (4 / 6), data.rate * 3 / 5 / (2 / 6)])


def test_a_level_without_uniform_ratings_stays_finite():
    data = small_exposure()
    no_fives = data.uniform.rating < 5
    uniform = Rated(
        data.uniform.user[no_fives], data.uniform.item[no_fives], data.uniform.rating[no_fives]
    )
    assert (data.log.rating == 5).any()
    p = (
        NaiveBayes()
        .fit(replace(data, uniform=uniform))
        .predict(data.log.user, data.log.item, rating=data.log.rating)
    )
    assert ((p > 0) & (p <= 1)).all()


def test_without_uniform_rows_or_with_a_strange_rating_it_says_what_is_missing():
    data = small_exposure()
    with pytest.raises(InputError, match="needs uniformly drawn ratings"):
        NaiveBayes().fit(replace(data, uniform=None))
    with pytest.raises(InputError, match="needs the ratings of the log"):
        NaiveBayes().fit(replace(data, log=None))
    with pytest.raises(
        InputError, match=r"1 ratings are of a level never seen in fitting; found 2.5"
    ):
        NaiveBayes().fit(data).predict(
            np.zeros(2, int), np.zeros(2, int), rating=np.array([3.0, 2.5])
        )
    with pytest.raises(InputError, match="one rating per pair"):
        NaiveBayes().fit(data).predict(np.zeros(2, int), np.zeros(2, int), rating=np.array([3.0]))


def test_rows_are_counted_in_parts(monkeypatch):
    data, _ = selected()
    whole = NaiveBayes().fit(data)
    monkeypatch.setattr(on_disk, "CHUNK", 1_000)
    np.testing.assert_array_equal(NaiveBayes().fit(data).by_level_, whole.by_level_)

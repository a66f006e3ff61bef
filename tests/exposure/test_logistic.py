from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from puidrec.exposure import additive
from puidrec.exposure.additive import Logistic, fit_scores
from puidrec.exposure.base import Exposure
from puidrec.testing.propensity import all_pairs, small_exposure


def with_numbers(seed=0, n_users=150, n_items=120, slopes=((0.8, -0.4), (0.6,))):
    """Exposure driven by continuous features; returns it and the true log-odds of D."""
    random = np.random.default_rng(seed)
    x, z = (
        random.normal(size=(n_users, len(slopes[0]))),
        random.normal(size=(n_items, len(slopes[1]))),
    )
    truth = (x @ slopes[0])[:, None] + z @ slopes[1] - 2.5
    user, item = np.nonzero(random.random(truth.shape) < expit(truth))
    data = Exposure.from_log(
        user,
        item,
        user_bin=np.zeros(n_users, np.int32),
        item_bin=np.zeros(n_items, np.int32),
        user_features=sparse.csr_array(x),
        item_features=sparse.csr_array(z),
    )
    return data, truth.ravel()


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_equals_scikit_learn_on_every_pair_of_d(ridge, monkeypatch):
    monkeypatch.setattr(additive, "RIDGE", ridge)
    data, _ = with_numbers(n_users=40, n_items=30)
    users, items = all_pairs(data)
    rows = np.hstack([data.user_features.toarray()[users], data.item_features.toarray()[items]])
    seen = np.zeros(users.size, bool)
    seen[data.log.user * 30 + data.log.item] = True
    oracle = LogisticRegression(C=1 / ridge, tol=1e-12, max_iter=10_000, solver="newton-cg").fit(
        rows, seen
    )
    p = Logistic().fit(data).predict(users, items)
    np.testing.assert_allclose(logit(p), oracle.decision_function(rows), atol=1e-5)


def test_without_features_the_bins_are_the_features():
    data = small_exposure()
    bare = Exposure(data.counts, data.log)
    pairs = all_pairs(data)
    np.testing.assert_allclose(
        Logistic().fit(bare).predict(*pairs), Logistic().fit(data).predict(*pairs)
    )


def test_few_levels_give_the_optimum_of_all_pairs(monkeypatch):
    """Nearly every user and item is different; the gradient over all pairs is small."""
    data, truth = with_numbers(n_users=400, n_items=300)
    pairs = all_pairs(data)
    whole = Logistic().fit(data).predict(*pairs)
    monkeypatch.setattr(additive, "LEVELS", 100)
    p = Logistic().fit(data).predict(*pairs)
    assert np.sqrt(np.mean((logit(whole) - truth.ravel()) ** 2)) < 0.15
    np.testing.assert_allclose(logit(p), logit(whole), atol=2e-3)
    assert p.sum() == pytest.approx(data.n_seen, rel=1e-4)


def test_counts_alone_are_enough():
    data, _ = with_numbers()
    pairs = all_pairs(data)
    np.testing.assert_array_equal(
        Logistic().fit(data).predict(*pairs),
        Logistic().fit(replace(data, log=None)).predict(*pairs),
    )


def test_the_optimum_is_reached_where_columns_differ_in_scale_by_far():
    """As pseudo-features are, of thousands of distinct rows: the slope of the loss vanishes."""
    random = np.random.default_rng(0)
    scales = np.geomspace(1e-2, 3.0, 30)
    slopes = random.normal(size=30) / scales / 8
    data, _ = with_numbers(1, 2000, 1500, (tuple(slopes * scales), (0.6,)))
    data = replace(data, user_features=sparse.csr_array(data.user_features.toarray() * scales))
    constant, user, item = fit_scores(data)
    p = expit(constant + user[:, None] + item)
    x = data.user_features.toarray()
    beta = np.linalg.lstsq(x, user, rcond=None)[0]
    slope = x.T @ (p.sum(1) - data.counts.user_degree) + beta
    assert np.abs(slope / np.abs(x).sum(0)).max() < 1e-3 * data.rate * 1500


def test_feature_scores_are_the_linear_predictor_of_each_side():
    data, truth = with_numbers(n_users=400, n_items=300)
    _, user, item = fit_scores(data)
    found = (user[:, None] + item).ravel()
    assert np.corrcoef(found, truth)[0, 1] > 0.99

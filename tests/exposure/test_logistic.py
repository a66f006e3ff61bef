from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from puidrec.errors import InputError
from puidrec.exposure import additive
from puidrec.exposure.additive import Logistic, feature_scores
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


def sampled(monkeypatch, size: int) -> None:
    monkeypatch.setattr(additive, "TABLE_BUDGET", 0)
    monkeypatch.setattr(additive, "SAMPLE", size)


def test_both_modes_recover_the_truth_and_agree(monkeypatch):
    data, truth = with_numbers()
    pairs = all_pairs(data)
    whole = logit(Logistic().fit(data).predict(*pairs))
    sampled(monkeypatch, 100_000)
    sample = logit(Logistic().fit(data).predict(*pairs))
    assert np.sqrt(np.mean((whole - truth) ** 2)) < 0.15
    assert np.sqrt(np.mean((sample - whole) ** 2)) < 0.05


def test_a_sample_of_the_seen_pairs_is_moved_back_to_d(monkeypatch):
    data, truth = with_numbers(n_users=400, n_items=300)
    sampled(monkeypatch, 4000)
    p = Logistic().fit(data).predict(*all_pairs(data))
    assert p.sum() == pytest.approx(data.n_seen, rel=0.001)
    assert np.sqrt(np.mean((logit(p) - truth) ** 2)) < 0.25


def test_only_what_is_too_large_to_tabulate_is_sampled(monkeypatch):
    assert Logistic().fit(small_exposure()).describe()["mode"] == "cells"
    data, _ = with_numbers(n_users=2000, n_items=1100)
    monkeypatch.setattr(additive, "SAMPLE", 2000)
    assert Logistic().fit(data).describe()["mode"] == "sample"
    with pytest.raises(InputError, match="expected the log itself"):
        Logistic().fit(replace(data, log=None))


def test_feature_scores_are_the_linear_predictor_of_each_side():
    data, truth = with_numbers(n_users=400, n_items=300)
    user, item = feature_scores(data)
    found = (user[:, None] + item).ravel()
    assert np.corrcoef(found, truth)[0, 1] > 0.99
    assert feature_scores(Exposure(data.counts)) == (None, None)

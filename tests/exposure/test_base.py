"""Exposure from data sets, and propensities against a simulator that knows the truth."""

import numpy as np
import polars as pl
import pytest
from scipy.special import logit

from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.exposure import Exposure, make_propensity
from puidrec.exposure.additive import fit_two_way
from puidrec.exposure.counts import ExposureCounts
from puidrec.testing.propensity import all_pairs

synthetic = pytest.importorskip("puidrec.data.synthetic")


@pytest.fixture(scope="module")
def worlds():
    return {name: synthetic.simulate(name, rng=3) for name in ("entity", "no-confounding")}


def tiny() -> Dataset:
    user, item = (index.ravel() for index in np.indices((12, 10)))
    keep = (user * 7 + item * 3) % 4 == 0
    frame = pl.DataFrame({"user_id": user, "item_id": item, "rating": (user + item) % 5 + 1.0})
    logged = frame.filter(pl.Series(keep)).with_columns(propensity=pl.lit(0.25))
    return Dataset.from_frame(logged, uniform=frame.filter(pl.Series(~keep)), scale=(1, 5))


def test_from_rows_takes_the_training_rows_and_the_uniform_share_held_out():
    data = tiny()
    split = data.split("rd", 0)
    exposure = Exposure.from_rows(data, split.train, split.propensity)
    assert exposure.n_seen == len(split.train)
    assert exposure.n_pairs == data.n_pairs
    np.testing.assert_array_equal(exposure.log.rating, split.train.rating)
    assert exposure.uniform.rating.size == len(split.propensity)
    np.testing.assert_array_equal(exposure.given, split.train.propensity)
    assert exposure.counts.cells.shape == (1, 1), "no features, one bin"


def test_counts_of_the_caller_are_used_and_checked():
    data = tiny()
    rows, bins = data.split().train, np.arange(12, dtype=np.int32) % 3
    counts = ExposureCounts.from_pairs(rows.user, rows.item, bins, np.zeros(10, np.int32))
    assert Exposure.from_rows(data, rows, counts=counts).counts.cells.shape == (3, 1)
    none = np.zeros(0, np.int64)
    with pytest.raises(InputError, match=r"counts of another population.*12 users and 10 items"):
        Exposure.from_rows(
            data,
            rows,
            counts=ExposureCounts.from_pairs(none, none, bins[:5], np.zeros(10, np.int32)),
        )


def test_an_empty_log_is_refused():
    none = np.zeros(0, np.int64)
    empty = Exposure.from_log(
        none, none, user_bin=np.zeros(3, np.int32), item_bin=np.zeros(2, np.int32)
    )
    with pytest.raises(InputError, match="no pair was seen"):
        make_propensity("cells").fit(empty)


def test_counts_alone_suffice_where_no_rating_is_needed(worlds):
    data = worlds["entity"].data
    counts = Exposure.from_rows(data, data.split().train).counts
    for name in ("cells", "two-way", "logistic"):
        assert (
            make_propensity(name)
            .fit(Exposure(counts))
            .predict(np.zeros(1, int), np.zeros(1, int))
            .size
            == 1
        )


def log_loss(p: np.ndarray, truth: np.ndarray) -> float:
    return float(-(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean())


def fitted(simulation, name, **options):
    exposure = Exposure.from_rows(simulation.data, simulation.data.split().train)
    pairs = all_pairs(exposure)
    return (
        make_propensity(name, **options).fit(exposure),
        pairs,
        simulation.truth.true_propensity(*pairs),
    )


def test_two_way_recovers_confounders_that_belong_to_users_and_items(worlds):
    two_way, pairs, truth = fitted(worlds["entity"], "two-way")
    p = two_way.predict(*pairs)
    assert np.corrcoef(logit(p), logit(truth))[0, 1] > 0.9
    others = [fitted(worlds["entity"], name)[0].predict(*pairs) for name in ("cells", "logistic")]
    nominal = worlds["entity"].truth.propensity(*pairs)
    floor = log_loss(truth, truth)
    assert log_loss(p, truth) - floor < 0.4 * min(
        log_loss(q, truth) - floor for q in [*others, nominal]
    )


def test_two_way_finds_no_hidden_trait_where_there_is_none(worlds):
    data = worlds["no-confounding"].data
    two_way, pairs, truth = fitted(worlds["no-confounding"], "two-way")
    described = two_way.describe()
    assert described["user_effect_sd"] < 0.15
    assert described["item_effect_sd"] < 0.15
    bins_only = fit_two_way(Exposure.from_rows(data, data.split().train).counts).ridge
    assert bins_only.user**-0.5 > 0.2, "what bins cannot hold passes for a trait"
    assert np.corrcoef(logit(two_way.predict(*pairs)), logit(truth))[0, 1] > 0.9


@pytest.mark.parametrize("name", ["cells", "logistic", "two-way"])
def test_predictions_are_calibrated_over_the_whole_range(worlds, name):
    """By decile of the prediction, the mean true propensity is the mean prediction."""
    propensity, pairs, truth = fitted(worlds["no-confounding"], name)
    p = propensity.predict(*pairs)
    for group in np.array_split(np.argsort(p, kind="stable"), 10):
        assert p[group].mean() == pytest.approx(truth[group].mean(), rel=0.15)


def test_inverse_weights_of_two_way_rebuild_the_mean_rating(worlds):
    """The confounded log overstates ratings; weights from recovered traits undo most of it, nominal
    ones do not."""
    simulation = worlds["entity"]
    two_way, pairs, _ = fitted(simulation, "two-way")
    truth = simulation.truth.rating(*pairs).mean()
    train = simulation.data.split().train
    nominal = simulation.truth.propensity(train.user, train.item)
    error = [
        abs(np.average(train.rating, weights=1 / p) - truth)
        for p in (two_way.predict(train.user, train.item), nominal, np.ones(len(train)))
    ]
    assert error[0] < 0.5 * error[1]
    assert error[0] < 0.35 * error[2]


@pytest.mark.real_data
def test_propensities_of_coat_sum_to_the_log(data_root):
    from puidrec.data.sources import load_dataset

    data = load_dataset("coat", data_root / "coat")
    split = data.split()
    exposure = Exposure.from_rows(data, split.train, split.propensity)
    for name in ("cells", "two-way", "naive-bayes"):
        propensity = make_propensity(name).fit(exposure)
        if name != "naive-bayes":
            assert propensity.predict(*all_pairs(exposure)).sum() == pytest.approx(6960, rel=0.01)
    rows = split.train.user, split.train.item
    upstream, two_way = (make_propensity(name).fit(exposure) for name in ("given", "two-way"))
    agreement = np.corrcoef(*(np.log(p.predict(*rows)) for p in (upstream, two_way)))[0, 1]
    assert agreement > 0.6, "the propensities that come with Coat tell items apart as these do"

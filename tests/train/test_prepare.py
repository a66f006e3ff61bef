from __future__ import annotations

import numpy as np
import pytest

from puidrec.settings import Settings
from puidrec.train.prepare import DEFAULT_GAMMA, Prepared


def test_targets_on_every_scale(prepare) -> None:
    rating = prepare("mf")
    stars = rating.rows.rating
    np.testing.assert_allclose(rating.target, (stars - 1) / 4)
    liked = stars >= 4
    np.testing.assert_array_equal(prepare("mf", target="binary").target, np.where(liked, 1, -1))
    np.testing.assert_array_equal(prepare("signed-rd", target="binary").target, liked.astype(float))


def test_bounds_surround_the_inverse_propensity(prepare) -> None:
    plain, wide = prepare("ips").observed("box"), prepare("rd-ips", gamma=2.0).observed("box")
    inverse = 1.0 / prepare("ips").row_propensity
    np.testing.assert_allclose(plain.bounds.a, inverse, rtol=1e-6)
    assert plain.bounds.a is plain.bounds.b
    np.testing.assert_allclose(wide.bounds.a, 1 + (inverse - 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(wide.bounds.b, 1 + (inverse - 1) * 2, rtol=1e-6)
    unit = prepare("mf").observed("unit").bounds
    np.testing.assert_array_equal(unit.a, np.ones(len(unit.a)))


def test_gamma_is_one_a_number_or_a_rule(prepare) -> None:
    def gamma(*args, **given):
        prepared = prepare(*args, **given)
        return prepared.gamma.at(prepared.rows.user, prepared.rows.item)

    assert np.allclose(gamma("ips"), 1.0)
    assert np.allclose(gamma("rd-ips"), DEFAULT_GAMMA)
    assert np.allclose(gamma("rd-ips", gamma=3.0), 3.0)
    assert np.allclose(gamma("puid-ips", gamma=3.0), 3.0)
    personal = gamma("puid-ips", gamma="exposure-gap")
    assert personal.min() >= 1
    assert personal.std() > 0
    doubled = gamma("puid-ips", gamma="exposure-gap", alpha=2.0, beta=2.0)
    assert doubled.mean() > personal.mean()


def test_the_first_stage_shares_what_both_need(prepare) -> None:
    prepared = prepare("brd-ips")
    first = prepared.first_stage(prepared.settings.replace(method="ips"))
    assert first.propensity is prepared.propensity
    assert first.pattern is prepared.pattern
    assert first.target is prepared.target
    assert np.allclose(first.gamma.at(first.rows.user, first.rows.item), 1.0)


@pytest.mark.parametrize(
    ("loss", "target"), [("squared", "rating"), ("squared", "binary"), ("cross-entropy", "binary")]
)
def test_a_backbone_starts_at_the_mean_of_the_targets(loss, target, prepare) -> None:
    prepared = prepare("ips", loss=loss, target=target)
    start = float(prepared.backbone("main").mean.detach())
    value = prepared.scale.of_scores(np.array([start]))[0]
    assert value == pytest.approx(prepared.target.mean(), abs=1e-5)


def test_stages_start_from_numbers_of_their_own(prepare) -> None:
    prepared = prepare("mf")
    first, second, again = (prepared.backbone(stage).users().detach().numpy() for stage in ("a", "b", "a"))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_observational_rows_are_weighted_by_inverse_propensity(prepare) -> None:
    prepared = prepare("mf", select="observational")
    validator, rows = prepared.validator(), prepared.split.validation
    np.testing.assert_allclose(validator.weight, 1 / prepared.propensity.predict(rows.user, rows.item, rows.rating))
    seen = set(zip(prepared.rows.user.tolist(), prepared.rows.item.tolist(), strict=True))
    assert not seen & set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))
    assert prepare("mf").validator().weight is None
    assert prepare("mf", select="none").validator() is None


def test_a_backbone_without_features_does_not_encode_them(prepare, world) -> None:
    assert prepare("mf", backbone="mf").encoders == {}
    assert set(prepare("mf").encoders) == {"user_id", "item_id"}
    data = world(0)
    plain = Prepared.of(data, data.split("rd", 0), Settings.of("mf", backbone="mf"))
    assert plain.backbone("x").dim == 16


def test_the_noise_a_method_takes_in(prepare) -> None:
    assert prepare("mf").load == prepare("signed-rd").load == 1.0
    assert prepare("multi-ips").load == 2.0
    assert prepare("multi-dr").load == 3.0
    ips = prepare("ips")
    weights = (1.0 / ips.row_propensity).sum() / (ips.data.n_users * ips.data.n_items)
    assert ips.load == pytest.approx(weights)
    assert prepare("dr").load == pytest.approx(2 * weights)
    assert prepare("rd-ips", gamma=2.0).load > 1.5 * weights
    assert prepare("rd-ips", gamma=2.0, normalise=True).load == 1.0


def test_vectors_are_held_as_told_or_as_the_noise_asks(prepare) -> None:
    told = prepare("mf", l2_vectors=0.25)
    assert told.firmness == (0.25, 1.0, 1.0)
    assert "noise" not in told.__dict__
    ids, features = told.backbone("main").user_towers
    assert (ids.firmness, features.firmness) == (0.25, 1.0)
    auto = prepare("brd-ips")
    first = auto.first_stage(auto.settings.replace(method="ips"))
    assert first.noise is auto.noise
    assert auto.firmness == auto.noise.firmness(0.1, auto.load)
    assert first.load < auto.load

"""`gamma="learned"`: Γ per pair from the posterior mean, for methods that take a Γ."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.methods.spectrum.learned import PairGamma, gamma_of
from puidrec.model import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"dim": 2, "l2": 0.1, "epochs": 20, "rng": 0}


@pytest.fixture(scope="module")
def data():
    return simulate("pair", 80, 40, density=0.15, n_uniform=1_500, rng=0).data


def factors(seed: int, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores between .2 and .8 of rank 2."""
    rng = np.random.default_rng(seed)
    return np.column_stack([np.ones(n), rng.uniform(-1, 1, n)]), np.column_stack(
        [np.full(m, 0.5), rng.uniform(-0.3, 0.3, m)]
    )


@pytest.mark.parametrize("signed", [None, True, False])
def test_pairs_means_and_maximum_are_those_of_the_formula(signed) -> None:
    q, r = factors(0, 30, 20), factors(1, 30, 20)
    gamma = PairGamma(np.zeros(30, int), np.zeros(20, int), 20.0, 0.0, q, r, signed)
    tile = [left @ right.T for left, right in (q, r)]
    down, up = tile[0] / tile[1], (1 - tile[0]) / (1 - tile[1])
    wanted = {None: np.maximum(down, up), True: np.maximum(down, 1.0), False: np.maximum(up, 1.0)}[
        signed
    ]
    user, item = np.indices(wanted.shape)
    np.testing.assert_allclose(gamma.at(user.ravel(), item.ravel()), wanted.ravel(), rtol=1e-9)
    np.testing.assert_allclose(gamma.user_mean_log(), np.log(wanted).mean(1))
    np.testing.assert_allclose(gamma.item_mean_log(), np.log(wanted).mean(0))
    assert gamma.max == pytest.approx(wanted.max())
    assert gamma.mean_log == pytest.approx(np.log(wanted).mean())


@pytest.mark.parametrize("method", ["puid-dr", "rd-ips", "signed-puid", "signed-rd", "bpuid-ips"])
def test_methods_with_a_gamma_take_it(method, data) -> None:
    model = Recommender(method, gamma="learned", **SMALL).fit(data)
    assert np.isfinite(model.user_factors_).all()
    assert "spectrum" in model.report_["gamma_set_by"]
    assert 1.0 < model.report_["gamma"]["p95"] <= 20.0
    if method == "rd-ips":
        own = Recommender(rng=0, dim=2, l2=0.1).fit(data).uncertainty()
        means = [
            (left.mean(0) @ right.mean(0))
            for left, right in (
                (own.tensors["mf.left"], own.tensors["mf.right"]),
                (own.users, own.items),
            )
        ]
        assert model.report_["gamma"]["median"] == pytest.approx(
            float(gamma_of(*map(np.array, means))), abs=0.05
        )


def test_without_uniform_rows_it_is_refused_in_one_line(data, refusal) -> None:
    log = Dataset.from_frame(
        data.logged.to_frame().select("user_id", "item_id", "rating"), scale=(1, 5)
    )
    refusal(
        lambda: Recommender("puid-dr", gamma="learned", **SMALL).fit(log),
        "the log alone cannot tell",
    )
    with pytest.raises(InputError):
        Recommender("mf", gamma="lerned")

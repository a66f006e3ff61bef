import numpy as np
import pytest
from scipy import integrate
from scipy.special import expit, logit

from puidrec.data.simulator.population import Strengths, hidden_from_uniform
from puidrec.data.simulator.truth import NominalTable, mean_exposure


@pytest.mark.parametrize("amplitude", [0.0, 0.4, 1.2, 4.0])
def test_mean_over_one_trait_equals_the_integral(amplitude: float) -> None:
    m = np.array([-9.0, -3.0, 0.0, 2.5])
    exact = [integrate.quad(lambda u, x=x: expit(x + amplitude * np.cos(np.pi * u)), 0, 1)[0] for x in m]
    assert mean_exposure(m, (amplitude,)) == pytest.approx(exact, rel=1e-8)


def test_mean_over_three_traits_equals_monte_carlo() -> None:
    h = hidden_from_uniform(np.random.default_rng(0).random((3, 400_000)))
    draws = expit(-2.0 + 0.5 * h[0] + 0.3 * h[1] + 0.9 * h[2])
    z = (draws.mean() - mean_exposure(np.array([-2.0]), (0.5, 0.3, 0.9))[0]) / (draws.std() / np.sqrt(draws.size))
    assert abs(z) < 4.0


def test_traits_are_bounded_with_mean_zero() -> None:
    h = hidden_from_uniform((np.arange(10_000) + 0.5) / 10_000)
    assert np.abs(h).max() <= 1.0
    assert h.mean() == pytest.approx(0.0, abs=1e-12)
    assert h.var() == pytest.approx(0.5, abs=1e-4)


def test_the_table_interpolates_to_a_millionth_and_mixes_hidden_classes() -> None:
    strengths = Strengths(
        user=np.array([0.1, 0.5, 0.0]),
        gate=np.array([0.3, 1.0, 0.0]),
        pair=np.array([0.2, 0.4, 0.0]),
        group=np.array([0, 0, 1]),
        share=np.array([0.25, 0.75, 1.0]),
        item=np.array([0.5, 0.1]),
    )
    table = NominalTable(strengths, 2.0)
    m = np.random.default_rng(1).uniform(-12.0, 6.0, 300)
    weak, strong = mean_exposure(m, (0.2, 0.06, 0.4)), mean_exposure(m, (1.0, 0.2, 0.8))
    mixed = table.logit(m, np.zeros(300, int), np.ones(300, int))
    assert mixed == pytest.approx(logit(0.25 * weak + 0.75 * strong), abs=1e-6)
    untouched = table.logit(m, np.ones(300, int), np.zeros(300, int))
    assert untouched == pytest.approx(m, abs=1e-6)

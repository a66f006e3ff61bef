import pytest

from puidrec.data.simulator.population import WORLDS, SimulationOptions, get_world
from puidrec.data.synthetic import simulation_options
from puidrec.errors import InputError


def test_no_world_can_pull_beyond_one() -> None:
    assert list(WORLDS) == ["entity", "pair", "mixed", "half-complete", "proportional", "no-confounding"]
    for world in WORLDS.values():
        assert 0.0 <= world.user + world.item + world.pair <= 1.0
        assert 0.0 <= world.rest <= 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": "flat"}, "unknown world"),
        ({"n_users": 1}, "number of users"),
        ({"n_items": 0}, "number of items"),
        ({"density": 0.0}, "density"),
        ({"density": float("nan")}, "density"),
        ({"n_rows": 10**9}, "density"),
        ({"n_uniform": 10**9}, "uniform sample size"),
        ({"exposure_strength": -1.0}, "exposure strength"),
        ({"rating_strength": 1.5}, "rating strength"),
        ({"sign": 0}, "sign"),
        ({"affected_share": 1.2}, "affected share"),
        ({"rng": -3}, "seed"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        simulation_options(**change)  # type: ignore[arg-type]
    assert "expected" in str(caught.value)


def test_options_survive_json() -> None:
    options = simulation_options("pair", 300, 200, 1_000, sign=-1, rng=7)
    assert SimulationOptions(**options.as_dict()) == options
    assert options.density * options.n_pairs == pytest.approx(1_000)
    assert get_world(WORLDS["pair"]) is get_world("pair")

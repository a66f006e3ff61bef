from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import WORLDS, Simulation, simulate, simulate_to_parquet
from puidrec.errors import InputError

SEEDS = range(12)


def ips(simulation: Simulation, which: str) -> float:
    """Inverse-propensity estimate of the mean rating of D from the log."""
    logged = simulation.data.logged
    p = getattr(simulation.truth, which)(logged.user, logged.item)
    return float((logged.rating / p).sum()) / simulation.data.n_pairs


def errors(world: str) -> dict[str, np.ndarray]:
    """Errors of four estimates of the mean of the full rating matrix, one per seed."""
    rows = []
    for seed in SEEDS:
        simulation = simulate(world, 300, 300, density=0.1, n_uniform=3_000, rng=seed)
        truth = simulation.truth.matrix("rating").mean()
        drawn = simulation.data.with_overlap(
            "keep"
        ).uniform  # of all pairs: without the logged ones, of unseen pairs
        assert drawn is not None
        estimates = (simulation.data.logged.rating.mean(), drawn.rating.mean())
        rows.append(
            [*estimates, ips(simulation, "propensity"), ips(simulation, "true_propensity")] - truth
        )
    return dict(zip(("naive", "uniform", "nominal", "true"), np.array(rows).T, strict=True))


def z_score(error: np.ndarray) -> float:
    return float(error.mean() / (error.std(ddof=1) / np.sqrt(error.size)))


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_what_is_biased_and_what_is_not(world: str) -> None:
    error = errors(world)
    assert abs(z_score(error["uniform"])) < 4.0
    assert abs(z_score(error["true"])) < 4.0
    if world == "reversed":
        assert z_score(error["nominal"]) < -6.0
        return
    assert z_score(error["naive"]) > 6.0
    assert error["naive"].mean() > 0.05
    if world in (
        "no-confounding",
        "benign-activity",
        "awkward",
        "mixed-sign",
    ):  # the signs of mixed-sign cancel
        assert abs(z_score(error["nominal"])) < 4.0
    else:
        assert z_score(error["nominal"]) > 2.5
        assert error["nominal"].mean() > 0.04


def test_sign_turns_the_hidden_bias_round() -> None:
    like, dislike = (simulate("pair", 300, 300, density=0.1, sign=sign, rng=0) for sign in (1, -1))
    for simulation, direction in ((like, 1), (dislike, -1)):
        assert (
            direction * (ips(simulation, "propensity") - ips(simulation, "true_propensity")) > 0.1
        )


def test_rating_strength_zero_leaves_exposure_confounded_but_ratings_alone() -> None:
    simulation = simulate("mixed", 200, 200, rating_strength=0.0)
    assert np.array_equal(
        simulation.truth.matrix("utility"), simulation.truth.matrix("expected_rating")
    )
    assert simulation.truth.matrix("gamma").max() > 2.0


def test_equal_seeds_give_equal_data_and_others_do_not() -> None:
    first, again, other = (simulate("mixed", 100, 80, rng=seed) for seed in (3, 3, 4))
    assert first.data.sha256 == again.data.sha256 != other.data.sha256
    for quantity in ("rating", "phi", "propensity"):
        assert np.array_equal(first.truth.matrix(quantity), again.truth.matrix(quantity))  # type: ignore[arg-type]
    stream = np.random.default_rng(0)
    assert (
        simulate("mixed", 100, 80, rng=stream).data.sha256
        != simulate("mixed", 100, 80, rng=stream).data.sha256
    )


def test_log_and_uniform_sample_show_the_true_ratings_of_the_whole_population() -> None:
    simulation = simulate("entity", 300, 200, n_uniform=777)
    data, rating = simulation.data.with_overlap("keep"), simulation.truth.matrix("rating")
    assert data.uniform is not None
    assert len(data.uniform) == 777
    for part in (data.logged, data.uniform):
        assert np.array_equal(part.rating, rating[part.user, part.item])
    assert (data.n_users, data.n_items) == (300, 200)
    assert data.notes["simulated"]["world"] == simulation.world.name == "entity"


def test_the_uniform_sample_is_uniform_over_users_and_items() -> None:
    uniform = simulate("mixed", 200, 100, n_uniform=10_000).data.with_overlap("keep").uniform
    assert uniform is not None
    for codes, count in ((uniform.user, 200), (uniform.item, 100)):
        seen = np.bincount(codes, minlength=count)
        mean = 10_000 / count
        chi2 = ((seen - mean) ** 2 / (mean * 0.5)).sum()  # half of D is drawn: the variance halves
        assert abs(chi2 - (count - 1)) < 5 * np.sqrt(2 * count)


def test_sizes_and_samples_are_options() -> None:
    simulation = simulate("mixed", 300, 300, 4_500, n_uniform=0)
    assert simulation.data.uniform is None
    assert len(simulation.data.logged) == pytest.approx(4_500, rel=0.15)
    with pytest.raises(InputError, match="value of world"):
        simulate("flat")


def test_a_world_is_drawn_on_the_spot_or_read_from_its_folder(tmp_path: Path) -> None:
    simulate_to_parquet(tmp_path / "sim", "pair", 120, 80, rng=2)
    drawn = load_dataset("simulated", world="pair", n_users=120, n_items=80, seed=2)
    read = load_dataset("simulated", tmp_path / "sim")
    assert drawn.name == read.name == "simulated"
    assert drawn.sha256 == read.sha256


def test_options_and_folder_do_not_mix(tmp_path: Path) -> None:
    simulate_to_parquet(tmp_path / "sim", "pair", 120, 80)
    with pytest.raises(InputError, match="takes no options"):
        load_dataset("simulated", tmp_path / "sim", world="mixed")
    with pytest.raises(InputError, match="takes no options"):
        load_dataset("simulated", tmp_path / "sim", seed=1)


def test_unknown_options_and_folders_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="colour"):
        load_dataset("simulated", colour="red")
    with pytest.raises(InputError, match="cannot read"):
        load_dataset("simulated", tmp_path)

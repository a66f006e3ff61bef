from pathlib import Path

import pytest

from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import simulate_to_parquet
from puidrec.errors import InputError


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

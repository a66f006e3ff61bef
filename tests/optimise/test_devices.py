"""Every method on every device of this machine: the same model; and a device that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import puidrec
from puidrec.model import Recommender
from puidrec.world import SMALL, require_device, threads_for

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FITS = [
    {"method": "mf", "backbone": "mf-mlp"},
    {"method": "puid-dr", "backbone": "mf-linear"},
    {"method": "brd-dr", "gamma": 2.0},
    {"method": "rd-ips", "gamma": 2.0, "normalise": True},
    {"method": "multi-dr"},
    {"method": "signed-puid"},
    {"method": "all-rank"},
    {"method": "dr", "loss": "cross-entropy", "target": "binary"},
    {"method": "pure-svd"},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", FITS, ids=lambda options: options["method"])
def test_a_model_does_not_depend_on_the_device(options, device, world, tmp_path) -> None:
    given = {"dim": 3, "epochs": 6, "l2": 0.1, **options}
    expected = Recommender(**given).fit(world(0))
    calls = []

    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, *_) -> None:
        calls.append(stage)
        if stage == "main" and done == 3:
            raise Stopped

    model = Recommender(**given, device=device)
    try:
        model.fit(world(0), checkpoint=tmp_path / "c", progress=stop)
    except Stopped:
        model.fit(world(0), checkpoint=tmp_path / "c")
    assert calls or options["method"] == "pure-svd"
    np.testing.assert_allclose(model.user_factors_, expected.user_factors_, atol=1e-4)
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.item_factors_, model.item_factors_)


def test_nothing_assumes_the_cpu(tmp_path) -> None:
    """Without a GPU: on a pretended device that refuses what a GPU would refuse."""
    pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot pretend")
    program = Path(__file__).with_name("pretend_device.py")
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(FITS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(puidrec.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert "pretend and cpu" in found["mixing"]
    assert "numpy" in found["numpy"].lower()
    assert found["scores"] < 1e-6
    assert len(found["fits"]) == len(FITS)
    assert max(found["fits"]) < 1e-4


def test_a_device_that_is_not_there_is_one_line(world, refusal) -> None:
    require_device("cpu")
    refusal(lambda: Recommender("mf").to("abacus"), "no such device", "abacus", "cpu")
    refusal(
        lambda: Recommender("mf", device="abacus").fit(world(0)), "no such device", "abacus", "cpu"
    )
    if not torch.cuda.is_available():
        refusal(lambda: Recommender("mf", device="cuda").fit(world(0)), "no such device", "cuda")


@pytest.fixture
def two_threads(one_thread: None) -> int:
    """Two threads, wherever the suite runs; `one_thread` puts back what was there."""
    torch.set_num_threads(2)
    return torch.get_num_threads()


def test_small_problems_run_on_one_thread_and_the_setting_comes_back(two_threads: int) -> None:
    with threads_for(100, 16):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == two_threads == 2


def test_large_problems_keep_the_threads_they_have(two_threads: int) -> None:
    with threads_for(SMALL, 2):
        assert torch.get_num_threads() == two_threads == 2


def test_the_setting_comes_back_after_an_error(two_threads: int) -> None:
    with pytest.raises(RuntimeError), threads_for(1, 1):
        raise RuntimeError
    assert torch.get_num_threads() == two_threads == 2

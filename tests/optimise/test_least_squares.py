"""Problems solved to the optimum: Adam finds nothing below it, wherever the log lies, however often interrupted."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from puidrec.objective import majorise
from puidrec.train import blocks, least_squares, log_losses, preconditioner
from puidrec.train import prepare as prepare_module
from puidrec.train.least_squares import Solver, load_point, parts_to_solve, point_of

from puidrec.data.sources import load_dataset
from puidrec.methods import METHODS, ROBUST, SIGNED, UNSEEN
from puidrec.methods.stages import partition_of, stages_of
from puidrec.model import Recommender
from puidrec.optimise.adam import Trainer

METHODS_SOLVED = [
    name for name, spec in METHODS.items()
    if spec.build in (ROBUST, SIGNED, UNSEEN) and not (spec.log_weights or spec.imputation_weights)
]  # fmt: skip
COMMON = {"dim": 3, "propensity": "cells", "solver": "least-squares"}


def assert_same_solution(first, second, method) -> None:
    """Equal objectives, and equal scores; of `dr` less so, since the optimum of its imputation model is flat."""
    (one, a), (two, b) = first, second
    imputes = METHODS[method].imputes
    assert a == pytest.approx(b, rel=1e-4 if imputes else 1e-5)
    assert np.abs(one - two).max() <= (1e-2 if imputes else 1e-4)


def solution(model):
    """All scores, and the last objective."""
    return model.user_factors_ @ model.item_factors_.T, model.history_[-1]["loss_phi"]


def solvers(prepared):
    """A solver per stage, run in order; returns the last one and what its stages left."""
    done, partition = {}, partition_of(prepared)
    for stage in stages_of(prepared, partition):
        problem = stage.build(done)
        parts = parts_to_solve(problem, prepared.settings, partition)
        assert parts is not None
        options = {"stage": stage.name, "save": None, "partition": partition}
        solver = Solver(problem, parts, prepared.settings, None, warm=stage.warm, **options)
        done[stage.name] = solver.run()
    return solver, done


def objective(problem):
    """Loss and penalty of the prediction model, over all users."""
    step = problem.steps[0]
    return float((step.loss(0, problem.n_users) + step.penalty()).detach())


@pytest.mark.parametrize("backbone", ["mf", "mf-linear"])
@pytest.mark.parametrize("method", METHODS_SOLVED)
def test_adam_finds_nothing_below_the_solution(method, backbone, prepare, monkeypatch) -> None:
    """Adam goes on from the solution, with small steps: it gains nothing worth speaking of.

    It lowers the worst case itself, which is below the solver's loss by what rounding its bends off adds.
    """
    monkeypatch.setattr(majorise, "WIDTH", 1e-3)
    given = {"epochs": 400, "gamma": 1.3 if "rd" in method else "auto", "l2_vectors": 0.8}
    prepared = prepare(method, **COMMON, backbone=backbone, **given)
    solver, _ = solvers(prepared)
    problem, settings = solver.problem, prepared.settings
    solution = objective(problem)
    rounded = solver.history[-1]["loss_phi"] - solution
    assert -1e-4 * abs(solution) <= rounded <= (5e-3 if METHODS[method].uncertainty != "none" else 1e-4) * abs(solution)
    trainer = Trainer(problem, settings.replace(epochs=150, patience=0), None, stage="main", save=None, lr=3e-4)
    for step in problem.steps[1:]:  # the imputation model stays as it was solved
        trainer.optimizers[step.name].lr = 0.0
    trainer.run()
    assert objective(problem) >= solution - max(rounded, 2e-4 * abs(solution))


@pytest.mark.parametrize("method", METHODS_SOLVED)
def test_the_objective_of_each_model_never_rises(method, prepare) -> None:
    solver, _ = solvers(prepare(method, **COMMON, epochs=60))
    for part in solver.parts:
        values = [row[f"loss_{part.name}"] for row in solver.history if f"loss_{part.name}" in row]
        assert np.all(np.diff(values) <= 1e-7 * np.abs(values[0]))


@pytest.mark.parametrize("ids", [True, "bias", False])
def test_parameters_go_to_the_solver_and_back(ids, prepare) -> None:
    backbone = prepare("mf", ids=ids).backbone("main")
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    point = point_of(backbone, backbone.n_users)
    assert point["users"].shape == (backbone.n_users, backbone.dim + 1)
    for value in backbone.parameters():
        torch.nn.init.zeros_(value)
    load_point(backbone, point)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("given", [
    {"method": "mf", "loss": "absolute"}, {"method": "mf", "backbone": "mf-mlp"},
    {"method": "rd-ips", "normalise": True}, {"method": "dr", "head": "residual"}, {"method": "multi-ips"},
    {"method": "mf", "block_users": 10}, {"method": "mf", "solver": "adam"},
], ids=lambda given: "-".join(map(str, given.values())))  # fmt: skip
def test_what_is_not_quadratic_is_left_to_adam(given, prepare, refusal) -> None:
    prepared = prepare(**{**COMMON, "solver": "auto", **given, "epochs": 3})
    partition, done = partition_of(prepared), {}
    stages = stages_of(prepared, partition)
    if len(stages) > 1:
        first = stages[0].build(done)
        done[stages[0].name] = Trainer(first, prepared.settings, None, stage="seen", save=None).run()
    problem = stages[-1].build(done)
    assert parts_to_solve(problem, prepared.settings, partition) is None
    report = Recommender(**{**COMMON, "solver": "auto", **given, "epochs": 3}).fit(prepared.data).report_
    assert report["epochs"] > 0
    assert report["solver"] == "adam"
    if given.get("solver") != "adam":
        settings = prepared.settings.replace(solver="least-squares")
        refusal(lambda: parts_to_solve(problem, settings, partition), given["method"], "solver=auto")


@pytest.mark.parametrize("method", ["mf", "puid-ips", "dr", "bpuid-dr", "signed-puid", "sharp-puid"])
def test_parts_of_the_log_and_a_log_on_disk_give_the_same_scores(method, tiny_data, tmp_path, monkeypatch) -> None:
    given = {**COMMON, "method": method, "backbone": "mf", "epochs": 300, "select": "none"}
    rows = tiny_data.logged.to_frame()
    rows.write_parquet(tmp_path / "log.parquet")
    options = {"logged": tmp_path / "log.parquet", "scale": (1, 5)}
    memory = load_dataset("files", **options)
    disk = load_dataset("files", **options, shards=tmp_path / "shards")
    whole = solution(Recommender(**given).fit(memory))
    monkeypatch.setattr(prepare_module, "PAIRS_FROM_DISK", 70)
    monkeypatch.setattr(prepare_module, "PAIRS_IN_MEMORY", 70)
    monkeypatch.setattr(blocks, "PAIRS_IN_MEMORY", 70)
    monkeypatch.setattr(log_losses, "PAIRS_AT_ONCE", 70)
    monkeypatch.setattr(log_losses, "FEW_PAIRS", 0)
    for data in (memory, disk):
        assert_same_solution(solution(Recommender(**given).fit(data)), whole, method)


@pytest.mark.parametrize("method", ["mf", "dr", "bpuid-ips", "signed-rd", "sharp-rd", "spectrum"])
def test_interrupted_after_any_sweep_it_ends_in_the_same_bits(method, world, tmp_path) -> None:
    data, rng, told = world(3), random.Random(method), []
    options = {**COMMON, "epochs": 25}
    whole = Recommender(method, **options).fit(data, progress=lambda *_: told.append(1))

    def stop_after(sweeps):
        seen = iter(range(sweeps))

        def progress(*_):
            if next(seen, None) is None:
                raise KeyboardInterrupt

        return progress

    for number in range(3):
        path = tmp_path / f"{number}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            moment = rng.randrange(len(told) - len(whole.history_) + 2, len(told))  # columns and L2 are chosen
            Recommender(method, **options).fit(data, checkpoint=path, progress=stop_after(moment))
        assert path.exists()
        again = Recommender(method, **options).fit(data, checkpoint=path)
        assert np.array_equal(again.user_factors_, whole.user_factors_)
        assert np.array_equal(again.item_factors_, whole.item_factors_)
        assert again.history_ == whole.history_


@pytest.mark.parametrize("method", ["mf", "ips", "dr", "signed-rd", "sharp-rd"])
def test_a_start_moved_by_a_ten_millionth_changes_no_score(method, tiny_data, monkeypatch) -> None:
    given = {**COMMON, "backbone": "mf", "epochs": 400}
    first = solution(Recommender(method, **given).fit(tiny_data))
    start = least_squares.Model.start

    def moved(self, *arguments):
        return {name: value + 1e-7 for name, value in start(self, *arguments).items()}

    monkeypatch.setattr(least_squares.Model, "start", moved)
    assert_same_solution(solution(Recommender(method, **given).fit(tiny_data)), first, method)


def test_cold_start_users_and_saved_models_follow(tiny_data, tmp_path) -> None:
    """Parameters are those of the backbone: a twin without an id of its own is scored by its features."""
    model = Recommender("ips", **{**COMMON, "ids": False, "epochs": 30}).fit(tiny_data)
    users = tiny_data.users[:4]
    twins = users.with_columns(users["user_id"] + 10_000)
    known = model.predict(users["user_id"], [0, 1, 2, 3])
    np.testing.assert_allclose(
        model.predict(twins["user_id"], [0, 1, 2, 3], user_features=twins), known, rtol=0, atol=1e-5
    )
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(users["user_id"], [0, 1, 2, 3]), known)


TWO = """
import json, sys
import numpy as np
from puidrec.data.synthetic import simulate
from puidrec.model import Recommender
from puidrec.train import least_squares
from puidrec.world import join_world

least_squares.PATH_ROWS = 1
fits, common, out = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
data = simulate("mixed", 60, 40, density=0.2, rng=0).data
with join_world() as world:
    for name, options in fits.items():
        model = Recommender(**{**common, **options}).fit(data, world=world)
        if world.first:
            scores = model.user_factors_ @ model.item_factors_.T
            np.savez(f"{out}/{name}.npz", scores=scores, objective=model.history_[-1]["loss_phi"])
"""


def test_two_processes_find_the_solution_of_one(tiny_data, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(least_squares, "PATH_ROWS", 1)  # validation rows choose L2, as in the program
    fits = {
        "mf": {"method": "mf"}, "dr": {"method": "dr", "backbone": "mf"}, "robust": {"method": "puid-dr"},
        "benchmarked": {"method": "bpuid-ips", "backbone": "mf"},
        "signed": {"method": "signed-rd"}, "sharp": {"method": "sharp-rd"}, "features": {"method": "ips", "ids": False},
        "spectrum": {"method": "spectrum"},
    }  # fmt: skip
    common = {**COMMON, "epochs": 200}
    program = tmp_path / "fit.py"
    program.write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    arguments = [json.dumps(fits), json.dumps(common), str(tmp_path)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, options in fits.items():
        both = np.load(tmp_path / f"{name}.npz")
        alone = solution(Recommender(**{**common, **options}).fit(tiny_data))
        assert_same_solution((both["scores"], float(both["objective"])), alone, options["method"])


def test_without_l2_singular_matrices_are_not_inverted(world, monkeypatch) -> None:
    """A user with fewer ratings than columns has a singular matrix; its inverse would end the fit after two sweeps."""
    given = {**COMMON, "method": "mf", "backbone": "mf", "dim": 6, "l2": 0.0, "epochs": 100, "select": "none"}
    found = solution(Recommender(**given).fit(world(3)))[1]
    monkeypatch.setattr(preconditioner, "NARROW", 0)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", 0)
    assert found == pytest.approx(solution(Recommender(**given).fit(world(3)))[1], rel=1e-6, abs=1e-9)


RESUMED = """
import sys
import numpy as np
from puidrec import model
from puidrec.data.synthetic import simulate
from puidrec.world import join_world

class Stopped(Exception):
    pass

told = []

def stop(*_):
    told.append(1)
    if len(told) == 20:
        raise Stopped

model.CHECKPOINT_SECONDS = 0.0
data = simulate("mixed", 60, 25, density=0.2, rng=0).data
options = {"method": "ips", "backbone": "mf", "dim": 4, "propensity": "cells"}
with join_world() as world:
    whole = model.Recommender(**options).fit(data, world=world)
    try:
        model.Recommender(**options).fit(data, world=world, checkpoint=sys.argv[1], progress=stop)
        raise AssertionError("not stopped")
    except Stopped:
        pass
    again = model.Recommender(**options).fit(data, world=world, checkpoint=sys.argv[1])
    assert again.history_ == whole.history_
    assert np.array_equal(again.user_factors_, whole.user_factors_)
"""


def test_two_processes_go_on_from_their_checkpoint(tmp_path) -> None:
    """The matrices that precondition users' rows belong to the process that holds the users."""
    program = tmp_path / "fit.py"
    program.write_text(RESUMED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [*command, str(tmp_path / "checkpoint")], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

"""Jobs: what names them, what they refuse, and that their files hold exactly what was put in, or
nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from puidrec.comparing.job import DataSpec, Job, Result, ResultFolder
from puidrec.evaluation.significance import PerUser

SMALL = DataSpec("simulated", options={"n_users": 40, "n_items": 30})
JOB = Job(SMALL, "rd-ips", 1, settings={"epochs": 3, "dim": 4})


def test_the_key_depends_on_what_decides_the_result_and_on_nothing_else() -> None:
    others = [
        replace(JOB, seed=2),
        replace(JOB, method="mf"),
        replace(JOB, protocol="ge3"),
        replace(JOB, budget=2),
        replace(JOB, settings={"epochs": 4, "dim": 4}),
        replace(JOB, measured=False),
        replace(JOB, data=replace(SMALL, options={"n_users": 41, "n_items": 30})),
        *(
            replace(JOB, data=replace(SMALL, mask=m))
            for m in (("random", 0.5), ("random", 0.2), ("positives", 0.5))
        ),
        replace(JOB, data=replace(SMALL, folder=Path("x"))),
    ]
    assert len({job.key for job in [JOB, *others]}) == len(others) + 1
    named = replace(JOB, label="mine", preset="paper", data=replace(SMALL, label="ours"))
    assert named.key == JOB.key
    defaults = replace(JOB, settings={**JOB.settings, "lr": 0.02})
    assert defaults.key == JOB.key  # a default that is spelt out is the same setting
    assert (
        replace(defaults, budget=3).key != replace(JOB, budget=3).key
    )  # but a search leaves it alone


def test_plain_values_make_an_equal_source() -> None:
    spec = DataSpec(
        "files", Path("/d"), {"logged": Path("/d/a.csv"), "scale": (1, 5)}, ("random", 0.1)
    )
    again = DataSpec.from_source(json.loads(json.dumps(spec.to_source())), Path("x"))
    again = replace(again, mask=spec.mask)
    assert replace(JOB, data=again).key == replace(JOB, data=spec).key
    assert again.to_source() == spec.to_source()
    assert again.options == {"logged": "/d/a.csv", "scale": [1, 5]}


def test_titles_name_the_mask() -> None:
    assert SMALL.title == "simulated"
    assert replace(SMALL, mask=("positives", 0.2)).title == "simulated, 20% of positive rows masked"
    assert replace(SMALL, mask=("random", 0.5), label="x").title == "x, 50% of rows masked"


def test_the_mask_is_drawn_with_the_jobs_seed() -> None:
    masked = replace(JOB, data=replace(SMALL, mask=("random", 0.5)))
    logs = [replace(masked, seed=seed).load().logged.frame for seed in (1, 1, 2)]
    assert logs[0].equals(logs[1])
    assert not logs[0].equals(logs[2])
    assert logs[0].height == pytest.approx(JOB.load().logged.frame.height / 2, abs=1)


def test_what_could_not_run_is_refused(refusal) -> None:
    refusal(lambda: replace(JOB, method="nope").check(), "unknown method")
    refusal(
        lambda: replace(JOB, settings={"epoch": 1}).check(),
        "unknown setting",
        "Did you mean epochs?",
    )
    refusal(lambda: replace(JOB, settings={"seed": 1}).check(), "seed")
    refusal(lambda: replace(JOB, budget=0).check(), "budget")
    refusal(lambda: replace(JOB, protocol="x").check(), "unknown protocol")
    refusal(lambda: replace(JOB, data=replace(SMALL, mask=("random", 1.0))).check(), "mask ratio")
    refusal(
        lambda: replace(JOB, data=replace(SMALL, options={"x": object()})).check(), "no plain value"
    )


def result(users: np.ndarray, sized: bool) -> Result:
    values = np.linspace(0.1, 0.9, users.size) ** 3
    per_user = {
        "uauc": PerUser(users, values),
        "mse": PerUser(users[:-1], values[1:], np.arange(1.0, users.size) if sized else None),
    }
    context = {"positive_rate": float("nan"), "gamma": {"median": 1.5}}
    return Result(JOB, {"uauc": 1 / 3}, context, 0.1 + 0.2, {"dim": 4}, per_user, 1.5)


@pytest.mark.parametrize(
    "users", [np.array([3, 5, 2**40]), np.array(["a", "ä", "日本"], dtype=object)]
)
@pytest.mark.parametrize("sized", [True, False])
def test_a_file_gives_back_every_bit(tmp_path: Path, users: np.ndarray, sized: bool) -> None:
    files, made = ResultFolder(tmp_path), result(users, sized)
    files.save(made.job, made.to_text("digest"))
    found = files.load(JOB, "digest")
    assert found is not None
    assert (found.metrics, found.validation, found.settings, found.seconds) == (
        made.metrics,
        made.validation,
        made.settings,
        made.seconds,
    )
    assert found.context == {"positive_rate": None, "gamma": {"median": 1.5}}  # JSON knows no NaN
    for name, values in made.per_user.items():
        assert found.per_user[name].users.tolist() == values.users.tolist()
        assert np.array_equal(found.per_user[name].values, values.values)
        assert (found.per_user[name].size is None) == (values.size is None)
        if values.size is not None:
            assert np.array_equal(found.per_user[name].size, values.size)


def test_a_file_of_other_data_or_of_another_job_is_not_taken(tmp_path: Path) -> None:
    files = ResultFolder(tmp_path)
    files.save(JOB, result(np.arange(3), True).to_text("digest"))
    other = replace(JOB, seed=9)
    files.path(JOB).rename(files.path(other))
    assert files.load(other, "digest") is None
    files.path(other).rename(files.path(JOB))
    assert files.load(JOB, "other") is None
    assert files.load(JOB, "digest") is not None


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_never_a_wrong_result(
    tmp_path: Path, where: float, change: int, cut: bool
) -> None:
    files = ResultFolder(tmp_path)
    files.save(JOB, result(np.arange(5), True).to_text("digest"))
    whole = files.load(JOB, "digest")
    content = bytearray(files.path(JOB).read_bytes())
    at = int(where * len(content))
    if cut:
        del content[at:]
    else:
        content[at] ^= change
    files.path(JOB).write_bytes(bytes(content))
    found = files.load(JOB, "digest")
    if found is not None:  # a byte that nothing is read from, such as a blank between two words
        assert whole is not None
        assert found.row() == whole.row()
        assert all(
            np.array_equal(found.per_user[m].values, whole.per_user[m].values)
            for m in whole.per_user
        )


def test_a_folder_in_the_place_of_a_file_is_no_result(tmp_path: Path) -> None:
    files = ResultFolder(tmp_path)
    files.path(JOB).mkdir()
    assert files.load(JOB, "digest") is None

"""Which jobs make up the tables: every row and control, alike for all methods, seed by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from puidrec.methods import METHODS
from puidrec.reproduce import grids as paper
from puidrec.reproduce.grids import (
    ELSEWHERE,
    FIELD_METHODS,
    GRIDS,
    OWN,
    PAPER,
    Row,
    ablation_rows,
    field_jobs,
    jobs_of,
    rq1_jobs,
    rq2_jobs,
)

FOLDERS = {data: Path(data) for data in paper.METRICS}


def test_all_methods_are_shown_and_the_papers_with_controls() -> None:
    own = {row.label or row.method for row in OWN.rows}
    # pure-svd stands for no claim
    assert set(METHODS) - {"pure-svd"} <= own | set(FIELD_METHODS)
    assert own >= {"puid-ips, random Γ", "puid-dr, random Γ", "item-rate"}
    assert own >= {method for method, *_ in paper.RQ1}
    assert PAPER.rows == OWN.rows


def test_paper_settings_are_the_papers() -> None:
    job = PAPER.job(FOLDERS, "coat", Row("puid-dr"), 1, "ge3")
    settings = job.resolved
    found = (settings.backbone, settings.target, settings.alpha, settings.beta)
    assert found == ("mf-mlp", "binary", 2.0, 5.0)
    assert job.data.options == {"features": "pseudo"}
    assert "alpha" not in PAPER.job(FOLDERS, "coat", Row("rd-dr"), 1).settings
    assert PAPER.job(FOLDERS, "coat", Row("item-rate"), 1).settings == {}
    assert OWN.job(FOLDERS, "coat", Row("mf"), 1).settings == {}


@pytest.mark.parametrize("question", GRIDS)
def test_every_job_can_be_run_and_has_a_name_of_its_own(question: str) -> None:
    jobs = GRIDS[question](FOLDERS, 0)
    names = {
        (job.check().data.title, job.data.mask, job.preset, job.protocol, job.name) for job in jobs
    }
    assert len(names) == len(jobs) > 0
    assert all(
        job.data.name in ("coat", "simulated") for job in GRIDS[question]({"coat": Path("c")}, 0)
    )


def test_each_seed_draws_its_own_kuairec_log() -> None:
    options = [OWN.job(FOLDERS, "kuairec", Row("mf"), seed).data.options for seed in (0, 1)]
    assert options == [{"rng": 0}, {"rng": 1}]


def test_rq1_has_both_backbones_and_all_protocols() -> None:
    shown = {(job.data.name, job.preset, job.protocol) for job in rq1_jobs(FOLDERS, 0)}
    assert shown >= {("coat", x, y) for x in ("own", "paper") for y in ("rd", "paper", "ge3")}
    assert ("yahoo-r3", "paper", "ge3") in shown
    assert shown >= {(data, "own", "rd") for data in paper.METRICS}
    overlapping = [job for job in rq1_jobs(FOLDERS, 0) if job.preset == "paper-overlapping"]
    assert {job.data.options["evaluation"] for job in overlapping} == {"overlapping-as-in-paper"}


def test_later_seeds_are_of_coat_and_its_two_full_columns() -> None:
    later = {(job.data.name, job.preset, job.protocol) for job in rq1_jobs(FOLDERS, 1)}
    assert later == {("coat", "own", "rd"), ("coat", "paper", "ge3")}
    assert rq2_jobs(FOLDERS, 1) == []


def test_every_table_of_rq1_has_the_papers_methods_and_controls_stand_once() -> None:
    tables: dict[tuple[str, str, str], set[str]] = {}
    for job in rq1_jobs(FOLDERS, 0):
        tables.setdefault((job.data.name, job.preset, job.protocol), set()).add(job.name)
    printed = {method for method, *_ in paper.RQ1}
    short = {key for key, names in tables.items() if not names >= printed}
    assert {data for data, *_ in short} == {"yahoo-r3", "kuairec"}
    gone = set.union(*(printed - tables[key] for key in short if key[1] != "paper-overlapping"))
    assert {METHODS[name].benchmark for name in gone} == {True}
    assert all({"mf", "puid-dr"} <= names for names in tables.values())
    with_controls = {key for key, names in tables.items() if "puid-dr, random Γ" in names}
    own = {(data, "own", "rd") for data in paper.METRICS}
    assert with_controls == own | {("coat", "paper", "ge3")}


def test_rq2_has_every_ratio_and_printed_method() -> None:
    for data in FOLDERS:
        jobs = [job for job in rq2_jobs(FOLDERS, 0) if job.data.name == data]
        assert {job.data.mask for job in jobs} == {("random", ratio) for ratio in paper.MASK_RATIOS}
        methods = {job.method for job in jobs}
        assert methods >= {"mf", "rd-ips", "puid-ips"}  # of large data sets one of each kind
        assert data != "coat" or methods >= {method for method, *_ in paper.RQ2[0.1]}


def test_ablation_rows_are_those_of_the_caption() -> None:
    rows = {row.label.split()[0]: row.settings for row in ablation_rows("A")[:5]}
    weights = {name: (row["alpha"], row["beta"]) for name, row in rows.items()}
    assert weights == {"A1": (2, 5), "A2": (2, 5), "A3": (5, 10), "A4": (5, 5), "A5": (None, None)}
    assert rows["A2"]["backbone"] == "mf"
    assert rows["A5"]["gamma"] == "random"
    assert {row.method for row in ablation_rows("B")[:5]} == {"puid-dr"}


def test_all_methods_of_the_field_have_one_configuration_on_the_same_rows() -> None:
    later, first = field_jobs(FOLDERS, 2), field_jobs(FOLDERS, 0)
    assert {(job.seed, job.budget, len(job.settings)) for job in later} == {(2, 1, 0)}
    assert {(job.data.name, job.protocol) for job in later} == {("coat", "rd")}
    assert {job.method for job in later} == set(FIELD_METHODS)
    columns: dict[str, set[str]] = {}
    for job in first:
        if job.protocol == "rd":
            columns.setdefault(job.data.title, set()).add(job.method)
    for data in ("kuairec", "yahoo-r3"):
        assert {"mf", "spectrum"} <= columns.pop(data) < set(FIELD_METHODS)
    assert set(map(frozenset, columns.values())) == {frozenset(FIELD_METHODS)}
    cvib = {job.method for job in first if job.protocol == "cvib"}
    assert cvib == {name for name in ELSEWHERE if not METHODS[name].needs_uniform}


def test_pages_share_the_fits_of_the_same_method_on_the_same_rows() -> None:
    paper_keys = {job.key for job in rq1_jobs(FOLDERS, 0)}
    shared = {job.method for job in field_jobs(FOLDERS, 0) if job.key in paper_keys}
    assert shared == set(FIELD_METHODS) & {row.method for row in OWN.rows}


@pytest.mark.parametrize("question", GRIDS)
def test_quick_runs_are_short_and_devices_are_named(question: str) -> None:
    jobs = jobs_of(question, FOLDERS, 1, quick=True, device="cuda")
    assert len(jobs) < len(jobs_of(question, FOLDERS, 2, quick=False, device="cpu")) / 2
    trained = [job.resolved for job in jobs if METHODS[job.method].trains]
    assert {(one.epochs, one.device) for one in trained} == {(4, "cuda")}

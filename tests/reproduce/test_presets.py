from __future__ import annotations

from pathlib import Path

import pytest

from puidrec.methods import METHODS
from puidrec.reproduce import paper_tables as paper
from puidrec.reproduce.field import FieldSize
from puidrec.reproduce.presets import DATA, OURS, OWN, PAPER, PRESETS, TRIVIAL, Variant
from puidrec.reproduce.questions import (
    RunSize,
    ablation_jobs,
    ablation_variants,
    estimated_seconds,
    rq1_jobs,
    rq2_jobs,
)

FOLDERS = {data: Path(data) for data in DATA}


def test_all_methods_are_shown_with_trivial_baselines_and_controls() -> None:
    own = {variant.name for variant in OWN.variants}
    field = set(FieldSize(seeds=1).methods)  # rows of `puid reproduce field`
    assert set(METHODS) - {"popularity"} <= own | field  # which is for likes
    assert {"puid-ips, random Γ", "puid-dr, random Γ", "puid-ips, Γ = 1"} <= own
    printed = {variant.name for variant in PAPER.variants}
    assert printed >= {method for method, *_ in paper.RQ1} | set(TRIVIAL)
    assert not printed & set(OURS)


def test_paper_settings_are_the_papers() -> None:
    settings = PAPER.job("coat", Path("coat"), Variant("puid-dr"), 1, "ge3").resolved
    assert (settings.backbone, settings.target, settings.alpha, settings.beta) == (
        "mf-mlp",
        "binary",
        2.0,
        5.0,
    )
    assert PAPER.job("coat", Path("coat"), Variant("mf"), 1, "ge3").data.options == {
        "features": "pseudo"
    }
    assert PAPER.settings_of(Variant("rd-dr"), "coat").get("alpha") is None
    assert PAPER.settings_of(Variant("item-rate"), "coat") == {}
    assert OWN.job("coat", Path("coat"), Variant("mf"), 1, "rd").settings == {}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_job_can_be_run_and_is_another_one(preset) -> None:  # type: ignore[no-untyped-def]
    wanted = [(data, variant) for data in preset.protocols for variant in preset.variants]
    keys = {preset.job(data, Path(data), variant, 0, "rd").check().key for data, variant in wanted}
    assert len(keys) == len(wanted)


def test_each_seed_draws_its_own_kuairec_log() -> None:
    options = [
        OWN.job("kuairec", Path("k"), Variant("mf"), seed, "rd").data.options for seed in (0, 1)
    ]
    assert options == [{"rng": 0}, {"rng": 1}]


def test_rq1_has_both_presets_and_three_seeds_everywhere() -> None:
    jobs = rq1_jobs(FOLDERS, RunSize(3)).jobs
    shown = {(job.data.name, job.preset, job.protocol) for job in jobs}
    assert shown >= {
        ("coat", "own", "rd"),
        ("coat", "paper", "ge3"),
        ("coat", "paper", "paper"),
        ("kuairec", "paper", "rd"),
    }
    assert {job.seed for job in jobs if job.preset == "own"} == {0, 1, 2}
    assert len({(c.key, c.name, c.preset) for c in jobs}) == len(jobs)
    overlapping = [job for job in jobs if job.preset == "paper-overlapping"]
    assert {job.data.options["evaluation"] for job in overlapping} == {"overlapping-as-in-paper"}
    assert {job.data.name for job in rq1_jobs({"coat": Path("c")}, RunSize(1)).jobs} == {"coat"}


def test_rq2_has_every_ratio_kind_and_printed_method() -> None:
    coat = [
        job
        for job in rq2_jobs(FOLDERS, RunSize(2)).jobs
        if job.data.name == "coat" and job.preset == "paper"
    ]
    assert {job.data.mask for job in coat} == {
        (k, r) for k in ("random", "positives") for r in paper.MASK_RATIOS
    }
    assert {job.method for job in coat} >= {method for method, *_ in paper.RQ2[0.1]} | {
        "mf",
        "item-rate",
        "signed-rd",
    }


def test_rq2_says_what_large_data_sets_leave_out() -> None:
    planned = rq2_jobs(FOLDERS, RunSize(2))
    large = [job for job in planned.jobs if job.data.name == "kuairec"]
    assert {job.data.mask for job in large} == {("random", r) for r in paper.MASK_RATIOS} | {
        ("positives", 0.8),
    }
    assert {job.seed for job in large} == {0}
    assert "first seed" in planned.notes[0]
    assert rq2_jobs({"coat": Path("coat")}, RunSize(2)).notes == ()


def test_ablation_rows_are_those_of_the_caption() -> None:
    settings = {v.name.split()[0]: PAPER.settings_of(v, "coat") for v in ablation_variants("A")[:5]}
    weights = {name: (row.get("alpha"), row.get("beta")) for name, row in settings.items()}
    assert weights == {"A1": (2, 5), "A2": (2, 5), "A3": (5, 10), "A4": (5, 5), "A5": (None, None)}
    assert (settings["A1"]["backbone"], settings["A2"]["backbone"]) == ("mf-mlp", "mf")
    assert settings["A5"]["gamma"] == "random"
    assert {v.method for v in ablation_variants("B")[:5]} == {"puid-dr"}
    assert len(ablation_jobs(FOLDERS, RunSize(1)).jobs) == 2 * 2 * 7
    assert ablation_jobs({}, RunSize(1)).jobs == ()


def test_quick_is_small_and_short() -> None:
    quick, full = RunSize(1, quick=True), RunSize(3)
    jobs = [
        *rq1_jobs(FOLDERS, quick).jobs,
        *rq2_jobs(FOLDERS, quick).jobs,
        *ablation_jobs(FOLDERS, quick).jobs,
    ]
    assert len(jobs) < 60
    trained = [job for job in jobs if METHODS[job.method].trains]
    assert all(job.resolved.epochs <= 40 for job in trained)
    every = [*rq1_jobs(FOLDERS, full).jobs, *rq2_jobs(FOLDERS, full).jobs]
    assert estimated_seconds(jobs, 2) < 60 < estimated_seconds(every, 2)
    assert estimated_seconds(every, 4) == pytest.approx(estimated_seconds(every, 2) / 2)

from __future__ import annotations

from pathlib import Path

import pytest

from puidrec.experiments import paper_tables as paper
from puidrec.experiments.reproduce.ablation import ablation_cells, variants
from puidrec.experiments.reproduce.plan import Plan, estimated_seconds
from puidrec.experiments.reproduce.presets import DATA, OURS, OWN, PAPER, PRESETS, TRIVIAL, Variant
from puidrec.experiments.reproduce.rq1 import rq1_cells
from puidrec.experiments.reproduce.rq2 import rq2_cells
from puidrec.methods import METHODS

FOLDERS = {data: Path(data) for data in DATA}


def test_all_methods_are_shown_with_trivial_baselines_and_controls() -> None:
    own = {variant.name for variant in OWN.variants}
    assert set(METHODS) <= own
    assert {"puid-ips, random Γ", "puid-dr, random Γ", "puid-ips, Γ = 1"} <= own
    printed = {variant.name for variant in PAPER.variants}
    assert printed >= {method for method, *_ in paper.RQ1} | set(TRIVIAL)
    assert not printed & set(OURS)


def test_paper_settings_are_the_papers() -> None:
    settings = PAPER.cell("coat", Path("coat"), Variant("puid-dr"), 1, "ge3").resolved
    assert (settings.backbone, settings.target, settings.alpha, settings.beta) == ("mf-mlp", "binary", 2.0, 5.0)
    assert PAPER.cell("coat", Path("coat"), Variant("mf"), 1, "ge3").data.options == {"features": "pseudo"}
    assert PAPER.settings_of(Variant("rd-dr"), "coat").get("alpha") is None
    assert PAPER.settings_of(Variant("item-rate"), "coat") == {}
    assert OWN.cell("coat", Path("coat"), Variant("mf"), 1, "rd").settings == {}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_cell_can_be_run_and_is_another_one(preset) -> None:  # type: ignore[no-untyped-def]
    wanted = [(data, variant) for data in preset.protocols for variant in preset.variants]
    keys = {preset.cell(data, Path(data), variant, 0, "rd").check().key for data, variant in wanted}
    assert len(keys) == len(wanted)


def test_each_seed_draws_its_own_kuairec_log() -> None:
    options = [OWN.cell("kuairec", Path("k"), Variant("mf"), seed, "rd").data.options for seed in (0, 1)]
    assert options == [{"rng": 0}, {"rng": 1}]


def test_rq1_has_both_presets_and_three_seeds_everywhere() -> None:
    cells = rq1_cells(FOLDERS, Plan(3)).cells
    shown = {(cell.data.name, cell.preset, cell.protocol) for cell in cells}
    assert shown >= {
        ("coat", "own", "rd"),
        ("coat", "paper", "ge3"),
        ("coat", "paper", "paper"),
        ("kuairec", "paper", "rd"),
    }
    assert {cell.seed for cell in cells if cell.preset == "own"} == {0, 1, 2}
    assert len({(c.key, c.name, c.preset) for c in cells}) == len(cells)
    overlapping = [cell for cell in cells if cell.preset == "paper-overlapping"]
    assert {cell.data.options["evaluation"] for cell in overlapping} == {"overlapping-as-in-paper"}
    assert {cell.data.name for cell in rq1_cells({"coat": Path("c")}, Plan(1)).cells} == {"coat"}


def test_rq2_has_every_ratio_kind_and_printed_method() -> None:
    coat = [cell for cell in rq2_cells(FOLDERS, Plan(2)).cells if cell.data.name == "coat" and cell.preset == "paper"]
    assert {cell.data.mask for cell in coat} == {(k, r) for k in ("random", "positives") for r in paper.RATIOS}
    assert {cell.method for cell in coat} >= {method for method, *_ in paper.RQ2[0.1]} | {
        "mf",
        "item-rate",
        "signed-rd",
    }


def test_rq2_says_what_large_data_sets_leave_out() -> None:
    planned = rq2_cells(FOLDERS, Plan(2))
    large = [cell for cell in planned.cells if cell.data.name == "kuairec"]
    assert {cell.data.mask for cell in large} == {("random", r) for r in paper.RATIOS} | {
        ("positives", 0.8),
    }
    assert {cell.seed for cell in large} == {0}
    assert "first seed" in planned.notes[0]
    assert rq2_cells({"coat": Path("coat")}, Plan(2)).notes == ()


def test_ablation_rows_are_those_of_the_caption() -> None:
    settings = {v.name.split()[0]: PAPER.settings_of(v, "coat") for v in variants("A")[:5]}
    weights = {name: (row.get("alpha"), row.get("beta")) for name, row in settings.items()}
    assert weights == {"A1": (2, 5), "A2": (2, 5), "A3": (5, 10), "A4": (5, 5), "A5": (None, None)}
    assert (settings["A1"]["backbone"], settings["A2"]["backbone"]) == ("mf-mlp", "mf")
    assert settings["A5"]["gamma"] == "random"
    assert {v.method for v in variants("B")[:5]} == {"puid-dr"}
    assert len(ablation_cells(FOLDERS, Plan(1)).cells) == 2 * 2 * 7
    assert ablation_cells({}, Plan(1)).cells == ()


def test_quick_is_small_and_short() -> None:
    quick, full = Plan(1, quick=True), Plan(3)
    cells = [*rq1_cells(FOLDERS, quick).cells, *rq2_cells(FOLDERS, quick).cells, *ablation_cells(FOLDERS, quick).cells]
    assert len(cells) < 60
    trained = [cell for cell in cells if METHODS[cell.method].family != "closed"]
    assert all(cell.resolved.epochs <= 40 for cell in trained)
    every = [*rq1_cells(FOLDERS, full).cells, *rq2_cells(FOLDERS, full).cells]
    assert estimated_seconds(cells, 2) < 60 < estimated_seconds(every, 2)
    assert estimated_seconds(every, 4) == pytest.approx(estimated_seconds(every, 2) / 2)

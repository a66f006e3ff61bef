"""Plug-ins: found by name, never in the way, and blamed by name when they are broken."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.data.sources import SOURCES
from puidrec.evaluation.metrics import METRICS, parse_metric
from puidrec.exposure import PROPENSITIES, make_propensity
from puidrec.exposure.gamma import PRESETS, GammaRule, resolve_gamma
from puidrec.exposure.gamma import SOURCES as GAMMA_SOURCES
from puidrec.methods import METHODS
from puidrec.plugins import GROUPS, Registry
from puidrec.scores import BACKBONES, make_backbone
from puidrec.settings import Settings

TABLES = (METHODS, BACKBONES, PROPENSITIES, PRESETS, GAMMA_SOURCES, SOURCES, METRICS)
MODULE = """
from puidrec.exposure.gamma import GammaRule
import puidrec.exposure.base
Mine = puidrec.exposure.base.Cells
preset = GammaRule(source="constant", value=2.5)
def load(path, **options):
    raise ValueError("loaded from " + str(path))
number = 7
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a package with entry points on the path, as pip would; tables forget what they loaded
    afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for table in TABLES:
        monkeypatch.setattr(table, "_loaded", {})

    def make(
        group: str, points: dict[str, str], package: str = "other", source: str = MODULE
    ) -> None:
        (tmp_path / f"{package}_module.py").write_text(source)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(
            f"{name} = {package}_module:{attribute}\n" for name, attribute in points.items()
        )
        (folder / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)
        importlib.invalidate_caches()

    return make


def test_a_propensity_is_found_by_name(install: Any) -> None:
    install("puidrec.propensities", {"mine": "Mine"})
    assert type(make_propensity("mine", low=0.2)).__name__ == "Cells"
    assert Settings.of("ips", propensity="mine").propensity == "mine"
    assert "mine" not in list(PROPENSITIES)  # iterating does not depend on what is installed


def test_a_gamma_rule_is_a_preset_or_a_source(install: Any) -> None:
    install("puidrec.gamma_rules", {"mine": "preset", "other": "load"})
    assert resolve_gamma("mine").value == 2.5
    assert Settings.of("puid-dr", gamma="mine").gamma == "mine"
    assert resolve_gamma("other", value=3.0) == GammaRule(source="other", value=3.0)  # type: ignore[arg-type]


def test_a_source_is_found_by_name(install: Any) -> None:
    install("puidrec.sources", {"mine": "load"})
    with pytest.raises(ValueError, match="loaded from here"):
        load_dataset("mine", "here")


def test_the_message_about_an_unknown_name_lists_plug_ins(install: Any, refusal: Any) -> None:
    install("puidrec.propensities", {"mine": "Mine"})
    refusal(
        lambda: make_propensity("mien"),
        "mien",
        "cells, logistic, two-way, balanced, kernel, naive-bayes, given, mine",
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda: make_propensity("broken"),
        lambda: Settings.of("ips", propensity="broken"),
        lambda: "broken" in PROPENSITIES,
    ],
)
@pytest.mark.parametrize(
    ("source", "blame"),
    [
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("raise RuntimeError('two\\nlines')", "two lines"),
        ("x = 1", "Mine"),
        ("def", "SyntaxError"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_blamed(
    install: Any, refusal: Any, ask: Any, source: str, blame: str
) -> None:
    install("puidrec.propensities", {"broken": "Mine"}, source=source)
    refusal(ask, "plug-in broken", "package other", "other_module:Mine", blame)


def test_a_broken_plug_in_is_not_in_the_way(install: Any) -> None:
    install("puidrec.propensities", {"broken": "Mine"}, source="raise RuntimeError")
    assert make_propensity("cells")
    assert "no-such" not in PROPENSITIES


def test_built_in_names_read_no_entry_points(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "puidrec.plugins.entry_points", lambda **_: pytest.fail("entry points were read")
    )
    for table in TABLES:
        for name in table:
            assert name in table
            assert table[name] is table.get(name)


def test_two_plug_ins_of_one_name_are_refused(install: Any, refusal: Any) -> None:
    install("puidrec.metrics", {"mine": "number"}, "first")
    install("puidrec.metrics", {"mine": "number"}, "second")
    refusal(
        lambda: parse_metric("mine@5"), "two plug-ins", "mine", "package first", "package second"
    )


def test_the_name_of_a_built_in_is_taken(install: Any, refusal: Any) -> None:
    install("puidrec.metrics", {"uauc": "number", "mine": "number"})
    refusal(lambda: parse_metric("mine"), "uauc", "package other", "built-in")
    assert parse_metric("uauc")[0].description.startswith("mean AUC")


@pytest.mark.parametrize(
    ("group", "ask", "expected"),
    [
        ("puidrec.metrics", lambda: parse_metric("mine"), "a Metric"),
        ("puidrec.sources", lambda: load_dataset("mine"), "load(path)"),
        ("puidrec.gamma_rules", lambda: resolve_gamma("mine"), "GammaRule"),
        ("puidrec.backbones", lambda: make_backbone("mine", 2, 2, 2), "a tower"),
        ("puidrec.propensities", lambda: make_propensity("mine"), "a class"),
    ],
)
def test_a_plug_in_of_the_wrong_kind_is_refused(
    install: Any, refusal: Any, group: str, ask: Any, expected: str
) -> None:
    install(group, {"mine": "number"})
    refusal(ask, "plug-in mine", "package other", "int", expected)


def test_tables_are_mappings_of_known_groups(refusal: Any) -> None:
    table = Registry("puidrec.metrics", {"a": 1}, lambda name, loaded: loaded, "anything")
    assert (len(table), list(table), dict(table), table["a"]) == (1, ["a"], {"a": 1}, 1)
    assert table.get("b") is None
    assert 3 not in table
    assert np.array(["a"])[0] in table
    refusal(lambda: Registry("puidrec.nothing", {}, lambda name, loaded: loaded, ""), "group")
    assert {table.group for table in TABLES} == set(GROUPS)

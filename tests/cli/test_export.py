"""`puid export`, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest


def test_writes_each_format(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for form, file in (("onnx", "scores.onnx"), ("parquet", "users.parquet"), ("npy", "users.npy")):
        outcome = puid("export", run_folder, "--format", form, "--out", tmp_path / form)
        assert outcome.code == 0, outcome
        assert file in outcome.out
        assert "inner product" in outcome.out
        assert (tmp_path / form / file).exists()
    assert pl.read_parquet(tmp_path / "parquet" / "items.parquet").height == 40


def test_json_is_what_the_folder_says(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    said = json.loads(puid("export", run_folder, "--format", "npy", "--out", tmp_path / "out", "--json").out)
    files = said.pop("files")
    assert said == json.loads((tmp_path / "out" / "export.json").read_text())
    assert files == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    digest = json.loads((run_folder / "environment.json").read_text())["data_sha256"]
    assert said["data_sha256"] == digest


def test_what_cannot_be_exported_is_one_line(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    puid("export", tmp_path, "--format", "npy", "--out", tmp_path / "out").refused("not a run folder")
    puid("export", run_folder, "--format", "npy", "--out", run_folder).refused("replace")
    assert (run_folder / "model").is_dir()

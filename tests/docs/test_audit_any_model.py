"""The how-to on models trained elsewhere, with the block that needs implicit, and its command."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from puidrec.cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("one_thread")
def test_implicit_is_judged_by_ranking_and_files_of_scores_by_the_command(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("implicit")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    text = (ROOT / "docs" / "howto" / "audit-any-model.md").read_text(encoding="utf-8")
    found = {}
    for block in pages.blocks(text):
        if block.kind == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # implicit warns of threads
                exec(compile(block.body, "page", "exec"), scope)
            found[block.body.split("\n")[0]] = scope.get("audit")
    als, warp, network = (
        next(audit for first, audit in found.items() if first.startswith(start))
        for start in ("from implicit", "class WarpLike", "import torch")
    )
    for audit in (als, warp):
        assert audit.to_dict()["metric"] == "ranking"
        assert audit.to_dict()["rows"]["mapped"] is True
        assert any("isotonic" in text for text in audit.to_dict()["limits"])
    assert network.to_dict()["metric"] == "error"
    assert network.to_dict()["rows"]["source"] == "cross-fitted"
    assert als.to_dict()["rows"]["source"] == "given"
    (command,) = [
        line
        for block in pages.blocks(text)
        if block.kind == "console"
        for line in pages.commands(block.body)
    ]
    assert CliRunner().invoke(app, command.split()[1:]).exit_code == 0
    values = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert values["rows"]["lists"] == "rated"
    assert (values["model"]["name"], values["against"]["name"]) == ("network", "means")

"""The bill of materials that `make wheel` writes beside the wheel is one that tools read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

WHEEL = Path(__file__).parents[2] / "bench" / "wheel.py"


@pytest.fixture(scope="module")
def wheel() -> Any:
    spec = importlib.util.spec_from_file_location("bench_wheel", WHEEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(
    name: str, version: str, requires: tuple[str, ...] = (), **about: str
) -> dict[str, Any]:
    """A package as `pip install --report` tells of it."""
    archive = {"hashes": {"sha256": "0" * 63 + str(len(name) % 10)}}
    metadata = {"name": name, "version": version, "requires_dist": list(requires), **about}
    return {"metadata": metadata, "download_info": {"url": "file:///x", "archive_info": archive}}


def test_it_names_every_package_with_version_hash_and_needs(wheel: Any) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    report = {
        "install": [
            installed("torch", "2.13.0+cpu", license="BSD-3-Clause"),
            installed(
                "puidrec", "0.1.0", ("torch<3,>=2.10", "Jinja2>=3.1", 'ray>=2.40; extra == "ray"')
            ),
            installed("Jinja2", "3.1.6", license_expression="BSD-3-Clause"),
        ]
    }
    bill = wheel.bill_of_materials(report)
    assert (
        validation.JsonStrictValidator(schema.SchemaVersion.V1_5).validate_str(json.dumps(bill))
        is None
    )
    assert bill["metadata"]["component"]["name"] == "puidrec"
    assert [part["purl"] for part in bill["components"]] == [
        "pkg:pypi/jinja2@3.1.6",
        "pkg:pypi/torch@2.13.0%2Bcpu",
    ]
    assert all(len(part["hashes"][0]["content"]) == 64 for part in bill["components"])
    needs = {need["ref"]: need["dependsOn"] for need in bill["dependencies"]}
    assert needs["pkg:pypi/puidrec@0.1.0"] == [
        "pkg:pypi/jinja2@3.1.6",
        "pkg:pypi/torch@2.13.0%2Bcpu",
    ]

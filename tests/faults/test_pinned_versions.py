"""The pinned versions of the developers' environment have hashes, all of them."""

from __future__ import annotations

import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lock() -> Any:
    spec = importlib.util.spec_from_file_location("bench_lock", ROOT / "bench" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pinned_version_has_hashes(lock: Any) -> None:
    pinned, hashed = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("constraints.txt", "constraints-hashes.txt")
    )
    assert lock.pins(hashed) == lock.pins(pinned), "run bench/lock.py"
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", hashed)[1:]
    assert len(entries) == len(lock.pins(pinned)) > 100
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", entry.rstrip()) for entry in entries)


@pytest.mark.parametrize(
    ("file", "is_of"),
    [
        ("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0.post1-cp311-none-any.whl", False),
        ("torch_geometric-2.13.0-py3-none-any.whl", False),
        ("torch-2.13.0.tar.gz", True),
    ],
)
def test_files_of_other_versions_and_packages_are_not_taken(
    file: str, is_of: bool, lock: Any
) -> None:
    assert lock.is_of(file, "torch", "2.13.0") is is_of


def test_an_index_and_a_folder_give_hashes(
    tmp_path: Path, lock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [("one_package-1.0-py3-none-any.whl", "a"), ("one_package-1.0.tar.gz", "b")]
    page = "".join(f'<a href="https://x/y/{file}#sha256={c * 64}">' for file, c in links)
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(page.encode())

    monkeypatch.setattr(lock.urllib.request, "urlopen", urlopen)
    found = lock.on_index("https://index/simple/", "One.Package", "1.0")
    assert found == {"a" * 64}, "the wheel alone"
    assert asked == ["https://index/simple/one-package/"]
    (tmp_path / "one_package-1.0+cpu-py3-none-any.whl").write_bytes(b"")
    own = lock.in_folder(tmp_path, "one-package", "1.0")
    assert [lock.platform(file) for file in own] == ["any"]
    assert lock.on_index("https://index/simple/", "one-package", "1.0", {"any"}) == set()

"""Hashes of everything that `constraints.txt` names, for `make setup HASHES=1`.

    python bench/lock.py INDEX [--also FOLDER]

INDEX is the address of a package index (its `/simple`), which names a SHA-256 with each file (PEP
503); FOLDER holds wheels that no index has. Writes `constraints-hashes.txt`: the wheels of every
platform, or the source archive where a version has no wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import urllib.request
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# The versions of constraints.txt with the SHA-256 of their files; written by bench/lock.py.
# `make setup HASHES=1` installs these files and no others.
"""


def main() -> None:
    """Ask for each version, then write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index")
    parser.add_argument("--also", type=Path, help="folder of further wheels")
    asked = parser.parse_args()
    lines = [HEAD]
    for name, version in pins((ROOT / "constraints.txt").read_text(encoding="utf-8")):
        own = in_folder(asked.also, name, version)
        hashes = on_index(asked.index, name, version, {platform(file) for file in own})
        hashes |= set(own.values())
        if not hashes:
            raise SystemExit(f"no file of {name} {version}")
        listed = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(hashes))
        lines.append(f"{name}=={version}{listed}\n")
    (ROOT / "constraints-hashes.txt").write_text("".join(lines), encoding="utf-8")


def pins(text: str) -> list[tuple[str, str]]:
    """Names and versions of a file of constraints."""
    lines = [line.partition("#")[0].split("\\")[0].strip() for line in text.splitlines()]
    return [(pin[0], pin[2]) for line in lines if (pin := line.partition("=="))[1]]


def on_index(index: str, name: str, version: str, but: Collection[str] = ()) -> set[str]:
    """Hashes of the wheels of a version, or of its source archives. but: platforms for which the
    caller has a build of his own; pip would take the index's before that."""
    page = f"{index.rstrip('/')}/{plain(name)}/"
    with urllib.request.urlopen(page, timeout=60) as answer:  # the caller's own index
        links = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})', answer.read().decode())
    files = {file: digest for file, digest in links if is_of(file, name, version)}
    wheels = {file: digest for file, digest in files.items() if file.endswith(".whl")}
    return {
        digest for file, digest in (wheels or files).items() if not but or platform(file) not in but
    }


def in_folder(folder: Path | None, name: str, version: str) -> dict[str, str]:
    """The wheels of a version in a folder, those with a local label (`+cpu`) too, and their
    hashes."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (() if folder is None else folder.glob("*.whl"))
        if is_of(re.sub(r"(\+|%2B)[^-]*", "", file.name), name, version)
    }


def platform(wheel: str) -> str:
    """What a wheel runs on: the last part of its name."""
    return wheel.removesuffix(".whl").rpartition("-")[2]


def is_of(file: str, name: str, version: str) -> bool:
    """Whether a file is of a version of a package."""
    found = re.match(r"(.+?)-(\d[^-]*?)(-|\.tar\.gz$|\.zip$)", file)
    return found is not None and (plain(found[1]), found[2]) == (plain(name), version)


def plain(name: str) -> str:
    """The form of a name that an index knows (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()

"""Run what the pages show: commands, Python blocks, quoted output.

In a page, a `console` block holds commands, and a `text` block right after it quotes lines of what they print. A figure
in the prose is tied to a file by a comment: `1.20<!-- audit/audit.json tipping.gamma .2f -->`. Words must be as quoted,
and numbers as near as another processor may bring them. `python docs/pages.py docs/tutorial.md` runs a page in a
temporary folder and writes fresh figures into it; with `--check` it writes nothing and fails where a figure is off.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"(?:^<!-- (?P<note>not run[^>]*) -->\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")
FIGURE = re.compile(
    r"(?P<shown>[−-]?[\d.,]+)<!-- (?P<file>[\w./-]+) (?P<key>[\w.@-]+) (?P<format>\S+) -->"
)
RELATIVE, UNITS = 0.05, 5
"""How far figures may be off: a share, or units of their last digit."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its lines, where it stands, and why it is not run, if it is not."""

    kind: str
    body: str
    start: int
    end: int
    note: str | None


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page in order."""
    for found in BLOCK.finditer(text):
        yield Block(
            found["kind"], found["body"], found.start("body"), found.end("body"), found["note"]
        )


def commands(body: str) -> list[str]:
    """The commands of a block, to be looked at one by one; a quote may go on in the next line."""
    whole, parts = [], ""
    for line in body.replace("\\\n", "").splitlines():
        parts = f"{parts}\n{line}" if parts else line
        if parts.count('"') % 2 or parts.count("'") % 2:
            continue
        if parts.strip() and not parts.startswith("#"):
            whole.append(parts)
        parts = ""
    return whole


def run_command(command: str, folder: Path, programs: Path | None = None) -> str:
    """Run a block of commands as a reader would, with this Python first on the path; returns what it prints.

    programs: a folder of programs that are found before those of this Python.
    """
    first = [str(programs)] if programs else []
    path = os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ["PATH"]])
    setting = {
        **os.environ,
        "PATH": path,
        "COLUMNS": "90",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(  # noqa: S603 (the commands are those of our own pages)
        ["bash", "-euc", command],  # noqa: S607
        cwd=folder,
        env=setting,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise AssertionError(
            f"exit code {done.returncode}: {command}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def skeleton(line: str) -> str:
    """The words of a line, numbers and spacing aside."""
    return " ".join(NUMBER.sub("#", line).split())


def near(quoted: str, printed: str) -> bool:
    """Whether two lines of one skeleton have numbers near enough."""
    pairs = zip(NUMBER.findall(quoted), NUMBER.findall(printed), strict=True)
    return all(
        abs(_number(a) - _number(b)) <= max(UNITS * _unit(b), RELATIVE * abs(_number(b)))
        for a, b in pairs
    )


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _unit(text: str) -> float:
    """What the last digit counts; whole numbers are exact."""
    return 10.0 ** -len(text.partition(".")[2]) if "." in text else 0.0


def matched(quoted: str, printed: str) -> Iterator[tuple[str, str | None]]:
    """Each quoted line with the printed line it stands for: the next one of the same skeleton, else None."""
    lines = [line.rstrip() for line in printed.splitlines()]
    at = 0
    for line in quoted.splitlines():
        if not line.strip() or line.strip() == "…":
            continue
        where = next(
            (k for k in range(at, len(lines)) if skeleton(lines[k]) == skeleton(line)), None
        )
        yield line, None if where is None else lines[where]
        at = at if where is None else where + 1


def from_file(folder: Path, file: str, key: str, style: str) -> str:
    """A figure from a JSON file, written in the given format; rows of a list are found by place or by method."""
    value: Any = json.loads((folder / file).read_text(encoding="utf-8"))
    for part in key.split("."):
        if isinstance(value, list):
            value = (
                value[int(part)]
                if part.isdigit()
                else next(row for row in value if row["method"] == part)
            )
        else:
            value = value[part]
    return format(value, style)


def run_page(text: str, folder: Path, programs: Path | None = None) -> tuple[str, list[str]]:
    """Run a page; returns it with fresh figures, and what was not as quoted."""
    fresh, wrong, printed = [], [], ""
    at = 0
    for block in blocks(text):
        fresh.append(text[at : block.start])
        body = block.body
        if block.note is None and block.kind == "console":
            printed = run_command(body, folder, programs)
        elif block.note is None and block.kind == "python":
            (folder / "block.py").write_text(body, encoding="utf-8")
            printed = run_command("python block.py", folder, programs)
        elif block.note is None and block.kind == "text":
            for quoted, line in matched(body, printed):
                if line is None:
                    wrong.append(f"not printed: {quoted!r} in\n{printed}")
                    continue
                body = body.replace(quoted, line, 1)
                if not near(quoted, line):
                    wrong.append(f"quoted {quoted!r}, printed {line!r}")
        fresh.append(body)
        at = block.end
    fresh.append(text[at:])
    return _fresh_figures("".join(fresh), folder, wrong), wrong


def _fresh_figures(text: str, folder: Path, wrong: list[str]) -> str:
    def renew(found: re.Match[str]) -> str:
        value = from_file(folder, found["file"], found["key"], found["format"])
        if not near(found["shown"], value):
            wrong.append(f"in the text: {found[0]!r}, now {value}")
        return found[0].replace(found["shown"], value, 1)

    return FIGURE.sub(renew, text)


def main(arguments: list[str]) -> int:
    """Run pages and renew their figures, or, with --check, only say what is not as quoted."""
    check, names = "--check" in arguments, [name for name in arguments if name != "--check"]
    found = 0
    for name in names:
        page = Path(name)
        with tempfile.TemporaryDirectory() as temporary:
            renewed, changes = run_page(page.read_text(encoding="utf-8"), Path(temporary))
        if not check:
            page.write_text(renewed, encoding="utf-8")
        sys.stdout.write("\n".join([f"{name}: {len(changes)} change(s)", *changes]) + "\n")
        found += len(changes)
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

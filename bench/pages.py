"""The five pages with measured figures: measured, kept as small JSON, written from it, and checked.

    python bench/pages.py make --data DATA            all pages that are not of this version
    python bench/pages.py make field --data DATA      one page; --again: even where it is current
    python bench/pages.py write                       pages from stored results; nothing is measured
    python bench/pages.py check                       names what is not of this version; exit code 1
    python bench/pages.py plan                        what each page is made of, and what it takes

docs/results/PAGE.json holds the figures and their stamp: a hash of the golden scores
(tests/golden/*.json), the command, seeds and the date. A page is current where that hash is that of
the scores now. Finished parts are kept in bench/out/pages, by the golden scores of the methods that
they fit: an interrupted run goes on, a page never meets figures of another version, and where one
method changed, no other is measured again. `--minutes` bounds what a page may take; what is not
finished then is counted on the page, and the next `make` goes on with it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
DOCS, GOLDEN = ROOT / "docs", ROOT / "tests" / "golden"
SHOWN_IN = ("README.md", "docs/index.md")
"""Where the sentences of `FOUND` stand, between two comments."""
FOUND = re.compile(r"(?<=<!-- found -->\n).*?(?=<!-- end of found -->)", re.DOTALL)
Figures = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """How a page is to be measured."""

    data: Path
    """Folder of the public data sets."""
    folder: Path
    """For finished parts."""
    workers: int
    minutes: float
    quick: bool = False

    @property
    def end(self) -> float:
        """When no new part may start, by `time.monotonic`."""
        return time.monotonic() + 60.0 * self.minutes


@dataclass(frozen=True)
class Page:
    """A page: the module of bench/ that has its `measure_*` and `*_text`, and what it is made of."""

    name: str
    module: str
    seeds: str
    minutes: float
    """What it may take with two processes."""

    @property
    def methods(self) -> tuple[str, ...]:
        """What it fits, where its module says so: other methods may change without it."""
        fits = getattr(importlib.import_module(self.module), "PAGE_METHODS", {})
        return tuple(fits.get(self.name, ()))

    def measure(self, ask: Ask) -> Figures:
        """Plain values; `unfinished` counts the parts that time did not allow."""
        found: Figures = getattr(importlib.import_module(self.module), f"measure_{self.name}")(ask)
        return found

    def text(self, figures: Figures, made: str) -> str:
        """The page as Markdown."""
        written: Callable[[Figures, str], str] = getattr(
            importlib.import_module(self.module), f"{self.name}_text"
        )
        return written(figures, made)


PAGES = {
    page.name: page
    for page in (
        Page("paper", "tables", "0", 12.0),
        Page("field", "tables", "0", 9.0),
        Page("truth", "truth", "0 to 2", 8.0),
        Page("guarantees", "guarantee_page", "one per simulated log", 8.0),
        Page("scaling", "scaling", "0", 22.0),
    )
}


def golden_hash(folder: Path = GOLDEN) -> str:
    """Of all golden scores: what every page is stamped with."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def version(*methods: str, folder: Path = GOLDEN) -> str:
    """Of the golden scores of some methods."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    scores = [[kept.get(method) for kept in files] for method in methods]
    return hashlib.sha256(json.dumps(scores).encode()).hexdigest()[:8]


def stored(name: str, docs: Path = DOCS) -> Figures | None:
    """The results of a page, or None."""
    path = docs / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def stale(docs: Path = DOCS, golden: Path = GOLDEN) -> list[str]:
    """The pages whose results are missing, are of a quick run, or are of other scores."""
    now = golden_hash(golden)
    kept = {name: stored(name, docs) for name in PAGES}
    return [
        f"{name}.md"
        for name, results in kept.items()
        if results is None or results["quick"] or results["golden"] != now
    ]


def stamp(name: str, results: Figures) -> str:
    """The line under a page's title."""
    words = [
        f"Made by `{results['command']}` on {results['date']}",
        f"seeds: {results['seeds']}",
        f"golden scores `{results['golden']}`",
        f"{results['minutes']:.0f} minutes on {results['workers']} process{'es' if results['workers'] > 1 else ''}",
        f"[figures](results/{name}.json)",
    ]
    quick = "**A quick run: it shows that everything works, and its figures say nothing.** "
    return (quick if results["quick"] else "") + "; ".join(words) + "."


def written(name: str, results: Figures) -> str:
    """A page from its stored results."""
    return PAGES[name].text(results["figures"], stamp(name, results))


def write_pages(names: Iterable[str]) -> None:
    """Pages from what is stored, and the sentences of the README."""
    from puidrec.atomic import write_text

    for name in names:
        if results := stored(name):
            write_text(DOCS / f"{name}.md", written(name, results))
    for file in SHOWN_IN:
        text = (ROOT / file).read_text(encoding="utf-8")
        write_text(ROOT / file, with_findings(text, "" if file.startswith("docs/") else "docs/"))


def with_findings(text: str, folder: str) -> str:
    """A text with what was found, between its two comments, as the stored results have it now."""
    kept = {name: results["figures"] for name in PAGES if (results := stored(name))}
    lines = importlib.import_module("findings").findings(kept)
    shown = "\n".join(f"* {words} ([figures]({folder}{page}.md))" for page, words in lines)
    return FOUND.sub(lambda _: f"\n{shown}\n\n", text)


def unchanged(page: Page, kept: Figures) -> bool:
    """Whether only methods that a page does not fit have other scores than then."""
    return bool(page.methods) and kept.get("fits") == version(*page.methods) and not kept["quick"]


def restamp(names: Iterable[str]) -> None:
    """Stamp with today's golden scores what is still of these."""
    from puidrec.atomic import write_json

    for name in names:
        if (kept := stored(name)) and unchanged(PAGES[name], kept):
            write_json(DOCS / "results" / f"{name}.json", {**kept, "golden": golden_hash()})


def make(names: Sequence[str], ask: Ask, again: bool) -> list[str]:
    """Measure what is not current, and write it down page by page; returns what went wrong."""
    from puidrec.atomic import write_json

    now, failed = golden_hash(), []
    restamp(names)
    write_pages(names)
    for name in names:
        page, kept = PAGES[name], stored(name)
        current = kept is not None and kept["golden"] == now and not kept["quick"]
        if current and not again and not kept["figures"].get("unfinished"):
            print(f"{name}: current", flush=True)
            continue
        kept_in = page.module if page.methods else f"{page.module} {now}"
        folder = ROOT / "bench" / "out" / ("quick" if ask.quick else "pages") / kept_in
        folder.mkdir(parents=True, exist_ok=True)
        own = replace(ask, folder=folder, minutes=ask.minutes or page.minutes)
        before = kept["minutes"] if kept and kept["golden"] == now and not kept["quick"] else 0.0
        start = time.monotonic()
        try:
            figures = page.measure(own)
        except Exception as error:  # the other pages can be made all the same
            failed.append(f"{name}: {type(error).__name__}: {error}")
            print(failed[-1], flush=True)
            continue
        minutes = (time.monotonic() - start) / 60.0
        results = {
            "golden": now,
            "command": f"make page-{name}",
            "seeds": page.seeds,
            "date": datetime.now(UTC).date().isoformat(),
            "minutes": round(minutes + before, 1),
            "workers": ask.workers,
            "quick": ask.quick,
            "fits": version(*page.methods),
            "figures": figures,
        }
        write_json(DOCS / "results" / f"{name}.json", results)
        write_pages([name])
        print(
            f"{name}: {minutes:.1f} minutes, {figures.get('unfinished', 0)} unfinished", flush=True
        )
    return failed


def plan(names: Iterable[str]) -> str:
    """What pages are made of and what that took, in processor minutes."""
    lines, total, old = [], 0.0, stale()
    for name in names:
        figures = (stored(name) or {"figures": {}})["figures"]
        costs = {kind: (n, seconds / 60) for kind, (n, seconds) in figures.get("costs", {}).items()}
        known = sum(minutes for _, minutes in costs.values()) / 2 or PAGES[name].minutes
        done = f"{name}.md" not in old and not figures.get("unfinished")
        state = "current" if done else "to be measured"
        lines.append(f"{name}: {known:.1f} minutes with two processes; {state}")
        lines += [f"    {n:4d} × {kind}: {minutes:.1f}" for kind, (n, minutes) in costs.items()]
        total += known
    return "\n".join([*lines, f"all: {total:.0f} minutes with two processes"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["make", "write", "check", "plan"])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"some of {', '.join(PAGES)}")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PUIDREC_DATA", "data")))
    parser.add_argument("--workers", type=int, default=int(os.environ.get("WORKERS", "2")))
    parser.add_argument("--minutes", type=float, default=0.0, help="per page; 0: what is planned")
    parser.add_argument("--again", action="store_true", help="measure current pages too")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    given = parser.parse_args()
    names = given.pages or list(PAGES)
    if unknown := set(names) - set(PAGES):
        parser.error(f"unknown page {', '.join(unknown)}; expected some of {', '.join(PAGES)}")
    if given.what == "write":
        restamp(names)
        write_pages(names)
        return 0
    if given.what == "plan":
        print(plan(names))
        return 0
    if given.what == "check":
        old = [name for name in stale() if name.removesuffix(".md") in names]
        print(f"not of this version: {', '.join(old)}" if old else "all pages are current")
        return 1 if old else 0
    ask = Ask(given.data, ROOT, given.workers, given.minutes, given.quick)
    return 1 if make(names, ask, given.again) else 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    sys.exit(main())

"""An audit in the shape of `audit.json`, pages as a tree, and one real browser for all tests that
need one."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "{% include 'x' %}",
    "\u05d0\u05d1\u05d2 \u202e rtl",
    "`code` **bold** {x}",
    "]]></script><svg onload=alert(1)>",
    "long" * 80,
    "\u2028\u2029\x00\x1b",
    "",
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Node:
    """An element of a page: its tag, classes, attributes and what is inside."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.classes = attributes.get("class", "").split()
        self.inside: list[Node | str] = []

    def all(self, selector: str) -> list[Node]:
        """Elements by `tag`, `.class` or `#id`, in the order of the page."""
        found = []
        for one in self.inside:
            if isinstance(one, Node):
                if selector in (
                    one.tag,
                    f"#{one.attributes.get('id')}",
                    *(f".{c}" for c in one.classes),
                ):
                    found.append(one)
                found += one.all(selector)
        return found

    def first(self, selector: str) -> Node:
        """The first of these."""
        return self.all(selector)[0]

    @property
    def text(self) -> str:
        """Its words, with single spaces."""
        parts = [one if isinstance(one, str) else one.text for one in self.inside]
        return " ".join("".join(parts).split())

    def facts(self) -> dict[str, str]:
        """Labels and values of all its lists of facts."""
        lists = [node for node in self.all("dl") if "facts" in node.classes]
        rows = [row for node in lists for row in node.all("div")]
        return {row.first("dt").text: row.first("dd").text for row in rows}

    def tables(self) -> dict[str, Node]:
        """Its tables by their captions, up to the first stop."""
        blocks = [node for node in self.all(".block") if node.all("table")]
        return {node.first(".caption").text.split(".")[0]: node for node in blocks}

    def heads(self) -> list[str]:
        """The names of a table's columns."""
        return [node.text for node in self.first("thead").all("th")]

    def rows(self) -> list[list[str]]:
        """The texts of a table's body."""
        return [[str(cell.text) for cell in row.cells()] for row in self.first("tbody").all("tr")]

    def cells(self) -> list[Node]:
        """The cells of a row."""
        return [one for one in self.inside if isinstance(one, Node)]

    def tone(self) -> str:
        """The tone of a box or cell."""
        return next(name[5:] for name in self.classes if name.startswith("tone-"))


class Tree(HTMLParser):
    """Reads a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in ("meta", "input", "img", "br"):
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1].tag not in ("script", "style"):
            self.open[-1].inside.append(data)


@pytest.fixture(scope="session")
def read() -> Callable[[str], Node]:
    """Reads a page of HTML into a tree."""
    return lambda text: Tree(text).root


@pytest.fixture(scope="session")
def blocks_page() -> Callable[..., str]:
    """Renders a page whose body is a piece of template; keyword arguments are its values."""
    from puidrec.report.audit import draw
    from puidrec.report.page import _environment, render

    def make(body: str, kind: str = "", title: str = "Title", lead: str = "", **values: Any) -> str:
        template = _environment().from_string(
            '{% extends "base.html.j2" %}{% block main %}'
            '{% import "blocks.html.j2" as blocks with context %}'
            '{% import "envelope.html.j2" as drawn with context %}' + body + "{% endblock %}"
        )
        return render(template, kind=kind, title=title, lead=lead, draw=draw, **values)

    return make


def curves(grid: list[float], point: float, rate: float) -> dict[str, Any]:
    """Three nested ranges that widen with log Γ, each with a band of sampling error around it."""
    log = [math.log(g) for g in grid]
    spread = {"sharp": 0.6 * rate, "normalised": rate, "box": 1.4 * rate}
    ranges: dict[str, Any] = {
        kind: {"low": [point - s * x for x in log], "high": [point + 1.2 * s * x for x in log]}
        for kind, s in spread.items()
    }
    band = {
        "low": [v - 0.003 for v in ranges["normalised"]["low"]],
        "high": [v + 0.003 for v in ranges["normalised"]["high"]],
    }
    for curve in ranges.values():
        curve["band"] = {
            "low": [v - 0.003 for v in curve["low"]],
            "high": [v + 0.003 for v in curve["high"]],
        }
    return {"point": point, **ranges, "band": band, "band_of": "normalised"}


@pytest.fixture(params=NASTY[:-1], ids=range(len(NASTY) - 1))
def nasty(request: pytest.FixtureRequest) -> str:
    """A name that is more than a name, if it is not escaped."""
    return str(request.param)


@pytest.fixture
def audit_values() -> Callable[..., dict[str, Any]]:
    """Makes an audit; keyword arguments replace its parts."""

    def make(**changes: Any) -> dict[str, Any]:
        grid = [math.exp(k * math.log(8.0) / 40) for k in range(41)]
        features = [
            ("age", 1.31),
            ("gender", 1.12),
            ("genre", 1.62),
            ("price", 1.58),
            ("brand", 1.05),
            ("shelf", 1.4),
        ]
        values: dict[str, Any] = {
            "version": 3,
            "sentence": "puid-dr stays ahead of mf unless hidden factors change the odds of being "
            "seen by over 2.46.",
            "verdict": "robust",
            "metric": "error",
            "ranking": {
                "metric": "DCG@10",
                "verdict": "undecided",
                "lead": {"value": 0.4, "low": -0.1, "high": 0.9},
                "tipping": {"gamma": 1.3, "low": 1.0, "high": 2.0, "no_lead": False},
                "uniform": None,
                "replaced": None,
                "adjusted": None,
                "combined": None,
                "unsupported_slots": 3,
            },
            "ndcg": {
                "metric": "NDCG@10",
                "verdict": "confirmed",
                "lead": None,
                "tipping": None,
                "replaced": None,
                "uniform": {"value": 0.02, "low": 0.01, "high": 0.03, "n": 4176},
                "adjusted": None,
                "combined": None,
            },
            "control": {
                "words": "Control: the range at Γ = 1 is the unadjusted weighted estimate, 0.027 = "
                "0.027."
            },
            "tilt": {"sentence": "Measured tilt: a factor of 1.80."},
            "not_claimed": ["That anything is hidden."],
            "reference": {"words": "hiding the feature genre", "gamma": 1.62},
            "scenarios": [{"scenario": "a hidden trait", "gamma": 1.67, "survived": True}],
            "model": {
                "name": "puid-dr",
                "method": "puid-dr",
                "settings": {"dim": 16, "lr": 0.02, "alpha": 2.0},
            },
            "against": {"name": "mf", "method": "mf", "settings": {"dim": 16, "lr": 0.02}},
            "data": {
                "name": "coat",
                "sha256": "0f" * 32,
                "n_users": 290,
                "n_items": 300,
                "n_logged": 6960,
                "protocol": "rd",
                "positive_rate": 0.3521,
            },
            "rows": {"source": "held-out", "n": 1392},
            "gamma_grid": grid,
            "envelopes": {
                "loss_gap": curves(grid, 0.027, 0.03),
                "dcg_gap": curves(grid, 0.4, 0.9),
                "model_loss": curves(grid, 0.21, 0.05),
                "against_loss": curves(grid, 0.237, 0.06),
            },
            "tipping": {
                "gamma": math.exp(0.9),
                "low": 1.9,
                "high": None,
                "high_infinite": True,
                "sharp": math.exp(1.5),
                "no_lead": False,
                "closed_form": {"T": 188.2, "S_plus": 900.1, "S_minus": 410.6},
            },
            "benchmarks": [
                {
                    "feature": f,
                    "side": "user" if k < 2 else "item",
                    "gamma": g,
                    "times_hidden": 0.9 / math.log(g),
                }
                for k, (f, g) in enumerate(features)
            ],
            "certificate": {"gamma_min": 1.71, "low": 1.52, "kind": "labels", "n_uniform": 4640},
            "uniform": {"n": 4176},
            "gamma_map": {
                "user_bins": ["gender=f, age=20", "gender=f, age=30", "gender=f, age=<40"],
                "item_bins": ["coats", "parkas", "jackets", "<b>"],
                "values": [[1.1, 1.3, 1.7, 2.2], [1.2, 1.4, 1.9, 2.6], [1.3, 1.6, None, 3.1]],
            },
            "gamma": {"median": 1.42, "p95": 2.71, "max": 3.1, "rule": "exposure-gap"},
            "segments": {
                "users": [
                    {
                        "column": "age",
                        "segment": name,
                        "n": n,
                        "gamma_mean": g,
                        "gamma_p95": p,
                        "width": w,
                    }
                    for name, n, g, p, w in (
                        (NASTY[0], 85, 2.7, None, 0.2),
                        ("20 to 30", 12_000, 10.4, 12.6, 0.11),
                        ("under 20", 900, 1.2, 2.2, 0.05),
                    )
                ],
                "items": [
                    {"column": "type", "segment": name, "n": k, "gamma_mean": 1.0 + k / 9}
                    for k, name in enumerate(NASTY)
                ],
                "columns": ["age", "type"],
                "strength": "Γ per user and item",
                "ranked_users": 270,
            },
            "diagnostics": {
                "ess": 812.4,
                "ess_share": 0.58,
                "share_clipped": 0.004,
                "calibration_error": 0.12,
                "gini": 0.41,
                "weights": {"min": 1.9, "median": 7.1, "max": 124.9, "top1_weight_share": 0.087},
                "propensity": {"name": "two-way", "min": 0.008, "median": 0.14, "max": 0.52},
                "calibration": [
                    {
                        "decile": k,
                        "pairs": 8700.0,
                        "seen": 85 * k,
                        "predicted": 0.01 * k,
                        "observed": 0.0098 * k,
                    }
                    for k in range(1, 11)
                ],
                "ess_by_item_decile": [
                    {
                        "decile": 1,
                        "items": 30,
                        "share_of_log": 0.24,
                        "rows": 165,
                        "ess": 91.2,
                        "mean_weight": 4.1,
                    },
                    {
                        "decile": 2,
                        "items": 30,
                        "share_of_log": 0.15,
                        "rows": 0,
                        "ess": 0.0,
                        "mean_weight": None,
                    },
                ],
            },
            "limits": [
                "It does not say that anything is hidden.",
                "Γ is a bound for every pair, not an average.",
            ],
        }
        values |= changes
        error = {
            "metric": "squared error",
            "verdict": values["verdict"],
            "tipping": values["tipping"],
            "replaced": 18,
            "lead": {"value": 0.027, "low": 0.01, "high": 0.04},
            "uniform": {"value": 0.0363, "low": 0.0314, "high": 0.0413, "n": 4176},
            "adjusted": {"value": 0.0301, "low": 0.0214, "high": 0.0404},
            "combined": None,
            "unsupported_slots": 0,
        }
        nothing = {"error": None, "ranking": None, "ndcg": None}
        alone = nothing if values["against"] is None else {"error": error}
        return values | {name: lead for name, lead in alone.items() if name not in changes}

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, for one module: while its driver lives, no test of this process can run a
    loop of its own."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra dev)"
    )
    path = (
        os.environ.get("PUIDREC_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
    )
    if path is None or not Path(path).exists():
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS), timeout=60_000)
        yield browser
        browser.close()

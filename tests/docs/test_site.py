"""Links resolve, figures and tables are there, and the site builds without a warning and without
the network."""

from __future__ import annotations

import html.parser
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
STANDARD = (
    "cold start",
    "hyperparameter",
    "RMSE",
    "regularisation",
    "early stopping",
    "calibration",
    "data leakage",
    "implicit feedback",
    "propensity score",
    "confidence interval",
)
RIDDLES = re.compile(
    r"\b(strangers?|set apart|at the door|times over|inside out|with an eye on|know nothing"
    r"|equally fine)\b",
    re.IGNORECASE,
)
OVERSTATED = (
    "something hidden did drive the log",
    "what is hidden has overturned",
    "no hidden confounding can overturn",
    "no longer a worry but a measurement",
    "costs about one percent",
    "random ratings is often enough",
    "random ratings are often enough",
    "how confounded they are",
)
"""Sentences that were once shown and say more than is assumed or measured."""
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        path, _, anchor = unquote(target).partition("#")
        found = page.parent / path
        assert found.exists(), f"{page.name} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found.read_text(encoding="utf-8")), (
                f"{page.name} links to {target}"
            )


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_nothing_says_more_than_is_assumed_and_measured() -> None:
    """Also where a line or a string ends within the sentence."""
    sources = [*PAGES, *(ROOT / "docs").rglob("*.ipynb"), *(ROOT / "src").rglob("*.py")]
    for path in sources:
        words = " ".join(
            re.sub(r'"\s+f?"|\\n|[*`]', " ", path.read_text(encoding="utf-8")).lower().split()
        )
        found = [sentence for sentence in OVERSTATED if sentence in words]
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_every_figure_is_drawn_by_the_script_and_shown() -> None:
    drawn = {path.stem for path in (ROOT / "docs" / "figures").glob("*.svg")}
    script = (ROOT / "docs" / "figures" / "make.py").read_text(encoding="utf-8")
    assert drawn == set(re.findall(r'save\(figure, "(\w+)"\)', script))
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"figures/([\w-]+)\.svg", page.read_text(encoding="utf-8"))
    }
    assert shown == drawn


def test_a_figure_follows_the_scheme_of_the_page(hooks: ModuleType) -> None:
    text = hooks.inlined(ROOT / "docs" / "figures" / "sets.svg", 'the "box"')
    assert "var(--fig-a)" in text
    assert "prefers-color-scheme" not in text  # the reader's choice on the page decides
    assert 'aria-label="the &quot;box&quot;"' in text
    assert "\n" not in text


def test_tables_are_filled_from_the_package(hooks: ModuleType) -> None:
    from puidrec.methods import METHODS
    from puidrec.settings import Settings

    for name, wanted in (("methods", METHODS), ("settings", Settings.model_fields)):
        assert [f"`{key}`" for key in wanted] == re.findall(
            r"^\| (`[\w-]+`) \|", hooks.TABLES[name](), re.MULTILINE
        )
    commands = hooks.TABLES["commands"]()
    assert "## puid data simulate" in commands
    assert "`--world`" in commands


def test_every_page_is_in_the_navigation() -> None:
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].splitlines()
    listed = {line.split()[-1] for line in lines if line.strip().endswith(".md")}
    there = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    assert not there - listed, "add the page to nav in mkdocs.yml"


def test_the_glossary_has_the_words_that_people_search_for() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text, re.MULTILINE)
    assert len(terms) > 50
    assert all(meaning.strip() for _, meaning in terms)
    names = [name for name, _ in terms if name not in ("word", "---")]
    assert len(names) == len(set(names)), "one word, one line"
    assert not [word for word in STANDARD if word.lower() not in text.lower()]
    assert "(glossary.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = RIDDLES.findall(prose)
    assert not found, f"{page.name}: see docs/glossary.md for the usual word"


def test_results_that_are_not_there_yet_are_left_out(hooks: ModuleType) -> None:
    nav = [{"Results": [{"Methods": "truth.md"}, "never-measured.md"]}, {"Other": "missing.md"}]
    assert hooks.on_config({"nav": nav})["nav"] == [
        {"Results": [{"Methods": "truth.md"}]},
        {"Other": "missing.md"},
    ]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if any(
        importlib.util.find_spec(name) is None for name in ("material", "mkdocstrings_handlers")
    ):
        pytest.skip(
            "mkdocs-material and mkdocstrings are not installed (pip install 'puidrec[dev]')"
        )
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()
    assert "Recommender" in (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads: list[str] = []

    class Loads(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if (
                tag in LOADED
                and given.get("rel") != "canonical"
                and (given.get(LOADED[tag]) or "").startswith(("http", "//"))
            ):
                loads.append(f"{tag} {given[LOADED[tag]]}")

    for page in site.rglob("*.html"):
        Loads().feed(page.read_text(encoding="utf-8"))
    assert not loads
    assert not re.findall(
        r"@import\s+url\(\W*http",
        "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css")),
    )

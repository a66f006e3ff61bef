"""The report of a study: charts that show verdicts, a page that names every method and every
hole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from puidrec.comparing.comparison import Comparison
from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.comparing.run import Failure, Results
from puidrec.comparing.summary import SummaryRow
from puidrec.report.study import dot_chart, study_html, write_report

DATA = DataSpec("coat")


def row(
    label: str, mean: float, verdict: str | None = None, metric: str = "uauc", **more: object
) -> SummaryRow:
    gap = mean - 0.7
    values: dict[str, object] = {
        "difference": gap,
        "difference_low": gap - 0.02,
        "difference_high": gap + 0.02,
    }
    if label == "mf":
        values = {"is_reference": True}
    made = SummaryRow(
        "coat",
        "own",
        "rd",
        label,
        "mf",
        metric,
        metric != "mse",
        positive_rate=0.18,
        n_seeds=3,
        n_users=290,
        mean=mean,
        sd=0.01,
        seed_low=mean - 0.01,
        seed_high=mean + 0.01,
        user_low=mean - 0.03,
        user_high=mean + 0.03,
        p_value=0.01,
        verdict=verdict,  # type: ignore[arg-type]
    )
    return replace(made, **values, **more)  # type: ignore[arg-type]


ROWS = [
    row("up <b>", 0.75, "wins"),
    row("mf", 0.7),
    row("flat", 0.69, "ties"),
    row("down", 0.6, "loses"),
]


@pytest.fixture
def results() -> Results:
    made = [
        Result(
            Job(DATA, "mf", 0, label=r.label),
            {"uauc": r.mean},
            {"test_rows": 4176, "positive_rate": 0.18},
            0.7,
            {},
            {},
        )
        for r in ROWS
    ]
    return Results(made, [Failure(Job(DATA, "ips", 2), "diverged & gone")])


def test_the_chart_puts_the_best_on_top_and_intervals_around_the_reference() -> None:
    axes = dot_chart(ROWS, "mf").axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["down", "flat", "mf", "up <b>"]
    bars = {
        round(float(line.get_ydata()[0])): line.get_xdata()
        for line in axes.lines
        if len(line.get_xdata()) == 2
    }
    assert bars[3] == pytest.approx((0.73, 0.77))  # clear of the line at 0.7: wins
    assert bars[1][0] < 0.7 < bars[1][1]  # meets it: ties
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["wins", "ties", "loses", "mf"]
    errors = dot_chart([replace(r, metric="mse", higher_is_better=False) for r in ROWS], "mf").axes[
        0
    ]
    assert [text.get_text() for text in errors.get_yticklabels()][-1] == "down"
    assert "lower is better" in errors.get_xlabel()


def test_a_chart_without_reference_or_intervals_is_drawn() -> None:
    bare = [
        replace(r, is_reference=False, difference_low=None, difference_high=None, verdict=None)
        for r in ROWS
    ]
    axes = dot_chart(bare, "mf").axes[0]
    assert axes.get_legend() is None
    assert "No reference" in " ".join(axes.get_title(loc="left").split())


def test_the_page_names_methods_holes_and_conditions(results: Results) -> None:
    text = study_html(Comparison(results, "mf", ("uauc",), tuple(ROWS)))
    for word in (
        "up &lt;b&gt;",
        "flat",
        "1 tie, 1 lose",
        "Protocol rd",
        "1 of 3 methods beats mf in uauc.",
        "18.0%",
        "diverged &amp; gone",
    ):
        assert word in text
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert study_html(Comparison(results, "mf", ("uauc",), tuple(ROWS))) == text


def test_files_of_one_and_of_several_tables(tmp_path: Path, results: Results) -> None:
    rows = [*ROWS, *(replace(r, metric="ndcg@5") for r in ROWS)]
    charts = write_report(tmp_path, Comparison(results, "mf", ("uauc", "ndcg@5"), tuple(rows)))
    assert [path.name for path in charts] == ["chart-uauc.png", "chart-ndcg-5.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in charts)
    assert (tmp_path / "report.html").read_text().count('<figure class="block picture"') == 2
    several = [*ROWS, *(replace(r, preset="paper") for r in ROWS)]
    charts = write_report(tmp_path / "two", Comparison(results, "mf", ("uauc",), tuple(several)))
    assert [path.name for path in charts] == ["chart-1-uauc.png", "chart-2-uauc.png"]


def test_what_is_equal_in_all_rows_is_said_once(results: Results) -> None:
    text = study_html(Comparison(results, "mf", ("uauc",), tuple(ROWS)))
    assert (
        "In all rows: data: coat; seed: 0; test rows: 4,176; positive: 18.0%; validation: 0.7000."
        in text
    )
    assert "configurations</bdi>" not in text  # one each
    tuned = [replace(r, trials=4, uniform_rows=28) if r.label == "flat" else r for r in ROWS]
    text = study_html(Comparison(results, "mf", ("uauc",), tuple(tuned)))
    assert "configurations</bdi>" in text
    assert "uniform rows used</bdi>" in text
    assert text.count("paired bootstrap") == 1  # notes are not repeated


@pytest.mark.parametrize("width", [1280, 400])
def test_tables_fit_the_page_or_scroll_in_their_own_region(
    browser, tmp_path: Path, results: Results, width: int
) -> None:
    long = [
        replace(r, label=f"{r.label} with a long name, Γ = 1.5", trials=k)
        for k, r in enumerate(ROWS, 1)
    ]
    write_report(tmp_path, Comparison(results, "mf", ("uauc",), tuple(long)))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        "[...document.querySelectorAll('#table-1 .scroll')].map(e => [e.scrollWidth, "
        "e.clientWidth])"
    )
    page.close()
    assert len(sizes) == 2  # the figures, and what each method was given
    if width == 1280:
        assert all(inside <= outside for inside, outside in sizes)

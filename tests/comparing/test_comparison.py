from __future__ import annotations

import json
from pathlib import Path

import pytest

import puidrec as pr
from puidrec.data.synthetic import simulate


@pytest.fixture(scope="module")
def found():
    data = simulate("mixed", 80, 50, density=0.2, rng=0).data
    return data, pr.compare(data, ["mf", "ips"], seeds=2, baselines=False, dim=3, l2=0.1, epochs=5)


def test_it_is_what_fitting_and_measuring_each_by_hand_gives(found) -> None:
    data, comparison = found
    values = []
    for seed in range(2):
        split = data.split("rd", seed)
        model = pr.Recommender("ips", rng=seed, dim=3, l2=0.1, epochs=5).fit(data, split)
        values.append(pr.evaluate(model, split.test, metrics=["uauc"])["uauc"])
    row = next(row for row in comparison.rows if (row.label, row.metric) == ("ips", "uauc"))
    assert row.mean == pytest.approx(sum(values) / 2, abs=1e-4)
    assert row.n_seeds == 2
    assert comparison.reference == "mf"


def test_it_shows_itself_in_a_notebook(found) -> None:
    comparison = found[1]
    html = comparison._repr_html_()
    assert html.count("<table>") == 2
    assert "<strong>Against mf</strong>" in html
    assert "style" not in html  # the notebook's own colours, light or dark
    assert comparison.to_frame().height == 4
    assert comparison.plot("ndcg@5").axes[0].get_xlabel().startswith("ndcg@5")
    assert "| ips |" in repr(comparison)


def test_it_is_saved_as_the_command_writes_it(found, tmp_path: Path) -> None:
    found[1].save(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "table.md", "summary.json", "results.json"} <= names
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]) == 4


def test_a_method_that_fails_is_named_and_mistakes_are_refused(found, refusal) -> None:
    data = found[0]
    some = pr.compare(data, ["mf", "bal-ips"], seeds=1, baselines=False, dim=3, l2=0.1, epochs=5)
    assert [failure.job.name for failure in some.results.failures] == ["bal-ips"]
    assert "bal-ips" in some._repr_html_()
    assert "training noise" in some._repr_html_()
    refusal(lambda: pr.compare(data, ["mf"], reference="dr", baselines=False), "reference", "dr")
    refusal(lambda: pr.compare(data, ["mf"], metrics=["auk"]), "metric", "auk")
    refusal(lambda: pr.compare(data, ["mf"], seeds=0), "seed", "0")
    refusal(lambda: found[1].plot("mse"), "metric", "mse")

"""A run folder: what it holds, that it repeats, and that nothing finished is overwritten."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError, OutputError
from puidrec.run_folder import load_run, mlflow_run, to_toml, train_run
from puidrec.settings import Settings

SETTINGS = Settings.of("rd-dr", epochs=40, dim=4, l2=0.02, seed=3)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return simulate("mixed", n_users=60, n_items=50, rng=0).data


def test_the_folder_holds_what_the_readme_says(data: Dataset, tmp_path: Path) -> None:
    run = train_run(data, SETTINGS, out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.toml",
        "metrics.json",
        "history.jsonl",
        "environment.json",
        "MODEL_CARD.md",
        "model",
    }
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {
        "uauc",
        "ndcg@5",
        "auc",
        "mse",
        "seconds",
        "epochs",
        "positive_rate",
        "protocol",
    } <= metrics.keys()
    assert metrics["uauc"] == pytest.approx(run.evaluation["uauc"])
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == metrics["epochs"]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["data_sha256"] == data.sha256
    assert environment["seed"] == 3


def test_the_resolved_config_gives_the_same_model(data: Dataset, tmp_path: Path) -> None:
    first = train_run(data, SETTINGS, out=tmp_path / "a")
    config = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert Settings.of(**config) == SETTINGS
    second = train_run(data, Settings.of(**config), out=tmp_path / "b")
    assert np.array_equal(first.model.user_factors_, second.model.user_factors_)


def test_a_saved_run_predicts_as_it_did(data: Dataset, tmp_path: Path) -> None:
    run = train_run(data, SETTINGS, out=tmp_path / "run")
    model, metrics = load_run(tmp_path / "run")
    ids = data.user_ids.ids.head(5).to_list()
    items = data.item_ids.ids.head(5).to_list()
    assert np.array_equal(model.predict(ids, items), run.model.predict(ids, items))
    assert metrics["method"] == "rd-dr"


def test_an_interrupted_run_goes_on_and_ends_the_same(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SHARE", float("inf"))  # however long one takes
    settings = Settings.of("rd-dr", epochs=40, dim=4, l2=0.02, seed=3)
    whole = train_run(data, settings).model

    def stop(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        if done == 15:  # a checkpoint is due every tenth sweep
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(data, settings, out=tmp_path / "run", progress=stop)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    resumed = train_run(data, settings, out=tmp_path / "run").model
    assert np.array_equal(whole.user_factors_, resumed.user_factors_)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_finished_run_is_not_overwritten(data: Dataset, tmp_path: Path) -> None:
    train_run(data, SETTINGS, out=tmp_path / "run")
    with pytest.raises(InputError, match="finished run"):
        train_run(data, SETTINGS, out=tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_one_line(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write"):
        train_run(data, SETTINGS, out=tmp_path / "file" / "run")


def test_a_folder_of_other_files_is_left_alone(data: Dataset, tmp_path: Path) -> None:
    for name in ("thesis.tex", ".editor.z.tmp"):
        (tmp_path / name).write_text("years of work")
        with pytest.raises(InputError, match="other files"):
            train_run(data, SETTINGS, out=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    for mine in ("epochs = 8\n", "[[["):  # `-c config.toml --out .`
        (tmp_path / "config.toml").write_text(mine)
        with pytest.raises(InputError, match="other settings"):
            train_run(data, SETTINGS, out=tmp_path)
        assert (tmp_path / "config.toml").read_text() == mine


def test_an_interrupted_run_takes_other_settings_from_nobody(data: Dataset, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(data, SETTINGS, out=tmp_path / "run", progress=stop)
    before = (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(InputError, match="other settings"):
        train_run(data, SETTINGS.replace(dim=5), out=tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_text() == before
    train_run(data, SETTINGS, out=tmp_path / "run")


def test_a_refused_start_leaves_nothing(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such device"):
        train_run(data, SETTINGS.replace(device="nonsense"), out=tmp_path / "new" / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="no such device"):
        train_run(data, SETTINGS.replace(device="nonsense"), out=tmp_path / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def test_data_without_test_rows_is_refused_before_training(tmp_path: Path) -> None:
    log = pl.DataFrame({"user_id": [1, 1, 2, 2], "item_id": [1, 2, 1, 2], "rating": [5, 1, 1, 5]})
    with pytest.raises(InputError, match="no rows are left to test on"):
        train_run(
            Dataset.from_frame(log),
            SETTINGS,
            out=tmp_path / "run",
            progress=lambda *_: pytest.fail("trained"),
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["[]", '"x"', "NaN", "[" * 100_000, '{"uauc": 1e999}', "pipe"])
def test_metrics_of_a_run_that_are_none(data: Dataset, tmp_path: Path, content: str) -> None:
    train_run(data, SETTINGS.replace(epochs=1), out=tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    if content == "pipe":
        os.mkfifo(tmp_path / "run" / "metrics.json")
    else:
        (tmp_path / "run" / "metrics.json").write_text(content)
    with pytest.raises(InputError, match=r"metrics\.json"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("content", [None, "", "{", "\x00"])
def test_what_is_no_run_folder_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "model").mkdir()
        (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(InputError):
        load_run(tmp_path)


def test_toml_round_trip_of_all_settings() -> None:
    settings = Settings.of("puid-ips", gamma=1.5, ids="bias", device="cpu", alpha=2.0)
    assert Settings.of(**tomllib.loads(to_toml(settings.model_dump()))) == settings


@pytest.mark.parametrize("method", ["mf", "signed-rd"])
def test_errors_are_measured_on_the_scale_that_a_method_predicts_on(
    data: Dataset, method: str
) -> None:
    """Labels ±1 for most; 0 and 1 where bounds speak of a share."""
    run = train_run(data, Settings.of(method, seed=0, epochs=5, dim=4, patience=0, target="binary"))
    test = data.split("rd", 0).test
    score = run.model.predict(data.user_ids.decode(test.user), data.item_ids.decode(test.item))
    label = test.label if method == "signed-rd" else 2.0 * test.label - 1.0
    assert run.metrics["mse"] == pytest.approx(float(np.mean((score - label) ** 2)), rel=1e-5)


def test_a_run_says_how_many_uniform_rows_are_logged_pairs(data: Dataset, tmp_path: Path) -> None:
    for rule in ("drop", "keep"):
        chosen = data.with_overlap(rule)
        run = train_run(chosen, Settings.of("item-rate"), out=tmp_path / rule)
        counts = {"overlap": rule, "uniform_rows": 750, "uniform_rows_in_log": data.overlap.in_log}
        assert counts["uniform_rows_in_log"] > 10
        for name in ("metrics.json", "environment.json"):
            found = json.loads((tmp_path / rule / name).read_text())
            assert {key: found[key] for key in counts} == counts
        assert run.metrics["test_rows"] == len(chosen.split("rd", 0).test)


def test_the_card_shows_the_figures_of_the_run(data: Dataset, tmp_path: Path) -> None:
    run = train_run(data, Settings.of("item-rate"), out=tmp_path / "run")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card.startswith("# Model card: item-rate on ")
    assert f"| uauc | {run.metrics['uauc']:.4f} | " in card


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra mlflow is not installed")
    monkeypatch.chdir(tmp_path)  # artifacts go to ./mlruns
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_settings_metrics_and_files(
    data: Dataset, tmp_path: Path, mlflow_store: str
) -> None:
    from mlflow.tracking import MlflowClient

    settings = Settings.of("item-rate")
    with mlflow_run(settings, "some data") as record:
        run = train_run(data, settings, out=tmp_path / "run")
        record(run, tmp_path / "run")
    with pytest.raises(InputError, match="no such"), mlflow_run(settings, "some data"):
        raise InputError("no such thing")
    client = MlflowClient(mlflow_store, mlflow_store)
    experiment = client.get_experiment_by_name("puidrec")
    failed, done = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    assert (failed.info.status, done.info.status) == ("FAILED", "FINISHED")
    assert done.data.params["method"] == "item-rate"
    assert done.data.params["data"] == "some data"
    assert done.data.metrics["ndcg_at_5"] == pytest.approx(run.metrics["ndcg@5"])
    files = {file.path for file in client.list_artifacts(done.info.run_id)}
    assert files == {"config.toml", "environment.json", "metrics.json", "MODEL_CARD.md"}


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_store_of_mlflow_is_told_before_training(
    mlflow_store: str, monkeypatch, refusal
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://mlflow")
    refusal(
        lambda: mlflow_run(Settings.of("mf"), "x").__enter__(),
        "MLflow cannot open",
        "nonsense://mlflow",
    )


def test_without_mlflow_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, refusal) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refusal(
        lambda: mlflow_run(Settings.of("mf"), "x").__enter__(), "not installed", "puidrec[mlflow]"
    )

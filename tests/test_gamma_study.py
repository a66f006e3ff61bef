from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec import Dataset, gamma_study, load_dataset
from puidrec.data.synthetic import simulate
from puidrec.exposure.gamma import PRESETS, resolve_gamma
from puidrec.exposure.tilt import DISLIKED, LIKED
from puidrec.gamma_study import study_gamma


@pytest.fixture(scope="module")
def data() -> Dataset:
    return simulate("mixed", 300, 200, rng=0).data


@pytest.fixture(scope="module")
def log(data: Dataset) -> Dataset:
    """Its log alone: without uniform rows nothing is certified, which takes most of a study."""
    return replace(data, uniform=None)


@pytest.mark.parametrize("rule", [*PRESETS, "1.7"])
def test_every_rule_gives_a_whole_table(rule: str, data: Dataset, log: Dataset) -> None:
    study = study_gamma(data if rule == "recovered" else log, rule, propensity="cells")
    table = study.table()
    cells = table.filter(pl.col("kind") == "cell")
    assert (cells["n_users"] * cells["n_items"]).sum() == data.n_pairs
    for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
        rows = table.filter(pl.col("kind") == side)
        assert rows[f"{side}_id"].to_list() == ids.ids.to_list()
        assert rows[f"{side}_id"].dtype == ids.ids.dtype
        assert rows[f"{side}_group"].null_count() == 0
    assert table["gamma"].min() >= 1.0  # type: ignore[operator]
    assert table["gamma"].max() <= max(20.0, 1.7) * (1 + 1e-9)  # type: ignore[operator]
    # Three views of one Γ: each has the mean of log Γ over D.
    weight = (cells["n_users"] * cells["n_items"]).to_numpy()
    means = [
        np.log(table.filter(pl.col("kind") == kind)["gamma"].to_numpy()).mean()
        for kind in ("user", "item")
    ]
    means.append(float(np.average(np.log(cells["gamma"].to_numpy()), weights=weight)))
    tolerance = 0.05 if rule == "recovered" else 1e-9  # its means are over a sample of partners
    assert means == pytest.approx([study.gamma.mean_log] * 3, rel=tolerance, abs=tolerance)


def test_a_small_population_is_looked_at_whole_and_a_large_one_sampled(
    log: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = study_gamma(log, "information", propensity="cells")
    assert whole.pairs.size == log.n_pairs
    assert not whole.sampled
    monkeypatch.setattr(gamma_study, "MAX_PAIRS", 20_000)
    part = study_gamma(log, "information", propensity="cells")
    assert part.sampled
    assert part.pairs.size == 20_000
    assert np.median(part.pairs) == pytest.approx(np.median(whole.pairs), rel=0.02)


def test_the_printed_equation_is_judged_by_brute_force(log: Dataset) -> None:
    study = study_gamma(log, resolve_gamma("paper", alpha=30.0, beta=60.0), propensity="cells")
    counts = study.evidence.counts
    rate, by_user = counts.cells / counts.pairs, counts.cells.sum(axis=1) / counts.pairs.sum(axis=1)

    def kl(p: np.ndarray, q: np.ndarray | float) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.nan_to_num(p * np.log(p / q)) + np.nan_to_num(
                (1 - p) * np.log((1 - p) / (1 - q))
            )
        return np.asarray(terms)

    local = 30.0 * kl(by_user, counts.rate)[:, None] + 60.0 * kl(rate, by_user[:, None])
    weight = counts.pairs / counts.pairs.sum()
    assert study.printed.value == pytest.approx((weight * local).sum())
    assert study.printed.share_below_one_local == pytest.approx(weight[local < 1].sum())
    assert 0.0 < study.printed.share_below_one_local < 1.0
    assert study.printed.share_below_one == pytest.approx(float(study.printed.value < 1))


def test_other_rules_report_the_papers_weights(log: Dataset) -> None:
    for rule in ("exposure-gap", "information", "3"):
        printed = study_gamma(log, rule, propensity="cells").printed
        assert (printed.alpha, printed.beta) == (2.0, 5.0)


def test_certificates_use_every_uniform_row(data: Dataset) -> None:
    study = study_gamma(data, "2")
    assert data.uniform is not None
    assert [(p.outcome, p.certificate.adjusted) for p in study.proofs] == [
        ("label", False),
        ("label", True),
        ("rating", False),
        ("rating", True),
    ]
    logged = data.logged.user.astype(np.int64) * data.n_items + data.logged.item
    unseen = ~np.isin(data.uniform.user.astype(np.int64) * data.n_items + data.uniform.item, logged)
    plain = study.proofs[0].certificate.levels[0]
    assert study.proofs[0].certificate.n_uniform == unseen.sum()
    expected = (data.logged.rating >= 4).mean(), (data.uniform.rating[unseen] >= 4).mean()
    assert (plain.seen, plain.unseen) == pytest.approx(expected)
    assert study.proofs[0].certificate.levels[0].seen != study.proofs[1].certificate.levels[0].seen


def test_without_uniform_rows_nothing_is_proved(log: Dataset) -> None:
    study = study_gamma(log, "information")
    assert study.proofs == ()
    assert study.proved is None


def test_a_continuous_rating_is_certified_by_label_only(data: Dataset) -> None:
    rng = np.random.default_rng(0)

    def smooth(frame: pl.DataFrame) -> pl.DataFrame:
        rating = np.clip(frame["rating"].to_numpy() + rng.uniform(-0.4, 0.4, frame.height), 1, 5)
        return frame.with_columns(pl.Series("rating", rating))

    assert data.uniform is not None
    tables = smooth(data.logged.to_frame()), smooth(data.uniform.to_frame())
    study = study_gamma(Dataset.from_frame(*tables, scale=(1, 5)), "information")
    assert [proof.outcome for proof in study.proofs] == ["label", "label"]


def test_progress_names_the_steps(data: Dataset) -> None:
    told: list[str] = []
    study_gamma(data, "2", progress=told.append)
    assert told == [
        "counting exposure",
        "estimating entropies",
        "fitting Γ",
        "hiding features",
        "certifying",
    ]


def test_mistakes_are_refused(data: Dataset, refusal: Callable[..., str]) -> None:
    refusal(lambda: study_gamma(data, "magic"), "unknown Γ rule")
    refusal(lambda: study_gamma(data, protocol="magic"), "unknown protocol")
    refusal(
        lambda: study_gamma(replace(data, uniform=None), propensity="magic"), "unknown propensity"
    )


@pytest.mark.real_data
def test_features_explain_part_of_what_coat_proves(data_root: Path) -> None:
    study = study_gamma(load_dataset("coat", data_root / "coat"))
    plain, adjusted = (proof.certificate for proof in study.proofs if proof.outcome == "rating")
    assert 1.0 <= adjusted.lower < adjusted.gamma < plain.gamma
    assert plain.lower > 1.4
    assert study.proved == adjusted.lower


def turned(data: Dataset, side: str) -> Dataset:
    """The data with ratings turned round: for all users, or for every second one, who is called so
    in a column."""
    high, low = data.scale.high, data.scale.low
    odd = pl.col("user_id") % 2 == 1 if side == "half" else pl.lit(value=True)
    other = pl.when(odd).then(high + low - pl.col("rating")).otherwise(pl.col("rating"))
    frames = [rows.to_frame().with_columns(rating=other) for rows in (data.logged, data.uniform)]  # type: ignore[union-attr]
    users = data.user_ids.ids.to_frame("user_id").with_columns(
        kind=pl.when(pl.col("user_id") % 2 == 1).then(pl.lit("odd")).otherwise(pl.lit("even"))
    )
    return Dataset.from_frame(*frames, users=users, scale=(low, high))


def test_the_sign_is_read_from_uniform_rows_by_segment_too() -> None:
    data = simulate("pair", 300, 200, density=0.1, n_uniform=6_000, rng=0).data
    assert study_gamma(data, 1.5).means[0].finding == LIKED
    assert study_gamma(turned(data, "all"), 1.5).means[0].finding == DISLIKED
    mixed = study_gamma(turned(data, "half"), 1.5)
    by_kind = {gap.name: gap.finding for gap in mixed.means if gap.name.startswith("kind")}
    assert by_kind == {"kind: even": LIKED, "kind: odd": DISLIKED}


def test_the_log_is_asked_where_there_are_no_uniform_rows(log: Dataset) -> None:
    study = study_gamma(log, 1.5)
    sign = study.sign
    assert not sign.means
    assert sign.log is not None
    assert sign.log.rows == len(study.split.train)
    assert sign.log.finding in sign.sentence

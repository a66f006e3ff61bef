from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data import split as split_module
from puidrec.data.dataset import Dataset, Interactions

RNG = np.random.default_rng(0)


def table(n_users: int, n_items: int, share: float, *, propensity: bool = False) -> pl.DataFrame:
    user, item = np.nonzero(RNG.random((n_users, n_items)) < share)
    columns = {"user_id": user, "item_id": item, "rating": RNG.integers(1, 6, user.size).astype(float)}
    return pl.DataFrame(columns | ({"propensity": np.full(user.size, 0.5)} if propensity else {}))


@pytest.fixture(scope="module")
def both() -> Dataset:
    return Dataset.from_frame(table(60, 50, 0.3), table(60, 50, 0.4), scale=(1, 5))


def keys(rows: Interactions) -> set[tuple[int, int]]:
    return set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))


def test_uniform_rows_are_divided_5_5_90_and_never_train(both: Dataset) -> None:
    split = both.split("rd", 3)
    parts = [split.propensity, split.validation, split.test]
    total = len(both.uniform)
    assert [len(part) for part in parts] == [round(0.05 * total), round(0.05 * total), total - 2 * round(0.05 * total)]
    assert set().union(*map(keys, parts)) == keys(both.uniform)
    assert sum(len(keys(part)) for part in parts) == total
    assert keys(split.train) == keys(both.logged)
    assert (split.evaluation, split.uniform_in_training) == ("uniform", False)
    assert split.positive_rate == pytest.approx((split.test.rating >= 4).mean())


def test_rows_of_three_stars_are_dropped_as_printed(both: Dataset) -> None:
    split = both.split("paper", 0)
    for part in (split.train, split.validation, split.test):
        assert 3.0 not in part.rating
        np.testing.assert_array_equal(part.label, part.rating > 3)


def test_a_seed_decides_the_split(both: Dataset) -> None:
    assert both.split("rd", 1).test.frame.equals(both.split("rd", 1).test.frame)
    assert not both.split("rd", 1).test.frame.equals(both.split("rd", 2).test.frame)


def test_without_uniform_rows_the_log_is_held_out_from() -> None:
    data = Dataset.from_frame(table(50, 40, 0.4))
    split = data.split("rd", 0)
    parts = [split.train, split.validation, split.test]
    assert sum(map(len, parts)) == len(data.logged)
    assert set().union(*map(keys, parts)) == keys(data.logged)
    assert len(split.test) == len(split.validation) == round(0.1 * len(data.logged))
    assert (split.propensity, split.evaluation) == (None, "logged")


def test_uniform_rows_train_only_when_asked(both: Dataset) -> None:
    split = both.split("rd", 0, add_uniform=True)
    assert split.uniform_in_training
    assert keys(split.train) == keys(both.logged) | keys(split.propensity)
    merged = split.train.frame.join(both.logged.frame, on=["user", "item"], how="inner")
    np.testing.assert_array_equal(merged["rating"], merged["rating_right"])
    assert split.train.frame.equals(split.train.frame.sort("user", "item"))
    assert not keys(split.train) - keys(both.logged) & keys(split.test)


def test_uniform_rows_asked_for_but_absent(refusal) -> None:
    data = Dataset.from_frame(table(20, 20, 0.4))
    refusal(lambda: data.split("rd", 0, add_uniform=True), "has none")


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.5, 0.8])
def test_masks_remove_the_stated_share(both: Dataset, ratio: float) -> None:
    n, positive = len(both.logged), int((both.logged.rating >= 4).sum())
    random = both.masked(ratio)
    assert len(random.logged) == n - round(ratio * n)
    assert keys(random.logged) < keys(both.logged)
    likes = both.masked(ratio, "positives")
    assert int((likes.logged.rating >= 4).sum()) == positive - round(ratio * positive)
    assert int((likes.logged.rating < 4).sum()) == n - positive
    assert likes.notes["mask"] == {"ratio": ratio, "kind": "positives", "removed": round(ratio * positive)}
    assert likes.uniform is both.uniform
    assert both.masked(ratio).logged.frame.equals(random.logged.frame)


def test_a_mask_never_removes_everything(both: Dataset) -> None:
    assert int((both.masked(0.9999, "positives").logged.rating >= 4).sum()) == 1


@pytest.mark.parametrize("ratio", [-0.1, 1.0, float("nan")])
def test_wrong_masks_are_refused(both: Dataset, ratio: float, refusal) -> None:
    refusal(lambda: both.masked(ratio), "mask ratio")
    refusal(lambda: both.masked(0.1, "negatives"), "mask kind", "'negatives'")


def test_of_a_large_log_no_more_is_held_out_than_says_something(monkeypatch) -> None:
    data = Dataset.from_frame(table(100, 40, 0.5), scale=(1, 5))
    monkeypatch.setattr(split_module, "MOST_HELD_OUT", 50)
    parts = data.split("rd", 0)
    assert (len(parts.validation), len(parts.test)) == (50, 50)
    assert len(parts.train) == len(data.logged) - 100
    assert keys(parts.train) | keys(parts.validation) | keys(parts.test) == keys(data.logged)
    assert keys(data.split("rd", 1).validation) != keys(parts.validation)
    assert keys(data.split("rd", 0).test) == keys(parts.test)
    drawn = np.concatenate([split_module._draw(200, 150, np.random.default_rng(k)) for k in range(200)])
    assert np.bincount(drawn, minlength=200).std() < 10  # 150 each on average, by chance ± 6

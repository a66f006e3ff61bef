from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.data import split as split_module
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.schema import RatingScale
from puidrec.data.split import PROTOCOLS, get_protocol
from puidrec.errors import FutureRowsWarning

RNG = np.random.default_rng(0)


def table(n_users: int, n_items: int, share: float, *, propensity: bool = False) -> pl.DataFrame:
    user, item = np.nonzero(RNG.random((n_users, n_items)) < share)
    columns = {
        "user_id": user,
        "item_id": item,
        "rating": RNG.integers(1, 6, user.size).astype(float),
    }
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
    assert [len(part) for part in parts] == [
        round(0.05 * total),
        round(0.05 * total),
        total - 2 * round(0.05 * total),
    ]
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
    assert likes.notes["mask"] == {
        "ratio": ratio,
        "kind": "positives",
        "removed": round(ratio * positive),
    }
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


def timed(n: int = 400, times: int = 10_000) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    pair = rng.permutation(50 * 40)[:n]
    return pl.DataFrame(
        {
            "user_id": pair // 40,
            "item_id": pair % 40,
            "rating": rng.integers(1, 6, n),
            "timestamp": rng.integers(times, size=n),
        }
    )


def test_temporal_trains_on_the_past(refusal: Any) -> None:
    data = Dataset.from_frame(timed())
    split = data.split("temporal", 7)
    train, validation, test = (
        [*part.frame["timestamp"]] for part in (split.train, split.validation, split.test)
    )
    assert sorted(train + validation + test) == sorted(timed()["timestamp"])
    assert max(train) < min(validation) <= max(validation) < min(test)
    assert (len(validation), len(test)) == (40, 40)
    assert (split.evaluation, split.selection) == ("logged", "logged")
    assert split.test.frame.equals(data.split("temporal", 8).test.frame)  # a seed moves nothing
    days = Dataset.from_frame(timed(times=6)).split("temporal")  # rows of one day stay together
    assert [
        part.frame["timestamp"].unique().sort().to_list()
        for part in (days.train, days.validation, days.test)
    ] == [
        [0, 1, 2, 3],
        [4],
        [5],
    ]
    refusal(
        lambda: Dataset.from_frame(timed(times=1)).split("temporal"),
        "leaves no rows to train on",
        "1 different",
    )


def test_leave_last_out_takes_the_last_row_of_each_user() -> None:
    log = pl.DataFrame(
        {
            "user_id": [1, 1, 1, 2, 2, 3, 4, 4, 4],
            "item_id": [5, 6, 7, 5, 6, 5, 7, 6, 5],
            "rating": [1, 5, 3, 2, 4, 5, 1, 2, 3],
            "timestamp": [30, 10, 20, 1, 2, 9, 4, 4, 4],
        }
    )
    split = Dataset.from_frame(log).split("leave-last-out")
    pairs = lambda rows: sorted(rows.to_frame().select("user_id", "item_id").rows())  # noqa: E731
    assert pairs(split.test) == [(1, 5), (2, 6), (4, 7)]  # who has one row is only trained on
    assert pairs(split.validation) == [(1, 7), (4, 6)]
    assert len(split.train) == 4


@pytest.mark.parametrize("protocol", ["temporal", "leave-last-out"])
def test_a_log_without_time_has_no_order(protocol: str, refusal: Any) -> None:
    log = timed()
    refusal(
        lambda: Dataset.from_frame(log.drop("timestamp")).split(protocol),
        f"{protocol} needs timestamps",
        "rating",
    )
    some = log.with_columns(
        pl.when(pl.col("timestamp") > 5000).then("timestamp").alias("timestamp")
    )
    refusal(
        lambda: Dataset.from_frame(some).split(protocol), "rows without one", "one in every row"
    )


def test_by_time_uniform_rows_calibrate_and_never_repeat_a_tested_pair() -> None:
    uniform = table(50, 40, 0.3)
    data = Dataset.from_frame(timed(), uniform, overlap="keep")
    split = data.split("temporal")
    assert split.evaluation == "logged"
    assert not keys(split.propensity) & keys(data.logged)
    assert keys(split.propensity) == keys(data.uniform) - keys(data.logged)
    added = data.split("temporal", add_uniform=True)
    assert keys(added.train) == keys(split.train) | keys(split.propensity)


def test_a_random_split_of_timed_rows_warns_of_the_future() -> None:
    with pytest.warns(FutureRowsWarning, match="--protocol temporal"):
        Dataset.from_frame(timed()).split("rd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset.from_frame(timed()).split("temporal")
        Dataset.from_frame(timed().with_columns(timestamp=7)).split("rd")
        Dataset.from_frame(timed().drop("timestamp")).split("rd")
        Dataset.from_frame(timed(), table(50, 40, 0.3)).split("rd")


def test_of_a_log_alone_fit_tests_on_nothing() -> None:
    """Its validation rows are those of `rd`, so that none of these trains where one compares."""
    data = Dataset.from_frame(table(60, 50, 0.3), scale=(1, 5))
    fit, rd = split_module.split_without_test(data, 0), data.split()
    assert fit.validation.frame.equals(rd.validation.frame)
    assert (len(fit.train), len(fit.test)) == (len(rd.train) + len(rd.test), 0)
    whole = [
        split_module.split_without_test(data, 0, select="none"),
        split_module.split_without_test(data, 0, hold_out=False),
    ]
    assert all(keys(split.train) == keys(data.logged) for split in whole)


def test_rows_held_out_by_content_are_the_same_under_other_names_and_in_another_order() -> None:
    log, uniform = table(60, 50, 0.3), table(60, 50, 0.3)
    users, items = RNG.permutation(60), RNG.permutation(50)

    def renamed(frame: pl.DataFrame) -> pl.DataFrame:
        ids = {"user_id": users[frame["user_id"]], "item_id": items[frame["item_id"]]}
        return frame.with_columns(**{key: pl.Series(x) for key, x in ids.items()}).sample(
            fraction=1.0, shuffle=True, seed=1
        )

    for given in (uniform, None):
        found = []
        for change in (lambda frame: frame, renamed):
            other = None if given is None else change(given)
            data = Dataset.from_frame(change(log), other, scale=(1, 5))
            split = split_module.split_without_test(data, 4)
            user = data.user_ids.decode(split.validation.user)
            item = data.item_ids.decode(split.validation.item)
            found.append((np.asarray(user), np.asarray(item)))
        (user, item), moved = found
        assert user.size > 30
        assert set(zip(users[user], items[item], strict=True)) == set(zip(*moved, strict=True))
        assert not np.array_equal(
            split.validation.rating, split_module.split_without_test(data, 5).validation.rating
        )


STARS = np.array([1, 2, 3, 4, 5], np.float32)
EXPECTED = {"rd": [0, 0, 0, 1, 1], "paper": [0, 0, -1, 1, 1], "ge3": [0, 0, 1, 1, 1]}
EXPECTED |= {"cvib": EXPECTED["ge3"], "idcf": EXPECTED["rd"], "unlogged": EXPECTED["rd"]}
EXPECTED |= dict.fromkeys(
    ("big-small", "temporal", "leave-last-out", "kuairand-random", "kuairand-standard"),
    EXPECTED["rd"],
)


@pytest.mark.parametrize("name", EXPECTED)
def test_lines_between_stars(name: str) -> None:
    label = get_protocol(name).label(STARS, RatingScale(1, 5))
    assert label.tolist() == EXPECTED[name]
    assert label.dtype == np.int8


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.0), (0.1, 0.7)])
def test_the_scale_does_not_move_the_lines(name: str, low: float, high: float) -> None:
    levels = np.linspace(low, high, 5).astype(np.float32)
    assert get_protocol(name).label(levels, RatingScale(low, high)).tolist() == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_all_agree_on_binary_labels(name: str) -> None:
    assert get_protocol(name).label(np.array([0.0, 1.0]), RatingScale(0, 1)).tolist() == [0, 1]


def test_names(refusal) -> None:
    assert set(PROTOCOLS) == set(EXPECTED)
    assert get_protocol(PROTOCOLS["rd"]) is PROTOCOLS["rd"]
    refusal(lambda: get_protocol("RD"), "unknown protocol", "'RD'", "rd, paper, ge3")


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    rating = rng.integers(1, 6, (60, 40))
    tables = []
    for share in (0.3, 0.3):
        user, item = np.nonzero(rng.random((60, 40)) < share)
        tables.append(
            {"user_id": user, "item_id": item, "rating": rating[user, item].astype(float)}
        )
    return Dataset.from_frame(*tables, scale=(1, 5), overlap="keep")


def test_cvib_tests_on_every_uniform_row_and_validates_on_the_log(data: Dataset) -> None:
    split = data.split("cvib", 1)
    assert len(split.test) == len(data.uniform)
    assert (len(split.propensity), split.selection, split.evaluation) == (0, "logged", "uniform")
    assert len(split.train) + len(split.validation) == len(data.logged)
    np.testing.assert_array_equal(split.test.label, split.test.rating >= 3)
    assert split.protocol.users == "all"


def test_idcf_validates_on_30_percent(data: Dataset) -> None:
    split = data.split("idcf", 1)
    n = len(data.uniform)
    assert (len(split.validation), len(split.test), len(split.propensity)) == (
        round(0.3 * n),
        n - round(0.3 * n),
        0,
    )
    assert split.selection == "uniform"


def test_unlogged_ranks_no_logged_pair_even_where_they_are_kept(data: Dataset) -> None:
    logged = set(zip(data.logged.user.tolist(), data.logged.item.tolist(), strict=True))

    def repeated(protocol: str) -> int:
        test = data.split(protocol, 0).test
        return sum(
            pair in logged for pair in zip(test.user.tolist(), test.item.tolist(), strict=True)
        )

    assert repeated("unlogged") == 0
    assert repeated("rd") > 50


def test_a_protocol_of_one_log_refuses_another(data: Dataset, refusal) -> None:
    refusal(lambda: data.split("big-small", 0), "big-small", "log='big-matrix'")
    platform = replace(
        data, notes={"log": "the platform's own (big_matrix), a pair positive if any view was"}
    )
    assert len(platform.split("big-small", 0).test) == len(data.uniform)

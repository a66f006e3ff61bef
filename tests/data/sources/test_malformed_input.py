"""Malformed tables: the outcome is a Dataset or one line, never another exception.

The suite draws some hundreds of each kind; `python bench/faults.py tables` draws thousands.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset
from puidrec.data.sources.files import load
from puidrec.errors import InputError

EXAMPLES = int(os.environ.get("PUIDREC_FAULTS", "300"))
MANY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
ODD = st.sampled_from(
    [
        None,
        "",
        " ",
        "nan",
        "inf",
        "-1e999",
        "1_0",
        "0x1",
        "x\ny",
        "\x00",
        "é",
        "NULL",
        '"',
        "1,5",
        "a;b",
    ]
)
CELL = st.one_of(
    st.integers(0, 4),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    ODD,
    st.booleans(),
    st.dates(),
)
NAMES = st.sampled_from(
    ["user_id", "item_id", "rating", "propensity", "timestamp", "genres", "x", "", "rating "]
)


def passes_or_is_refused(call: Any) -> bool:
    try:
        data = call()
    except InputError as error:
        message = str(error)
        assert message
        assert message.splitlines() == [message]
        assert len(message) < 2_000
        return False
    assert isinstance(data, Dataset)
    assert len(data.logged) > 1
    assert data.sha256
    return True


@st.composite
def columns(draw: Any, name: str, height: int, tame: bool) -> list[Any]:
    """A column, mostly of one kind, now and then mixed; half of the time of the kind that its name
    asks for."""
    good = st.floats(1, 5) if name in ("rating", "propensity") else st.integers(0, 3)
    kind = (
        good
        if tame or draw(st.booleans())
        else draw(
            st.sampled_from(
                [
                    st.integers(0, 3),
                    st.integers(1, 5),
                    st.floats(1, 5),
                    st.sampled_from(["a", "b", "c"]),
                    st.one_of(st.none(), st.integers(0, 3)),
                    st.floats(),
                    st.integers(),
                    st.lists(st.text(max_size=2), max_size=2),
                    st.binary(max_size=2),
                    st.dates(),
                    st.datetimes(),
                    st.timedeltas(),
                    st.times(),
                    st.decimals(
                        allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9
                    ),
                    st.none(),
                    CELL,
                ]
            )
        )
    )
    return draw(st.lists(kind, min_size=height, max_size=height))


@st.composite
def tables(draw: Any, required: tuple[str, ...]) -> Any:
    tame = draw(st.integers(0, 2)) == 0
    height = draw(st.integers(4, 8) if tame else st.integers(0, 6))
    names = [*required, *draw(st.lists(NAMES, max_size=0 if tame else 2))]
    dropped = None if tame else draw(st.sampled_from([None] * 6 + list(required)))
    return {name: draw(columns(name, height, tame)) for name in names if name != dropped}


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "scale": st.sampled_from([None, (1, 5), (0, 1), (5, 1), "15", (1,), (float("nan"), 2)]),
        "duplicates": st.sampled_from(["error", "first", "last", "mean", "x"]),
        "unknown_ids": st.sampled_from(["error", "keep", "drop", "x"]),
    },
)
RATED = ("user_id", "item_id", "rating")


@MANY
@given(
    logged=tables(RATED),
    uniform=st.none() | tables(RATED),
    users=st.none() | tables(("user_id",)),
    items=st.none() | tables(("item_id",)),
    options=OPTIONS,
)
def test_malformed_frames(
    logged: Any, uniform: Any, users: Any, items: Any, options: dict[str, Any]
) -> None:
    passes_or_is_refused(lambda: Dataset.from_frame(logged, uniform, users, items, **options))


@st.composite
def csv_bytes(draw: Any, required: tuple[str, ...]) -> bytes:
    """A CSV file that was nearly right, then had something done to it."""
    separator = draw(st.sampled_from(",,,,;\t|"))
    header = [*required, *draw(st.lists(NAMES, max_size=1))]
    small = st.integers(1, 4).map(str)
    cells = draw(st.sampled_from([small, small, st.one_of(small, CELL.map(str))]))
    rows = draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), max_size=8))
    if rows and draw(st.integers(0, 5)) == 0:
        rows[-1] = rows[-1][:-1] if draw(st.booleans()) else [*rows[-1], "9"]
    raw = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(
        separator.join(row) for row in [header, *rows]
    )
    text = raw.encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 9)):
        case 0:
            text = b"\xef\xbb\xbf" + text
        case 1:
            text = gzip.compress(text, mtime=0)
        case 2:
            text = text[: draw(st.integers(0, len(text)))]
        case 3:
            place = draw(st.integers(0, len(text)))
            text = text[:place] + draw(st.binary(max_size=3)) + text[place:]
        case 4:
            text = gzip.compress(text, mtime=0)[: draw(st.integers(0, 40))]
        case _:
            pass
    return text


@MANY
@given(
    logged=csv_bytes(RATED),
    users=st.none() | csv_bytes(("user_id",)),
    items=st.none() | csv_bytes(("item_id", "genres")),
    options=OPTIONS,
)
def test_malformed_csv_files(
    logged: bytes, users: Any, items: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    given_tables = {"logged": logged, "users": users, "items": items}
    files = {
        key: tmp_path / f"{key}.csv" for key, content in given_tables.items() if content is not None
    }
    for key, file in files.items():
        file.write_bytes(given_tables[key])
    multi_valued = ["genres"] if items is not None else []
    passes_or_is_refused(lambda: load(**files, multi_valued=multi_valued, **options))


@settings(MANY, max_examples=EXAMPLES * 2 // 3)
@given(
    raw=st.binary(max_size=80),
    head=st.sampled_from([b"", b"PAR1", b"user_id,item_id,rating\n", b"\x1f\x8b"]),
)
def test_any_bytes_as_a_log(raw: bytes, head: bytes, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(head + raw)
    passes_or_is_refused(lambda: load(logged=tmp_path / "log.csv"))


@settings(MANY, max_examples=EXAMPLES // 2)
@given(place=st.floats(0, 1), flip=st.integers(1, 255), cut=st.booleans())
def test_damaged_parquet(place: float, flip: int, cut: bool, tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    table = pl.DataFrame(
        {"user_id": [1, 2, 3] * 9, "item_id": [*range(27)], "rating": [1.0, 2.0, 3.0] * 9}
    )
    table.write_parquet(file, compression="uncompressed")
    raw = bytearray(file.read_bytes())
    at = min(int(place * len(raw)), len(raw) - 1)
    if cut:
        raw = raw[:at]
    else:
        raw[at] ^= flip
    file.write_bytes(raw)
    passes_or_is_refused(lambda: load(logged=file, scale=(0, 5)))


@pytest.mark.parametrize("builder", [tables, csv_bytes])
def test_the_tables_are_not_all_refused(builder: Any, tmp_path: Path) -> None:
    """A loader that refuses everything would pass the tests above."""
    outcomes: list[bool] = []

    @settings(MANY, max_examples=150)
    @given(table=builder(RATED))
    def count(table: Any) -> None:
        if isinstance(table, bytes):
            (tmp_path / "log.csv").write_bytes(table)
            outcomes.append(
                passes_or_is_refused(lambda: load(logged=tmp_path / "log.csv", duplicates="last"))
            )
        else:
            outcomes.append(
                passes_or_is_refused(lambda: Dataset.from_frame(table, duplicates="last"))
            )

    count()
    assert 0.02 < sum(outcomes) / len(outcomes) < 0.9

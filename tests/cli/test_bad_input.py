"""Every bad input of a user's own files: one line on standard error, exit code 2, no trace, nothing
written."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.dataset import Dataset
from puidrec.model import Recommender

HEAD = "user_id,item_id,rating"
GOOD = [f"u{k},{j},{1 + (k + j) % 5}" for k in range(12) for j in range(9) if (k * j) % 4 != 1]
SIDE = "user_id,age\n" + "\n".join(f"u{k},{20 + k % 3}" for k in range(12))


def table(*extra: str, head: str = HEAD) -> bytes:
    return "\n".join([head, *GOOD, *extra, ""]).encode()


def equal_ratings(rating: int) -> bytes:
    return "\n".join(
        [HEAD, *(f"u{k},{j},{rating}" for k in range(4) for j in range(4)), ""]
    ).encode()


def parquet(folder: Path, cut: int) -> Path:
    path = folder / "logged.parquet"
    pl.read_csv(table()).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-cut])
    return path


LAST = len(GOOD) + 1
CASES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "missing column": (
        table(head="user_id,product,rating"),
        ("missing column", "item_id", "product"),
    ),
    "missing columns, one of them the rating": (
        table(head="user_id,product,stars"),
        ("missing column", "item_id"),
    ),
    "text for a rating": (table("u1,99,good"), (f"row {LAST}", "rating", "'good'")),
    "nan": (table("u1,99,nan"), (f"row {LAST}", "rating")),
    "infinite": (table("u1,99,inf"), (f"row {LAST}", "rating")),
    "missing rating": (table("u1,99,"), (f"row {LAST}", "rating")),
    "outside its scale": (table("u1,99,7"), (f"row {LAST}", "rating", "7")),
    "duplicate pair": (table(GOOD[0], GOOD[0]), ("twice", "u0")),
    "no byte": (b"", ("empty",)),
    "no row": (f"{HEAD}\n".encode(), ("empty",)),
    "one user": ("\n".join([HEAD, "u1,1,5", "u1,2,4", "u1,3,1", ""]).encode(), ("user",)),
    "one rating value": (equal_ratings(3), ("all ratings are equal", "3 in every row")),
    "a field of a megabyte": (table("u1,99," + "x" * 2**20), ("rating",)),
    "not text": (b"\x00\xff\xfe\x01" * 50, ()),
    "no gzip": (b"\x1f\x8b\x08 broken", ()),
    "ragged": (table("u1,99"), ()),
    "UTF-16": (table().decode().encode("utf-16"), ("UTF-16",)),
    "UTF-16 without its mark": (table().decode().encode("utf-16-le"), ("zero bytes", "UTF-16")),
    "UTF-32": (table().decode().encode("utf-32"), ("UTF-32",)),
    "beyond single precision": (table("u1,99,1e308"), (f"row {LAST}", "rating", "1e+308")),
}


@pytest.fixture
def both(puid: Any, tmp_path: Path) -> Callable[..., str]:
    """Give bad data to both commands that read data; returns the line."""

    def call(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        common = ("--data", "files", *arguments, "--scale", "1,5")
        described = puid("data", "describe", *common).refused()
        studied = puid("gamma", *common, "--out", tmp_path / "out" / "gamma").refused()
        assert described == studied
        assert sorted(tmp_path.rglob("*")) == before
        assert len(described) < 600
        return described

    return call


@pytest.mark.parametrize("case", CASES)
def test_bad_log(case: str, both: Callable[..., str], tmp_path: Path) -> None:
    content, parts = CASES[case]
    path = tmp_path / "logged.csv"
    path.write_bytes(content)
    line = both("--logged", path)
    assert "logged.csv" in line
    for part in parts:
        assert part in line


FINE_WHEN_UNIFORM = ("one user", "one rating value")
"""A log that is no log may still be a sample: a panel of one, or of agreeing people."""


@pytest.mark.parametrize("case", CASES)
def test_bad_uniform_rows(case: str, tmp_path: Path, refusal: Any) -> None:
    content, parts = CASES[case]
    log, uniform = tmp_path / "logged.csv", tmp_path / "uniform.csv"
    log.write_bytes(table())
    uniform.write_bytes(content)

    def load() -> Dataset:
        return load_dataset("files", logged=log, uniform=uniform, scale=(1, 5))

    if case not in FINE_WHEN_UNIFORM:
        refusal(load, "uniform.csv", *parts)
        return
    data = load()
    model = Recommender("dr", epochs=1, dim=2).fit(data)
    assert np.isfinite(model.predict(data.user_ids.ids.head(5), data.item_ids.ids.head(5))).all()


def test_the_highest_rating_throughout_is_a_log_of_likes(puid: Any, tmp_path: Path) -> None:
    """It is described as such, and refused by what needs rating levels."""
    path, out = tmp_path / "logged.csv", tmp_path / "out"
    path.write_bytes(equal_ratings(5))
    told = ("--data", "files", "--logged", path, "--scale", "1,5")
    assert "implicit" in puid("data", "describe", *told).out
    words = ("needs rating levels", "5 in every row", "all-rank")
    puid("train", *told, "--method", "mf", "--out", out).refused(*words)
    puid("compare", *told, "--methods", "mf", "--engine", "inline", "--out", out).refused(*words)
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file(both: Callable[..., str], tmp_path: Path) -> None:
    assert "nowhere.csv" in both("--logged", tmp_path / "nowhere.csv")
    assert "nowhere" in both("--data-dir", tmp_path / "nowhere")
    assert "--logged" in both()
    assert "logged.csv" in both("--data-dir", tmp_path)


def test_a_folder_is_no_file_and_a_file_no_folder(both: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "logged.csv"
    path.write_bytes(table())
    both("--logged", tmp_path)
    both("--data-dir", path)


@pytest.mark.parametrize("cut", [3, 40, 500])
def test_truncated_parquet(cut: int, both: Callable[..., str], tmp_path: Path) -> None:
    assert "logged.parquet" in both("--logged", parquet(tmp_path, cut))


def test_side_tables(both: Callable[..., str], tmp_path: Path) -> None:
    log, users = tmp_path / "logged.csv", tmp_path / "users.csv"
    log.write_bytes(table())
    users.write_text(f"{SIDE}\nstranger,30\n")
    line = both("--logged", log, "--users", users)
    assert "users.csv" in line
    assert "stranger" in line
    users.write_text(SIDE.replace("u3,20", "u3,1e308"))
    assert "row 4" in both("--logged", log, "--users", users)
    users.write_text(SIDE.replace("user_id", "name"))
    assert "user_id" in both("--logged", log, "--users", users)


BOUND = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Makes permissions bind root as they bind others."""


SEVERAL = """
import contextlib, io, json, sys
from puidrec.cli.main import run

outcomes = []
for words in json.loads(sys.argv[1]):
    sys.argv, code = ["puid", *words, "--quiet"], None
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as left:
            code = left.code
    outcomes.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(outcomes))
"""
"""Commands one after the other, without progress: exit code and two streams of each."""


@pytest.fixture
def bound_puid() -> Callable[..., list[tuple[int, str, str]]]:
    """Run several `puid` in a process that permissions bind, one after the other."""
    command = [*(BOUND if os.geteuid() == 0 else ()), sys.executable, "-c", SEVERAL]
    if os.geteuid() == 0 and (
        not shutil.which(BOUND[0]) or subprocess.run([*BOUND, "true"], check=False).returncode
    ):
        pytest.skip("root may read everything, and setpriv cannot change that here")

    def call(*several: tuple[object, ...]) -> list[tuple[int, str, str]]:
        words = json.dumps([[str(word) for word in one] for one in several])
        done = subprocess.run([*command, words], capture_output=True, text=True, check=True)
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    return call


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds a good log and that nobody may open."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "logged.csv").write_bytes(table())
    closed.chmod(0)
    yield closed
    closed.chmod(0o700)


def test_folders_without_permission(bound_puid: Any, closed: Path) -> None:
    small = ("gamma", "--data", "simulated", "--set", "data.n_users=60", "--set", "data.n_items=50")
    *read, first, second = bound_puid(
        ("data", "describe", "--data", "files", "--data-dir", closed),
        ("gamma", "--data", "files", "--logged", closed / "logged.csv"),
        (*small, "--out", closed / "out"),
        (*small, "--out", closed),
    )
    for code, out, err in read:
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert "closed" in err
        assert "permission" in err.lower()
    for code, out, err in (first, second):
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert "cannot write (Permission denied)" in err


@pytest.mark.parametrize("dress", ["bom", "crlf", "cr", "gz", "semicolon"])
def test_harmless_dress_changes_nothing(dress: str, puid: Any, tmp_path: Path) -> None:
    plain, dressed = (
        tmp_path / "logged.csv",
        tmp_path / ("dressed.csv.gz" if dress == "gz" else "dressed.csv"),
    )
    plain.write_bytes(table())
    forms = {
        "bom": b"\xef\xbb\xbf" + table(),
        "crlf": table().replace(b"\n", b"\r\n"),
        "cr": table().replace(b"\n", b"\r"),
        "gz": gzip.compress(table(), mtime=0),
        "semicolon": table().replace(b",", b";"),
    }
    dressed.write_bytes(forms[dress])
    read = [
        json.loads(puid("data", "describe", "--data", "files", "--logged", path, "--json").out)[
            "sha256"
        ]
        for path in (plain, dressed)
    ]
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--data", "nothing"), ("'nothing'", "coat")),
        (("--data", "coat", "--logged", "x.csv"), ("--logged belongs to --data files",)),
        (("--data", "simulated", "--set", "data.world=flat"), ("'flat'", "entity")),
        (("--data", "simulated", "--set", "world=flat"), ("'world'", "data.KEY")),
        (("--data", "simulated", "--set", "nothing"), ("'nothing'", "KEY=VALUE")),
        (("--data", "simulated", "--protocol", "mine"), ("'mine'", "rd")),
        (("--data", "files", "--logged", "x.csv", "--scale", "1"), ("'1'", "LOW,HIGH")),
        (
            ("--data", "files", "--logged", "x.csv", "--set", "data.columns=3"),
            ("columns", "ours = theirs"),
        ),
        (
            ("--data", "files", "--logged", "x.csv", "--set", "data.columns={user_id=3}"),
            ("columns", "ours = theirs"),
        ),
        (
            ("--data", "files", "--logged", "x.csv", "--set", "data.multi_valued=genre"),
            ("multi_valued", "['genre']"),
        ),
        (
            ("--data", "files", "--logged", "x.csv", "--set", "data.categorical=[1]"),
            ("categorical", "['genre']"),
        ),
        (("--data", "files", "--logged", "x.csv", "--set", "data.users=3"), ("users", "path")),
        (
            ("--data", "files", "--logged", "x.csv", "--set", "data.path=x"),
            ("data.path", "--data-dir"),
        ),
        (
            ("--data", "simulated", "--set", "data.n_users=1e3"),
            ("n_users", "1000.0", "whole number"),
        ),
        (("--data", "simulated", "--set", "data.rng=1"), ("rng",)),
        (("--data", "simulated", "--set", "data.seed=x"), ("seed", "whole number")),
        (("--data", "simulated", "--set", "data.density=high"), ("density", "'high'")),
        (
            ("--data", "simulated", "--set", f"data.n_users={'[' * 5000}"),
            ("n_users", "whole number"),
        ),
        (("--data", "simulated", "--set", f"data.n_users={'9' * 5000}"), ("n_users",)),
    ],
)
@pytest.mark.parametrize("command", [("data", "describe"), ("gamma",)])
def test_bad_options(
    command: tuple[str, ...], arguments: tuple[str, ...], parts: tuple[str, ...], puid: Any
) -> None:
    puid(*command, *arguments).refused(*parts)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 10_000, "a = " + "9" * 5000, "a = 1\na = 2", "\x00"]
)
def test_settings_that_are_no_toml(text: str, puid: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    puid("gamma", "--data", "simulated", "-c", tmp_path / "run.toml").refused(
        "run.toml", "not TOML"
    )


def test_a_byte_order_mark_is_no_setting(puid: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("\ufeffprotocol = 'mine'\n", encoding="utf-8")
    puid("gamma", "--data", "simulated", "-c", tmp_path / "run.toml").refused("unknown protocol")

from __future__ import annotations

from pathlib import Path

import pytest

from puidrec.errors import MAX_FOUND, InputError, OutputError, PuidError, one_line, quote


def test_a_message_says_which_found_expected_and_what_to_do() -> None:
    error = InputError(
        "bad rating",
        file=Path("a.csv"),
        row=3,
        column="rating",
        found="x",
        expected="1..5",
        hint="Fix it.",
    )
    assert (
        str(error) == "a.csv, row 3, column 'rating': bad rating; found 'x'; expected 1..5. Fix it."
    )
    assert str(InputError("bad")) == "bad"


def test_whatever_is_in_it_a_message_is_one_line() -> None:
    nasty = "a\nb\r\x1b[31m\u2028\x00\ud800"
    error = InputError(nasty, file=nasty, column=nasty, found=nasty, expected=nasty, hint=nasty)
    assert len(str(error).splitlines()) == 1
    assert "\x1b" not in str(error)
    str(error).encode()  # no lone surrogates left


def test_quotes_are_short_and_never_fail() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 10**7, list(range(10_000)), 10**5000, nested):
        assert len(quote(value)) <= MAX_FOUND + 2
    assert quote("short") == "'short'"
    assert quote(0) == "0"
    while nested:  # taken apart by hand: freeing it in one go would recurse
        nested = nested[0]  # type: ignore[assignment]


def test_exit_codes_tell_a_mistake_from_a_failure() -> None:
    assert (InputError("x").exit_code, OutputError("x").exit_code, PuidError("x").exit_code) == (
        2,
        1,
        1,
    )
    assert isinstance(InputError("x"), ValueError)


@pytest.mark.parametrize(("text", "line"), [("a\tb", "a b"), ("Γ ≥ 1", "Γ ≥ 1")])
def test_control_characters_become_spaces(text: str, line: str) -> None:
    assert one_line(text) == line

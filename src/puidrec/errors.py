"""The errors a user can meet, each one line that says which, what was found, what was expected,
what to do.

The command line prints them and exits with `exit_code`; nothing else in the package ends a process.
"""

from __future__ import annotations

from os import PathLike, fspath

MAX_FOUND = 60
"""How much of an offending value is quoted: enough to recognise it, never a megabyte."""


class PuidError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1


class InputError(PuidError, ValueError):
    """Something the caller supplied is wrong: a file, a column, a value, an option."""

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        file: str | PathLike[str] | None = None,
        row: int | None = None,
        column: str | None = None,
        found: object = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem, self.file, self.row, self.column = problem, file, row, column
        self.found, self.expected, self.hint = found, expected, hint
        super().__init__(problem)

    def __str__(self) -> str:
        where = [
            one_line(fspath(self.file)) if self.file is not None else "",
            f"row {self.row}" if self.row is not None else "",
            f"column {quote(self.column)}" if self.column is not None else "",
        ]
        place = ", ".join(part for part in where if part)
        text = f"{place}: {one_line(self.problem)}" if place else one_line(self.problem)
        if self.found is not None:
            text += f"; found {quote(self.found)}"
        if self.expected is not None:
            text += f"; expected {one_line(self.expected)}"
        return f"{text}. {one_line(self.hint)}" if self.hint else text


class OutputError(PuidError):
    """Results could not be written (full disk, read-only folder); what was there before is
    untouched."""


class PuidWarning(UserWarning):
    """Base of the warnings of this package: worth a line, no reason to stop."""


class NoValueWarning(PuidWarning):
    """A metric has no value, since all rows have one label."""


class FutureRowsWarning(PuidWarning):
    """A log with timestamps was divided at random: some training rows lie after test rows."""


def not_fitted(what: str) -> PuidError:
    """An error for calls before `fit`: a PuidError that is scikit-learn's NotFittedError as well.

    Made when it is needed, since scikit-learn takes as long to import as torch.
    """
    from sklearn.exceptions import NotFittedError

    error: PuidError = type("NotFitted", (PuidError, NotFittedError), {})(
        f"{what} is not fitted; call fit first"
    )
    return error


def one_line(text: str) -> str:
    """Fold line breaks and control characters so that a message stays one line on a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def quote(value: object) -> str:
    """Show a value the way a message should: short, on one line, strings in quotes."""
    head = value[: MAX_FOUND + 1] if isinstance(value, str) else value
    try:
        text = one_line(repr(head))
    except (
        ValueError,
        RecursionError,
    ):  # an integer of thousands of digits, lists within lists within lists
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_FOUND + 2 else text[:MAX_FOUND] + "…'"

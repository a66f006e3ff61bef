"""`given`: propensities of the caller, as a column of the log, a matrix, or a file of either kind."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.schema import Origin, check_number, require_columns
from puidrec.errors import InputError
from puidrec.exposure.base import DEFAULT_LOW, Exposure, FittedPropensity

Missing = Literal["error", "rate"]
COLUMNS = ("user_id", "item_id", "propensity")


class Given(FittedPropensity):
    """Propensities known to the caller; nothing is estimated.

    matrix: [users, items] in the order of the codes. file: such a matrix (`.npy`, or numbers in
    rows of text), or a CSV / Parquet table `user_id, item_id, propensity`. Neither: the log's own
    `propensity` column.
    missing: what to do for a pair that a column or table does not name: refuse (default), or take
    the overall `rate`.
    """

    name = "given"

    def __init__(
        self,
        *,
        matrix: np.ndarray | None = None,
        file: str | PathLike[str] | None = None,
        missing: Missing = "error",
        low: float = DEFAULT_LOW,
    ) -> None:
        super().__init__(low=low)
        if matrix is not None and file is not None:
            raise InputError("give a matrix or a file of propensities, not both")
        if missing not in ("error", "rate"):
            raise InputError("unknown choice for missing", found=missing, expected="error or rate")
        self.matrix, self.file, self.missing = matrix, file, missing

    def _fit(self, data: Exposure) -> None:
        self.matrix_: np.ndarray | None = None
        shape = (data.counts.n_users, data.counts.n_items)
        path = Path(self.file) if self.file is not None else None
        if path is not None and path.suffix in (".csv", ".parquet"):
            self._keep_pairs(*_read_table(path, data), shape[1])
        elif path is not None or self.matrix is not None:
            self.matrix_ = _checked_matrix(
                _read_matrix(path) if path else np.asarray(self.matrix), shape
            )
        elif data.given is not None and data.log is not None:
            user, item = data.given_pairs or (data.log.user, data.log.item)
            self._keep_pairs(user, item, data.given, shape[1])
        else:
            raise InputError(
                "no propensities were given",
                expected="a column `propensity` in the log, a matrix, or a file",
                hint="Or choose a propensity that is estimated: two-way, cells, logistic.",
            )
        self.fallback_ = data.rate

    def _keep_pairs(self, user: np.ndarray, item: np.ndarray, p: np.ndarray, n_items: int) -> None:
        key = user.astype(np.int64) * n_items + item
        order = np.argsort(key, kind="stable")
        self.key_, self.value_, self.n_items_ = (
            key[order],
            np.asarray(p, np.float64)[order],
            n_items,
        )

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        if self.matrix_ is not None:
            return np.asarray(self.matrix_[users, items], np.float64)
        key = users.astype(np.int64) * self.n_items_ + items
        place = np.minimum(np.searchsorted(self.key_, key), self.key_.size - 1)
        unknown = self.key_[place] != key
        if self.missing == "error" and unknown.any():
            raise InputError(
                f"no propensity was given for {int(unknown.sum()):,} of {key.size:,} pairs",
                found=f"codes {int(users[unknown][0])}, {int(items[unknown][0])}",
                expected="a propensity for every pair asked for",
                hint="Give a matrix or a complete file, or choose missing='rate'.",
            )
        return np.where(unknown, self.fallback_, self.value_[place])

    def _details(self) -> dict[str, Any]:
        source = (
            "column"
            if self.file is None and self.matrix is None
            else ("matrix" if self.file is None else "file")
        )
        return {"source": source, "missing": self.missing}


def _read_matrix(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return np.loadtxt(path, ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read a matrix of propensities: {error}", file=path) from error


def _checked_matrix(matrix: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    if matrix.shape != shape:
        raise InputError(
            "propensity matrix has the wrong shape",
            found=matrix.shape,
            expected=f"{shape}, users by items",
        )
    return matrix


def _read_table(path: Path, data: Exposure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs and propensities of a table in the caller's ids; pairs outside the population are left
    out."""
    if data.ids is None:
        raise InputError(
            "a propensity table needs the caller's ids", file=path, hint="Give a matrix instead."
        )
    try:
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"cannot read a table of propensities: {error}", file=path) from error
    require_columns(frame, COLUMNS, Origin(path))
    p = check_number(frame["propensity"], Origin(path)).to_numpy()
    user, item = data.ids[0].encode(frame["user_id"]), data.ids[1].encode(frame["item_id"])
    known = (user >= 0) & (item >= 0)
    if not known.any():
        raise InputError(
            "no pair of the table is in the population", file=path, hint="Check the ids."
        )
    return user[known], item[known], p[known]

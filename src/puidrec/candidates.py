"""Which items may be recommended: of all items, or per user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from puidrec.cold_start import is_single_id, one_id, pairs_of, require_ids
from puidrec.data.dataset import IdMap
from puidrec.data.schema import Frame
from puidrec.errors import InputError
from puidrec.evaluation.ranking import mask_seen, ranges

PairsByUser = tuple[np.ndarray, np.ndarray]
"""Items of user u are items[row_start[u]:row_start[u + 1]], in order: row_start and items."""


@dataclass(frozen=True)
class Candidates:
    """Items that may be recommended, by code; and the pairs that may, where the caller named them."""

    items: np.ndarray
    n_items: int
    pairs: PairsByUser | None = None
    """Allowed items of each row asked for; None: all candidates."""

    @classmethod
    def of(
        cls,
        ids: IdMap,
        users: IdMap,
        asked: np.ndarray,
        items: Any,
        exclude: Any,
        pairs: Frame | None,
    ) -> Candidates:
        """items: the only ones; exclude: none of these; pairs: a table of the pairs that may be
        recommended."""
        allowed = np.ones(len(ids), bool) if items is None else np.zeros(len(ids), bool)
        if items is not None:
            allowed[known_codes(ids, items, "item")] = True
        if exclude is not None:
            allowed[known_codes(ids, exclude, "item")] = False
        if not allowed.any():
            raise InputError("no item is left to recommend", expected="items beyond those excluded")
        return cls(
            np.flatnonzero(allowed),
            len(ids),
            None if pairs is None else _pairs(pairs, ids, users, asked),
        )

    def mask(
        self, scores: np.ndarray, codes: np.ndarray, rows: slice, seen: list[PairsByUser | None]
    ) -> None:
        """Set scores [users, candidates] to −inf where a pair is no candidate, in place."""
        columns = np.full(self.n_items, -1)
        columns[self.items] = np.arange(self.items.size)
        if self.pairs is not None:
            start, item = self.pairs
            first, last = start[:-1][rows], start[1:][rows]
            row, column = (
                np.repeat(np.arange(codes.size), last - first),
                columns[item[ranges(first, last)]],
            )
            row, column = row[column >= 0], column[column >= 0]
            kept = scores[row, column]
            scores[:] = -np.inf
            scores[row, column] = kept
        for pairs in seen:
            if pairs is not None:
                mask_seen(scores, codes, *pairs, columns)


def known_codes(ids: IdMap, wanted: Any, what: str) -> np.ndarray:
    """Codes of users or items (`what`) by id; unknown ones are refused."""
    wanted = one_id(wanted)
    listed = [wanted] if is_single_id(wanted) else require_ids(wanted, f"{what}s")
    codes = ids.encode(listed)
    if (codes < 0).any():
        raise InputError(
            f"{int((codes < 0).sum())} unknown {what}(s)",
            found=list(listed)[int(np.argmax(codes < 0))],
            expected=f"{what}s of the training data ({ids.ids.dtype} ids)",
        )
    return codes


def _pairs(table: Frame, ids: IdMap, users: IdMap, asked: np.ndarray) -> PairsByUser:
    """The allowed items of each user asked for, in their order; pairs of other users or items count
    for nothing."""
    who, what = pairs_of(table)
    user, item = users.encode(who), ids.encode(what)
    known = (user >= 0) & (item >= 0)
    order = np.argsort(user[known], kind="stable")
    user, item = user[known][order], item[known][order]
    first, last = np.searchsorted(user, asked), np.searchsorted(user, asked, side="right")
    start = np.concatenate([[0], np.cumsum(last - first)])
    return start, item[ranges(first, last)]

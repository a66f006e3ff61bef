"""Scored rows, and what their metrics share: each sort and count is made once, when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from puidrec.evaluation.ndcg import Users, counted_lists, graded_gain
from puidrec.evaluation.per_user import PerUser
from puidrec.evaluation.ranking import Blocks, RankedLists, rank_lists

PART_ROWS = 2**18
"""Rows of a part: its arrays fit in cache, which halves the time of a large evaluation."""


@dataclass(frozen=True)
class Scored:
    """Rows to evaluate: whose, scored how, and what they should have been."""

    ids: np.ndarray
    """The distinct users, sorted."""
    code: np.ndarray
    """Position of each row's user in `ids`."""
    score: np.ndarray
    label: np.ndarray
    """1 positive, 0 negative (int8)."""
    target: np.ndarray
    """What `mse` and `mae` compare scores with."""
    relevance: np.ndarray
    """What graded gains are made of."""
    users: Users = "both-labels"
    weight: np.ndarray | None = None

    @cached_property
    def lists(self) -> RankedLists:
        """Each user's rows, ranked by score."""
        return rank_lists(self.code, self.score, self.weight)

    @cached_property
    def positive(self) -> Blocks:
        """The blocks of `lists` that hold positive rows."""
        return self.lists.blocks(self.label)

    @cached_property
    def graded(self) -> tuple[Blocks, Blocks]:
        """Blocks with gains 2^relevance − 1: as ranked by score, and ideally."""
        gain = graded_gain(self.relevance)
        return self.lists.blocks(gain), rank_lists(self.code, gain, self.weight).blocks(gain)

    @cached_property
    def n_positive(self) -> np.ndarray:
        """Positive rows of each list."""
        return self.lists.count(self.label)

    @cached_property
    def counted(self) -> np.ndarray:
        """Mask of the lists that count under the `users` rule."""
        return counted_lists(self.n_positive, self.lists.rows, self.users)

    @cached_property
    def both_labels(self) -> np.ndarray:
        """Mask of the lists with both labels: an AUC needs them."""
        return counted_lists(self.n_positive, self.lists.rows, "both-labels")

    @cached_property
    def mass(self) -> np.ndarray:
        """Rows (or weight) of each user."""
        return np.bincount(self.code, weights=self.weight, minlength=self.ids.size).astype(np.float64)

    def mean_error(self, error: np.ndarray) -> PerUser:
        """Mean error per user, sized by rows (or weight), so that the overall mean is the one over rows (SNIPS)."""
        weighted = error if self.weight is None else self.weight * error
        return PerUser(
            self.ids, np.bincount(self.code, weights=weighted, minlength=self.ids.size) / self.mass, self.mass
        )

    def parts(self, rows: int | None = None) -> Iterator[Self]:
        """Divide the rows into parts of whole users, in order of users, each of about `rows` rows (or PART_ROWS)."""
        rows = rows or PART_ROWS
        if self.code.size <= rows:
            yield self
            return
        n_parts = -(-self.code.size // rows)
        above = np.cumsum(np.bincount(self.code))
        part_of_user = (above * (n_parts - 1) // above[-1]).astype(np.uint16)
        part = part_of_user[self.code]
        order = np.argsort(part, kind="stable")
        row_cuts = np.searchsorted(part, np.arange(n_parts + 1), sorter=order)
        user_cuts = np.searchsorted(part_of_user, np.arange(n_parts + 1))
        for number in np.unique(part_of_user):
            first, last = user_cuts[number], user_cuts[number + 1]
            at = order[row_cuts[number] : row_cuts[number + 1]]
            yield replace(
                self,
                ids=self.ids[first:last],
                code=self.code[at] - first,
                score=self.score[at],
                label=self.label[at],
                target=self.target[at],
                relevance=self.relevance[at],
                weight=None if self.weight is None else self.weight[at],
            )

"""Some of the rows: where they are, and the numbers that one process would draw for them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.scores import base, make_backbone
from puidrec.scores.towers import RowShard

EDGES = st.lists(st.integers(0, 90), min_size=2, max_size=6, unique=True).map(sorted)


@given(EDGES, st.integers(1, 20), st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_own_rows_are_drawn_as_those_of_all(edges, dim, at_once) -> None:
    n_rows = 91
    own = RowShard(tuple(zip(edges[::2], edges[1::2], strict=False)), n_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "DRAW_BLOCK", at_once)
        some = make_backbone("mf", n_rows, 7, dim, rng=3, shard=own)
    everyone = make_backbone("mf", n_rows, 7, dim, rng=3)
    assert torch.equal(some.user_towers[0].weight, own.take(everyone.user_towers[0].weight))
    assert torch.equal(some.item_towers[0].weight, everyone.item_towers[0].weight)
    for a, b in own.spans:
        assert torch.equal(some.users(slice(a, b)), everyone.users(slice(a, b)))


@pytest.mark.parametrize("n_rows", [1, 2, 3, 65, 66])
def test_a_single_row_left_over_is_no_exception(n_rows, monkeypatch) -> None:
    """Torch draws 16 numbers or more in one row in another order than as a part of many rows."""
    monkeypatch.setattr(base, "DRAW_BLOCK", 2)
    some = make_backbone("mf", n_rows, 5, 32, rng=1, shard=RowShard(((0, n_rows),), n_rows))
    assert torch.equal(some.user_towers[0].weight, make_backbone("mf", n_rows, 5, 32, rng=1).user_towers[0].weight)


def test_rows_of_others_are_out_of_reach() -> None:
    own = RowShard(((2, 5), (8, 9)), 10)
    assert own.locate(slice(3, 5)) == slice(1, 3)
    assert own.locate(slice(8, 9)) == slice(3, 4)
    with pytest.raises(IndexError, match="another process"):
        own.locate(slice(4, 6))
    assert torch.equal(own.take(torch.arange(20).view(2, 10), 1), torch.tensor([[2, 3, 4, 8], [12, 13, 14, 18]]))

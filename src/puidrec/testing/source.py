"""The contract of a data source: subclass, say how to load it, and pytest checks what everything
behind it relies on.

class TestMine(SourceContract):
    def load(self):
        return load(folder)
"""
# ruff: noqa: S101

from __future__ import annotations

import json

import numpy as np
import pytest

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.describe import describe_dataset
from puidrec.errors import InputError


class SourceContract:
    """What holds for every source. Override `load`, and `load_nonsense` if yours reads files or
    takes options."""

    def load(self) -> Dataset:
        """The data set; called several times."""
        raise NotImplementedError

    def load_nonsense(self) -> Dataset:
        """Load from a folder that is not there, or with an option that makes no sense; must be
        refused."""
        raise InputError("this source takes nothing that could be wrong")

    def test_is_a_dataset_with_a_name(self) -> None:
        """Reports print the name."""
        data = self.load()
        assert isinstance(data, Dataset)
        assert data.name
        assert data.name == data.name.strip()

    def test_loading_twice_gives_the_same_data(self) -> None:
        """Equal digests: nothing depends on the clock, on global random state or on the order of
        files."""
        assert self.load().sha256 == self.load().sha256

    def test_rows_are_sorted_pairs_within_the_population(self) -> None:
        """Codes inside the id maps, every pair once, ratings finite and on the scale."""
        data = self.load()
        for part in (data.logged, data.uniform):
            if part is not None:
                _check_rows(part, data)

    def test_ids_are_of_one_kind_and_come_back(self) -> None:
        """Integers or text, sorted, each once; decode undoes encode."""
        data = self.load()
        for ids in (data.user_ids, data.item_ids):
            listed = ids.ids.to_list()
            assert {type(own) for own in listed} in ({int}, {str})
            assert listed == sorted(set(listed))
            codes = np.arange(len(ids), dtype=np.int32)
            assert np.array_equal(ids.encode(ids.decode(codes)), codes)

    def test_side_tables_have_a_row_per_entity(self) -> None:
        """Row k of a side table belongs to code k."""
        data = self.load()
        sides = (data.users, data.user_ids), (data.items, data.item_ids)
        for table, ids in sides:
            if table is not None:
                key, *features = table.columns
                assert table[key].to_list() == ids.ids.to_list()
                assert features, "a side table without features"

    def test_splits_under_every_protocol(self) -> None:
        """There are rows to train on and rows to test on, with labels 0 and 1."""
        data = self.load()
        for protocol in ("rd", "paper", "ge3"):
            split = data.split(protocol)
            for part in (split.train, split.test):
                assert len(part)
                assert set(np.unique(part.label)) <= {0, 1}

    def test_describes_itself(self) -> None:
        """Figures and notes are plain JSON."""
        data = self.load()
        described = json.loads(json.dumps(describe_dataset(data), allow_nan=False))
        assert described["regimes"]["logged"]["rows"] == len(data.logged)

    def test_nonsense_is_refused_in_one_line(self) -> None:
        """A user's mistake is an `InputError`, never a trace."""
        with pytest.raises(InputError) as caught:
            self.load_nonsense()
        assert len(str(caught.value).splitlines()) == 1


def _check_rows(part: Interactions, data: Dataset) -> None:
    assert len(part)
    user, item = part.user.astype(np.int64), part.item.astype(np.int64)
    assert 0 <= user.min() <= user.max() < data.n_users
    assert 0 <= item.min() <= item.max() < data.n_items
    in_order = np.diff(user * data.n_items + item) > 0
    assert bool(in_order.all()), "rows are not sorted, or a pair occurs twice"
    assert bool(np.isfinite(part.rating).all())
    assert data.scale.low <= part.rating.min() <= part.rating.max() <= data.scale.high

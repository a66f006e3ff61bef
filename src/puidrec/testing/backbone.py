# ruff: noqa: S101 (asserting is what a contract test does)
"""The contract of a backbone: subclass, say how to build one, and five properties are tested."""

from __future__ import annotations

import torch

from puidrec.scores.log import LogPattern, sampled_product
from puidrec.scores.towers import Backbone


class BackboneContract:
    """Subclass with `make(seed)`; pytest collects the tests."""

    def make(self, seed: int) -> Backbone:
        """A backbone with at least three users and two items."""
        raise NotImplementedError

    def test_representations_have_the_promised_shape(self) -> None:
        """[n, dim + 2] on both sides."""
        model = self.make(0)
        assert model.users().shape == (model.n_users, model.dim + 2)
        assert model.items().shape == (model.n_items, model.dim + 2)

    def test_blocks_of_users_are_slices(self) -> None:
        """users(1:3) are rows 1:3 of users()."""
        model = self.make(0)
        torch.testing.assert_close(model.users(slice(1, 3)), model.users()[1:3])

    def test_scores_are_inner_products(self) -> None:
        """Scores of pairs, of tiles and on a log's pattern agree."""
        model = self.make(0)
        tile = model.factors().tile()
        user, item = (
            x.flatten() for x in torch.meshgrid(*map(torch.arange, tile.shape), indexing="ij")
        )
        torch.testing.assert_close(model(user, item), tile.flatten())
        pattern = LogPattern.from_pairs(user.numpy(), item.numpy(), model.n_users, model.n_items)
        torch.testing.assert_close(
            sampled_product(model.users(), model.items(), pattern), tile.flatten()
        )

    def test_initialisation_is_seeded(self) -> None:
        """One seed, one model; another seed, another model; no global state."""
        first, again, other = self.make(3), self.make(3), self.make(4)
        assert all(
            torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
        )
        assert not torch.equal(first.factors().tile(), other.factors().tile())

    def test_every_parameter_learns_and_is_penalised(self) -> None:
        """A loss over pairs reaches every parameter; the penalty is positive and reaches some."""
        model = self.make(0)
        penalty = model.penalty()
        loss = (model.factors().tile() - 1.0).square().mean() + penalty.ids + penalty.features
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(
            p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters()
        )
        assert (penalty.ids + penalty.features).item() > 0.0

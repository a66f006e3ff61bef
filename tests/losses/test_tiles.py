import pytest
import torch

from puidrec.errors import InputError
from puidrec.losses.pointwise import pointwise_error
from puidrec.losses.tiles import tiled_sum


@pytest.mark.parametrize("loss", ["absolute", "cross-entropy", "squared"])
@pytest.mark.parametrize("tile", [(5, 4), (100, 100), (1, 23)])
def test_tiles_equal_brute_force(make_scores, loss, tile):
    error = pointwise_error(loss, "signed")
    phi, theta = make_scores(0, 4), make_scores(1, 3)
    value = 3.0 * tiled_sum(
        lambda rows, cols, r, g: error.value(r, error.to_target(g)), phi, theta, tile=tile
    )
    brute = 3.0 * error.value(phi.tile(), error.to_target(theta.tile())).sum()
    factors = [*phi.lefts, *phi.rights, *theta.lefts, *theta.rights]
    torch.testing.assert_close(value, brute, rtol=1e-10, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(value, factors), torch.autograd.grad(brute, factors), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_functions_see_which_pairs_they_get(make_scores):
    """Per-user and per-item tables are cut to the tile: distances from q/Γ with a Γ per pair."""
    phi, q = make_scores(0), make_scores(1)
    gamma_u = torch.rand(phi.n_users, dtype=torch.float64) + 1
    gamma_i = torch.rand(phi.n_items, dtype=torch.float64) + 1

    def values(rows, columns, prediction, seen):
        return (prediction - seen / (gamma_u[rows, None] * gamma_i[columns])).abs()

    whole = values(slice(None), slice(None), phi.tile(), q.detach().tile()).sum()
    torch.testing.assert_close(tiled_sum(values, phi, q.detach(), tile=(7, 6)), whole)


def test_one_tile_in_memory(make_scores):
    shapes = []

    def values(rows, columns, prediction):
        shapes.append(prediction.shape)
        return prediction.abs()

    tiled_sum(values, make_scores(0), tile=(8, 5))
    assert max(a for a, _ in shapes) == 8
    assert max(b for _, b in shapes) == 5


def test_no_gradient_where_none_is_wanted(make_scores):
    value = tiled_sum(lambda rows, columns, r: r.abs(), make_scores(0).detach())
    assert not value.requires_grad


def test_scores_of_two_shapes_are_refused(make_scores):
    with pytest.raises(InputError, match="one shape"):
        tiled_sum(lambda rows, columns, r, g: r, make_scores(0), make_scores(0, n_users=3))

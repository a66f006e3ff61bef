import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.losses.pair_loss import pointwise_error
from puidrec.scores.low_rank import LowRank, inner_sum, linear_sum, square_sum, tiled_sum

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def test_algebra_agrees_with_matrices(make_scores):
    s, t = make_scores(0, 3), make_scores(1, 4)
    a, b = torch.rand(s.n_users, dtype=torch.float64), torch.rand(s.n_items, dtype=torch.float64)
    torch.testing.assert_close(s.minus(t).tile(), s.tile() - t.tile())
    torch.testing.assert_close(s.scaled(a, b).tile(), a[:, None] * s.tile() * b)
    torch.testing.assert_close(s.tile(slice(3, 5), slice(1, 4)), s.tile()[3:5, 1:4])
    assert not s.detach().tile().requires_grad
    assert s.n_pairs == s.n_users * s.n_items


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="fit together"):
        LowRank.of(torch.zeros(3, 2), torch.zeros(4, 3))
    with pytest.raises(InputError, match="fit together"):
        LowRank((torch.zeros(3, 2), torch.zeros(4, 2)), (torch.zeros(5, 2), torch.zeros(5, 2)))


def test_columns_of_zeros_are_left_out_and_a_nan_is_not() -> None:
    left, right = torch.ones(3, 3), torch.ones(4, 3)
    right[:, 1] = 0.0
    right[2, 2] = float("nan")
    found = LowRank.of(left, right).without_zeros()
    assert found.rights[0].shape == (4, 2)
    torch.testing.assert_close(found.tile(), LowRank.of(left, right).tile(), equal_nan=True)


def gradients(value, *scores):
    factors = [f for s in scores for f in (*s.lefts, *s.rights)]
    return torch.autograd.grad(value, factors, allow_unused=True)


def assert_same(value, other, scores, tolerance):
    """Values and gradients agree, relative to the size of the oracle."""
    assert (abs(value - other) < tolerance * abs(other)).item()
    for mine, theirs in zip(gradients(value, *scores), gradients(other, *scores), strict=True):
        assert mine.dtype == theirs.dtype
        assert float((mine - theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_square_sum_equals_brute_force(make_scores, dtype, weighted):
    phi, theta = make_scores(0, 7, dtype), make_scores(1, 4, dtype)
    alpha, beta = (
        torch.rand(n, dtype=dtype) + 0.1 if weighted else None for n in (phi.n_users, phi.n_items)
    )
    brute = (phi.tile().double() - theta.tile().double()).square()
    brute = (
        brute
        if alpha is None or beta is None
        else alpha[:, None].square().double() * brute * beta.square().double()
    )
    assert_same(
        square_sum(phi.minus(theta).scaled(alpha, beta)),
        brute.sum(),
        (phi, theta),
        TOLERANCE[dtype],
    )


def test_inner_sum_equals_brute_force(make_scores):
    phi, theta = make_scores(0, 7, torch.float64), make_scores(1, 4, torch.float64)
    assert_same(
        inner_sum(phi.minus(theta), theta),
        ((phi.tile() - theta.tile()) * theta.tile()).sum(),
        (phi, theta),
        1e-9,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_square_sum_of_any_shape(n_users, n_items, dim, seed):
    rng = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randn(n, dim, generator=rng, dtype=torch.float64) for n in (n_users, n_items)
    )
    assert float(square_sum(LowRank.of(left, right))) == pytest.approx(
        float((left @ right.T).square().sum()), 1e-10
    )


def test_gradcheck(make_scores):
    phi, theta = make_scores(0, 2, n_users=4, n_items=3), make_scores(1, 2, n_users=4, n_items=3)

    def loss(left, right, other_left, other_right):
        return square_sum(LowRank.of(left, right).minus(LowRank.of(other_left, other_right)))

    assert torch.autograd.gradcheck(loss, (*phi.lefts, *phi.rights, *theta.lefts, *theta.rights))


def test_a_constant_part_gets_no_gradient(make_scores):
    phi, theta = make_scores(0), make_scores(1)
    square_sum(phi.minus(theta.detach())).backward()
    assert phi.lefts[0].grad is not None
    assert theta.lefts[0].grad is None


def test_linear_sums(make_scores):
    s, t = make_scores(0, 3), make_scores(1, 4)
    assert_same(linear_sum(s.minus(t)), (s.tile() - t.tile()).sum(), (s, t), 1e-10)


def test_rescaled_target_of_signed_methods(make_scores):
    """Σ_D (r̂ − q/Γ)² with Γ_ui = exp(s_u + s_i) stays on the identity."""
    phi, q = make_scores(0), make_scores(1, 3)
    s_u, s_i = (
        torch.rand(q.n_users, dtype=torch.float64),
        torch.rand(q.n_items, dtype=torch.float64),
    )
    gamma = torch.exp(s_u[:, None] + s_i)
    value = square_sum(phi.minus(q.scaled(torch.exp(-s_u), torch.exp(-s_i))))
    assert_same(value, (phi.tile() - q.tile() / gamma).square().sum(), (phi, q), 1e-10)


def test_float32_is_summed_in_float64():
    """1 + 2⁻³⁰-sized differences vanish in a float32 Gram: r̂ and g agree to six digits here."""
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(500, 8, generator=rng), torch.randn(300, 8, generator=rng)
    near = LowRank.of(left * (1 + 1e-4), right)
    scores = LowRank.of(left, right).minus(near)
    exact = (
        (left.double() @ right.double().T - near.lefts[0].double() @ right.double().T)
        .square()
        .sum()
    )
    assert float(square_sum(scores)) == pytest.approx(float(exact), rel=1e-6)


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

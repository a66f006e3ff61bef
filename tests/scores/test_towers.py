import numpy as np
import polars as pl
import pytest
import torch
from scipy import sparse

from puidrec.errors import InputError
from puidrec.features.encode import FeatureEncoder
from puidrec.scores import BACKBONES, make_backbone
from puidrec.scores.towers import Design, squared_norm
from puidrec.testing.backbone import BackboneContract

N_USERS, N_ITEMS, DIM = 11, 7, 4


def side(n, seed):
    rng = np.random.default_rng(seed)
    table = pl.DataFrame(
        {"id": np.arange(n), "group": rng.choice(["a", "b", "c"], n), "x": rng.normal(size=n)}
    )
    encoder = FeatureEncoder.fit(table, "id")
    return encoder, table, Design.of(encoder.encode(table))


def build(name, seed=0, **options):
    return make_backbone(
        name,
        N_USERS,
        N_ITEMS,
        DIM,
        user_features=side(N_USERS, 1)[2],
        item_features=side(N_ITEMS, 2)[2],
        hidden=6,
        rng=seed,
        **options,
    )


class TestMf(BackboneContract):
    def make(self, seed):
        return make_backbone("mf", N_USERS, N_ITEMS, DIM, rng=seed)


class TestMfLinear(BackboneContract):
    def make(self, seed):
        return build("mf-linear", seed)


class TestMfLinearWithoutIds(BackboneContract):
    def make(self, seed):
        return build("mf-linear", seed, ids=False)


class TestMfMlp(BackboneContract):
    def make(self, seed):
        return build("mf-mlp", seed)


class TestMfMlpWithBiases(BackboneContract):
    def make(self, seed):
        return build("mf-mlp", seed, ids="bias")


class TestMfMlpWithoutIds(BackboneContract):
    def make(self, seed):
        return build("mf-mlp", seed, ids=False)


def randomise(model):
    rng = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=rng)
    return model


def test_linear_score_by_hand():
    """r̂ = ⟨e_u + X_u W, e_i + X_i V⟩ + biases likewise + μ."""
    model = randomise(build("mf-linear", mean=0.5))
    u = model.user_towers[0].weight + (side(N_USERS, 1)[2] @ model.user_towers[1].weight)
    i = model.item_towers[0].weight + (side(N_ITEMS, 2)[2] @ model.item_towers[1].weight)
    expected = u[:, :DIM] @ i[:, :DIM].T + u[:, DIM:] + i[:, DIM:].T + model.mean
    torch.testing.assert_close(model.factors().tile(), expected)


def test_mlp_score_by_hand():
    """`eq:mlp` and `eq:prediction` with torch's own layers, biases per entity."""
    model = randomise(build("mf-mlp", ids="bias"))
    sides = []
    for towers, design in (
        (model.user_towers, side(N_USERS, 1)[2]),
        (model.item_towers, side(N_ITEMS, 2)[2]),
    ):
        bias, tower = towers
        hidden = torch.relu(
            torch.nn.functional.linear(design @ torch.eye(4), tower.first.T, tower.first_bias)
        )
        out = torch.nn.functional.linear(hidden, tower.second.T, tower.second_bias)
        sides.append((out[:, :DIM], out[:, DIM:] + bias.weight))
    (zu, bu), (zi, bi) = sides
    torch.testing.assert_close(model.factors().tile(), zu @ zi.T + bu + bi.T + model.mean)


@pytest.mark.parametrize("name", ["mf-linear", "mf-mlp"])
def test_features_only_models_cannot_tell_twins_apart(name):
    """Without IDs, users of equal features have equal scores; and a cold user scores as its warm
    twin."""
    model = randomise(build(name, ids=False))
    encoder, table, _ = side(N_USERS, 1)
    cold = model.cold_users(Design.of(encoder.encode(table[3:5])))
    torch.testing.assert_close(cold, model.users()[3:5])
    encoder, table, _ = side(N_ITEMS, 2)
    torch.testing.assert_close(
        model.cold_items(Design.of(encoder.encode(table[2:4]))), model.items()[2:4]
    )


def test_a_cold_user_without_features_gets_the_item_biases():
    model = randomise(make_backbone("mf", N_USERS, N_ITEMS, DIM))
    cold = model.cold_users(side(N_USERS, 1)[2].rows(slice(0, 1)))
    torch.testing.assert_close(
        (cold @ model.items().T)[0], model.item_towers[0].weight[:, -1] + model.mean
    )


def test_squared_norm_and_its_gradient():
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert squared_norm(weight).item() == pytest.approx((weight**2).sum().item())
    assert torch.autograd.gradcheck(squared_norm, (weight,))


def test_penalty_is_per_entity():
    """The same embeddings twice over have the same penalty: one weight suits any size."""
    small, large = make_backbone("mf", 4, 3, DIM), make_backbone("mf", 8, 3, DIM)
    with torch.no_grad():
        large.user_towers[0].weight.copy_(small.user_towers[0].weight.repeat(2, 1))
        large.item_towers[0].weight.copy_(small.item_towers[0].weight)
    torch.testing.assert_close(small.penalty().ids, large.penalty().ids)
    assert float(small.penalty().features) == 0.0


def test_feature_penalty_is_the_mean_over_entities():
    model = randomise(build("mf-linear", ids=False))
    by_hand = 0.0
    for towers, design in (
        (model.user_towers, side(N_USERS, 1)[2]),
        (model.item_towers, side(N_ITEMS, 2)[2]),
    ):
        squares = (design @ torch.eye(4)) ** 2
        by_hand += (squares @ towers[0].weight.square().sum(1)).mean()
    torch.testing.assert_close(model.penalty().features, by_hand)
    assert float(model.penalty().ids) == 0.0


def test_a_side_without_features_falls_back_to_ids():
    model = make_backbone(
        "mf-linear", N_USERS, N_ITEMS, DIM, item_features=side(N_ITEMS, 2)[2], ids=False
    )
    assert model.user_towers[0].uses_ids
    assert not model.item_towers[0].uses_ids


def test_no_global_randomness():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    build("mf-mlp")
    assert torch.equal(torch.rand(1), expected)


def test_double_precision_works():
    model = build("mf-linear").double()
    assert model.factors().tile().dtype == torch.float64


def test_mistakes_are_named():
    with pytest.raises(InputError, match=", ".join(BACKBONES)):
        make_backbone("svd", 2, 2, 2)
    with pytest.raises(InputError, match="positive"):
        make_backbone("mf", 2, 2, 0)
    with pytest.raises(InputError, match="one row per entity"):
        make_backbone("mf-linear", 5, N_ITEMS, DIM, user_features=side(N_USERS, 1)[2])


def dense(design):
    return (design @ torch.eye(design.n_columns)).numpy()


def test_rows_and_power_match_the_matrix():
    matrix = np.array([[0, 1.5, 0], [1, 0, 0], [0, 0, 0], [0.5, -1, 1]])
    design = Design.of(sparse.csr_array(matrix))
    assert (design.n_rows, design.n_columns) == matrix.shape
    np.testing.assert_allclose(dense(design), matrix)
    np.testing.assert_allclose(dense(design.rows(slice(1, 3))), matrix[1:3])
    np.testing.assert_allclose(design.column_power(), (matrix**2).mean(0), atol=1e-6)


def test_a_matrix_without_columns():
    assert Design.of(sparse.csr_array((4, 0))).n_columns == 0

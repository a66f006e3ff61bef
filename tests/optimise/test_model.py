"""Parameters as the solver has them: the scores they make, their L2, and the way to a backbone and
back."""

from __future__ import annotations

import pytest
import torch

from puidrec.methods.problem import backbone_penalty
from puidrec.optimise.model import is_linear, linear_model, load_point, point_of


def tile(factors: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The scores of all pairs."""
    return factors[0] @ factors[1].T


@pytest.mark.parametrize("ids", [True, "bias", False])
def test_parameters_go_to_the_solver_and_back(ids, prepare) -> None:
    backbone = prepare("mf", ids=ids).backbone("main")
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    point = point_of(backbone)
    assert point["users"].shape == (backbone.n_users, backbone.dim + 1)
    for value in backbone.parameters():
        torch.nn.init.zeros_(value)
    load_point(backbone, point)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("ids", [True, "bias", False])
def test_scores_and_penalty_are_those_of_the_backbone(ids, prepare) -> None:
    """What least squares lowers is what Adam lowers."""
    prepared = prepare("mf", ids=ids, l2=0.3, l2_features=0.7)
    backbone = prepared.backbone("main")
    for value in backbone.parameters():
        torch.nn.init.normal_(value, generator=torch.Generator().manual_seed(value.numel()))
    model, point = linear_model(backbone, 0.3, 0.7, slice(None), lambda x: x), point_of(backbone)
    torch.testing.assert_close(tile(model.factors(point)), backbone.factors().tile())
    assert model.penalty(point) == pytest.approx(
        float(backbone_penalty(backbone, prepared.settings).detach())
    )


def test_what_all_biases_share_is_the_means(small) -> None:
    given = small(1)
    model = given.model()
    point = given.point(model, size=1.0)
    scores, penalty = tile(model.factors(point)), model.penalty(point)
    centred = model.centred({name: value.clone() for name, value in point.items()})
    torch.testing.assert_close(tile(model.factors(centred)), scores)
    assert model.penalty(centred) < penalty
    for name in ("users", "items"):
        assert float(centred[name][:, -1].sum()) == pytest.approx(0.0, abs=1e-12)


def test_l2_around_a_point_pulls_vectors_there_and_biases_to_zero(small) -> None:
    given = small(2)
    plain = given.model()
    point = given.point(plain)
    around = plain.around(point)
    assert bool((around.users.centre[:, -1] == 0.0).all())
    torch.testing.assert_close(around.items.centre[:, :-1], point["items"][:, :-1])
    biases = {
        name: value if value.ndim == 0 else value * torch.tensor([0.0, 0.0, 1.0])
        for name, value in point.items()
    }
    assert around.penalty(point) == pytest.approx(plain.penalty(biases))


def test_a_network_is_not_linear(prepare) -> None:
    assert is_linear(prepare("mf").backbone("main"))
    assert not is_linear(prepare("mf", backbone="mf-mlp").backbone("main"))

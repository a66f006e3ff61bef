import pytest
import torch

from puidrec.errors import InputError
from puidrec.losses.pair_loss import HEADS, head_named
from puidrec.losses.pointwise import LOSSES, pointwise_error


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", list(HEADS))
def test_sum_over_all_pairs_equals_brute_force(make_scores, name, loss):
    phi, theta = make_scores(0), make_scores(1, 3)
    head, error = HEADS[name], pointwise_error(loss, "signed")
    value = head.imputed_sum(phi, theta, error)
    brute = head.imputed(phi.tile(), theta.tile(), error).sum()
    torch.testing.assert_close(value, brute, rtol=1e-10, atol=1e-9)
    if name != "direct":
        mine, theirs = (torch.autograd.grad(x, [*phi.lefts, *phi.rights], retain_graph=True) for x in (value, brute))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_perfect_output_means_no_mismatch():
    """Each head has an output at which ê = e."""
    error = pointwise_error("squared")
    prediction, target = torch.tensor([0.2, 1.5]), torch.tensor([1.0, -1.0])
    perfect = {
        "label": target,
        "label-squared": target,
        "residual": target - prediction,
        "direct": error(prediction, target),
    }
    for name, output in perfect.items():
        torch.testing.assert_close(HEADS[name].mismatch(prediction, output, target, error), torch.zeros(2))
        torch.testing.assert_close(HEADS[name].imputed(prediction, output, error), error(prediction, target))


def test_printed_imputation_loss_cannot_tell_a_label_from_its_mirror_image():
    """ê = e at g = r and at g = 2r̂ − r; the default head learns the first only."""
    prediction, target = torch.tensor([0.2, 1.5]), torch.tensor([1.0, -1.0])
    mirror, error = 2 * prediction - target, pointwise_error("squared")
    torch.testing.assert_close(
        HEADS["label-squared"].mismatch(prediction, mirror, target, error), torch.zeros(2), rtol=0, atol=1e-6
    )
    assert (HEADS["label"].mismatch(prediction, mirror, target, error).abs() > 1).all()


def test_residual_moves_with_the_prediction_as_a_pseudo_label():
    """∂ê/∂r̂ = −2g, not 0, though ê's value is g² whatever r̂ is."""
    prediction = torch.tensor([0.3], requires_grad=True)
    imputed = HEADS["residual"].imputed(prediction, torch.tensor([0.5]), pointwise_error("squared"))
    imputed.backward()
    assert float(imputed.detach()) == pytest.approx(0.25)
    assert float(prediction.grad) == pytest.approx(-1.0)


def test_unknown_head():
    with pytest.raises(InputError, match="label, label-squared, residual, direct"):
        head_named("other")

import pytest
import torch

from puidrec.errors import InputError
from puidrec.objective.benchmark import subtract


def test_reference_is_a_constant():
    value, reference = torch.tensor([3.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    subtract(value, reference).backward()
    assert value.grad == 1.0
    assert reference.grad is None


def test_other_pairs_are_refused():
    with pytest.raises(InputError, match="same pairs"):
        subtract(torch.ones(3), torch.ones(2))

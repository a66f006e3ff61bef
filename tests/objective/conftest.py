import numpy as np
import pytest
import torch

from puidrec.backbones.sparse import LogPattern
from puidrec.objective.estimators import Observed
from puidrec.objective.low_rank import LowRank
from puidrec.objective.worst_case import Box

N_USERS, N_ITEMS = 37, 23


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Every test here works on tiny tensors."""


@pytest.fixture
def make_scores():
    """Random factors that want gradients."""

    def make(seed, dim=5, dtype=torch.float64, n_users=N_USERS, n_items=N_ITEMS):
        rng = torch.Generator().manual_seed(seed)
        left, right = (torch.randn(n, dim, generator=rng, dtype=dtype) for n in (n_users, n_items))
        return LowRank.of(left.requires_grad_(), right.requires_grad_())

    return make


@pytest.fixture
def make_observed():
    """A random log on the population, with signed targets and a box."""

    def make(seed, share=0.3, dtype=torch.float64, gamma=2.0):
        rng = np.random.default_rng(seed)
        mask = rng.random((N_USERS, N_ITEMS)) < share
        user, item = np.nonzero(mask)
        target = torch.tensor(rng.choice([-1.0, 1.0], user.size), dtype=dtype)
        odds = torch.tensor(rng.uniform(0.5, 6.0, user.size), dtype=dtype)
        box = Box.exactly(1 + odds) if gamma == 1 else Box(1 + odds / gamma, 1 + odds * gamma)
        return Observed(LogPattern.from_pairs(user, item, N_USERS, N_ITEMS), target, box), torch.from_numpy(mask)

    return make

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: a second thread only waits, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

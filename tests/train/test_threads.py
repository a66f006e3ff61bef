from __future__ import annotations

import pytest
import torch

from puidrec.train.threads import SMALL, threads_for


def test_small_problems_run_on_one_thread_and_the_setting_comes_back() -> None:
    before = torch.get_num_threads()
    with threads_for(100, 16):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_large_problems_keep_the_threads_they_have() -> None:
    before = torch.get_num_threads()
    with threads_for(SMALL, 2):
        assert torch.get_num_threads() == before


def test_the_setting_comes_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), threads_for(1, 1):
        raise RuntimeError
    assert torch.get_num_threads() == before

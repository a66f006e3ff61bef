"""Shared fixtures: where the public data sets are, and how a refusal must look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from puidrec.errors import InputError


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the public data sets; tests that need it are skipped where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("PUIDREC_DATA", default))
    if not root.is_dir():
        pytest.skip(f"no public data sets in {root} (set PUIDREC_DATA)")
    return root


@pytest.fixture(scope="session")
def refusal() -> Callable[..., str]:
    """Call something that must be refused; returns the message, which must be one line and hold all `parts`."""

    def refuse(call: Callable[[], Any], *parts: str) -> str:
        with pytest.raises(InputError) as caught:
            call()
        message = str(caught.value)
        assert message
        assert message.splitlines() == [message]
        for part in parts:
            assert part in message, f"{part!r} not in {message!r}"
        return message

    return refuse


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread only waits, and on a busy machine it waits long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

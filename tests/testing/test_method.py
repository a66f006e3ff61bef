"""Every method of the table keeps the contract that plug-ins are held to; a row that lies is found
out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puidrec.methods import METHODS
from puidrec.testing.method import MethodContract

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "check", [name for name in dir(MethodContract) if name.startswith("test_")]
)
@pytest.mark.parametrize("name", METHODS)
def test_built_in_methods_keep_the_contract(name: str, check: str) -> None:
    contract = MethodContract()
    contract.spec = METHODS[name]
    getattr(contract, check)()


def test_a_row_that_hides_its_use_of_uniform_rows_is_found_out() -> None:
    contract = MethodContract()
    contract.spec = replace(METHODS["signed-rd"], uses_uniform="")
    with pytest.raises(AssertionError):
        contract.test_says_if_uniform_rows_decide_anything()


def test_a_row_that_says_it_does_not_train_is_found_out() -> None:
    contract = MethodContract()
    contract.spec = replace(METHODS["mf"], trains=False)
    with pytest.raises(AssertionError):
        contract.test_reports_its_training()
    with pytest.raises(AssertionError):
        contract.test_searches_settings_that_exist()

"""Every propensity of the table against the contract that ships with the package."""

import pytest

from puidrec.errors import InputError
from puidrec.exposure import PROPENSITIES, FittedPropensity, additive, make_propensity
from puidrec.testing.propensity import PropensityContract, small_exposure


class TestCells(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("cells")


class TestLogistic(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("logistic")


class TestTwoWay(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("two-way")


class TestTwoWayOfFewLevels(PropensityContract):
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch) -> None:
        monkeypatch.setattr(additive, "LEVELS", 12)

    def make(self) -> FittedPropensity:
        return make_propensity("two-way")


class TestBalanced(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("balanced")


class TestKernel(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("kernel")


class TestNaiveBayes(PropensityContract):
    def make(self) -> FittedPropensity:
        return make_propensity("naive-bayes")


class TestGivenColumn(PropensityContract):
    estimates = False

    def make(self) -> FittedPropensity:
        return make_propensity("given")


def test_the_table_names_every_kind():
    assert set(PROPENSITIES) == {
        "cells",
        "logistic",
        "two-way",
        "balanced",
        "kernel",
        "naive-bayes",
        "given",
    }
    data = small_exposure()
    assert [make_propensity(name).fit(data).describe()["name"] for name in PROPENSITIES] == list(
        PROPENSITIES
    )
    assert [name for name in PROPENSITIES if make_propensity(name).uses_uniform] == ["naive-bayes"]


def test_unknown_name_and_option_are_input_errors():
    with pytest.raises(
        InputError, match=r"unknown propensity; found 'ouija'; expected one of cells"
    ):
        make_propensity("ouija")
    with pytest.raises(
        InputError, match=r"propensity cells: got an unexpected keyword argument 'smooth'"
    ):
        make_propensity("cells", smooth=1)
    with pytest.raises(InputError, match="0 < low"):
        make_propensity("cells", low=0.0)

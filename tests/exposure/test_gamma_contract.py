"""Every source keeps the contract that is shipped for new ones."""

from puidrec.exposure.gamma import SOURCES, GammaRule, resolve_gamma
from puidrec.testing.gamma import GammaContract


class TestInformation(GammaContract):
    def make(self):
        return GammaRule(n_permutations=10)


class TestExposureGap(GammaContract):
    def make(self):
        return resolve_gamma("exposure-gap")


class TestRecovered(GammaContract):
    def make(self):
        return resolve_gamma("recovered")


class TestConstant(GammaContract):
    def make(self):
        return GammaRule.constant(1.7)


class TestRandom(GammaContract):
    def make(self):
        return resolve_gamma("random")


def test_no_source_is_left_out():
    tested = {contract().make().source for contract in GammaContract.__subclasses__()}
    assert tested == set(SOURCES)

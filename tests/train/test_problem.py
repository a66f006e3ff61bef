from __future__ import annotations

import pytest

from puidrec.train.problem import backbone_penalty


@pytest.mark.parametrize(("l2", "l2_features"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.3, 0.7)])
def test_the_penalty_is_a_mean_over_the_entities_of_each_side(l2, l2_features, prepare) -> None:
    prepared = prepare("mf", l2=l2, l2_features=l2_features)
    backbone = prepared.backbone("main")
    expected = 0.0
    for towers in (backbone.user_towers, backbone.item_towers):
        ids, linear = towers
        expected += l2 * float(ids.weight.detach().square().sum()) / ids.n_rows
        power = linear.design.column_power().float()
        expected += l2_features * float((power * linear.weight.detach().square().sum(1)).sum())
    assert float(backbone_penalty(backbone, prepared.settings).detach()) == pytest.approx(expected, rel=1e-5)

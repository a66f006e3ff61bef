from __future__ import annotations

import pytest

from puidrec.methods import METHODS
from puidrec.reproduce import grids as paper


def test_every_cell_of_both_tables_is_there() -> None:
    assert len(paper.RQ1) == 13 * 6
    assert {ratio: len(table) for ratio, table in paper.RQ2.items()} == dict.fromkeys(
        paper.MASK_RATIOS, 8 * 6
    )
    assert {method for method, *_ in paper.RQ1} < set(METHODS)
    assert all(
        0.5 < value < 0.8 for table in (paper.RQ1, *paper.RQ2.values()) for value in table.values()
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("mf", "coat", "uauc"), 0.6606),
        (("multi-ips", "kuairec", "ndcg@50"), 0.6983),
        (("bpuid-dr", "yahoo-r3", "ndcg@5"), 0.5745),
        (("bpuid-ips", "yahoo-r3", "ndcg@5", 0.8), 0.5624),
        (("rd-dr", "coat", "uauc", 0.1), 0.6861),
        (("brd-ips", "kuairec", "ndcg@50", 0.2), 0.6020),
        (("item-rate", "coat", "uauc"), None),
        (("mf", "coat", "uauc", 0.5), None),
        (("rd-dr", "coat", "uauc", 0.3), None),
    ],
)
def test_figures_read_off_the_page(key: tuple[str, ...], value: float | None) -> None:
    assert paper.printed(*key) == value  # type: ignore[arg-type]

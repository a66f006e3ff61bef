"""The figures that the paper prints, as data: what every reproduced table is put beside.

Columns are UAUC and NDCG@5 on Coat and Yahoo!R3, and UAUC and NDCG@50 on KuaiRec. The ablation and
the experiments on entropies are printed as figures without numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, tuple[str, str]] = {
    "coat": ("uauc", "ndcg@5"),
    "yahoo-r3": ("uauc", "ndcg@5"),
    "kuairec": ("uauc", "ndcg@50"),
}
"""Data set → the two metrics that the paper prints for it, in the order of its columns."""
COLUMNS = tuple((data, metric) for data, metrics in METRICS.items() for metric in metrics)
MASK_RATIOS = (0.1, 0.2, 0.5, 0.8)
"""Mask ratios of RQ2."""
SHARES = (2, 3, 4, 5)
"""RQ3 observes one feature in so many."""

_RQ1 = """
mf         0.6606 0.5923 0.5874 0.5425 0.6781 0.6621
ips        0.6627 0.6000 0.5930 0.5530 0.7446 0.6683
rd-ips     0.6671 0.6081 0.6096 0.5706 0.7574 0.6700
multi-ips  0.6531 0.5940 0.5972 0.5589 0.5854 0.6983
puid-ips   0.6763 0.6182 0.6143 0.5736 0.7656 0.6703
dr         0.6797 0.6090 0.6133 0.5742 0.7468 0.6738
rd-dr      0.6827 0.6155 0.6088 0.5684 0.7635 0.6410
multi-dr   0.6386 0.5866 0.5671 0.5267 0.5914 0.6896
puid-dr    0.6843 0.6169 0.6178 0.5753 0.7677 0.6516
brd-ips    0.6786 0.6069 0.6065 0.5655 0.7684 0.6365
bpuid-ips  0.6806 0.6123 0.6125 0.5708 0.7644 0.6722
brd-dr     0.6788 0.6107 0.6129 0.5702 0.7638 0.6361
bpuid-dr   0.6809 0.6160 0.6177 0.5745 0.7724 0.6549
"""
_RQ2 = """
mask 0.1
puid-ips   0.6732 0.5986 0.6174 0.5749 0.7658 0.6712
puid-dr    0.6846 0.6229 0.6155 0.5723 0.7681 0.6533
bpuid-ips  0.6786 0.6204 0.6148 0.5736 0.7650 0.6701
bpuid-dr   0.6707 0.6091 0.6202 0.5798 0.7738 0.6523
rd-ips     0.6713 0.6098 0.6063 0.5650 0.7581 0.6704
rd-dr      0.6861 0.6183 0.6096 0.5687 0.7629 0.6384
brd-ips    0.6751 0.6154 0.6112 0.5674 0.7673 0.6405
brd-dr     0.6649 0.5939 0.6193 0.5776 0.7632 0.6322
mask 0.2
puid-ips   0.6490 0.5861 0.6118 0.5702 0.7661 0.6735
puid-dr    0.6709 0.6094 0.6151 0.5702 0.7678 0.6502
bpuid-ips  0.6700 0.6122 0.6146 0.5721 0.7647 0.6683
bpuid-dr   0.6645 0.5960 0.6197 0.5771 0.7737 0.6508
rd-ips     0.6511 0.5840 0.6098 0.5701 0.7574 0.6703
rd-dr      0.6805 0.6196 0.6181 0.5772 0.7634 0.6389
brd-ips    0.6725 0.6061 0.6066 0.5654 0.7693 0.6020
brd-dr     0.6614 0.5982 0.6149 0.5714 0.7639 0.6388
mask 0.5
puid-ips   0.6214 0.5545 0.5992 0.5572 0.7648 0.6733
puid-dr    0.6512 0.5900 0.6110 0.5668 0.7676 0.6525
bpuid-ips  0.6507 0.5910 0.6064 0.5620 0.7644 0.6733
bpuid-dr   0.6477 0.5821 0.6154 0.5710 0.7734 0.6537
rd-ips     0.6329 0.5771 0.6056 0.5634 0.7570 0.6700
rd-dr      0.6425 0.5842 0.6032 0.5606 0.7623 0.6367
brd-ips    0.6422 0.5876 0.6044 0.5602 0.7680 0.6740
brd-dr     0.6409 0.5785 0.6083 0.5633 0.7634 0.6350
mask 0.8
puid-ips   0.6253 0.5463 0.5857 0.5424 0.7602 0.6624
puid-dr    0.6307 0.5580 0.5904 0.5423 0.7637 0.6385
bpuid-ips  0.6419 0.5746 0.6033 0.5624 0.7649 0.6733
bpuid-dr   0.6352 0.5639 0.6033 0.5555 0.7694 0.6559
rd-ips     0.6270 0.5738 0.5854 0.5435 0.7518 0.6714
rd-dr      0.6352 0.5657 0.5930 0.5470 0.7597 0.6515
brd-ips    0.6399 0.5742 0.5864 0.5436 0.7686 0.6034
brd-dr     0.6403 0.5776 0.5935 0.5478 0.7585 0.6316
"""

Figures = Mapping[tuple[str, str, str], float]
"""(method, data, metric) → the printed figure."""


def _line(text: str) -> dict[tuple[str, str, str], float]:
    method, *figures = text.split()
    return {
        (method, *column): float(figure) for column, figure in zip(COLUMNS, figures, strict=True)
    }


def _read(text: str) -> dict[tuple[str, str, str], float]:
    return {key: value for line in text.strip().splitlines() for key, value in _line(line).items()}


RQ1: Figures = _read(_RQ1)
RQ2: Mapping[float, Figures] = {
    float(block.split("\n", 1)[0]): _read(block.split("\n", 1)[1])
    for block in _RQ2.strip().split("mask ")[1:]
}


def printed(method: str, data: str, metric: str, ratio: float | None = None) -> float | None:
    """The figure of RQ1, or of RQ2 at a mask ratio; None where the paper prints none."""
    return (RQ1 if ratio is None else RQ2.get(ratio, {})).get((method, data, metric))

"""Tables of a question, and the comparisons that its claims stand on: personalised against one Γ, random, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puidrec.evaluation.significance import Comparison, PerUser, compare, compare_all, holm
from puidrec.experiments.cells import Result
from puidrec.experiments.paper_tables import METRICS, printed
from puidrec.experiments.reproduce.ablation import LETTERS
from puidrec.experiments.summary import SummaryRow, summarise
from puidrec.methods import get_method

REFERENCE, FLOOR = "mf", "item-rate"
KINDS = {
    "personalised against one Γ": (
        ("puid-ips", "rd-ips"), ("puid-dr", "rd-dr"), ("bpuid-ips", "brd-ips"), ("bpuid-dr", "brd-dr"),
    ),
    "personalised against random Γ": (
        ("puid-ips", "puid-ips, random Γ"), ("puid-dr", "puid-dr, random Γ"),
        ("A1 puid-ips, α = 2, β = 5", "A5 rd-ips with random bounds"),
        ("B1 puid-dr, α = 2, β = 5", "B5 rd-dr with random bounds"),
    ),
    "personalised against none": (("puid-ips", "ips"), ("puid-dr", "dr")),
}  # fmt: skip
AGAINST_FLOOR = "against the item rate"
Row = dict[str, Any]


def table_rows(experiment: str, results: Sequence[Result]) -> list[Row]:
    """Summaries per data set, preset, protocol and mask, each with the paper's figure where it prints one."""
    rows: list[Row] = []
    for data, reference, part in _tables(experiment, results):
        masks = {result.cell.data.title: result.cell.data.mask for result in part}
        names = {"experiment": experiment, "source": data}
        rows += [{**names, **_plain(row, data, masks[row.data])} for row in summarise(part, reference, METRICS[data])]
    return rows


def _tables(experiment: str, results: Sequence[Result]) -> list[tuple[str, str, list[Result]]]:
    """(data, reference, results) of each table. Series A and B of the ablation have references of their own."""
    names = dict.fromkeys(result.cell.data.name for result in results)
    if experiment != "ablation":
        return [(data, REFERENCE, [r for r in results if r.cell.data.name == data]) for data in names]
    return [
        (data, next((r.cell.name for r in part if r.cell.name.startswith(f"{letter}1")), ""), part)
        for data in names
        for letter in LETTERS
        if (part := [r for r in results if r.cell.data.name == data and r.cell.name.startswith(letter)])
    ]


def _plain(row: SummaryRow, data: str, mask: tuple[str, float] | None) -> Row:
    ratio = None if mask is None else mask[1]
    known = row.label == row.method and (mask is None or mask[0] == "random")
    figure = printed(row.method, data, row.metric, ratio) if known else None
    gap = None if figure is None else row.mean - figure
    return {**row.plain(), "mask": None if mask is None else list(mask), "paper": figure, "paper_difference": gap}


def contrast_rows(experiment: str, results: Sequence[Result]) -> list[Row]:
    """Every pair of `KINDS` that the results hold, and every method against the item rate; paired, over users.

    p-values are adjusted for the number of pairs within a kind, table and metric (Holm).
    """
    rows: list[Row] = []
    for (title, preset, protocol), group in _groups(results).items():
        data = next(iter(next(iter(group.values())))).cell.data.name
        names = {"experiment": experiment, "data": title, "source": data, "preset": preset, "protocol": protocol}
        for metric in METRICS[data]:
            found = {kind: _compare_pairs(group, pairs, metric) for kind, pairs in KINDS.items()}
            found[AGAINST_FLOOR] = _against_floor(group, metric)
            rows += [{**names, "metric": metric, "kind": kind, **row} for kind, part in found.items() for row in part]
    return rows


def _against_floor(group: dict[str, list[Result]], metric: str) -> list[Row]:
    """Every method that has the item rate's seeds."""
    values = {label: _values(part, metric) for label, part in group.items()}
    seeds = set(values.get(FLOOR, ()))
    full = {label: [own[s] for s in sorted(seeds)] for label, own in values.items() if seeds and seeds <= set(own)}
    if len(full) < 2:
        return []
    compared = compare_all(full, FLOOR)
    return [{"method": label, "against": FLOOR, **_verdict(found)} for label, found in compared.items()]


def _groups(results: Sequence[Result]) -> dict[tuple[str, str, str], dict[str, list[Result]]]:
    groups: dict[tuple[str, str, str], dict[str, list[Result]]] = {}
    for result in results:
        cell = result.cell
        group = groups.setdefault((cell.data.title, cell.preset, cell.protocol), {})
        group.setdefault(cell.name, []).append(result)
    return groups


def _compare_pairs(group: dict[str, list[Result]], pairs: Sequence[tuple[str, str]], metric: str) -> list[Row]:
    compared = [
        (a, b, found) for a, b in pairs if a in group and b in group if (found := _pair(group[a], group[b], metric))
    ]
    adjusted = holm(np.array([found.p_value for *_, found in compared]))
    return [
        {"method": a, "against": b, **_verdict(replace(found, p_value=float(p)))}
        for (a, b, found), p in zip(compared, adjusted, strict=True)
    ]


def _pair(method: Sequence[Result], other: Sequence[Result], metric: str) -> Comparison | None:
    """Compare on the seeds that both have."""
    left, right = _values(method, metric), _values(other, metric)
    seeds = sorted(left.keys() & right.keys())
    return compare([left[s] for s in seeds], [right[s] for s in seeds]) if seeds else None


def _values(results: Sequence[Result], metric: str) -> dict[int, PerUser]:
    return {r.cell.seed: r.per_user[metric] for r in results if metric in r.per_user}


def limit_rows(results: Sequence[Result]) -> list[Row]:
    """How many fits of a data set and preset had their best epoch last: with more epochs they might be better."""
    groups: dict[tuple[str, str], list[bool]] = {}
    epochs: dict[tuple[str, str], int] = {}
    for result in results:
        if get_method(result.cell.method).family != "closed":
            key, limit = (result.cell.data.name, result.cell.preset), int(result.settings["epochs"])
            groups.setdefault(key, []).append(result.context.get("best_epoch") == limit)
            epochs[key] = max(limit, epochs.get(key, 0))
    return [
        {"data": data, "preset": preset, "fits": len(hits), "at_the_limit": sum(hits), "epochs": epochs[data, preset]}
        for (data, preset), hits in groups.items()
    ]


def _verdict(found: Comparison) -> Row:
    real = (found.low > 0 or found.high < 0) and found.p_value <= 0.05
    verdict = "ties" if not real else "wins" if found.difference > 0 else "loses"
    return {
        "difference": found.difference, "low": found.low, "high": found.high, "p_value": found.p_value,
        "verdict": verdict, "n_users": found.n_users, "n_seeds": found.n_seeds,
    }  # fmt: skip

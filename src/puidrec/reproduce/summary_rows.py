"""The rows of summary.json: tables beside the paper's figures, the comparisons behind its claims,
facts on the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.comparing.job import Result
from puidrec.comparing.summary import SummaryRow, by_table, summarise
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.evaluation import evaluate_scores
from puidrec.evaluation.significance import PerUser, compare, compare_all, holm
from puidrec.exposure.entropy import ESTIMATORS
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import resolve_gamma
from puidrec.gamma_study import PAPER_WEIGHTS, printed_equation
from puidrec.methods import get_method
from puidrec.reproduce.paper_tables import METRICS, printed
from puidrec.reproduce.questions import LETTERS
from puidrec.rng import generator

REFERENCE, FLOOR = "mf", "item-rate"
KINDS = {
    "personalised against one Γ": (
        ("puid-ips", "rd-ips"),
        ("puid-dr", "rd-dr"),
        ("bpuid-ips", "brd-ips"),
        ("bpuid-dr", "brd-dr"),
    ),
    "personalised against random Γ": (
        ("puid-ips", "puid-ips, random Γ"),
        ("puid-dr", "puid-dr, random Γ"),
        ("A1 puid-ips, α = 2, β = 5", "A5 rd-ips with random bounds"),
        ("B1 puid-dr, α = 2, β = 5", "B5 rd-dr with random bounds"),
    ),
    "personalised against none": (("puid-ips", "ips"), ("puid-dr", "dr")),
}
AGAINST_FLOOR = "against the item rate"
Row = dict[str, Any]


def table_rows(question: str, results: Sequence[Result]) -> list[Row]:
    """Summaries per data set, preset, protocol and mask, each with the paper's figure where it
    prints one."""
    rows: list[Row] = []
    for data, reference, part in _tables(question, results):
        masks = {result.job.data.title: result.job.data.mask for result in part}
        names = {"experiment": question, "source": data}
        rows += [
            {**names, **_plain(row, data, masks[row.data])}
            for row in summarise(part, reference, METRICS[data])
        ]
    return rows


def _tables(question: str, results: Sequence[Result]) -> list[tuple[str, str, list[Result]]]:
    """(data, reference, results) of each table. Series A and B of the ablation have references of
    their own."""
    names = dict.fromkeys(result.job.data.name for result in results)
    if question != "ablation":
        return [
            (data, REFERENCE, [r for r in results if r.job.data.name == data]) for data in names
        ]
    return [
        (data, next((r.job.name for r in part if r.job.name.startswith(f"{letter}1")), ""), part)
        for data in names
        for letter in LETTERS
        if (
            part := [
                r for r in results if r.job.data.name == data and r.job.name.startswith(letter)
            ]
        )
    ]


def _plain(row: SummaryRow, data: str, mask: tuple[str, float] | None) -> Row:
    ratio = None if mask is None else mask[1]
    known = row.label == row.method and (mask is None or mask[0] == "random")
    figure = printed(row.method, data, row.metric, ratio) if known else None
    gap = None if figure is None else row.mean - figure
    return {
        **row.plain(),
        "mask": None if mask is None else list(mask),
        "paper": figure,
        "paper_difference": gap,
    }


def contrast_rows(question: str, results: Sequence[Result]) -> list[Row]:
    """Every pair of `KINDS` that the results hold, and every method against the item rate; paired,
    over users.

    p-values are adjusted for the number of pairs within a kind, table and metric (Holm).
    """
    rows: list[Row] = []
    for (title, preset, protocol), group in by_table(results).items():
        data = next(result.job.data.name for seeds in group.values() for result in seeds.values())
        names = {
            "experiment": question,
            "data": title,
            "source": data,
            "preset": preset,
            "protocol": protocol,
        }
        for metric in METRICS[data]:
            values = {
                label: {
                    seed: r.per_user[metric] for seed, r in seeds.items() if metric in r.per_user
                }
                for label, seeds in group.items()
            }
            found = {kind: _compare_pairs(values, pairs) for kind, pairs in KINDS.items()}
            found[AGAINST_FLOOR] = _against_floor(values)
            rows += [
                {**names, "metric": metric, "kind": kind, **row}
                for kind, part in found.items()
                for row in part
            ]
    return rows


def _against_floor(values: Mapping[str, Mapping[int, PerUser]]) -> list[Row]:
    """Every method that has the item rate's seeds."""
    seeds = values.get(FLOOR, {}).keys()
    full = {
        label: [own[s] for s in sorted(seeds)]
        for label, own in values.items()
        if seeds and seeds <= own.keys()
    }
    compared = compare_all(full, FLOOR) if len(full) > 1 else {}
    return [
        {"method": label, "against": FLOOR, **asdict(found)} for label, found in compared.items()
    ]


def _compare_pairs(
    values: Mapping[str, Mapping[int, PerUser]], pairs: Sequence[tuple[str, str]]
) -> list[Row]:
    """Each pair on the seeds that both have."""
    compared = []
    for method, other in pairs:
        seeds = sorted(values.get(method, {}).keys() & values.get(other, {}).keys())
        if seeds:
            found = compare([values[method][s] for s in seeds], [values[other][s] for s in seeds])
            compared.append({"method": method, "against": other, **asdict(found)})
    adjusted = holm(np.array([row["p_value"] for row in compared])).tolist()
    return [
        {**row, "p_value": p, "verdict": row["verdict"] if p <= 0.05 else "ties"}
        for row, p in zip(compared, adjusted, strict=True)
    ]


def limit_rows(results: Sequence[Result]) -> list[Row]:
    """How many fits of a data set and preset had their best epoch last: with more epochs they might
    be better."""
    groups: dict[tuple[str, str], list[bool]] = {}
    epochs: dict[tuple[str, str], int] = {}
    for result in results:
        if get_method(result.job.method).trains:
            key, limit = (result.job.data.name, result.job.preset), int(result.settings["epochs"])
            groups.setdefault(key, []).append(result.context.get("best_epoch") == limit)
            epochs[key] = max(limit, epochs.get(key, 0))
    return [
        {
            "data": data,
            "preset": preset,
            "fits": len(hits),
            "at_the_limit": sum(hits),
            "epochs": epochs[data, preset],
        }
        for (data, preset), hits in groups.items()
    ]


FEATURES: Mapping[str, tuple[str, ...]] = {
    "coat": ("pseudo", "real"),
    "yahoo-r3": ("pseudo",),
    "kuairec": ("paper",),
    "ml-100k": ("real",),
}
"""Which features Γ is read from, the paper's first."""
LABEL_RULES = ("rd", "paper", "ge3")
"""The protocols that the paper's figures may have been made under; they differ in what counts as
liked."""
CHANCE_DRAWS, MANY_ROWS = 5, 1_000_000
"""Random orders that are averaged; one is enough where there are many rows."""


def fact_rows(name: str, folder: Path, n_permutations: int = 100) -> list[dict[str, Any]]:
    """Γ as printed, under the features of the data set, and the level of chance, where uniform rows
    tell it."""
    rows = []
    for features in FEATURES[name]:
        data = load_dataset(name, folder, features=features)
        rows.append(
            _row("gamma", name, "rd", {"features": features, **printed_gamma(data, n_permutations)})
        )
        if features == FEATURES[name][0] and data.uniform is not None:
            agree = data.scale.low == 0.0  # a 0/1 label: all protocols draw the same line
            protocols = ("rd",) if agree else LABEL_RULES
            rows += [
                _row("chance", name, protocol, chance(data, name, protocol))
                for protocol in protocols
            ]
    return rows


def printed_gamma(data: Dataset, n_permutations: int = 100, seed: int = 0) -> dict[str, Any]:
    """`eq:gamma_ui` with α = 2 and β = 5, the share of pairs for which it is below 1, and the gains
    it is made of.

    `mean_gamma`, `max_gamma`: what the same α and β give as weights of log Γ of each pair's own
    bins.
    """
    evidence = Evidence.of_rows(data, data.split("rd", seed).train)
    gains = {name: evidence.gains(name, n_permutations, seed) for name in ESTIMATORS}  # type: ignore[arg-type]
    plugin, null = gains["plugin"], gains["permutation"]
    alpha, beta = PAPER_WEIGHTS
    rule = resolve_gamma("information", n_permutations=n_permutations, alpha=alpha, beta=beta)
    weighted = rule.fit(evidence, rng=seed)
    return {
        "user_degrees": [int(f(evidence.counts.user_degree)) for f in (np.min, np.max)],
        "alpha": alpha,
        "beta": beta,
        "H": plugin.H,
        **asdict(printed_equation(evidence, plugin, alpha, beta)),
        "gain_user": {name: g.gain_user for name, g in gains.items()},
        "gain_item": {name: g.gain_item for name, g in gains.items()},
        "mean_gamma": float(np.exp(weighted.mean_log)),
        "max_gamma": float(weighted.max),
        "chance_user": None
        if null.null_user is None
        else [null.null_user.mean, null.null_user.high],
        "chance_item": None
        if null.null_item is None
        else [null.null_item.mean, null.null_item.high],
    }


def chance(data: Dataset, name: str, protocol: str, seed: int = 0) -> dict[str, Any]:
    """Positive rate of the test rows, and the metrics of random scores."""
    test = data.split(protocol, seed).test
    draws = [
        evaluate_scores(
            test.user,
            generator(seed, "chance", k).random(len(test)),
            test.label,
            metrics=METRICS[name],
        )
        for k in range(CHANCE_DRAWS if len(test) < MANY_ROWS else 1)
    ]
    return {
        "positive_rate": float(test.label.mean()),
        "test_rows": len(test),
        **{metric: float(np.mean([draw[metric] for draw in draws])) for metric in METRICS[name]},
    }


def _row(kind: str, data: str, protocol: str, values: dict[str, Any]) -> dict[str, Any]:
    method = {"gamma": "Γ as printed", "chance": "random order"}[kind]
    return {
        "experiment": kind,
        "data": data,
        "method": method,
        "protocol": protocol,
        "seed": 0,
        **values,
    }

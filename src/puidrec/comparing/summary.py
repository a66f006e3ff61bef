"""From results to tables: means over seeds, intervals, paired differences to a reference with a
verdict, Markdown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
from scipy.special import stdtrit

from puidrec.comparing.job import Result
from puidrec.data.tables import overlap_words
from puidrec.errors import InputError
from puidrec.evaluation.metrics import higher_is_better
from puidrec.evaluation.significance import Comparison, PerUser, Verdict, compare_all

T = TypeVar("T")
LEVEL = 0.95
Seeds = Mapping[int, Result]
"""Results of one label, by seed."""
_ZERO = "\0zero"


@dataclass(frozen=True)
class SummaryRow:
    """One method under one metric. What cannot be said (one seed, no reference, no values per user)
    is None."""

    data: str
    preset: str
    protocol: str
    label: str
    method: str
    metric: str
    higher_is_better: bool
    positive_rate: float
    """Of the test rows, mean over seeds."""
    n_seeds: int
    n_users: int | None
    """Distinct users behind the metric."""
    mean: float
    sd: float | None
    """Over seeds."""
    seed_low: float | None
    seed_high: float | None
    """t-interval over seeds."""
    user_low: float | None
    user_high: float | None
    """Bootstrap over users."""
    is_reference: bool = False
    difference: float | None = None
    """To the reference, paired."""
    difference_low: float | None = None
    difference_high: float | None = None
    """Paired bootstrap over users and seeds; with one seed, over users only."""
    p_value: float | None = None
    """Adjusted for the number of methods compared (Holm)."""
    verdict: Verdict | None = None
    overlap: str = ""
    """How many uniform rows are logged pairs, and whether they count; empty where there are no
    uniform rows."""

    chance: float | None = None
    """What random orders score, where the protocol's convention puts it far above 0."""
    trials: int = 1
    """Configurations tried per seed; validation rows chose among them."""
    uniform_rows: int | None = 0
    """Uniform rows that training, or the choice among configurations, was given per seed; None:
    fitted elsewhere."""
    new_users: int | None = None
    """Test users without a training row, most over seeds; None where that is not known."""
    random_start: bool = False
    """Whether a seed also draws the start of training, which its end depends on (Adam)."""
    note: str = ""
    """Of what is no method of this package: where its scores come from."""

    def plain(self) -> dict[str, Any]:
        """A row of `summary.json`."""
        return asdict(self)


def summarise(
    results: Sequence[Result],
    reference: str,
    metrics: Sequence[str],
) -> list[SummaryRow]:
    """One row per (data, preset, protocol), label and metric, the best label by the first metric on
    top.

    A label that lacks a seed of the reference (a job failed) has a mean, but is not compared.
    """
    rows: list[SummaryRow] = []
    for group in by_table(results).values():
        block: list[SummaryRow] = []
        for metric in metrics:
            better = higher_is_better(metric)
            intervals = _intervals(group, metric)
            compared = _compared(group, reference, metric, better)
            for label, seeds in group.items():
                row = _row(label, seeds, metric, better, intervals.get(label))
                if row is not None:
                    block.append(
                        _with_comparison(
                            row, compared.get(label), label == reference, group, reference
                        )
                    )
        rows += _sorted(block, metrics)
    return rows


def by_table(results: Sequence[Result]) -> dict[tuple[str, str, str], dict[str, dict[int, Result]]]:
    """(data, preset, protocol) of a table → label → seed → result; tables and labels in the order
    they come in."""
    tables: dict[tuple[str, str, str], dict[str, dict[int, Result]]] = {}
    for result in results:
        job = result.job
        seeds = tables.setdefault((job.data.title, job.preset, job.protocol), {}).setdefault(
            job.name, {}
        )
        if job.seed in seeds:
            raise InputError(
                "two jobs of a table have one name",
                found=f"{job.name}, seed {job.seed}",
                expected="a label that tells them apart",
            )
        seeds[job.seed] = result
    return {
        key: {label: dict(sorted(seeds.items())) for label, seeds in group.items()}
        for key, group in tables.items()
    }


def t_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and t-interval; a single value has no interval."""
    x = np.asarray(values, np.float64)
    mean = float(x.mean())
    if x.size < 2:
        return mean, None, None
    half = (
        float(stdtrit(x.size - 1, 0.5 + LEVEL / 2)) * float(x.std(ddof=1)) / float(np.sqrt(x.size))
    )
    return mean, mean - half, mean + half


def _row(
    label: str, seeds: Seeds, metric: str, better: bool, users: Comparison | None
) -> SummaryRow | None:
    """The figures of a label by itself; None where no seed has the metric."""
    values = [r.metrics[metric] for r in seeds.values() if metric in r.metrics]
    if not values:
        return None
    job = next(iter(seeds.values())).job
    mean, low, high = t_interval(values)
    contexts = [result.context for result in seeds.values()]
    new_users = [c["new_users"] for c in contexts if c.get("new_users") is not None]
    uniform_rows = [c.get("uniform_rows_given", 0) for c in contexts]
    return SummaryRow(
        job.data.title,
        job.preset,
        job.protocol,
        label,
        job.method,
        metric,
        better,
        positive_rate=float(np.mean([c["positive_rate"] for c in contexts])),
        n_seeds=len(values),
        n_users=None if users is None else users.n_users,
        mean=mean,
        sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        seed_low=low,
        seed_high=high,
        user_low=None if users is None else users.low,
        user_high=None if users is None else users.high,
        overlap=_overlap(contexts[0]),
        chance=_chance(seeds, metric),
        trials=max(int(c.get("trials", 1)) + int(c.get("trials_failed", 0)) for c in contexts),
        uniform_rows=None if None in uniform_rows else max(uniform_rows),
        new_users=max(new_users, default=None),
        random_start=any("adam" in str(c.get("solver")) or c.get("refitted") for c in contexts),
        note=str(contexts[0].get("note", "")),
    )


def _chance(seeds: Seeds, metric: str) -> float | None:
    """The mean over seeds of what random orders score."""
    found = [r.context[key] for r in seeds.values() if (key := f"chance_{metric}") in r.context]
    return float(np.mean(found)) if found else None


def _overlap(context: Mapping[str, Any]) -> str:
    """What a result says of uniform rows that are logged pairs."""
    counts = [int(context.get(key) or 0) for key in ("uniform_rows", "uniform_rows_in_log")]
    return overlap_words(str(context.get("overlap", "drop")), *counts)


def _values(seeds: Seeds, metric: str) -> list[PerUser] | None:
    """Values per user, one per seed; None where a seed has none."""
    found = [
        r.per_user[metric]
        for r in seeds.values()
        if metric in r.per_user and len(r.per_user[metric])
    ]
    return found if len(found) == len(seeds) else None


def _intervals(group: Mapping[str, Seeds], metric: str) -> dict[str, Comparison]:
    """Bootstrap intervals of the means: the difference to a method that always gets 0."""
    by_seeds: dict[tuple[int, ...], dict[str, list[PerUser]]] = {}
    for label, seeds in group.items():
        values = _values(seeds, metric)
        if values is not None:
            by_seeds.setdefault(tuple(seeds), {})[label] = values
    found: dict[str, Comparison] = {}
    for methods in by_seeds.values():
        zero = [replace(v, values=np.zeros_like(v.values)) for v in next(iter(methods.values()))]
        found |= compare_all({**methods, _ZERO: zero}, _ZERO, resample="users")
    return found


def _compared(
    group: Mapping[str, Seeds], reference: str, metric: str, better: bool
) -> dict[str, Comparison]:
    """Every label that has the reference's seeds against the reference, on these seeds."""
    base = group.get(reference, {})
    paired: dict[str, list[PerUser]] = {}
    for label, seeds in group.items():
        if base and set(base) <= set(seeds):
            values = _values({seed: seeds[seed] for seed in base}, metric)
            if values is not None:
                paired[label] = values
    if reference not in paired or len(paired) < 2:
        return {}
    return compare_all(paired, reference, higher_is_better=better)


def _with_comparison(
    row: SummaryRow,
    compared: Comparison | None,
    is_reference: bool,
    group: Mapping[str, Seeds],
    reference: str,
) -> SummaryRow:
    """The row with its difference to the reference; without values per user only the difference
    itself."""
    if is_reference or reference not in group:
        return replace(row, is_reference=is_reference)
    if compared is not None:
        return replace(
            row,
            difference=compared.difference,
            difference_low=compared.low,
            difference_high=compared.high,
            p_value=compared.p_value,
            verdict=compared.verdict,
        )
    own, base = group[row.label], group[reference]
    gaps = [
        own[seed].metrics[row.metric] - base[seed].metrics[row.metric]
        for seed in base
        if seed in own and row.metric in own[seed].metrics and row.metric in base[seed].metrics
    ]
    return replace(row, difference=float(np.mean(gaps)) if len(gaps) == len(base) else None)


def _sorted(block: list[SummaryRow], metrics: Sequence[str]) -> list[SummaryRow]:
    """Labels from best to worst by the first metric, each with its metrics in the order asked
    for."""
    first = {
        row.label: (-row.mean if row.higher_is_better else row.mean)
        for row in block
        if row.metric == metrics[0]
    }
    order = {metric: k for k, metric in enumerate(metrics)}
    return sorted(
        block, key=lambda row: (first.get(row.label, float("inf")), row.label, order[row.metric])
    )


NOTES = (
    "±: 95 % t-interval over seeds. [ ]: 95 % interval of the difference, from a paired bootstrap "
    "over users and seeds: it counts which users were met and how training happened to go. "
    "A method wins or loses where that interval excludes 0 and the p-value, corrected for the "
    "number of methods (Holm), is at most 0.05; else it ties."
)
DETERMINISTIC = "No fit here starts at random: a seed changes the split only."
ONE_SEED = (
    "With one seed, training noise is not in the intervals: the same method under another seed may "
    "differ by more. Run several seeds (--seeds 5) before you call a winner."
)


def remarks(rows: Sequence[SummaryRow]) -> list[str]:
    """What must be known before a winner is called: that there is one seed, and which figures are
    not of models that this comparison fitted."""
    alone = rows and max(row.n_seeds for row in rows) == 1
    foreign = by((row for row in rows if row.note), lambda row: row.note)
    words = [
        f"{', '.join(dict.fromkeys(row.label for row in own))}: {note}."
        for note, own in foreign.items()
    ]
    return [ONE_SEED, *words] if alone else words


def notes(rows: Sequence[SummaryRow]) -> list[str]:
    """How to read a table; first what must be known."""
    drawn = dict.fromkeys(row.label for row in rows if row.random_start)
    seeds = f"A seed changes the split, and what {', '.join(drawn)} draws at random."
    said = remarks(rows)
    return [*said, NOTES] if ONE_SEED in said else [*said, NOTES, seeds if drawn else DETERMINISTIC]


def _equal_seeds(row: SummaryRow) -> bool:
    """Whether several seeds gave one value, to the digits that are shown."""
    return row.seed_high is not None and row.seed_high - row.mean < 5e-5


def headline(rows: Sequence[SummaryRow], metric: str, reference: str) -> str:
    """One metric of one table in a sentence: who wins, how many tie and lose."""
    own = [row for row in rows if row.metric == metric and row.verdict is not None]
    count = {
        word: [row.label for row in own if row.verdict == word]
        for word in ("wins", "ties", "loses")
    }
    if not own:
        return f"{metric}: nothing to compare with {reference}."
    best = (
        f" ({', '.join(count['wins'][:3])}{', …' if len(count['wins']) > 3 else ''})"
        if count["wins"]
        else ""
    )
    sizes = {word: len(names) for word, names in count.items()}
    return (
        f"{metric}: {sizes['wins']} of {len(own)} win{best}, {sizes['ties']} tie, "
        f"{sizes['loses']} lose."
    )


def by(rows: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """Rows in groups, in the order in which they come."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def grouped(rows: Sequence[SummaryRow]) -> list[list[SummaryRow]]:
    """Rows that stand in one table."""
    return list(by(rows, lambda row: (row.data, row.preset, row.protocol)).values())


def given(rows: Sequence[SummaryRow]) -> dict[str, dict[str, int | None]]:
    """Column → label → number: configurations tried and uniform rows used, where they are not the
    same for all; what is the same is said once, by `conditions`."""
    columns: dict[str, dict[str, int | None]] = {
        "configurations": {row.label: row.trials for row in rows},
        "uniform rows used": {row.label: row.uniform_rows for row in rows},
    }
    return {name: values for name, values in columns.items() if len(set(values.values())) > 1}


def title(rows: Sequence[SummaryRow]) -> str:
    """The data set of one table, protocol, positive rate, seeds and preset."""
    return f"{rows[0].data}, {conditions(rows)}"


def conditions(rows: Sequence[SummaryRow]) -> str:
    """Protocol, positive rate, seeds and preset: without them no figure can be compared with
    another."""
    first, seeds = rows[0], max(row.n_seeds for row in rows)
    words = [
        f"protocol {first.protocol}, {first.positive_rate:.1%} of test rows positive, "
        f"{seeds} seed{'s' if seeds != 1 else ''}, {first.preset} settings",
        first.overlap,
        *dict.fromkeys(
            f"chance scores {row.chance:.3f} in {row.metric}"
            for row in rows
            if row.chance is not None
        ),
        f"{first.new_users:,} test users have no training row" if first.new_users else "",
    ]
    varying = given(rows)
    if "configurations" not in varying and first.trials > 1:
        words.append(f"{first.trials} configurations tried per method and seed")
    if "uniform rows used" not in varying and first.uniform_rows is not None:
        words.append(f"{first.uniform_rows or 'no'} uniform rows used")
    return "; ".join(word for word in words if word)


def figure(row: SummaryRow | None) -> str:
    """The mean with its interval over seeds."""
    if row is None:
        return "–"
    if row.seed_high is None or _equal_seeds(row):
        return f"{row.mean:.4f}"
    return f"{row.mean:.4f} ± {row.seed_high - row.mean:.4f}"


def difference(row: SummaryRow | None) -> str:
    """The difference to the reference with its interval and verdict, as far as they are known."""
    if row is not None and row.is_reference:
        return "reference"
    if row is None or row.difference is None:
        return "–"
    return " ".join(part for part in (f"{row.difference:+.4f}", interval(row), row.verdict) if part)


def interval(row: SummaryRow) -> str:
    """The interval of the difference; nothing where there is none."""
    if row.difference_low is None or row.difference_high is None:
        return ""
    return f"[{row.difference_low:+.4f}, {row.difference_high:+.4f}]"

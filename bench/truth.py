"""The page of worlds whose truth is known: what each method gains where its assumption holds, and
costs where it is false; how well Γ rules and the learned Γ find what is hidden.

In a simulated world the error on all pairs is known. A figure of a method is the change of that
error against `mf` with the same backbone, seed by seed, with a paired interval over seeds: for
models with IDs (the default) and of features alone. `bench/pages.py` runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import mixture
from gamma_truth import RULES, one
from pages import Ask, version
from parts import run_parts, summed_costs
from puidrec.data.synthetic import WORLDS, simulate
from puidrec.demo import FEATURES_ONLY, with_true_propensity
from puidrec.model import Recommender
from puidrec.report.study import table
from worlds import TASTE, make_world

SIZE: dict[str, Any] = {"n_users": 400, "n_items": 300, "density": 0.08, "n_uniform": 11_000}
"""Uniform rows of which the protocol holds 5 % out for calibration: about 500 outside the log."""
SMALL: dict[str, Any] = {"n_users": 100, "n_items": 80, "density": 0.15, "n_uniform": 2_000}
SEEDS, FIRST_OF_RULES = 3, 100
"""Γ rules were developed on seeds 0 to 3."""
IDS, FEATURES = "IDs and features", "features only"
BACKBONES: dict[str, dict[str, Any]] = {IDS: {}, FEATURES: FEATURES_ONLY}
METHODS: dict[str, dict[str, Any]] = {
    "mf": {"method": "mf"},
    "bias": {"method": "bias"},
    "ips": {"method": "ips"},
    "rd-dr": {"method": "rd-dr"},
    "puid-dr": {"method": "puid-dr"},
    "puid-dr, random Γ": {"method": "puid-dr", "gamma": "random"},
    "all-rank": {"method": "all-rank"},
    "signed-rd": {"method": "signed-rd"},
    "signed-rd, 500 rows": {"method": "signed-rd", "uniform": True},
    "spectrum": {"method": "spectrum"},
    "spectrum, 500 rows": {"method": "spectrum", "uniform": True},
}
TRUE_P = "ips, true p"
WITH_IDS = ("bias", "all-rank", "spectrum")
"""Of no use to models of features alone, or the same there."""
LEARNED_WORLDS = mixture.NAMES.split(",")
LEARNED_ROWS, LEARNED_SIZE = 500, (500, 250)
LOGS = 2
"""Per world, of Γ rules and of the learned Γ: their figures are of thousands of pairs each."""
PAYS = {"its own rule": "auto", "one Γ of 1.5": 1.5, "learned": "learned"}
"""Γ of `puid-dr`."""


def errors_of(world: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """True errors over all pairs in one draw of one world, for each backbone: of `mf`, and of
    methods with its dim and L2."""
    draw = Draw.of(world, seed, quick)
    known = replace(draw, data=with_true_propensity(simulate(world, rng=seed, **size_of(quick))))
    found: dict[str, dict[str, float]] = {}
    for name, backbone in BACKBONES.items():
        plain = draw.fit(method="mf", **backbone)
        factor = plain.report_["chosen"]["l2_factor"]
        same = {
            **backbone,
            "dim": plain.report_["dim"],
            "l2": plain.report_["l2"],
            "l2_features": factor * plain.settings.l2_features,
        }
        own = {"mf": draw.error(plain)}
        own[TRUE_P] = draw.error(known.fit(**same, method="ips", propensity="given"))
        for method in methods_of(name):
            if method != "mf" and METHODS[method]["method"] != "spectrum":
                own[method] = draw.error(draw.fit(**same, **METHODS[method]))
        found[name] = own
    return found


def blends_of(world: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """The same of `spectrum`, which chooses for itself."""
    draw = Draw.of(world, seed, quick)
    return {
        name: {
            method: draw.error(draw.fit(**backbone, **METHODS[method]))
            for method in methods_of(name)
            if METHODS[method]["method"] == "spectrum"
        }
        for name, backbone in BACKBONES.items()
    }


@dataclass(frozen=True)
class Draw:
    """One draw of a world."""

    data: Any
    truth: np.ndarray
    seed: int

    @classmethod
    def of(cls, world: str, seed: int, quick: bool) -> Draw:
        """All ratings of the draw as its truth."""
        simulation = simulate(world, rng=seed, **size_of(quick))
        truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))
        return cls(simulation.data, truth, seed)

    def fit(self, uniform: bool = False, **options: Any) -> Recommender:
        """Solved, nothing chosen by uniform rows; uniform: whether training is given some."""
        split = self.data.split("rd", self.seed)
        none = split.validation.take(np.zeros(len(split.validation), bool))
        rows = split.propensity if uniform else None
        model = Recommender(rng=self.seed, select="none", solver="least-squares", **options)
        return model.fit(self.data, replace(split, validation=none, propensity=rows))

    def error(self, model: Recommender) -> float:
        """Mean squared error over all pairs."""
        return float(((model.user_factors_ @ model.item_factors_.T - self.truth) ** 2).mean())


def size_of(quick: bool) -> dict[str, Any]:
    return SMALL if quick else SIZE


def methods_of(backbone: str) -> list[str]:
    """Those that are shown with a backbone."""
    return [name for name in METHODS if backbone == IDS or name not in WITH_IDS]


def rules_of(world: str, seed: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Figures of every Γ rule."""
    size = {"n_users": 150, "n_items": 100} if quick else {}
    found = one(simulate(world, rng=seed, **size), seed)
    return {name: finite(figures) for name, figures in found.items()}


def learned_of(world: str, log: int, quick: bool) -> dict[str, float]:
    """Coverage and rank correlations of the learned Γ in one log, and errors of `puid-dr` with each
    Γ in percent of that of `mf`."""
    n_users, n_items = (120, 80) if quick else LEARNED_SIZE
    drawn = TASTE if world == "taste" else world
    truth = make_world(drawn, log, n_users=n_users, n_items=n_items)
    data = truth.dataset(LEARNED_ROWS, np.random.default_rng([log, 7]))
    model = Recommender("spectrum", rng=0).fit(data)
    found = mixture.intervals(model, truth)
    plain = mixture.error(Recommender("mf", rng=0).fit(data), truth)
    for words, gamma in PAYS.items():
        own = mixture.error(Recommender("puid-dr", gamma=gamma, rng=0).fit(data), truth)
        found[words] = 100.0 * (own / plain - 1.0)
    return finite(found)


def finite(found: Mapping[str, float]) -> dict[str, float | None]:
    """Figures as JSON allows them."""
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


FITTED = {
    "errors": tuple({str(options["method"]) for options in METHODS.values()} - {"spectrum"}),
    "blends": ("spectrum",),
    "rules": ("puid-dr",),
    "learned": ("spectrum", "puid-dr", "mf"),
}
"""The methods that parts of a kind fit."""
PAGE_METHODS = {"truth": tuple(sorted({name for methods in FITTED.values() for name in methods}))}


def measure_truth(ask: Ask) -> dict[str, Any]:
    """All parts, seed by seed, so that what the time does not allow are seeds."""
    worlds = ("entity", "pair") if ask.quick else tuple(WORLDS)
    learned = LEARNED_WORLDS[:2] if ask.quick else LEARNED_WORLDS
    asked: list[tuple[str, Callable[..., Any], str, int]] = []
    for seed in range(1 if ask.quick else SEEDS):
        for world in worlds:
            asked.append(("errors", errors_of, world, seed))
            asked.append(("blends", blends_of, world, seed))
        if seed < LOGS:
            asked += [("rules", rules_of, world, FIRST_OF_RULES + seed) for world in worlds]
            asked += [("learned", learned_of, world, seed) for world in learned]
    versions = {kind: version(*sorted(methods)) for kind, methods in FITTED.items()}
    parts = {
        f"{kind} {world} {seed} {versions[kind]}": (function, (world, seed, ask.quick))
        for kind, function, world, seed in asked
    }
    found, unfinished = run_parts(parts, ask.folder, ask.workers, ask.end)
    rows = [(*name.split(" ")[:3], figures) for name, figures in found.items()]
    return {
        "unfinished": unfinished,
        "methods": {name: changes(rows, name) for name in BACKBONES},
        "rules": rule_figures(rows),
        "learned": {
            world: mean_of(
                [own for kind, name, _, own in rows if (kind, name) == ("learned", world)]
            )
            for world in learned
        },
        "seeds": len({seed for kind, _, seed, _ in rows if kind == "errors"}),
        "logs": len({seed for kind, _, seed, _ in rows if kind == "learned"}),
        "costs": summed_costs(ask.folder, {name: name.split(" ")[0] for name in parts}),
    }


class Change(NamedTuple):
    """Mean change of the true error in percent, half of its 95 % interval over seeds."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if self.half is None else f"±{self.half:.1f}")


def changes(rows: Sequence[tuple[Any, ...]], backbone: str) -> dict[str, dict[str, Any]]:
    """By world: the error of `mf`, and each method's change against it, seed by seed."""
    blends = {(name, seed): own for kind, name, seed, own in rows if kind == "blends"}
    errors: dict[str, list[dict[str, float]]] = {}
    for kind, name, seed, own in rows:
        if kind == "errors" and (name, seed) in blends:
            errors.setdefault(name, []).append({**own[backbone], **blends[name, seed][backbone]})
    found: dict[str, dict[str, Any]] = {}
    for world, draws in errors.items():
        found[world] = {"mf": round(float(np.mean([one["mf"] for one in draws])), 4)}
        for method in (*methods_of(backbone), TRUE_P):
            values = np.array([100.0 * (one[method] / one["mf"] - 1.0) for one in draws])
            half = None
            if values.size > 1:
                t = stats.t.ppf(0.975, values.size - 1)
                half = round(float(t * values.std(ddof=1) / np.sqrt(values.size)), 2)
            if method != "mf":
                found[world][method] = [round(float(values.mean()), 2), half]
    return found


def rule_figures(rows: Sequence[tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    """By rule and world: mean rank correlation with what is hidden, coverage, and the width of
    bounds that cover 95 %, against those of one tuned Γ."""
    own = [(name, figures) for kind, name, _, figures in rows if kind == "rules"]
    return {
        rule: {
            world: mean_of([figures[rule] for name, figures in own if name == world])
            for world in dict.fromkeys(name for name, _ in own)
        }
        for rule in RULES
    }


def mean_of(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each figure; None where one is not known or not finite."""
    if not found:
        return {}
    values = {key: np.array([one[key] for one in found], np.float64) for key in found[0]}
    return {
        key: round(float(own.mean()), 3) if np.isfinite(own).all() else None
        for key, own in values.items()
    }


# The page


TEXT = """# Methods against the truth

{made}
{unfinished}
A simulator knows every rating, so the true error over all pairs can be computed. Three questions: what does a method gain,
which Γ rules find what is hidden, and does the Γ that is learned from uniform rows keep its promises?

## In short

{short}

## What a method gains

Change of the true error in percent against `mf` with the same backbone: below 0 is better. ± is a paired 95 % interval
over {seeds} seeds. Logs have {users} users × {items} items, {density:.0%} of the pairs logged. *500 rows*: with about 500
uniform ratings; all others use the log and its features alone. `mf` chooses dim and L2 on held-out rows; all others but
`spectrum` take the same. `dr` is left out: it equals `ips` ([proof](deviations.md)). *True p* is IPS that knows each
pair's probability to be seen: with IDs it is no ceiling, for its weights are noisy. The last row counts worlds whose
interval lies below 0, around 0, above 0.

The worlds: {worlds}. The first six existed when the methods were built; the others break, one each, something that methods
assume.

### {ids}

{with_ids}

Models of features alone cannot learn hidden traits as IDs; there hidden confounding shows.

### {features}

{without_ids}

## Γ rules

Worlds of 800 users × 500 items, seeds that the rules were not developed on. In a cell: rank correlation of a rule's Γ with
the true strength of what is hidden, then the share of pairs whose true 1/p lies within its bounds. Bounds are put around the
exact nominal p(x), which nobody has, to judge the rule alone:

{rules}

`recovered` measures exposure that features do not explain. Hidden causes that vary from pair to pair (`pair`) leave no such
traces: a small Γ is no proof that nothing is hidden. `random` is the control.

## The learned Γ

`model.gamma` of [`spectrum`](concepts/spectrum.md) with {rows} uniform rows, in logs of another simulator
(`bench/worlds.py`, {size}, {logs} logs per world). Share of 90 % intervals of unseen means that hold the truth; rank
correlation of Γ with the true one; and the change of `puid-dr`'s error against `mf`, in percent, by the Γ it is given.

{learned}
"""


def truth_text(figures: dict[str, Any], made: str) -> str:
    """The page; its sentences follow from the figures by rule."""
    waits = figures["unfinished"]
    return TEXT.format(
        made=made,
        unfinished=f"\nNot finished in the time given: {waits} parts.\n" if waits else "",
        short="\n".join(f"* {line}" for line in truth_findings(figures)),
        seeds=figures["seeds"],
        users=SIZE["n_users"],
        items=SIZE["n_items"],
        density=SIZE["density"],
        worlds="; ".join(f"`{name}`: {world.description}" for name, world in WORLDS.items()),
        ids=IDS[0].upper() + IDS[1:],
        features=FEATURES[0].upper() + FEATURES[1:],
        with_ids=method_table(figures["methods"][IDS]),
        without_ids=method_table(figures["methods"][FEATURES]),
        rules=rule_table(figures["rules"]),
        rows=LEARNED_ROWS,
        size=" × ".join(map(str, LEARNED_SIZE)),
        logs=figures["logs"],
        learned=learned_table(figures["learned"]),
    )


def counts(found: Mapping[str, Mapping[str, Any]], method: str) -> tuple[int, int, int]:
    """In how many worlds a method is better, not clearly different, worse."""
    ends = [own[method] for own in found.values() if own[method][1] is not None]
    better, worse = sum(m + h < 0 for m, h in ends), sum(m - h > 0 for m, h in ends)
    return better, len(ends) - better - worse, worse


def method_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Worlds × methods, and counts."""
    shown = next(iter(found.values()))
    names = [name for name in (*METHODS, TRUE_P) if name in shown and name != "mf"]
    body = [
        [world, *(str(Change(*own[name])) for name in names), f"{own['mf']:.4f}"]
        for world, own in found.items()
    ]
    tally = ["*better–unclear–worse*", *("–".join(map(str, counts(found, n))) for n in names), ""]
    return table(("world", *names, "error of mf"), [*body, tally])


def rule_table(found: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    """Rules × worlds."""
    worlds = list(next(iter(found.values()), {}))

    def cell(own: Mapping[str, float | None]) -> str:
        rank, held = own.get("spearman"), own.get("coverage")
        return f"{'–' if rank is None else f'{rank:.2f}'}/{'–' if held is None else f'{held:.0%}'}"

    return table(
        ("rule", *worlds),
        [[rule, *(cell(own[w]) for w in worlds)] for rule, own in found.items()],
    )


LEARNED = {
    "covered: users": "users",
    "items": "items",
    "segments": "segments of users",
    "pairs": "pairs",
    "rank: users": "rank corr., users",
    "items ": "rank corr., items",
    "pairs ": "rank corr., pairs",
}


def learned_table(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """Worlds × coverage, rank correlations, and what `puid-dr` gains."""

    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    body = [
        [
            world,
            *(shown(own.get(key), ".2f") for key in LEARNED.values()),
            *(shown(own.get(key), "+.1f") for key in PAYS),
        ]
        for world, own in found.items()
        if own
    ]
    return table(("world", *map(str.strip, LEARNED), *(f"error: {name}" for name in PAYS)), body)


def truth_findings(figures: Mapping[str, Any]) -> list[str]:
    """What the tables say, by rule."""
    lines = []
    for backbone, found in figures["methods"].items():
        told = []
        for method in ("ips", "puid-dr", "signed-rd", "spectrum", "spectrum, 500 rows"):
            if method not in next(iter(found.values())):
                continue
            better, open_, worse = counts(found, method)
            told.append(
                f"`{method}` better in {better}, worse in {worse} of {better + open_ + worse}"
            )
        lines.append(f"{backbone[0].upper()}{backbone[1:]}, worlds: {'; '.join(told)}.")
    lines.append(personal_sentence(figures))
    held = {
        key: [own[key] for own in figures["learned"].values() if own.get(key) is not None]
        for key in ("users", "items", "pairs")
    }
    spans = [f"{key} {min(v):.0%} to {max(v):.0%}" for key, v in held.items() if v]
    if spans:
        lines.append(f"90 % intervals behind the learned Γ hold the truth for {', '.join(spans)}.")
    return lines


def personal_sentence(figures: Mapping[str, Any]) -> str:
    """Whether the learned, personal Γ lowers the error of `puid-dr` below that of one Γ."""
    known = [own for own in figures["learned"].values() if own]
    lower = sum(own["learned"] < own["one Γ of 1.5"] for own in known)
    typical = median(own["learned"] - own["one Γ of 1.5"] for own in known)
    return (
        f"`puid-dr` with the learned Γ has a lower error than with one Γ in {lower} of {len(known)} worlds "
        f"(median difference {typical:+.1f} points)."
    )


def median(values: Iterable[float]) -> float:
    """Of some numbers; NaN of none."""
    known = list(values)
    return float(np.median(known)) if known else float("nan")

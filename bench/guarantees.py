"""Claims of certificates, tilts, sign checks, audits, sequential test and comparisons, in worlds of
another family.

python bench/guarantees.py --logs 20 --parts tilt             # prints one part, from few logs
python bench/guarantees.py --logs 400 --parts audits --store  # docs/results/audits.json, 15 minutes

The page is made of all parts by `make page-guarantees` (bench/guarantee_page.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

import puidrec as pr
from audit_guarantees import METRICS, WORLDS, Outcome, impostors, outcomes, shares
from puidrec.atomic import write_json
from puidrec.evaluation.sequential import settle
from puidrec.evaluation.significance import compare
from puidrec.exposure.certificate import certify_values
from puidrec.exposure.certify import all_labelled, placebo_certificate
from puidrec.exposure.estimate import estimate_exposure
from puidrec.exposure.tilt import DISLIKED, LIKED, OPEN, MeanGap, sign_by_means
from puidrec.gamma_study import study_gamma
from puidrec.report.study import table
from worlds import Truth, make_world

HIDDEN = ("entity", "pair", "trait-genre", "reversed", "mixed-sign")
LOGS_PER_WORLD = 10
KEPT = Path(__file__).parent / "out" / "guarantees"
"""Finished logs of audits, so that an interrupted run goes on: remove it after a change of the
audit."""
COUNTED = Path(__file__).parents[1] / "docs" / "results" / "audits.json"
"""What was counted in many logs: taken from here where it is, for it takes a quarter of an hour and
no method's scores are in it. Remove it after a change of the audit."""


@dataclass(frozen=True)
class Row:
    """A claim, where it was tested, and what was found; `holds`: whether it is within Monte-Carlo
    error."""

    claim: str
    where: str
    measured: str
    holds: bool | None
    """None: nothing is claimed there; the row says what was measured."""
    counts: dict[str, Any] | None = None
    """What was counted, where the words leave some of it out."""
    part: str = ""


def share(hits: int, n: int) -> str:
    """A share with its Monte-Carlo error."""
    rate = hits / n
    return f"{rate:.1%} ± {np.sqrt(max(rate * (1 - rate), 0.25 / n) / n):.1%} of {n}"


def within(hits: int, n: int, limit: float) -> bool:
    """Whether a share is at most a limit, allowing for 2.3 Monte-Carlo errors (1 in 100)."""
    return hits <= limit * n + 2.33 * np.sqrt(limit * (1 - limit) * n)


@lru_cache(8)
def population(world: str, seed: int, n_levels: int) -> Truth:
    return make_world(world, seed, n_levels=n_levels)


def logs(world: str, n: int, n_levels: int = 5) -> Iterator[tuple[Truth, np.random.Generator]]:
    """Logs of a world, ten from each of its populations."""
    for seed in range(n):
        rng = np.random.default_rng([seed, n_levels, *world.encode()])
        yield population(world, seed // LOGS_PER_WORLD, n_levels).redrawn(rng), rng


def fresh_logs(world: str, n: int) -> Iterator[tuple[Truth, np.random.Generator]]:
    """Logs with a population each: where p is fitted, its misfit belongs to the population, and ten
    logs share it."""
    for seed in range(n):
        yield make_world(world, 1_000 + seed), np.random.default_rng([seed, 5, 99, *world.encode()])


def certificates(world: str, n: int, rows: int, n_levels: int, per_user: int | None) -> np.ndarray:
    """Limits around the exact propensity (all but what is hidden)."""
    found = []
    for truth, rng in logs(world, n, n_levels):
        user, item, rating = truth.log
        drawn, _, value = truth.uniform(
            rows, rng, per_user=min(per_user, rows) if per_user else None
        )
        found.append(
            certify_values(
                rating.astype(float),
                value.astype(float),
                logged_user=user,
                uniform_user=drawn,
                logged_propensity=truth.nominal[user, item],
            ).lower
        )
    return np.array(found)


def level_of_certificate(n: int) -> Iterator[Row]:
    """Rule 3: nothing hidden, exact p."""
    for n_levels in (5, 50):
        for rows in (20, 50, 200, 1_000):
            for per_user in (None, 20):
                hits = int((certificates("nothing", n, rows, n_levels, per_user) > 1.0).sum())
                kind = "random pairs" if per_user is None else "20 rows per user"
                where = f"nothing hidden, {n_levels} levels, {rows:,} uniform rows, {kind}"
                yield Row(
                    "certificate claims Γ > 1 in at most 5 %",
                    where,
                    share(hits, n),
                    within(hits, n, 0.05),
                )


def power_of_certificate(n: int) -> Iterator[Row]:
    """What is found of what is hidden, by number of uniform rows."""
    for rows in (200, 1_000):
        for world in HIDDEN:
            limits = certificates(world, max(n // 5, 5), rows, 5, None)
            text = f"median limit {np.median(limits):.2f}; above 1 in {(limits > 1).mean():.0%} of {limits.size}"
            where = f"{world}, 5 levels, {rows:,} uniform rows"
            if (
                world == "mixed-sign" or rows < 1_000
            ):  # where signs cancel, shares of all pairs show little
                yield Row("no claim: what a certificate proves", where, text, None)
            else:
                yield Row(
                    "certificate finds what is hidden",
                    where,
                    text,
                    bool((limits > 1).mean() >= 0.9),
                )


def fitted_certificate(n: int) -> Iterator[Row]:
    """Rule 3 with a propensity that is fitted to the log, where activity is strong and benign."""
    for world in ("nothing", "benign-activity", "quality"):
        hits = 0
        for truth, rng in fresh_logs(world, n):
            hits += pr.certify(truth.dataset(1_000, rng), checks=False).lower > 1.0
        where = f"{world}, 1,000 uniform rows, two-way p fitted, weights calibrated"
        yield Row(
            "certificate claims Γ > 1 in at most 5 %", where, share(hits, n), within(hits, n, 0.05)
        )


def tilts(n: int) -> Iterator[Row]:
    """Intervals of a measured tilt hold its slope: exact p, exposure log-linear in the rating by
    segment."""
    for rows in (300, 1_000):
        held, found = np.zeros(2), []
        for seed in range(n):
            rng = np.random.default_rng([seed, rows, 17])
            data = tilted(rng, rows)
            fit = pr.measure_tilt(data, by="kind", rng=seed)
            for k, true in enumerate(SLOPES):
                row = next(r for r in fit.rows if r.segment == f"kind: {'ab'[k]}")
                held[k] += row.low <= true <= row.high
                found.append(row.slope - true)
        text = f"{held.sum() / (2 * n):.1%} of {2 * n} intervals hold the slope; off by {np.mean(found):+.2f} on average"
        claim = "95 % interval of a tilt holds its slope in 92 % or more"
        yield Row(
            claim,
            f"slopes {SLOPES[0]:g} and {SLOPES[1]:g} by segment, {rows:,} uniform rows, two-way p fitted",
            text,
            bool(held.sum() >= 2 * n * 0.92 - 2.33 * np.sqrt(2 * n * 0.92 * 0.08)),
        )


SLOPES = (1.5, -1.0)


def tilted(rng: np.random.Generator, n_uniform: int) -> pr.Dataset:
    """A log whose exposure depends on activity, and on the rating by kind of user."""
    n_users, n_items = 300, 150
    rating = rng.integers(1, 6, (n_users, n_items))
    kind = np.arange(n_users) % 2
    push = (
        -3.0
        + rng.normal(0, 0.5, n_users)[:, None]
        + np.array(SLOPES)[kind][:, None] * (rating - 1) / 4
    )
    seen = rng.random(rating.shape) < 1.0 / (1.0 + np.exp(-push))
    drawn = np.divmod(rng.choice(np.flatnonzero(~seen), n_uniform, replace=False), n_items)
    frames = [
        pl.DataFrame({"user_id": u, "item_id": i, "rating": rating[u, i].astype(float)})
        for u, i in (np.nonzero(seen), drawn)
    ]
    users = pl.DataFrame({"user_id": np.arange(n_users), "kind": np.array(["a", "b"])[kind]})
    return pr.Dataset.from_frame(
        frames[0], uniform=frames[1], users=users, scale=(1, 5), unknown_ids="keep"
    )


def segments(n: int) -> Iterator[Row]:
    """Rule 5: with nothing hidden, in how many logs is something claimed of any segment."""
    for world in ("nothing", "benign-activity"):
        hits, tried = 0, []
        for truth, rng in fresh_logs(world, n):
            found = pr.certify(truth.dataset(1_000, rng)).segments
            tried.append(len(found))
            hits += any(row.lower > 1.0 for row in found)
        where = f"{world}, 1,000 uniform rows, fitted p, {np.median(tried):.0f} segments"
        yield Row(
            "any segment claims Γ > 1 in at most 5 %", where, share(hits, n), within(hits, n, 0.05)
        )


def signs(n: int) -> Iterator[Row]:
    """Rule 7: what means of uniform rows and the log itself say of the sign, with 1,000 uniform
    rows and fitted p.

    The log alone is looked at in a seventh of the logs, for it takes a model for each of five
    parts.
    """
    for world, true in (
        ("nothing", OPEN),
        ("benign-activity", OPEN),
        ("pair", LIKED),
        ("trait-genre", LIKED),
        ("reversed", DISLIKED),
        ("mixed-sign", OPEN),
    ):
        means = [mean_finding(truth.dataset(1_000, rng)) for truth, rng in fresh_logs(world, n)]
        own = [log_finding(truth.dataset(1_000, rng)) for truth, rng in logs(world, max(n // 7, 5))]
        for kind, found, limit in (
            ("means of uniform rows", means, 0.05),
            ("the log alone", own, 0.01),
        ):
            yield sign_row(kind, world, true, found, limit)


def sign_row(kind: str, world: str, true: str, found: list[str], limit: float) -> Row:
    """How often another sign is found than the true one; none is no false one."""
    wrong = sum(one not in (OPEN, true) for one in found)
    right = "" if true == OPEN else f"; right in {np.mean([one == true for one in found]):.0%}"
    claim, measured = (
        f"{kind}: a false sign in at most {limit:.0%}",
        share(wrong, len(found)) + right,
    )
    where = f"{world}{', half of the users each way' if world == 'mixed-sign' else ''}, 1,000 uniform rows, fitted p"
    return Row(claim, where, measured, within(wrong, len(found), limit))


def mean_finding(data: pr.Dataset) -> str:
    return mean_gap_of(data).finding


def mean_gap_of(data: pr.Dataset, **parts: Any) -> MeanGap:
    """The sign by means, as `study_gamma` finds it, without the rest of the study; `parts` take the
    place of fits."""
    rule = all_labelled(data.split().protocol)
    nominal, uniform = (
        estimate_exposure(data, data.logged.labelled(rule)),
        data.uniform.labelled(rule),
    )
    vars(nominal).update(parts)
    return sign_by_means(nominal, uniform, "rating")[0]


@dataclass(frozen=True)
class Exact:
    """The true propensity, in the place of a fitted one."""

    truth: Truth
    uses_uniform: bool = False

    def predict(
        self, users: np.ndarray, items: np.ndarray, ratings: np.ndarray | None = None
    ) -> np.ndarray:
        return self.truth.nominal[users, items]


def weights(n: int) -> Iterator[Row]:
    """What calibration is for: the same means without it, and with the true propensity."""
    kinds: dict[str, Callable[[Truth], dict[str, Any]]] = {
        "fitted p, weights not calibrated": lambda truth: {"weight_calibration": None},
        "exact p": lambda truth: {"weight_calibration": None, "propensity": Exact(truth)},
    }
    for kind, parts in kinds.items():
        drawn = fresh_logs("benign-activity", n)
        yield weight_row(
            kind, [mean_gap_of(truth.dataset(1_000, rng), **parts(truth)) for truth, rng in drawn]
        )


def weight_row(kind: str, found: list[MeanGap]) -> Row:
    """False signs, and how far the gaps are off to one side, in their own errors."""
    off = np.mean(
        [
            (gap.seen - gap.unseen) / (gap.high - gap.low) * 2.0 * stats.norm.ppf(0.975)
            for gap in found
        ]
    )
    wrong = share(sum(gap.finding != OPEN for gap in found), len(found))
    where = f"benign-activity, 1,000 uniform rows, {kind}"
    return Row(
        "no claim: a false sign by means without calibration",
        where,
        f"{wrong}; off by {off:+.2f} errors",
        None,
    )


def log_finding(data: pr.Dataset) -> str:
    study = study_gamma(data, 1.5).sign
    return OPEN if study.log is None else study.log.finding


def audits(n: int, *, real: bool = False) -> Iterator[Row]:
    """Rules 1 and 2: all pairs of models in n logs (a sixteenth for real models), by error and by
    ranking, against the truth; level and power. Counts of as many logs or more are taken from
    `COUNTED`."""
    per_world = max(-(-n // (16 * len(WORLDS))), 1) if real else max(-(-n // len(WORLDS)), 2)
    found = {world: audits_of(world, per_world, real) for world in WORLDS}
    models = "bias, mf, all-rank, ease, spectrum, ALS of implicit" if real else "five methods"
    logs = sum(one["logs"] for one in found.values())
    for rows in SIZES_OF[real]:
        for metric in METRICS:
            own = {world: one["counts"][f"{rows} {metric}"] for world, one in found.items()}
            where = f"{metric}, {models}, {rows:,} uniform rows, {logs} logs"
            yield from verdict_rows(metric, rows, own, where)


SIZES_OF = {False: (0, 500, 1_000), True: (1_000,)}
"""Uniform rows that a log is audited with; True: real models."""
STEP = 17
"""Logs of a world that are kept together."""


def audits_of(world: str, logs: int, real: bool) -> dict[str, Any]:
    """The logs of one world, and what is counted in them by uniform rows and metric."""
    name = f"{'real' if real else 'audits'} {world}"
    stored = json.loads(COUNTED.read_text(encoding="utf-8")) if COUNTED.exists() else {}
    if name in stored and stored[name]["logs"] >= logs:
        known: dict[str, Any] = stored[name]
        return known
    total: dict[str, dict[str, int]] = {}
    KEPT.mkdir(parents=True, exist_ok=True)
    for first in range(0, logs, STEP):
        seeds = range(first, min(first + STEP, logs))
        file = KEPT / f"{name} {seeds.start} {seeds.stop}.json"
        if not file.exists():
            sizes = SIZES_OF[real]
            every = [one for seed in seeds for one in outcomes(world, seed, sizes, real=real)]
            write_json(file, counted(every))
        for key, part in json.loads(file.read_text(encoding="utf-8")).items():
            own = total.setdefault(key, {})
            own |= {name: own.get(name, 0) + count for name, count in part.items()}
    return {"logs": logs, "counts": total}


def counted(every: list[Outcome]) -> dict[str, dict[str, int]]:
    """`shares` by uniform rows and metric."""
    keys = dict.fromkeys((one.n_uniform, one.metric) for one in every)
    return {
        f"{rows} {metric}": shares([o for o in every if (o.n_uniform, o.metric) == (rows, metric)])
        for rows, metric in keys
    }


def verdict_rows(
    metric: str, rows: int, own: dict[str, dict[str, int]], where: str
) -> Iterator[Row]:
    """Wrong verdicts in all and in the worst world; then how many leads of 10 % or more were
    decided."""
    total = {key: sum(one[key] for one in own.values()) for key in next(iter(own.values()))}
    wrong = "wrong" if rows else "wrong_robust"
    worst = max(own, key=lambda world: own[world][wrong])
    counts = f"{own[worst][wrong]} of {own[worst]['n']}"
    text = f"{share(total[wrong], total['n'])} comparisons; most in {worst}, {counts}"
    held = within(total[wrong], total["n"], 0.05)
    held &= all(within(one[wrong], one["n"], 0.05) for one in own.values())
    if not rows:
        yield Row("wrong `robust` at believe = 1.5 in at most 5 %", where, text, held, own)
        claim = "no claim: right `robust` at believe = 1.5"
        yield Row(claim, where, f"{share(total['robust'], total['ahead'])} true leads", None)
    else:
        goal = 0.6 if rows == 500 else 0.8
        each = [f"{world} {one['decided']}/{one['large']}" for world, one in own.items()]
        yield Row("wrong `confirmed`, `refuted` or `robust` in at most 5 %", where, text, held, own)
        yield Row(
            f"decided rightly in {goal:.0%} or more of true leads of 10 % or more",
            where,
            f"{share(total['decided'], total['large'])}: {', '.join(each)}",
            bool(total["decided"] >= goal * total["large"]),
        )
        held, n = total["covered"], total["measured"]
        claim = "the 95 % interval that decides holds the true lead in 92 % or more"
        yield Row(claim, where, share(held, n), within(n - held, n, 0.08))
    if metric == "ranking":
        inside = total["inside"] == total["n"]
        words = "in every log" if inside else f"not in {total['n'] - total['inside']}"
        yield Row("DCG and precision by slots lie within their range", where, words, inside)


def false_models(n: int) -> Iterator[Row]:
    """Rule 1: models that are worse for sure, from the log alone at believe = 1.5."""
    per_world = max(n // 60, 4)
    found = [impostors(world, seed) for world in WORLDS for seed in range(per_world)]
    for name, words in (
        ("memoriser", "every logged rating by heart"),
        ("reversed", "the reversed order"),
        ("constant", "one number for all"),
    ):
        verdicts = [one[name][metric] for one in found for metric in METRICS]
        bad = sum(verdict in ("robust", "confirmed") for verdict in verdicts)
        fragile = verdicts.count("fragile")
        text = f"robust or confirmed: {bad} of {len(verdicts)}; a lead beyond chance, though fragile: {fragile}"
        yield Row(
            "no robust for a worse model",
            f"{words}, {len(found)} logs, three metrics",
            text,
            bad == 0,
        )


def placebo(n: int, world: str, hidden: bool) -> Iterator[Row]:
    """Rule 4: everything recorded, of an awkward form; and pairs, where something is hidden."""
    claims, named = 0, 0
    for truth, rng in logs(world, n):
        data = truth.dataset(1_000, rng)
        rule = all_labelled(data.split().protocol)
        nominal, uniform = (
            estimate_exposure(data, data.logged.labelled(rule)),
            data.uniform.labelled(rule),
        )
        if nominal.certificate("rating", uniform).lower > 1.0:
            claims += 1
            named += placebo_certificate(nominal, "rating", uniform, 0.95).lower <= 1.0
    holds = (
        None if claims < 5 else named <= 0.2 * claims if hidden else named >= 0.8 * claims
    )  # too few to judge
    claim = (
        "placebo leaves what is hidden standing"
        if hidden
        else "placebo names misfit in 80 % of claims or more"
    )
    text = f"two-way claims in {claims} of {n} logs; called misfit: {share(named, max(claims, 1))}"
    yield Row(claim, f"{world}, 1,000 uniform rows, fitted p", text, holds)


def streams(n: int, mean: float, rows: int) -> Iterator[np.ndarray]:
    """Paired differences of squared errors of two scores of the same quality (mean = 0), or of one
    that is better."""
    for seed in range(n):
        truth, rng = (
            population("nothing", seed // LOGS_PER_WORLD, 5),
            np.random.default_rng([seed, 7]),
        )
        pairs = rng.integers(truth.rating.size, size=rows)
        unit, best = (truth.rating.ravel()[pairs] - 1) / 4, truth.mean.ravel()[pairs]
        noise = rng.normal(0, 0.25, (2, rows))
        one, two = (
            np.clip(best + scale * part, 0, 1)
            for scale, part in zip((1.0, 1.0 + mean), noise, strict=True)
        )
        yield (two - unit) ** 2 - (one - unit) ** 2


def sequential(n: int) -> Iterator[Row]:
    """Rule 6."""
    hits = sum(settle(stream).leader is not None for stream in streams(n, 0.0, 3_000))
    where = "two scores of equal error, looked at after each of 3,000 ratings"
    yield Row(
        "sequential test is wrong in at most 5 %", where, share(hits, n), within(hits, n, 0.05)
    )
    found = [(settle(stream), stream) for stream in streams(max(n // 4, 20), 0.6, 6_000)]
    sizes = [result.settled_after or 6_000 for result, _ in found]
    sample = np.concatenate([stream for _, stream in found])
    fixed = int(np.ceil((stats.norm.isf(0.025) * sample.std() / sample.mean()) ** 2))
    text = f"median {np.median(sizes):,.0f} ratings; a fixed-size test that decides half of the time needs {fixed:,}"
    yield Row(
        "settles a true difference",
        "the other score has 60 % more noise",
        text,
        np.median(sizes) < 6 * fixed,
    )


def seeds(n: int) -> Iterator[Row]:
    """Rule 9: the same method under other seeds, fitted for real; every table has a log of its own."""
    for method, settings, total in (("mf", {}, n), ("mf", {"solver": "adam"}, n), ("ips", {}, n)):
        wrong = 0
        for seed in range(total):
            truth = make_world("nothing", seed, n_users=200, n_items=120, density=0.1)
            data = truth.dataset(3_000, np.random.default_rng([seed, 11]))
            split = data.split(seed=seed)
            fits = [
                pr.Recommender(method, dim=8, epochs=30, rng=k, **settings).fit(data, split)
                for k in range(6)
            ]
            found = [
                pr.evaluate(model, split.test, metrics=["uauc"]).per_user["uauc"] for model in fits
            ]
            wrong += compare(found[:3], found[3:], replicates=300, rng=seed).verdict != "ties"
        how = "Adam" if settings else "least squares"
        where = f"{method} ({how}) against itself, 3 seeds each, a log per table, UAUC"
        yield Row(
            "two runs of one method differ in at most 6 %",
            where,
            share(wrong, total),
            within(wrong, total, 0.06),
        )


PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "certificate": level_of_certificate,
    "power": power_of_certificate,
    "fitted": fitted_certificate,
    "tilt": tilts,
    "segments": segments,
    "misfit": partial(placebo, world="misfit", hidden=False),
    "hidden": partial(placebo, world="pair", hidden=True),
    "signs": signs,
    "weights": weights,
    "audits": audits,
    "real": partial(audits, real=True),
    "impostors": false_models,
    "sequential": sequential,
    "seeds": seeds,
}


HOLDS = {True: "yes", False: "**no**", None: "–"}


def page(rows: list[Row], missing: list[str]) -> str:
    """Claim by claim, as Markdown."""
    parts = [TEXT]
    for claim in dict.fromkeys(row.claim for row in rows):
        own = [(r.where, r.measured, HOLDS[r.holds]) for r in rows if r.claim == claim]
        head = claim[0].upper() + claim[1:]
        parts.append(f"**{head}**\n\n{table(('where', 'measured', 'holds'), own)}")
    if missing:
        parts.append(f"Not measured in the time given: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


TEXT = """# Guarantees, measured

Every claim is tested in simulated logs with known truth, of another family than the package's simulator
(`bench/worlds.py`: probit exposure with a floor, log-normal activity, ordinal ratings, Student-t tastes; 500 users ×
250 items, 10,000 logged ratings). ± is the Monte-Carlo error of the share; a claim holds if it does within 2.3 of
them. Rows without a claim, or with too few logs to judge, have a dash.

What they assume: uniform rows were drawn at random; for the certificate, that the propensity is right (exact here,
except under *fitted p*). A certificate speaks of what is hidden *or missed by the propensity*. Where p is fitted, the
weights 1/p − 1 are calibrated by ranges of p.

Audits: six worlds, in two of which popularity, activity and quality go together, four sizes in turn, all pairs of
five models that differ in fit and in popularity bias, counted in `docs/results/audits.json`; *real* ones are models
of the package and another package's ALS, judged by a tenth of the log (360 to 960 rows; the five by all of them).
Wrong means that the verdict contradicts the truth of all pairs, however small the true lead is; comparisons of a log
are not independent, so their ± is a little too small. Intervals that decide are of leads over pairs that are not in
the log. Those of a ranking count what the adjusted log leaves out as 3 percentage points in the share liked; that
number was chosen by 24 of these logs (seeds 0 to 3), the others confirm it."""


def rows_of(part: str, logs: int) -> list[dict[str, Any]]:
    """The claims of a part with what was measured, in plain values."""
    found = [asdict(replace(row, part=part)) for row in PARTS[part](logs)]
    return [row | {"holds": None if row["holds"] is None else bool(row["holds"])} for row in found]


def store_counts(logs: int, real: bool) -> None:
    """Write what a long run of audits counted where the page finds it."""
    stored = json.loads(COUNTED.read_text(encoding="utf-8")) if COUNTED.exists() else {}
    per_world = -(-logs // (16 * len(WORLDS) if real else len(WORLDS)))
    kind = "real" if real else "audits"
    stored |= {f"{kind} {world}": audits_of(world, per_world, real) for world in WORLDS}
    stored[f"{kind} made"] = {
        "command": f"python bench/guarantees.py --parts {kind} --logs {logs} --store",
        "seeds": f"0 to {per_world - 1} in each world",
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_json(COUNTED, stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=40, help="logs per claim")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: " + ", ".join(PARTS))
    parser.add_argument(
        "--store", action="store_true", help="keep counts of audits in docs/results/audits.json"
    )
    asked = parser.parse_args()
    for part in asked.parts.split(","):
        for row in rows_of(part, asked.logs):
            print(f"{row['claim']} | {row['where']} | {row['measured']} | {row['holds']}")
        if asked.store and part in ("audits", "real"):
            store_counts(asked.logs, part == "real")


if __name__ == "__main__":
    main()

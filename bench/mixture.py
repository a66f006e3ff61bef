"""What `spectrum` is worth, and whether its intervals hold, in worlds whose truth is known
(bench/worlds.py).

    python bench/mixture.py rows              true error against `mf` with 0, 50, 200 and 500 uniform rows
    python bench/mixture.py members           the same with one ingredient left out at a time
    python bench/mixture.py gamma             coverage of the learned Γ's intervals, their widths, rank correlations
    python bench/mixture.py puid              puid-dr: the learned Γ against one Γ and against the default rule

    --worlds, --logs, --size USERS,ITEMS, --uniform 50,500 make it smaller or larger.

Errors are means of squared differences to the expected rating (0..1) of every pair; changes are in
percent of `mf`'s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import spearmanr
from scipy.stats import t as student

import puidrec as pr
from puidrec.data.dataset import Dataset
from puidrec.methods.spectrum import blend
from puidrec.methods.spectrum.learned import gamma_of
from worlds import TASTE, WORLDS, Truth, make_world

NAMES = "nothing,entity,trait-genre,taste,pair,reversed,misfit"
LEFT_OUT = ("mf, dim 2", "mf, dim 8", "ips", "mild", "Γ 3", "all-rank", "exposure")
Z90 = 1.6449


def logs(args: argparse.Namespace, n: int) -> Iterator[tuple[str, int, Truth, Dataset]]:
    """World, number, truth and data set of every log, with n uniform rows."""
    users, items = map(int, args.size.split(","))
    for name in args.worlds.split(","):
        for k in range(args.logs):
            truth = make_world(
                TASTE if name == "taste" else WORLDS[name], k, n_users=users, n_items=items
            )
            yield name, k, truth, truth.dataset(n, np.random.default_rng([k, 7]))


def on_codes(model: pr.Recommender, table: np.ndarray) -> np.ndarray:
    """A table of all pairs in the order of the model's ids."""
    return table[np.ix_(np.asarray(model.user_ids_.ids), np.asarray(model.item_ids_.ids))]


def error(model: pr.Recommender, truth: Truth) -> float:
    return float(
        np.mean((model.user_factors_ @ model.item_factors_.T - on_codes(model, truth.mean)) ** 2)
    )


def show(title: str, head: list[str], rows: dict[str, list[float]], digits: int = 1) -> None:
    print(f"\n{title}\n{'':24}" + "".join(f"{name[:13]:>14}" for name in head))
    for name, values in rows.items():
        print(f"{name:24}" + "".join(f"{value:14.{digits}f}" for value in values), flush=True)


def bench_rows(args: argparse.Namespace) -> None:
    names = args.worlds.split(",")
    table: dict[str, list[float]] = {}
    for n in args.uniform:
        changes: dict[str, list[float]] = {name: [] for name in names}
        for name, _, truth, data in logs(args, n):
            own, plain = (
                error(pr.Recommender(method, rng=0).fit(data), truth)
                for method in ("spectrum", "mf")
            )
            changes[name].append(100.0 * (own / plain - 1.0))
        table[f"{n} uniform rows"] = [float(np.mean(changes[name])) for name in names]
    show("change of true error against mf, percent", names, table)


def bench_members(args: argparse.Namespace) -> None:
    """One ingredient left out: members of that name, or all exposure scores."""
    names, whole = args.worlds.split(","), (blend.members_of, blend.exposure_scores)
    table: dict[str, list[float]] = {}

    def without(gone: str) -> tuple[Callable, Callable]:
        def members(done):
            return {name: scores for name, scores in whole[0](done).items() if name != gone}

        def exposure(ratings):
            return {} if gone == "exposure" else whole[1](ratings)

        return members, exposure

    for gone in ("nothing left out", *LEFT_OUT):
        changes: dict[tuple[str, int], list[float]] = {}
        for n in args.uniform:
            for name, _, truth, data in logs(args, n):
                plain = error(pr.Recommender("mf", rng=0).fit(data), truth)
                blend.members_of, blend.exposure_scores = without(gone)
                try:
                    own = error(pr.Recommender("spectrum", rng=0).fit(data), truth)
                finally:
                    blend.members_of, blend.exposure_scores = whole
                changes.setdefault((name, n), []).append(100.0 * (own / plain - 1.0))
        table[gone] = [float(np.mean(changes[name, n])) for n in args.uniform for name in names]
    show(
        "change of true error against mf, percent",
        [f"{name[:8]} {n}" for n in args.uniform for name in names],
        table,
    )


def bench_gamma(args: argparse.Namespace) -> None:
    for n in args.uniform:
        found: dict[str, list[dict[str, float]]] = {}
        for name, _, truth, data in logs(args, n):
            model = pr.Recommender("spectrum", rng=0).fit(data)
            found.setdefault(name, []).append(intervals(model, truth))
        keys = list(next(iter(found.values()))[0])
        names = args.worlds.split(",")
        rows = {
            key: [float(np.mean([one[key] for one in found[name]])) for name in names]
            for key in keys
        }
        show(
            f"{n} uniform rows: share of 90 % intervals that hold the truth, and more",
            names,
            rows,
            2,
        )


def intervals(model: pr.Recommender, truth: Truth) -> dict[str, float]:
    """Coverage and width of 90 % intervals of unseen means, rank correlation of Γ with the true
    one, ratings held."""
    known, mean = model.uncertainty(), on_codes(model, truth.mean)
    unseen = ~on_codes(model, truth.seen)
    found: dict[str, float] = {}
    sides = {"user": truth.users["segment"], "item": truth.items["genre"]}
    for side, axis in (("user", 1), ("item", 0)):
        own = known.means(side)
        true = (mean * unseen).sum(axis) / np.maximum(unseen.sum(axis), 1)
        found[f"{side}s"] = float(
            np.mean(np.abs(true - own.expected) <= Z90 * np.sqrt(own.variance))
        )
        found[f"width, {side}s"] = float(np.mean(2.0 * Z90 * np.sqrt(own.variance)))
        found[f"of the fit, {side}s"] = float(np.mean(own.fit / own.variance))
        gamma = gamma_of(own.logged, own.expected)
        found[f"rank corr., {side}s"] = float(
            spearmanr(gamma, gamma_of(own.logged, true)).statistic
        )
        ids = model.user_ids_.ids if side == "user" else model.item_ids_.ids
        labels = sides[side].to_numpy()[np.asarray(ids)]
        groups, code = np.unique(labels, return_inverse=True)
        part = known.segments(side, code, groups.size)
        table = unseen if side == "user" else unseen.T
        values = mean if side == "user" else mean.T
        of = np.array(
            [
                (values[code == k] * table[code == k]).sum() / table[code == k].sum()
                for k in range(groups.size)
            ]
        )
        found[f"segments of {side}s"] = float(
            np.mean(np.abs(of - part.expected) <= Z90 * np.sqrt(part.variance))
        )
    user, item = np.nonzero(unseen)
    pairs = known.pairs(user, item)
    found["pairs"] = float(
        np.mean(np.abs(mean[user, item] - pairs.expected) <= Z90 * np.sqrt(pairs.variance))
    )
    true_pair, own_pair = (
        gamma_of(pairs.logged, mean[user, item]),
        gamma_of(pairs.logged, pairs.expected),
    )
    found["rank corr., pairs"] = float(spearmanr(own_pair, true_pair).statistic)
    rating = on_codes(model, truth.rating)[user, item]
    ids = np.asarray(model.user_ids_.ids)[user], np.asarray(model.item_ids_.ids)[item]
    held = model.predict(*ids, interval=0.9)
    found["ratings"] = float(
        np.mean((held["low"].to_numpy() <= rating) & (rating <= held["high"].to_numpy()))
    )
    return found


def bench_puid(args: argparse.Namespace) -> None:
    """Every change with half the width of its 95 % interval over logs, by Student's t."""
    names = args.worlds.split(",")
    cells = [("puid-dr", "auto"), ("puid-dr", 1.5), ("puid-dr", "learned"), ("rd-dr", "learned")]
    for n in args.uniform:
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        for name, _, truth, data in logs(args, n):
            plain = error(pr.Recommender("mf", rng=0).fit(data), truth)
            own = [
                error(pr.Recommender(method, gamma=gamma, rng=0).fit(data), truth)
                for method, gamma in cells
            ]
            found[name].append([100.0 * (one / plain - 1.0) for one in own])
        found["all worlds"] = [row for name in names for row in found[name]]
        table: dict[str, list[float]] = {}
        for k, (method, gamma) in enumerate([*cells, ("learned", "less 1.5")]):
            every = []
            for rows in found.values():
                part = np.array(rows)
                part = part[:, k] if k < len(cells) else part[:, 2] - part[:, 1]
                half = student.ppf(0.975, part.size - 1) * part.std(ddof=1) / np.sqrt(part.size)
                every += [float(part.mean()), float(half)]
            table[f"{method}, Γ {gamma}"] = every
        head = [word for name in found for word in (name, "±")]
        show(f"{n} uniform rows: change of true error against mf, percent", head, table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = {"rows": bench_rows, "members": bench_members, "gamma": bench_gamma, "puid": bench_puid}
    parser.add_argument("what", choices=[*tasks])
    parser.add_argument("--worlds", default=NAMES)
    parser.add_argument("--logs", type=int, default=3)
    parser.add_argument("--size", default="500,250")
    parser.add_argument("--uniform", default="")
    args = parser.parse_args()
    usual = {"rows": "0,50,200,500", "members": "50,500", "gamma": "200,500", "puid": "500"}
    args.uniform = [int(n) for n in (args.uniform or usual[args.what]).split(",")]
    tasks[args.what](args)


if __name__ == "__main__":
    main()

"""Likes: what it costs to learn from them, and two ways to judge what was learned.

python bench/likes.py speed [rows] [threads]   `all-rank` to convergence beside implicit's ALS (15
                                               iterations, same dim): seconds and memory
python bench/likes.py judge DATA               the default, `ease`, `popularity` and implicit's ALS

CPU seconds are those of all threads: on a machine that does other work as well, compare these, with
one thread. `judge` makes likes of MovieLens 100K (ratings of 4 and 5; the last like of each user is
looked for) and of KuaiRec (its log; judged by pairs that were watched in full by design, and by a
tenth of the likes). ALS is tuned: the best of `CONFIGURATIONS` by recall@10 of validation rows.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

K = 10
CONFIGURATIONS = [
    {"factors": dim, "regularization": l2, "alpha": alpha}
    for dim in (16, 32, 64, 128)
    for l2 in (0.01, 1.0, 10.0)
    for alpha in (1.0, 10.0)
][:20]
LIKED = {"ml-100k": 4.0, "kuairec": 1.0}
"""The least rating that is a like; of KuaiRec: watched twice its length."""
DIM, USERS, ITEMS = 16, 200_000, 20_000


def pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of long tails, with taste by group; each pair once."""
    rng = np.random.default_rng(0)
    user = (USERS * rng.random(int(rows * 1.3)) ** 1.5).astype(np.int64)
    group = ITEMS // 20
    item = (group * rng.random(user.size) ** 2).astype(np.int64) + group * (
        (user + (rng.random(user.size) < 0.3)) % 20
    )
    key = np.unique(user * ITEMS + item)
    key = np.sort(rng.permutation(key)[:rows])
    return (key // ITEMS).astype(np.int32), (key % ITEMS).astype(np.int32)


def all_rank(rows: int, threads: int, queue: multiprocessing.Queue) -> None:
    import polars as pl
    import torch

    import puidrec as pr

    user, item = pairs(rows)
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))
    del user, item
    torch.set_num_threads(threads)
    start = time.perf_counter(), time.process_time()
    model = pr.Recommender("all-rank", dim=DIM, select="none", rng=0).fit(data)
    queue.put((*since(start), peak(), model.report_["epochs"], len(data.logged)))


def als(rows: int, threads: int, queue: multiprocessing.Queue) -> None:
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    user, item = pairs(rows)
    matrix = csr_matrix((np.ones(user.size, np.float32), (user, item)), shape=(USERS, ITEMS))
    model = AlternatingLeastSquares(factors=DIM, iterations=15, random_state=0, num_threads=threads)
    start = time.perf_counter(), time.process_time()
    model.fit(matrix, show_progress=False)
    queue.put((*since(start), peak(), 15, user.size))


def since(start: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - start[0], time.process_time() - start[1]


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def compare_speed(rows: int = 10_000_000, threads: int = os.cpu_count() or 1) -> None:
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": str(threads)}
    context = multiprocessing.get_context("spawn")
    for task in (all_rank, als, all_rank, als):
        queue = context.Queue()
        process = context.Process(target=task, args=(rows, threads, queue))
        process.start()
        seconds, cpu, memory, sweeps, n = queue.get()
        process.join()
        took = f"{seconds:6.1f} s ({cpu:6.1f} s of CPU)"
        print(
            f"{task.__name__:9} {n:,} rows: {took}, peak {memory:.2f} GiB, {sweeps} sweeps",
            flush=True,
        )


# two ways to judge


def likes_of(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """Likes, how they are split, and a data set with rows whose labels nobody chose (or None)."""
    import puidrec as pr

    source = pr.load_dataset(name, folder / name)
    frame = source.logged.to_frame().filter(source.logged.rating >= LIKED[name])
    keys = [key for key in ("user_id", "item_id", "timestamp") if key in frame.columns]
    data = pr.Dataset.from_frame(frame.select(keys).unique(keys[:2], maintain_order=True))
    split = data.split("leave-last-out" if name == "ml-100k" else "rd", 0)
    return data, split, source if source.uniform is not None else None


def by_user(rows: Any, n_users: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as `find_liked` reads them: the first of each user, and the items."""
    order = np.argsort(rows.user, kind="stable")
    return np.searchsorted(rows.user[order], np.arange(n_users + 1)), rows.item[order]


def looked_for(factors: Any, rows: Any, seen: list[Any], n_users: int) -> list[float]:
    """recall and NDCG of held-out likes, plain and weighted by inverse popularity."""
    from puidrec.evaluation.unseen_items import find_liked, ndcg, recall

    logs = [by_user(one, n_users) for one in seen]
    found = find_liked(factors, (rows.user, rows.item), logs, K)
    values = []
    for weighting in ("plain", "popularity"):
        for metric in (recall, ndcg):
            users = metric(found, K, weighting)
            size = np.ones(users.values.size) if users.size is None else users.size
            values.append(float(np.average(users.values, weights=size)))
    return values


def tuned_als(data: Any, split: Any) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """The configuration that finds most of the validation likes."""
    import implicit
    from scipy.sparse import csr_matrix

    train = split.train
    ones = np.ones(len(train), np.float32)
    matrix = csr_matrix((ones, (train.user, train.item)), (data.n_users, data.n_items))
    best: tuple[float, Any, str] = (-1.0, None, "")
    for one in CONFIGURATIONS:
        model = implicit.als.AlternatingLeastSquares(**one, random_state=0, num_threads=1)
        model.fit(matrix, show_progress=False)
        factors = model.user_factors, model.item_factors
        found = looked_for(factors, split.validation, [train], data.n_users)[0]
        best = max(best, (found, factors, str(one)), key=lambda pair: pair[0])
    return best[1], best[2]


def uniform_scores(data: Any, source: Any, factors: Any) -> list[float]:
    """UAUC and NDCG@5 of pairs that nobody chose, of users and items that the log has."""
    from puidrec.evaluation import evaluate_scores

    rows = source.uniform.to_frame()
    codes = [
        np.asarray(ids.encode(rows[key]))
        for ids, key in ((data.user_ids, "user_id"), (data.item_ids, "item_id"))
    ]
    known = (codes[0] >= 0) & (codes[1] >= 0)
    user, item = (code[known] for code in codes)
    scores = np.concatenate(
        [
            np.einsum("nd,nd->n", factors[0][user[k : k + 2**16]], factors[1][item[k : k + 2**16]])
            for k in range(0, user.size, 2**16)
        ]
    )
    label = (source.uniform.rating[known] >= LIKED["kuairec"]).astype(np.int8)
    found = evaluate_scores(user, scores, label, metrics=("uauc", "ndcg@5"))
    return [float(found["uauc"]), float(found["ndcg@5"])]


def judge(folder: Path) -> None:
    import puidrec as pr

    for name in ("ml-100k", "kuairec"):
        data, split, source = likes_of(name, folder)
        models: dict[str, Any] = {}
        for method in ("spectrum", "ease", "popularity"):
            model = pr.Recommender(method, rng=0).fit(data, split)
            models[method] = model.user_factors_, model.item_factors_
        models["tuned ALS"], chosen = tuned_als(data, split)
        print(f"\n{name}: {len(split.train):,} likes train; ALS is the best of", end=" ")
        print(f"{len(CONFIGURATIONS)}: {chosen}")
        print(f"{'':12}recall@10 ndcg@10   by inverse popularity   UAUC   NDCG@5")
        for label, factors in models.items():
            figures = looked_for(factors, split.test, [split.train, split.validation], data.n_users)
            if source is not None:
                figures += uniform_scores(data, source, factors)
            print(f"{label:12}" + "   ".join(f"{value:.4f}" for value in figures), flush=True)


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["speed"]
    if what == "judge":
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
        judge(Path(rest[0] if rest else os.environ.get("PUIDREC_DATA", "data")))
    else:
        compare_speed(*map(int, rest))

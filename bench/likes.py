"""10 million likes: `all-rank` to convergence beside implicit's ALS (15 iterations, same dim), seconds and memory.

python bench/likes.py [rows]
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import numpy as np

DIM, USERS, ITEMS = 16, 200_000, 20_000


def pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of long tails, with taste by group; each pair once."""
    rng = np.random.default_rng(0)
    user = (USERS * rng.random(int(rows * 1.3)) ** 1.5).astype(np.int64)
    group = ITEMS // 20
    item = (group * rng.random(user.size) ** 2).astype(np.int64) + group * ((user + (rng.random(user.size) < 0.3)) % 20)
    key = np.unique(user * ITEMS + item)
    key = np.sort(rng.permutation(key)[:rows])
    return (key // ITEMS).astype(np.int32), (key % ITEMS).astype(np.int32)


def all_rank(rows: int, queue: multiprocessing.Queue) -> None:
    import polars as pl

    import puidrec as pr

    user, item = pairs(rows)
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item}))
    del user, item
    start = time.perf_counter()
    model = pr.Recommender("all-rank", dim=DIM, select="none", rng=0).fit(data)
    queue.put((time.perf_counter() - start, peak(), model.report_["epochs"], len(data.logged)))


def als(rows: int, queue: multiprocessing.Queue) -> None:
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    user, item = pairs(rows)
    matrix = csr_matrix((np.ones(user.size, np.float32), (user, item)), shape=(USERS, ITEMS))
    start = time.perf_counter()
    AlternatingLeastSquares(factors=DIM, iterations=15, random_state=0).fit(matrix, show_progress=False)
    queue.put((time.perf_counter() - start, peak(), 15, user.size))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    context = multiprocessing.get_context("spawn")
    for task in (all_rank, als, all_rank, als):
        queue = context.Queue()
        process = context.Process(target=task, args=(rows, queue))
        process.start()
        seconds, memory, sweeps, n = queue.get()
        process.join()
        print(f"{task.__name__:9} {n:,} rows: {seconds:6.1f} s, peak {memory:.2f} GiB, {sweeps} sweeps", flush=True)

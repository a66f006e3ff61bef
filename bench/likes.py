"""10 million likes: `all-rank` to convergence beside implicit's ALS (15 iterations, same dim),
seconds and memory.

python bench/likes.py [rows] [threads]

CPU seconds are those of all threads: on a machine that does other work as well, compare these, with
one thread.
"""

from __future__ import annotations

import multiprocessing
import os
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


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
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

"""Randomness is an argument: named, independent streams from one seed, and no global state."""

from __future__ import annotations

import zlib

import numpy as np

Rng = int | np.random.Generator | None
"""What every `rng=` argument accepts. An int is reproducible; None draws fresh entropy."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of a SplitMix64 sequence."""


def generator(rng: Rng, *stream: str | int) -> np.random.Generator:
    """Return the generator of a named stream: `generator(0, "split")` never moves `generator(0,
    "init")`.

    A Generator is returned as it is when no stream is named, and spawns a child for a named one.
    """
    if isinstance(rng, np.random.Generator):
        return rng.spawn(1)[0] if stream else rng
    if rng is None:
        return np.random.default_rng()
    return np.random.default_rng(np.random.SeedSequence([int(rng), *map(_word, stream)]))


def derive_seed(rng: Rng, *stream: str | int) -> int:
    """Draw a 63-bit seed from a named stream, for libraries that want an integer (torch)."""
    return int(generator(rng, *stream).integers(0, 2**63 - 1))


def bootstrap_counts(replicates: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of n is met in n draws with replacement: [replicates, n] (float64), every row
    adds up to n."""
    drawn = rng.integers(0, n, size=(replicates, n)) + n * np.arange(replicates)[:, None]
    return (
        np.bincount(drawn.ravel(), minlength=replicates * n)
        .reshape(replicates, n)
        .astype(np.float64)
    )


def mix64(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: a bijection of 64-bit words in which every bit moves every
    other."""
    z: np.ndarray = state ^ (state >> np.uint64(30))
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _word(part: str | int) -> int:
    return part if isinstance(part, int) else zlib.crc32(part.encode())

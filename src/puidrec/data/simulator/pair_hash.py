"""Counter-based randomness: the draw of a pair is a hash of (seed, stream, user, item).

So the truth can be asked for any pairs, in any order and any chunk, and nothing of the size of D is ever stored.
"""

from __future__ import annotations

import numpy as np

from puidrec.rng import derive_seed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix64(state: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: a bijection of 64-bit words in which every bit moves every other."""
    z: np.ndarray = state ^ (state >> np.uint64(30))
    z *= _FIRST
    z ^= z >> np.uint64(27)
    z *= _SECOND
    z ^= z >> np.uint64(31)
    return z


def pair_uniform(key: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Uniform draws in (0, 1), one per pair: each user owns a splitmix64 sequence, the item is its counter."""
    state = users.astype(np.uint64) * _GOLDEN
    state += np.uint64(key)
    state = mix64(state)
    state += (items.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    draw = (mix64(state) >> np.uint64(11)).astype(np.float64)
    draw += 0.5
    draw *= 2.0**-53
    return draw


def stream_key(seed: int, stream: str) -> int:
    """The 63-bit key of a named stream of pair draws."""
    return derive_seed(seed, "pair", stream)

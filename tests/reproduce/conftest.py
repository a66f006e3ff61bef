"""Small logs whose exposure depends on known features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.sources.kuairec import USER_CODES
from puidrec.data.sources.ml_100k import GENRES
from puidrec.reproduce.entropies import ExposureLog


def made_dataset(
    seed: int = 0, n_users: int = 120, n_items: int = 90, effect: float = 0.6
) -> Dataset:
    """Exposure depends on `active` and on the tag `hit`; all other features are noise."""
    rng = np.random.default_rng(seed)
    active, hit = rng.random(n_users) < 0.5, rng.random(n_items) < 0.4
    odds = np.exp(-1.6 + effect * 2.5 * np.outer(active, np.ones(n_items)) + effect * 3 * hit)
    seen = rng.random((n_users, n_items)) < odds / (1 + odds)
    user, item = np.nonzero(seen)
    logged = pl.DataFrame(
        {"user_id": user, "item_id": item, "rating": rng.integers(1, 6, user.size)}
    )
    users = pl.DataFrame(
        {
            "user_id": np.arange(n_users),
            "active": np.where(active, "yes", "no"),
            "job": rng.choice(["a", "b", "c", "d"], n_users),
            "age": rng.integers(18, 70, n_users),
            "town": rng.choice(["x", "y", "z"], n_users),
        }
    )
    tags = [["hit"] * bool(h) + ["t" + str(k) for k in range(4) if rng.random() < 0.3] for h in hit]
    items = pl.DataFrame(
        {"item_id": np.arange(n_items), "year": rng.integers(1950, 2000, n_items), "tags": tags}
    )
    return Dataset.from_frame(
        logged, users=users, items=items, scale=(1, 5), unknown_ids="keep", name="made"
    )


@pytest.fixture(scope="session")
def made() -> Dataset:
    return made_dataset()


@pytest.fixture(scope="session")
def exposed(made: Dataset) -> ExposureLog:
    return ExposureLog.of(made)


def write_matrix(path: Path, matrix: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(" ".join(f"{v:g}" for v in row) + "\n" for row in matrix))


def write_coat(folder: Path, n_users: int = 60, n_items: int = 40, seed: int = 0) -> None:
    """Matrices in the shape of Coat: every user rates eight coats, more often those of the colour
    they like."""
    rng = np.random.default_rng(seed)
    likes, colour, good = (
        rng.random(n_users) < 0.5,
        rng.random(n_items) < 0.5,
        rng.normal(0, 1, n_items),
    )
    taste = 1.2 * np.equal.outer(likes, colour) + good
    rating = np.clip(np.round(2.4 + taste + rng.normal(0, 0.7, taste.shape)), 1, 5)
    for name, pull, each in (("train", 1.0, 8), ("test", 0.0, 16)):
        keys = pull * taste + rng.gumbel(size=taste.shape)
        chosen = keys >= np.sort(keys, axis=1)[:, -each][:, None]
        write_matrix(folder / f"{name}.ascii", rating * chosen)
    features = folder / "user_item_features"
    for entity, values, names in (
        ("user", likes, ["likes:red", "likes:blue"]),
        ("item", colour, ["c:red", "c:blue"]),
    ):
        write_matrix(features / f"{entity}_features.ascii", np.eye(2)[values.astype(int)])
        (features / f"{entity}_features_map.txt").write_text("\n".join(names))


def write_kuairec(folder: Path, n_users: int = 50, n_items: int = 70, seed: int = 0) -> None:
    """A full block whose labels follow the videos' appeal, with user features and tags."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    chance = rng.beta(1, 4, n_items)
    liked = rng.random((n_users, n_items)) < chance
    rows = [
        f"{u},{v},{2.5 if liked[u, v] else 0.5}" for u in range(n_users) for v in range(n_items)
    ]
    (folder / "small_matrix.csv").write_text(
        "user_id,video_id,watch_ratio\n" + "\n".join(rows) + "\n"
    )
    names = [
        "user_active_degree",
        "is_live_streamer",
        "follow_user_num_range",
        "friend_user_num_range",
    ]
    header = ",".join(["user_id", *names, "register_days_range", *USER_CODES])
    codes = rng.integers(0, 2, (n_users, len(USER_CODES)))
    users = [
        f'{u},full_active,0,"(0,10]",{u % 2},730+,' + ",".join(map(str, codes[u]))
        for u in range(n_users)
    ]
    (folder / "user_features.csv").write_text("\n".join([header, *users]))
    tags = [f'{v},"[{v % 3}, 7]"' for v in range(n_items)]
    (folder / "item_categories.csv").write_text("\n".join(["video_id,feat", *tags]))


def write_movielens(folder: Path, n_users: int = 60, n_items: int = 50, seed: int = 0) -> None:
    """Films of a few genres; Drama is seen more often."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    flags = rng.random((n_items, len(GENRES))) < 0.2
    drama = GENRES.index("Drama")
    seen = rng.random((n_users, n_items)) < np.where(flags[:, drama], 0.5, 0.15)
    rows = [f"{u + 1}\t{i + 1}\t{rng.integers(1, 6)}\t{880 + u}" for u, i in np.argwhere(seen)]
    (folder / "u.data").write_text("\n".join(rows) + "\n")
    jobs = rng.choice(["writer", "student", "doctor"], n_users)
    users = [
        f"{u + 1}|{rng.integers(15, 70)}|{'MF'[u % 2]}|{jobs[u]}|{rng.integers(0, 10)}5711"
        for u in range(n_users)
    ]
    (folder / "u.user").write_text("\n".join(users) + "\n")
    films = [
        f"{i + 1}|Film {i}|01-Jan-{rng.integers(1950, 1999)}||http://x|"
        + "|".join(map(str, flags[i].astype(int)))
        for i in range(n_items)
    ]
    (folder / "u.item").write_bytes(("\n".join(films) + "\n").encode("iso-8859-1"))


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders in the shape of three public data sets; Yahoo!R3 is absent."""
    root = tmp_path_factory.mktemp("data")
    write_coat(root / "coat")
    write_kuairec(root / "kuairec")
    write_movielens(root / "ml-100k")
    return root

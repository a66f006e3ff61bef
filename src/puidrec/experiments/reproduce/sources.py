"""Which public data sets are here, and how to get those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from puidrec.data.sources.kuairec import SMALL, SMALL_COMPACT
from puidrec.data.sources.reading import data_folder, has_file
from puidrec.data.sources.yahoo_r3 import WEBSCOPE


@dataclass(frozen=True)
class Public:
    """A public data set: the names its folder may have, the files it is known by, and where it comes from."""

    folders: tuple[str, ...]
    files: tuple[str, ...]
    get: str


PUBLIC = {
    "coat": Public(
        ("coat", "Coat"),
        ("train.ascii", "user.txt"),
        "download coat.zip from https://www.cs.cornell.edu/~schnabts/mnar/",
    ),
    "yahoo-r3": Public(
        ("yahoo-r3", "yahoo", "yahooR3", "yahoo_r3"),
        (f"{WEBSCOPE}-train.txt", "user.txt"),
        "ask for R3 at https://webscope.sandbox.yahoo.com/ (free for research)",
    ),
    "kuairec": Public(
        ("kuairec", "KuaiRec"), (SMALL, SMALL_COMPACT), "download KuaiRec from https://github.com/chongminggao/KuaiRec"
    ),
    "ml-100k": Public(
        ("ml-100k", "ml100k"), ("u.data",), "download ml-100k.zip from https://grouplens.org/datasets/movielens/100k/"
    ),
}


@dataclass(frozen=True)
class Found:
    """Data sets by name: folders of those that are here, a line for each that is not."""

    folders: dict[str, Path]
    missing: dict[str, str]

    def only(self, names: tuple[str, ...]) -> Found:
        """What concerns some data sets."""
        return Found(
            {name: self.folders[name] for name in names if name in self.folders},
            {name: self.missing[name] for name in names if name in self.missing},
        )


def find_sources(root: Path) -> Found:
    """Look for every public data set below a folder; one is here if a folder of its name holds one of its files."""
    data_folder(root, "data root")
    folders, missing = {}, {}
    for name, public in PUBLIC.items():
        places = [root / folder for folder in public.folders]
        here = next((p for p in places if p.is_dir() and any(has_file(p / file) for file in public.files)), None)
        if here is not None:
            folders[name] = here
        else:
            missing[name] = (
                f"{name} is skipped: no {' or '.join(public.files)} in {places[0]}. To get it, {public.get}."
            )
    return Found(folders, missing)

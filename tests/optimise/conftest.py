"""Small problems as the solver has them, and their objective once more as a dense sum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from puidrec.losses.pair_loss import Objective, RobustLoss, Row, UnseenLoss, pair_sum
from puidrec.optimise.model import Features, Model, Point, Side
from puidrec.scores.log import Log, LogPattern
from puidrec.scores.low_rank import LowRank
from puidrec.world import ALONE, World

DIM = 2
F64 = torch.float64


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Every test here trains."""


@pytest.fixture(autouse=True)
def _all_checkpoints(monkeypatch):
    """These fits take less than the second that lies between checkpoints."""
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("puidrec.fitting.CHECKPOINT_SHARE", float("inf"))  # however long one takes


@dataclass
class Small:
    """A tiny random log, every row of the table of losses on it, and models with and without
    features."""

    seed: int
    n_users: int = 9
    n_items: int = 7
    share: float = 0.4
    dtype: torch.dtype = F64
    world: World = ALONE
    mask: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.mask = self.rng.random((self.n_users, self.n_items)) < self.share
        row_start = np.concatenate([[0], np.cumsum(self.mask.sum(1))])
        self.log = Log(
            row_start, np.nonzero(self.mask)[1], self.n_items, self.world, dtype=self.dtype
        )
        n = len(self.log)
        self.r, self.w, self.k0 = (
            self.rng.uniform(a, b, n) for a, b in ((0, 1), (1, 4), (0.01, 0.3))
        )
        left, right = (
            torch.from_numpy(self.rng.normal(size=(k, 3))) for k in (self.n_users, self.n_items)
        )
        self.m = LowRank.of(left.to(self.dtype), right.to(self.dtype))

    def objective(self, name: str) -> Objective:
        """A row of the table."""
        log, pairs, n = self.log, self.n_users * self.n_items, max(len(self.log), 1)
        numbers = {"r": self.r, "a": self.w, "b": self.w, "k0": self.k0}
        if name == "naive":
            numbers |= {"a": np.ones(n), "b": np.ones(n)}
        elif "worst" in name or "benchmarked" in name:
            numbers["b"] = self.w * 2.5
        columns = {key: log.filled(lambda rows, x=x: x[rows]) for key, x in numbers.items()}
        columns["g"] = columns["m"] = log.scores_of(self.m)
        lam = 1.5 / max(pairs - n, 1)
        unit = 1.0 / pairs
        return {
            "naive": lambda: Objective(log, RobustLoss(), columns, 1.0 / n),
            "ips": lambda: Objective(log, RobustLoss(), columns, unit),
            "dr": lambda: Objective(log, RobustLoss(head="label"), columns, unit, unit, self.m),
            "signed": lambda: Objective(log, UnseenLoss(1.0 / n, lam), columns, 1.0, lam, self.m),
            "worst dr": lambda: Objective(
                log, RobustLoss(head="label", interval=True), columns, unit, unit, self.m
            ),
            "benchmarked ips": lambda: Objective(
                log, RobustLoss(interval=True, benchmarked=True), columns, unit
            ),
        }[name]()

    def model(
        self, l2: float = 0.1, *, features: bool = False, ids: bool = True, dim: int = DIM
    ) -> Model:
        """IDs, with or without three features a side; without `ids` features and biases alone."""
        sides = []
        for name, n in (("user", self.n_users), ("item", self.n_items)):
            own = torch.full((dim + 1,), l2 / n, dtype=self.dtype)
            made = None
            if features:
                rng = np.random.default_rng(n)
                design = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.7)
                row, column = np.nonzero(design)
                power = torch.from_numpy((design**2).mean(0))[:, None].to(self.dtype)
                values = torch.from_numpy(design[row, column]).to(self.dtype)
                made = Features(LogPattern.from_pairs(row, column, n, 3), values, 0.02 * power)
                if not ids:
                    own[:-1] = float("inf")
            sides.append(Side(name, own, made))
        return Model(*sides, self.log.total)

    def point(self, model: Model, seed: int = 0, size: float = 0.3) -> Point:
        """Random parameters; 0 where there are none."""
        random = torch.Generator().manual_seed(seed)
        found: Point = {"mean": torch.tensor(0.4, dtype=self.dtype)}
        for side, _ in model.sides:
            n = self.n_users if side.name == "user" else self.n_items
            draw = torch.randn(n, model.dim + 1, generator=random, dtype=F64) * size
            found[f"{side.name}s"] = draw.to(self.dtype) * side.free
            if side.features is not None:
                draw = torch.randn(3, model.dim + 1, generator=random, dtype=F64) * size
                found[f"{side.name}_features"] = draw.to(self.dtype)
        return found

    def dense(self, objective: Objective, model: Model, point: Point) -> Tensor:
        """J + penalty by its definition, pair by pair, from dense designs; it can be
        differentiated."""
        sides, penalty = [], torch.zeros((), dtype=F64)
        for side, _ in model.sides:
            own = point[f"{side.name}s"] * side.free
            centre = 0.0 if side.centre is None else side.centre
            penalty = penalty + (side.cost * (own - centre) ** 2).sum()
            if side.features is not None:
                weights = point[f"{side.name}_features"]
                own = own + dense_design(side.features) @ weights
                penalty = penalty + (side.features.penalty * weights**2).sum()
            sides.append(own)
        users, items = sides
        s = users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1] + point["mean"]
        numbers = {name: column.values for name, column in objective.columns.items()}
        total = objective.scale * pair_sum(
            objective.loss, s[torch.from_numpy(self.mask)], Row(**numbers)
        )
        if objective.v:
            total = total + objective.v * (s - objective.m.tile()).square().sum()
        return total + penalty + objective.constant

    def gradient(self, objective: Objective, model: Model, point: Point) -> Point:
        """Of the dense objective."""
        own = {name: value.clone().requires_grad_() for name, value in point.items()}
        self.dense(objective, model, own).backward()
        return {name: value.grad for name, value in own.items()}


def dense_design(features: Features) -> Tensor:
    dense = torch.zeros(
        features.pattern.n_users, features.pattern.n_items, dtype=features.values.dtype
    )
    dense[features.pattern.user, features.pattern.col.long()] = features.values
    return dense


@pytest.fixture(scope="session")
def small():
    """Small(seed, …)."""
    return Small

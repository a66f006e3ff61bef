"""What an evaluation finds: values of metrics, with the values per user behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from puidrec.errors import InputError
from puidrec.evaluation.metrics import Users
from puidrec.evaluation.significance import Estimate, PerUser, mean_interval
from puidrec.view import html_table, view


@dataclass(frozen=True)
class Weights:
    """What inverse propensities do to a sample of rows."""

    rows: int
    effective_rows: float
    """(Σ w)² / Σ w²: equally weighted rows that would be as precise."""
    smallest: float
    """The smallest propensity: pairs below it are not represented."""
    largest_share: float
    """Share of all weight that the heaviest row has."""

    @classmethod
    def of(cls, propensity: np.ndarray) -> Weights:
        """From the propensities of rows; refused where they are all one, for then weighting changes
        nothing."""
        p = propensity.astype(np.float64)
        if p.size > 1 and float(p.max() - p.min()) <= 1e-12 * float(p.max()):
            raise InputError(
                "the propensity is a constant: weighting by it changes nothing",
                found=f"{p[0]:.3g} in all {p.size:,} rows",
                hint="Leave propensity out, or fit one that tells pairs apart (two-way, logistic).",
            )
        w = 1.0 / p
        return cls(
            p.size, float(w.sum() ** 2 / np.sum(w**2)), float(p.min()), float(w.max() / w.sum())
        )

    def __str__(self) -> str:
        return (
            f"weighted: {self.rows:,} rows worth {self.effective_rows:,.0f} equal ones, smallest "
            f"propensity {self.smallest:.3g}, heaviest row {self.largest_share:.1%} of all weight"
        )


@dataclass(frozen=True)
class Evaluation(Mapping[str, float]):
    """Metric values by name (`result["uauc"]`), with the values per user behind them."""

    means: dict[str, float]
    per_user: dict[str, PerUser] = field(repr=False)
    """Of every metric: its mean is the metric, and its spread that of the metric when users are
    drawn anew."""
    n_users: int
    """Users whose lists count under the `users` rule."""
    n_rows: int
    positive_rate: float
    users: Users
    weighted: bool = False
    n_trained_on: int = 0
    """Rows given whose pair the model was trained on; left out unless they were kept on purpose."""
    weights: Weights | None = None
    """Of a weighted evaluation: how many rows it is worth, and how thin its support is."""
    n_new_users: int | None = None
    """Users of the rows who have no training row; None where the training rows are not known."""
    strata: pl.DataFrame | None = field(default=None, repr=False)
    """`by=`: a row per stratum and metric: `stratum, metric, value, rows, users`."""

    @classmethod
    def of(cls, values: Mapping[str, PerUser | float], **more: Any) -> Evaluation:
        """From values of metrics, one per user where there is one."""
        per_user = {name: value for name, value in values.items() if isinstance(value, PerUser)}
        means = {
            name: value.mean if isinstance(value, PerUser) else value
            for name, value in values.items()
        }
        return cls(means, per_user, **more)

    def named(self, ids: pl.Series) -> Evaluation:
        """The same with users by their ids instead of their codes."""
        per_user = {
            name: replace(value, users=ids.gather(value.users).to_numpy())
            for name, value in self.per_user.items()
        }
        return replace(self, per_user=per_user)

    def __getitem__(self, name: str) -> float:
        return self.means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in self.means.items())

    def interval(self, name: str, level: float = 0.95) -> Estimate:
        """The value with a normal interval over users."""
        if name not in self.per_user:
            raise InputError(
                "no values per user", found=name, expected=f"one of {', '.join(self.per_user)}"
            )
        return mean_interval(self.per_user[name], level)

    def to_frame(self, level: float = 0.95) -> pl.DataFrame:
        """A row per metric: `metric, value, low, high, users`; the interval is over users, null
        where there is none."""
        rows = []
        for name, value in self.means.items():
            known = name in self.per_user and len(self.per_user[name]) > 1
            found = self.interval(name, level) if known else None
            users = len(self.per_user[name]) if name in self.per_user else None
            rows.append((name, value, found and found.low, found and found.high, users))
        kinds = {
            "metric": pl.String,
            "value": pl.Float64,
            "low": pl.Float64,
            "high": pl.Float64,
            "users": pl.Int64,
        }
        return pl.DataFrame(rows, schema=kinds, orient="row")

    def _repr_html_(self) -> str:
        """Metrics with their intervals, as a notebook shows them."""
        rows = [
            (
                row["metric"],
                f"{row['value']:.4f}",
                "" if row["low"] is None else f"{row['low']:.4f} … {row['high']:.4f}",
            )
            for row in self.to_frame().to_dicts()
        ]
        words = (
            f"{self.n_rows:,} rows of {self.n_users:,} users who count, "
            f"{self.positive_rate:.1%} liked"
        )
        words += f", {self.n_new_users:,} new users" if self.n_new_users else ""
        words += f"; {self.weights}" if self.weights is not None else ""
        return view("evaluation", words, html_table(("metric", "value", "95 % over users"), rows))

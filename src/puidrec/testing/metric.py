"""The contract of a metric: subclass with its name, and pytest checks what tables and paired tests
rely on.

class TestMine(MetricContract):
    name = "mine@5"
"""
# ruff: noqa: S101

from __future__ import annotations

import numpy as np

from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.metrics import parse_metric
from puidrec.evaluation.result import Evaluation


class MetricContract:
    """Subclass with `name`; scores and targets are in [0, 1], so every metric can be asked."""

    name: str
    weighted = True
    """Whether the metric has a weighted form."""

    def rows(self, seed: int = 0, n: int = 400, n_users: int = 30) -> dict[str, np.ndarray]:
        """Random rows with tied scores and users of one label."""
        random = np.random.default_rng(seed)
        user, rating = random.integers(0, n_users, n), random.integers(0, 5, n) / 4.0
        rating[user == 3], rating[user == 4] = 1.0, 0.0
        label = (rating > 0.6).astype(np.int8)
        return {
            "user": user,
            "score": random.integers(0, 20, n) / 19.0,
            "label": label,
            "rating": rating,
        }

    def evaluate(self, rows: dict[str, np.ndarray], **options: np.ndarray) -> Evaluation:
        """This metric alone."""
        return evaluate_scores(**rows, metrics=[self.name], **options)  # type: ignore[arg-type]

    def test_is_in_the_table(self) -> None:
        """Found by name, and described."""
        assert parse_metric(self.name)[0].description

    def test_order_of_rows_does_not_matter(self) -> None:
        """Shuffled rows give the same value."""
        rows = self.rows()
        shuffled = np.random.default_rng(1).permutation(rows["user"].size)
        moved = self.evaluate({key: values[shuffled] for key, values in rows.items()})
        np.testing.assert_allclose(moved[self.name], self.evaluate(rows)[self.name], rtol=1e-12)

    def test_a_user_does_not_move_another(self) -> None:
        """Each user's value is the same alone, but for metrics of all rows; the metric is the mean
        of the values."""
        rows = self.rows()
        result = self.evaluate(rows)
        kept = result.per_user.get(self.name)
        if kept is None:
            return
        pooled = parse_metric(self.name)[0].pooled is not None
        mean = kept.mean if pooled else np.average(kept.values, weights=kept.size)
        np.testing.assert_allclose(mean, result[self.name], rtol=1e-12)
        for user, value in zip(kept.users, kept.values, strict=True) if not pooled else ():
            own = {key: values[rows["user"] == user] for key, values in rows.items()}
            np.testing.assert_allclose(self.evaluate(own)[self.name], value, rtol=1e-12)

    def test_the_truth_scores_best(self) -> None:
        """Scoring with the target itself is at least as good as noise, whose sign says which way is
        better."""
        rows = self.rows()
        if self.name.startswith("logloss"):
            rows["rating"] = rows["label"].astype(np.float64)
        noise = self.evaluate(rows)[self.name]
        best = self.evaluate({**rows, "score": rows["rating"]})[self.name]
        assert np.isfinite([best, noise]).all()
        assert best > noise if parse_metric(self.name)[0].higher_is_better else best < noise

    def test_equal_weights_change_nothing(self) -> None:
        """Weights that are all alike are no weights."""
        if not self.weighted:
            return
        rows = self.rows()
        even = self.evaluate(rows, weight=np.full(rows["user"].size, 3.0))
        np.testing.assert_allclose(even[self.name], self.evaluate(rows)[self.name], rtol=1e-9)

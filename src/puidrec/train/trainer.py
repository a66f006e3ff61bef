"""The trainer: alternating steps of Adam, smoothed early stopping, checkpoints that resume to the last bit.

Nothing random happens between the steps except the order of user blocks, which is drawn from (seed, stage, epoch);
so the state of a run is its parameters, Adam's moments, the stopping rule and the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from puidrec.errors import InputError, PuidError
from puidrec.objective.low_rank import LowRank
from puidrec.rng import generator
from puidrec.settings import Settings
from puidrec.train.adam import Adam
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.owned import user_axes, with_users
from puidrec.train.pieces import Plan
from puidrec.train.problem import Problem, with_prefix
from puidrec.train.stopping import WARM_UP, Stopping
from puidrec.train.validate import Validator

Progress = Callable[[str, int, int, dict[str, float]], None]
"""Called after each epoch with stage, epochs done, most epochs, and the epoch's figures."""
SaveState = Callable[[Checkpoint], None]


@dataclass(frozen=True)
class Fitted:
    """What a stage leaves behind: scores as factors, parameters by name, and the story of its epochs."""

    phi: LowRank
    theta: LowRank | None
    parameters: dict[str, Tensor]
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None
    """Smoothed validation score of the best epoch; None where nothing was validated."""
    strength: float = 1.0
    """κ: the power to which Γ entered, 1 unless it was calibrated."""


class Trainer:
    """Trains one problem to its best epoch."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        validator: Validator | None,
        *,
        stage: str,
        save: SaveState | None,
        lr: float | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.problem, self.settings, self.validator = problem, settings, validator
        self.stage, self.save = stage, save
        self.plan = plan or Plan.one_piece(problem.n_users, settings.block_users)
        self.plan.localise(problem)
        self.optimizers = {step.name: Adam(step.module.parameters(), lr or settings.lr) for step in problem.steps}
        patience = settings.patience if validator is not None else 0
        self.stopping = Stopping(patience, warm_up=min(WARM_UP, settings.epochs // 2))
        self._axes = {name: axis for step in problem.steps for name, axis in user_axes(step).items()}
        self.history: list[dict[str, float]] = []
        self.best = self._parameters()

    def run(self, progress: Progress | None = None) -> Fitted:
        """Train from where we are to the end; returns the best epoch's model."""
        for epoch in range(len(self.history), self.settings.epochs):
            if self.stopping.exhausted:
                break
            figures = self._epoch(epoch)
            self._judge(figures)
            if progress is not None:
                progress(self.stage, epoch + 1, self.settings.epochs, figures)
            if self.save is not None and (epoch + 1) % self.settings.checkpoint_every == 0:
                self.save(self.state())
        self._load(self.best)
        score = self.stopping.best if self.validator is not None else None
        phi, theta = self.plan.factors(self.problem.factors), self.plan.factors(self.problem.imputation)
        if phi is None:
            raise TypeError("a problem without a prediction model")
        best = with_users(self.best, self._axes, self.plan.gather)
        return Fitted(phi, theta, best, self.history, self.stopping.best_epoch + 1, score)

    def state(self) -> Checkpoint:
        """All that the next epoch depends on. Every process must ask, the first is told; any number can go on."""
        tensors = {f"now.{name}": value for name, value in self._parameters().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer.state(f"adam.{name}")
        facts = {"stage": self.stage, "stopping": self.stopping.state(), "history": self.history}
        return Checkpoint(with_users(tensors, self._axes, self.plan.collect), facts)

    def admissible(self) -> bool:
        """Whether the parameters as they stand may be chosen: a benchmarked loss must not be above 0."""
        return not self.problem.benchmarked or self.plan.total(self.problem.steps[0]) <= 0.0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this stage."""
        tensors = with_users(checkpoint.tensors, self._axes, self.plan.cut)
        now, best = (with_prefix(tensors, prefix) for prefix in ("now.", "best."))
        try:
            self._load(best)
            self._load(now)
            for name, optimizer in self.optimizers.items():
                optimizer.restore(tensors, f"adam.{name}")
            self.stopping = Stopping.from_state(checkpoint.state["stopping"])
            self.history = list(checkpoint.state["history"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError("the checkpoint does not fit this model", found=str(error)[:60], hint=HINT) from error
        self.best = {name: tensor.to(self.settings.device) for name, tensor in best.items()}

    def _epoch(self, epoch: int) -> dict[str, float]:
        """One pass over all blocks; every step's mean loss."""
        sums: dict[str, float] = {}
        blocks = list(self._blocks(epoch))
        for start, stop in blocks:
            for step in self.problem.steps:
                optimizer = self.optimizers[step.name]
                optimizer.zero_grad()
                loss = self.plan.descend(step, start, stop)
                optimizer.step()
                step.moved()
                share = (stop - start) / self.problem.n_users
                sums[step.name] = sums.get(step.name, 0.0) + loss * share
        if not all(np.isfinite(value) for value in sums.values()):
            raise PuidError(
                f"training of {self.settings.method} diverged in epoch {epoch + 1} (loss is not finite); "
                f"lower lr (now {self.settings.lr:g}) or raise min_propensity (now {self.settings.min_propensity:g})"
            )
        return {"epoch": epoch + 1, **{f"loss_{name}": value for name, value in sums.items()}}

    def _judge(self, figures: dict[str, float]) -> None:
        """Validate, remember the epoch if it is the best, and write it into the history."""
        score = 0.0
        if self.validator is not None:
            score = figures["score"] = self.plan.score(self.validator, self.problem.factors)
        if self.stopping.update(score, self.admissible()):
            self.best = self._parameters()
        self.history.append(figures)

    def _blocks(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Ranges of users, in an order of the epoch's own."""
        n_users, size = self.problem.n_users, self.plan.block
        starts = np.arange(0, n_users, size)
        for start in generator(self.settings.seed, "blocks", self.stage, epoch).permutation(starts):
            yield int(start), int(min(start + size, n_users))

    def _parameters(self) -> dict[str, Tensor]:
        return {
            f"{step.name}.{name}": value.detach().clone()
            for step in self.problem.steps
            for name, value in step.module.state_dict().items()
        }

    def _load(self, parameters: Mapping[str, Tensor]) -> None:
        for step in self.problem.steps:
            step.load(parameters)

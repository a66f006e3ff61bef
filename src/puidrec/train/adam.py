"""Training by Adam: alternating steps, smoothed early stopping, checkpoints that resume to the last bit.

Nothing random happens between the steps except the order of user blocks, which is drawn from (seed, stage, epoch); so
the state of a run is its parameters, Adam's moments, the stopping rule and the epoch.

Adam itself is torch's own fused kernel. `torch.optim.Adam` makes the same steps, but its constructor imports torch's
compiler, which takes longer than training on a small log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from puidrec.errors import InputError, PuidError
from puidrec.rng import generator
from puidrec.settings import Settings
from puidrec.train.blocks import UserPartition, change_user_rows, stored_axes
from puidrec.train.checkpoint import HINT, Checkpoint
from puidrec.train.problem import ADMISSIBLE, Fitted, Problem, with_prefix
from puidrec.train.stopping import JUDGE_EVERY, WARM_UP, Stopping, Validator

Progress = Callable[[str, int, int, dict[str, float]], None]
"""Called after each epoch with stage, epochs done, most epochs, and the epoch's figures: losses, `score` if judged."""
SaveState = Callable[[Checkpoint], None]
LARGEST = float(np.finfo(np.float32).max)
"""A loss beyond this has diverged: what is trained is kept in single precision."""
REFINING = 0.1
"""Factor of the step size with which a warm-started method leaves its benchmark: Adam's first steps are all of one
size, and at full size they would throw the model out of the basin it starts in."""


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
        partition: UserPartition | None = None,
    ) -> None:
        self.problem, self.settings, self.validator = problem, settings, validator
        self.stage, self.save = stage, save
        self.partition = partition or UserPartition.undivided(problem.n_users, settings.block_users)
        self.partition.drop_other_users(problem)
        self.optimizers = {step.name: Adam(step.module.parameters(), lr or settings.lr) for step in problem.steps}
        patience = settings.patience if validator is not None else 0
        self.stopping = Stopping(patience, warm_up=min(WARM_UP, settings.epochs // 2))
        self._axes = {name: axis for step in problem.steps for name, axis in stored_axes(step).items()}
        self.history: list[dict[str, float]] = []
        self.best = self._parameters()

    def run(self, progress: Progress | None = None) -> Fitted:
        """Train from where we are to the end; returns the best epoch's model."""
        for epoch in range(len(self.history), self.settings.epochs):
            if self.stopping.exhausted:
                break
            figures = self._epoch(epoch)
            self.history.append(figures)
            if (epoch + 1) % JUDGE_EVERY == 0 or epoch + 1 == self.settings.epochs:
                self._judge(epoch)
            if progress is not None:
                progress(self.stage, epoch + 1, self.settings.epochs, figures)
            if self.save is not None and (epoch + 1) % self.settings.checkpoint_every == 0:
                self.save(self.state())
        self._load(self.best)
        score = self.stopping.best if self.validator is not None else None
        phi, theta = self.partition.factors(self.problem.factors), self.partition.factors(self.problem.imputation)
        if phi is None:
            raise TypeError("a problem without a prediction model")
        best = change_user_rows(self.best, self._axes, self.partition.gather)
        scale, epoch = self.problem.gamma_scale, self.stopping.best_epoch + 1
        return Fitted(phi, theta, best, self.history, epoch, score, scale, solver="adam")

    def state(self) -> Checkpoint:
        """All that the next epoch depends on.

        Every process must call it; the first gets the state of all, from which any number of processes can go on.
        """
        tensors = {f"now.{name}": value for name, value in self._parameters().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer.state(f"adam.{name}")
        state = {"stage": self.stage, "stopping": self.stopping.state(), "history": self.history}
        return Checkpoint(change_user_rows(tensors, self._axes, self.partition.gather_to_first), state)

    def admissible(self) -> bool:
        """Whether the parameters as they stand may be chosen: a benchmarked loss must not be above 0."""
        return not self.problem.benchmarked or self.partition.total(self.problem.steps[0]) <= ADMISSIBLE

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this stage."""
        tensors = change_user_rows(checkpoint.tensors, self._axes, self.partition.take_own)
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
                loss = self.partition.backward(step, start, stop)
                optimizer.step()
                step.moved()
                share = (stop - start) / self.problem.n_users
                sums[step.name] = sums.get(step.name, 0.0) + loss * share
        if not all(abs(value) <= LARGEST for value in sums.values()):
            raise PuidError(
                f"training of {self.settings.method} diverged in epoch {epoch + 1} (loss is not finite); "
                f"lower lr (now {self.settings.lr:g}) or raise min_propensity (now {self.settings.min_propensity:g})"
            )
        return {"epoch": epoch + 1, **{f"loss_{name}": value for name, value in sums.items()}}

    def _judge(self, epoch: int) -> None:
        """Validate the epoch, write its score into the history, and remember it if it is the best."""
        score = 0.0
        if self.validator is not None:
            score = self.history[epoch]["score"] = self.partition.score(self.validator, self.problem.factors)
        if self.stopping.update(score, self.admissible, epochs=epoch - self.stopping.epoch):
            self.best = self._parameters()

    def _blocks(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Ranges of users, in an order of the epoch's own."""
        n_users, size = self.problem.n_users, self.partition.block
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


BETAS, EPSILON = (0.9, 0.999), 1e-8
SLOT = ("step", "exp_avg", "exp_avg_sq")


class Adam:
    """Moments of some parameters, and the steps they lead to. A parameter without a gradient stays where it is."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr
        self._slots: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step down the gradients."""
        moving = [(k, p, p.grad) for k, p in enumerate(self.parameters) if p.grad is not None]
        for k, parameter, _ in moving:
            if k not in self._slots:
                self._slots[k] = _fresh(parameter)
        slots = [self._slots[k] for k, _, _ in moving]
        adam(
            [p for _, p, _ in moving], [g for _, _, g in moving], [s[1] for s in slots], [s[2] for s in slots], [],
            [s[0] for s in slots], fused=True, foreach=False, amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=self.lr,
            weight_decay=0.0, eps=EPSILON, maximize=False,
        )  # fmt: skip

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Moments and step counts as named tensors, for a checkpoint."""
        return {f"{prefix}.{k}.{name}": t for k, s in self._slots.items() for name, t in zip(SLOT, s, strict=True)}

    def restore(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        """Put them back; the next step is the one the interrupted run would have made."""
        self._slots = {}
        own = {name for name in tensors if name.startswith(f"{prefix}.")}
        for k, parameter in enumerate(self.parameters):
            names = [f"{prefix}.{k}.{name}" for name in SLOT]
            if own.isdisjoint(names):
                continue  # it had no gradient yet
            own -= set(names)
            fresh = _fresh(parameter)
            for name, mine in zip(names, fresh, strict=True):
                if tensors[name].shape != mine.shape:
                    raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(mine.shape)}")
                mine.copy_(tensors[name])
            self._slots[k] = fresh
        if own:
            raise KeyError(min(own))


def _fresh(parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Step count and moments before the first step."""
    like = parameter.detach()
    return torch.zeros((), device=like.device), torch.zeros_like(like), torch.zeros_like(like)

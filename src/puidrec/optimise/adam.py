"""Training by Adam: alternating steps, smoothed early stopping, checkpoints that resume to the last
bit.

For what least squares cannot solve: networks, heads on shared representations, losses over all
pairs without an identity. All users take part in every step, so that nothing is random but the
start and what a method draws itself (`Step.before`). The log is in memory, in one process
(`Log.require_simple`).

Adam itself is torch's own fused kernel. `torch.optim.Adam` makes the same steps, but its
constructor imports torch's compiler, which takes longer than training on a small log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from puidrec.errors import InputError, PuidError
from puidrec.optimise.checkpoint import HINT, Checkpoint, with_prefix
from puidrec.optimise.stopping import JUDGE_EVERY, WARM_UP, Stopping, Validator
from puidrec.rng import derive_seed
from puidrec.scores.low_rank import LowRank
from puidrec.view import Progress

SaveState = Callable[[Callable[[], Checkpoint]], None]
"""Takes what makes a checkpoint, and calls it where one is due."""
LARGEST = float(np.finfo(np.float32).max)
"""A loss beyond this has diverged: what is trained is kept in single precision."""
REFINING = 0.1
"""Factor of the step size with which a warm-started method leaves its benchmark: Adam's first steps
are all of one size, and at full size they would throw the model out of the basin it starts in."""


class Step(NamedTuple):
    """One of the alternating updates: a module, the loss it lowers, and its penalty."""

    name: str
    module: nn.Module
    loss: Callable[[], Tensor]
    penalty: Callable[[], Tensor]
    before: Callable[[torch.Generator], None] | None = None
    """Called before each step with a generator of that epoch: where fresh negatives are drawn."""


@dataclass
class Trainer:
    """Trains modules to their best epoch."""

    steps: Sequence[Step]
    scores: Callable[[], LowRank]
    """The prediction model as it stands."""
    stage: str
    epochs: int
    lr: float
    patience: int
    validator: Validator | None = None
    admissible: Callable[[], bool] = lambda: True
    """Whether the parameters as they stand may be chosen."""
    save: SaveState | None = None
    seed: int = 0
    """Of what steps draw; an epoch's draws depend on its number, so that a resumed run draws the
    same."""
    history: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizers = {
            step.name: Adam(step.module.parameters(), self.lr) for step in self.steps
        }
        patience = self.patience if self.validator is not None else 0
        self.stopping = Stopping(patience, warm_up=min(WARM_UP, self.epochs // 2))
        self.best = self._parameters()

    def run(self, progress: Progress | None = None) -> None:
        """Train from where we are to the end; the modules end at the best epoch."""
        for epoch in range(len(self.history), self.epochs):
            if self.stopping.exhausted:
                break
            figures = self._epoch(epoch)
            self.history.append(figures)
            if (epoch + 1) % JUDGE_EVERY == 0 or epoch + 1 == self.epochs:
                self._judge(epoch)
            if progress is not None:
                progress(self.stage, epoch + 1, self.epochs, figures)
            if self.save is not None:
                self.save(self.state)
        self._load(self.best)

    def state(self) -> Checkpoint:
        """All that the next epoch depends on."""
        tensors = {f"now.{name}": value for name, value in self._parameters().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer.state(f"adam.{name}")
        state = {"stage": self.stage, "stopping": self.stopping.state(), "history": self.history}
        return Checkpoint(tensors, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this stage."""
        tensors = checkpoint.tensors
        now, best = (with_prefix(tensors, prefix) for prefix in ("now.", "best."))
        try:
            self._load(best)
            self.best = self._parameters()
            self._load(now)
            for name, optimizer in self.optimizers.items():
                optimizer.restore(tensors, f"adam.{name}")
            self.stopping = Stopping.from_state(checkpoint.state["stopping"])
            self.history = list(checkpoint.state["history"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(
                "the checkpoint does not fit this model", found=str(error)[:60], hint=HINT
            ) from error

    def _epoch(self, epoch: int) -> dict[str, float]:
        """One update of every module."""
        figures: dict[str, float] = {"epoch": epoch + 1}
        for step in self.steps:
            optimizer = self.optimizers[step.name]
            optimizer.zero_grad()
            if step.before is not None:
                seed = derive_seed(self.seed, self.stage, step.name, str(epoch))
                step.before(torch.Generator().manual_seed(seed))
            loss = step.loss()
            (loss + step.penalty()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            figures[f"loss_{step.name}"] = float(loss.detach())
        if not all(abs(value) <= LARGEST for value in figures.values()):
            raise PuidError(
                f"training diverged in epoch {epoch + 1} (loss is not finite); "
                f"lower lr (now {self.lr:g}) or raise min_propensity"
            )
        return figures

    def _judge(self, epoch: int) -> None:
        """Validate the epoch, write its score into the history, remember it if it is the best."""
        score = 0.0
        if self.validator is not None:
            with torch.no_grad():
                score = self.history[epoch]["score"] = self.validator.score(self.scores())
        if self.stopping.update(score, self.admissible, epochs=epoch - self.stopping.epoch):
            self.best = self._parameters()

    def _parameters(self) -> dict[str, Tensor]:
        return {
            f"{step.name}.{name}": value.detach().clone()
            for step in self.steps
            for name, value in step.module.state_dict().items()
        }

    def _load(self, parameters: Mapping[str, Tensor]) -> None:
        for step in self.steps:
            step.module.load_state_dict(with_prefix(parameters, f"{step.name}."))


BETAS, EPSILON = (0.9, 0.999), 1e-8
SLOT = ("step", "exp_avg", "exp_avg_sq")


class Adam:
    """Moments of some parameters, and the steps they lead to. A parameter without a gradient stays
    where it is."""

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
            [p for _, p, _ in moving],
            [g for _, _, g in moving],
            [s[1] for s in slots],
            [s[2] for s in slots],
            [],
            [s[0] for s in slots],
            fused=True,
            foreach=False,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.lr,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Moments and step counts as named tensors, for a checkpoint."""
        return {
            f"{prefix}.{k}.{name}": t
            for k, s in self._slots.items()
            for name, t in zip(SLOT, s, strict=True)
        }

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
                    raise ValueError(
                        f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(mine.shape)}"
                    )
                mine.copy_(tensors[name])
            self._slots[k] = fresh
        if own:
            raise KeyError(min(own))


def _fresh(parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Step count and moments before the first step."""
    like = parameter.detach()
    return torch.zeros((), device=like.device), torch.zeros_like(like), torch.zeros_like(like)

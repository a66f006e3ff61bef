"""Adam, on torch's own fused kernel.

`torch.optim.Adam` makes the same steps, but its constructor imports torch's compiler, which takes longer than training
on a small log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam

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

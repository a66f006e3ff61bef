"""Which parameters, and which tensors of a checkpoint, have a part of their own for every user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from puidrec.backbones.share import Share
from puidrec.train.problem import Step


@runtime_checkable
class HoldsUsers(Protocol):
    """A module with parameters of single users."""

    def keep_users(self, share: Share) -> None:
        """Hold them for some of the users only."""


def own_axes(module: torch.nn.Module) -> dict[str, int]:
    """Parameters that no other process holds, by name: the axis of the users."""
    found: dict[str, int] = {}
    for prefix, part in module.named_modules():
        axes: dict[str, int] = part.own_axes() if hasattr(part, "own_axes") else {}
        found |= {f"{prefix}.{name}" if prefix else name: axis for name, axis in axes.items()}
    return found


def user_axes(step: Step) -> dict[str, int]:
    """The same as a checkpoint calls them: parameters, now and at the best epoch, and moments of Adam."""
    own, name = own_axes(step.module), step.name
    axes: dict[str, int] = {}
    for k, (parameter, _) in enumerate(step.module.named_parameters()):
        if parameter in own:
            stored = [f"{prefix}{name}.{parameter}" for prefix in ("", "now.", "best.")]
            moments = [f"adam.{name}.{k}.{moment}" for moment in ("exp_avg", "exp_avg_sq")]
            axes |= dict.fromkeys([*stored, *moments], own[parameter])
    return axes


def with_users(
    tensors: Mapping[str, Tensor], axes: Mapping[str, int], change: Callable[[Tensor, int], Tensor]
) -> dict[str, Tensor]:
    """Tensors of a checkpoint, those with users in them changed."""
    return {name: change(t, axes[name]) if name in axes else t for name, t in tensors.items()}

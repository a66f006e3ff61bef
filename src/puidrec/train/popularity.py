"""The baseline of likes: what most people have is recommended to everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from puidrec.backbones.low_rank import LowRank
from puidrec.train.problem import Fitted, Stage

if TYPE_CHECKING:
    from puidrec.train.blocks import UserPartition
    from puidrec.train.prepare import Prepared


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """s_ui = share of users who have item i in the log; one column, the same for all users."""
    ratings = prepared.log.ratings
    share = torch.from_numpy(ratings.item_count / max(ratings.shape[0], 1)).float()
    return [Stage("main", lambda done: Fitted(LowRank.of(torch.ones(ratings.shape[0], 1), share[:, None])))]

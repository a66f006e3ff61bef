"""The members of `spectrum`: models fitted on the log alone, along Γ, dim and L2. Only this module
calls what fits them.

`mf` (Γ = 1), also with other numbers of columns; `ips`; `signed-rd` at two Γ; `all-rank`
(Γ = ∞). Along Γ each starts from its neighbour and needs a few sweeps only: the mixture
corrects what is left.

A log of likes has no ratings to fit: q = 1, and models along Γ differ from `all-rank` by a scale
and a constant. So `all-rank` is the only member, and the mixture may add exposure factors where
uniform rows ask for them.

Along the same path: up to which Γ does a recommendation stay? The final scores are moved, s + f_Γ −
f_prior, with f_Γ fitted at the prior's Γ, at 3 and at ∞ (`all-rank`). Unseen ratings are put at
q/Γ, so that between these f_Γ is close to linear in 1/Γ: on Coat and in simulated worlds the scores
of a user correlate by .99 or more with those fitted at that Γ. An item's `gamma_max` is the largest
Γ up to which it stays among the K best of its user, at that Γ and at all before it; infinite if it
stays at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from puidrec.errors import InputError
from puidrec.evaluation.ranking import top_k
from puidrec.methods import unseen
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Problem, Stage
from puidrec.methods.robust import robust_problem
from puidrec.methods.spectrum.terms import Compressed, Term, compress
from puidrec.methods.unseen import all_rank_problem, signed_problem
from puidrec.optimise.checkpoint import with_prefix
from puidrec.scores.low_rank import LowRank
from puidrec.scores.towers import Design

MILD = 1.1
"""Γ of the prior where the sign of selection is known."""
SWEEPS = 8
"""Sweeps of a member that starts from its neighbour."""
OTHER_DIMS = (2, 8)
"""Columns of further fits of `mf`."""
LEVELS = (1.5, 3.0, 10.0, float("inf"))
"""Γ at which it is asked whether an item stays."""
RANK = 24
"""Most columns that the moves of scores are kept as."""
SHOWN_USERS, SHOWN_K = 500, 10


def member_stages(prepared: Prepared) -> tuple[list[Stage], dict[str, float]]:
    """The stages of the members, one after the other, and the Γ of those along the path."""
    settings = prepared.settings
    if not settings.is_linear:
        found = f"backbone {settings.backbone}, solver {settings.solver}"
        raise InputError(
            "spectrum is solved by least squares",
            found=found,
            expected="backbone mf or mf-linear, solver auto or least-squares",
            hint="Leave these settings out, or choose another method.",
        )
    if prepared.data.positives_only:
        return [replace(unseen.all_rank_stages(prepared)[0], name="all-rank")], {}
    naive, weighted = prepared.first_stage("mf"), prepared.first_stage("ips")
    mild = settings.gamma if isinstance(settings.gamma, float) else MILD
    along = {"mild": mild, "Γ 3": 3.0, "all-rank": float("inf")}
    stages = [
        Stage("mf", lambda done: robust_problem(naive, "mf"), sweeps=10 * SWEEPS),
        *(_other(name, own) for name, own in _other_fits(prepared).items()),
        Stage("ips", lambda done: robust_problem(weighted, "ips"), start="mf", sweeps=2 * SWEEPS),
        *(
            Stage(name, _along(prepared, name, gamma), start=start, sweeps=SWEEPS)
            for start, (name, gamma) in zip(["mf", *along], along.items(), strict=False)
        ),
    ]
    return stages, along


def _other(name: str, own: Prepared) -> Stage:
    return Stage(name, lambda done: robust_problem(own, name), sweeps=2 * SWEEPS)


def _along(prepared: Prepared, name: str, gamma: float) -> Callable[[Done], Problem]:
    """A member along Γ; at infinity it is `all-rank`.

    Points between (Γ 1.5 and 10) and heavier weights of unseen pairs (λ 3 and 5) changed no error
    by more than .3 % in worlds of `bench/worlds.py`, and were left out.
    """

    def build(done: Done) -> Problem:
        if gamma == float("inf"):
            return all_rank_problem(prepared, name)
        q = done["ips" if prepared.settings.adjusts else "mf"].phi
        return signed_problem(prepared, name, q, gamma, 1.0)

    return build


def members_of(done: Done) -> dict[str, LowRank]:
    """Scores of the members, by name, on the CPU."""
    return {
        name: LowRank.of(*(side[0].detach().cpu() for side in (one.phi.lefts, one.phi.rights)))
        for name, one in done.items()
    }


def _other_fits(prepared: Prepared) -> dict[str, Prepared]:
    """The log as seen by fits of `mf` with other numbers of columns."""
    base, dim = prepared.first_stage("mf"), prepared.settings.dim_number
    return {
        f"mf, dim {own}": replace(base, settings=base.settings.replace(dim=own))
        for own in OTHER_DIMS
        if own != dim
    }


@torch.no_grad()
def cold_start(
    prepared: Prepared, done: Done, terms: Sequence[Term], small: Compressed
) -> dict[str, Tensor]:
    """How features become factors of entities that were not in training, where members read
    features: members with linear features are affine in them. What belongs to single entities,
    exposure included, is at its mean."""
    found: dict[str, Tensor] = {}
    for side, key, to in (("user", "user_id", small.users), ("item", "item_id", small.items)):
        design = prepared.log.designs.get(key)
        if design is not None and design.n_columns:
            rows = [_cold(prepared, done, term, side == "user", design.n_columns) for term in terms]
            whole = (torch.cat(rows, 1) @ to).float()
            found[f"cold.{side}.offset"] = whole[0]
            found[f"cold.{side}.weight"] = whole[1:] - whole[0]
    return found


def _cold(prepared: Prepared, done: Done, term: Term, of_user: bool, width: int) -> Tensor:
    """A term's side for an entity without features, and for one with each feature alone, [1 +
    features, columns]."""
    if term.stage not in done:  # features had no part in it
        return (term.left() if of_user else term.right()).mean(0).expand(width + 1, -1)
    backbone = _other_fits(prepared).get(term.stage, prepared).backbone("cold").cpu()
    backbone.load_state_dict(with_prefix(done[term.stage].parameters, "phi."))
    design = Design.of(sparse.csr_array(sparse.eye(width + 1, width, -1, format="csr")))
    cold = backbone.cold_users(design) if of_user else backbone.cold_items(design)
    for tower in backbone.user_towers if of_user else backbone.item_towers:
        if tower.uses_ids:
            mean = tower(slice(None)).mean(0)
            cold[:, : backbone.dim] += mean[: backbone.dim]
            cold[:, backbone.dim if of_user else backbone.dim + 1] += mean[backbone.dim]
    scale = term.user_scale if of_user else term.item_scale
    return cold.double() * (1.0 if scale is None else float(scale.mean()))


class Path(NamedTuple):
    """Tensors to keep with the model, and the share of recommendations that stay at each Γ."""

    tensors: dict[str, Tensor]
    shares: dict[str, float]


def path_parameters(
    scores: LowRank, members: Mapping[str, LowRank], gammas: Mapping[str, float], prior: str
) -> Path:
    """The moves f_Γ − f_prior as factors, and how stable the ten best items of some users are."""
    if not gammas:
        return Path({}, {})
    start = gammas.get(prior, 1.0)
    points = sorted((1.0 / gamma, name) for name, gamma in gammas.items() if gamma > start)
    points.append((1.0 / start, prior))  # by rising 1/Γ
    levels = [gamma for gamma in LEVELS if gamma > start]
    tensors = {"path.gamma": torch.tensor([start, *levels])}
    for k, gamma in enumerate(levels):
        moved = _between(points, 1.0 / gamma, members)
        move = compress([*moved, Term(prior, members[prior], -1.0)], RANK).scores
        tensors |= {f"path.{k}.left": move.lefts[0], f"path.{k}.right": move.rights[0]}
    users = np.unique(np.linspace(0, scores.n_users - 1, SHOWN_USERS).astype(np.int64))
    left, right = (side.numpy() for side in (scores.lefts[0], scores.rights[0]))
    base = left[users] @ right.T
    best = top_k(base, min(SHOWN_K, scores.n_items))[0]
    last = gamma_max(base, users, best, tensors)
    return Path(tensors, {_name(g): round(float((last >= g).mean()), 4) for g in levels})


def _between(
    points: Sequence[tuple[float, str]], at: float, members: Mapping[str, LowRank]
) -> list[Term]:
    """f_Γ at 1/Γ, linear between the two fitted points around it."""
    after = next(k for k, (inverse, _) in enumerate(points) if inverse >= at)
    (high, upper), (low, lower) = points[after], points[max(after - 1, 0)]
    share = 1.0 if high == low else (at - low) / (high - low)
    return [Term(upper, members[upper], share), Term(lower, members[lower], 1.0 - share)]


def gamma_max(
    scores: np.ndarray,
    users: np.ndarray,
    best: np.ndarray,
    tensors: Mapping[str, Tensor],
    items: np.ndarray | None = None,
) -> np.ndarray:
    """Of each recommended item, [users, K], the largest Γ of the path up to which it stays.

    scores: [users, candidates], −inf where an item is no candidate. users: codes of the rows. best:
    columns of the K
    best. items: code of each column; None: the whole catalogue, in order.
    """
    gammas = tensors["path.gamma"].tolist()
    result, stays = np.full(best.shape, gammas[0]), np.ones(best.shape, bool)
    k = best.shape[1]
    for step, gamma in enumerate(gammas[1:]):
        left, right = tensors[f"path.{step}.left"].numpy(), tensors[f"path.{step}.right"].numpy()
        moved = scores + left[users] @ (right if items is None else right[items]).T
        edge = np.sort(top_k(moved, k)[1], axis=1)[:, :1]
        own = np.take_along_axis(moved, best, 1)
        stays &= (own >= edge) & np.isfinite(own)
        result[stays] = gamma
    return result


def _name(gamma: float) -> str:
    return "∞" if np.isinf(gamma) else f"{gamma:g}"

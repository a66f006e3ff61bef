"""What `spectrum` sums: members, which are models fitted on the log alone, along Γ, dim and L2, and
terms, which are low-rank scores with weights that may vary by user or by item. Only this module
calls what fits members.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

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
from puidrec.methods.unseen import all_rank_problem, signed_problem
from puidrec.optimise.checkpoint import with_prefix
from puidrec.optimise.stopping import pair_scores
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


# Sums of scores

ROWS = 16_384
"""Entities whose factors are turned at a time; side by side they have some hundred columns."""


@dataclass(frozen=True, eq=False)
class Term:
    """weight · user_scale_u · item_scale_i · scores_ui; at most one scale varies."""

    name: str
    scores: LowRank
    """In one part."""
    weight: float = 1.0
    user_scale: np.ndarray | None = None
    item_scale: np.ndarray | None = None
    stage: str = ""
    """The stage of training that made the scores; empty where no parameters did."""

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Values of pairs."""
        values = self.weight * pair_scores(self.scores, user, item).astype(np.float64)
        for scale, code in ((self.user_scale, user), (self.item_scale, item)):
            values = values if scale is None else values * scale[code]
        return values

    def left(self, users: slice = slice(None)) -> Tensor:
        """Users' side with the weight, float64."""
        scale = None if self.user_scale is None else self.user_scale[users]
        return self.weight * _scaled(self.scores.lefts[0][users], scale)

    def right(self, items: slice = slice(None)) -> Tensor:
        """Items' side, float64."""
        scale = None if self.item_scale is None else self.item_scale[items]
        return _scaled(self.scores.rights[0][items], scale)

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean over all items of each user, and over all users of each item."""
        left, right = self.left(), self.right()
        return (left @ right.mean(0)).numpy(), (right @ left.mean(0)).numpy()


def one(n_users: int, n_items: int) -> Term:
    """The score 1 of every pair."""
    return Term("one", LowRank.of(torch.ones(n_users, 1), torch.ones(n_items, 1)))


def spread(terms: Sequence[Term]) -> float:
    """Standard deviation of a sum over all pairs: exact, by Gram matrices."""
    left, right = (torch.cat([*_rows(terms, side)]) for side in ("left", "right"))
    left, mean = left - left.mean(0), left.mean(0)
    within = ((left.T @ left) * (right.T @ right)).sum() / (len(left) * len(right))
    return float((within + (right @ mean).var(correction=0)).clamp_min(0.0).sqrt())


def root_mean_square(term: Term) -> float:
    """Of its values over all pairs."""
    left, right = term.left(), term.right()
    squares = ((left.T @ left) * (right.T @ right)).sum() / (len(left) * len(right))
    return float(squares.clamp_min(0.0).sqrt())


def gathered(terms: Sequence[Term]) -> list[Term]:
    """The same sum with one term per scores, or two where weights vary by user and by item."""
    first: dict[tuple[int, bool], Term] = {}
    scales: dict[tuple[int, bool], np.ndarray] = {}
    for term in terms:
        by_item = term.item_scale is not None
        size = term.scores.n_items if by_item else term.scores.n_users
        own = term.item_scale if by_item else term.user_scale
        key = id(term.scores), by_item
        first.setdefault(key, term)
        own = term.weight * (np.ones(size) if own is None else own)
        scales[key] = scales.get(key, np.zeros(size)) + own
    return [
        replace(
            first[key],
            weight=1.0,
            user_scale=None if key[1] else scale,
            item_scale=scale if key[1] else None,
        )
        for key, scale in scales.items()
    ]


class Compressed(NamedTuple):
    """Scores of fewer columns, the maps that took the long rows of both sides there, and the share
    of squares kept."""

    scores: LowRank
    users: Tensor
    items: Tensor
    kept: float


def compress(terms: Sequence[Term], most: int) -> Compressed:
    """The sum of terms as factors of at most so many columns, the leading singular vectors of users
    × items.

    With L and R the sides of all terms side by side and their QR decompositions L = Q_l T_l, R =
    Q_r T_r, the small core T_l T_rᵀ = U S Vᵀ gives L Rᵀ = (Q_l U) S (Q_r V)ᵀ. Since L T_rᵀ V = Q_l
    U S, the factors Q_l U S^½ = L (T_rᵀ V S^-½) and Q_r V S^½ = R (T_lᵀ U S^-½) need neither Q nor
    an inverse of T.
    """
    t_left, t_right = (_triangle(_rows(terms, side)) for side in ("left", "right"))
    u, s, v = torch.linalg.svd(t_left @ t_right.T, full_matrices=False)
    rank = max(min(most, int((s > 1e-9 * s[0]).sum())), 1)
    root = s[:rank].clamp_min(1e-300).sqrt()
    to_users, to_items = t_right.T @ v[:rank].T / root, t_left.T @ u[:, :rank] / root
    right = torch.cat([rows @ to_items for rows in _rows(terms, "right")])
    # the largest of each column is made positive, else rounding may turn a direction round
    sign = right.gather(0, right.abs().argmax(0, keepdim=True)).sign()
    left = torch.cat([rows @ (to_users * sign) for rows in _rows(terms, "left")])
    kept = float((s[:rank] ** 2).sum() / (s**2).sum().clamp_min(1e-300))
    found = LowRank.of(left.float(), (right * sign).float())
    return Compressed(found, to_users * sign, to_items * sign, kept)


def _rows(terms: Sequence[Term], side: Literal["left", "right"]) -> Iterator[Tensor]:
    """One side of all terms, side by side, some entities at a time."""
    scores = terms[0].scores
    for start in range(0, scores.n_users if side == "left" else scores.n_items, ROWS):
        yield torch.cat([getattr(term, side)(slice(start, start + ROWS)) for term in terms], 1)


def _triangle(blocks: Iterator[Tensor]) -> Tensor:
    """T of the QR decomposition of rows that come block by block."""
    found: Tensor = torch.linalg.qr(next(blocks), mode="r")[1]
    for block in blocks:
        found = torch.linalg.qr(torch.cat([found, block]), mode="r")[1]
    return found


def _scaled(rows: Tensor, scale: np.ndarray | None) -> Tensor:
    rows = rows.cpu().double()
    return rows if scale is None else rows * torch.from_numpy(scale)[:, None]

"""The members of `spectrum`: models fitted on the log alone, along Γ, dim and L2. Only this module
calls what fits them.

`bias`; `mf` (Γ = 1), also with fewer columns and a plain L2; `ips`; `signed-rd` at several Γ;
`all-rank` (Γ = ∞). Along Γ each starts from its neighbour and needs a few sweeps only: the mixture
corrects what is left.

A log of likes has no ratings to fit: q = 1, and models along Γ differ from `all-rank` by a scale
and a constant. So `all-rank` is the only member, and the mixture may add exposure factors where
uniform rows ask for them.

`signed-rd` and `signed-puid` have a path of their own where many uniform rows say which of its
points ranks best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from puidrec.data.overlap import pairs_in
from puidrec.errors import InputError
from puidrec.evaluation.auc import placements
from puidrec.methods import unseen
from puidrec.methods.baselines import closed_form
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Fitted, Problem, Stage, with_prefix
from puidrec.methods.robust import robust_problem
from puidrec.methods.spectrum.terms import Term
from puidrec.methods.unseen import all_rank_problem, signed_problem
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.features import Design
from puidrec.scores.low_rank import LowRank
from puidrec.settings import DEFAULT_L2, Settings

MILD = 1.1
"""Γ of the prior where the sign of selection is known."""
SWEEPS = 8
"""Sweeps of a member that starts from its neighbour."""
FEWEST = 20
"""Uniform rows below which they are not used."""
NARROW = ((2, 1.0), (8, 1.0))
"""(dim, L2 of vectors as a factor of `l2`) of further fits of `mf`."""
ENOUGH = 500
"""Uniform rows from which they choose Γ and λ of the signed methods."""
CLEAR_AUC = 2.33
"""Standard errors by which a point of the path must order better: one in a hundred logs by
chance."""
POINTS = ((3.0, 1.0), (10.0, 1.0), (30.0, 3.0), (10.0, 5.0), (3.0, 3.0))
"""(Γ, λ) that they choose among, beside the Γ of their mean with λ = 1."""


class Member(NamedTuple):
    """A point of the path: Γ (infinite: `all-rank`) and λ, and the member it starts from."""

    name: str
    gamma: float
    unseen_weight: float
    start: str


def path(gamma: float = MILD) -> tuple[Member, ...]:
    """The members along Γ; the first one is the mild one, or at the Γ that the caller gives.

    Points with a heavier weight of unseen pairs (λ 3 and 5) changed errors by less than .3 % and were left out.
    """
    return (
        Member("mild", gamma, 1.0, "mf"),
        Member("Γ 1.5", 1.5, 1.0, "mild"),
        Member("Γ 3", 3.0, 1.0, "Γ 1.5"),
        Member("Γ 10", 10.0, 1.0, "Γ 3"),
        Member("all-rank", float("inf"), 1.0, "Γ 10"),
    )


def member_stages(prepared: Prepared) -> tuple[list[Stage], dict[str, float]]:
    """The stages of the members, one after the other, and the Γ of those along the path."""
    settings = prepared.settings
    if not settings.is_linear:
        found = f"backbone {settings.backbone}, solver {settings.solver}"
        raise InputError(
            "spectrum is solved by least squares", found=found,
            expected="backbone mf or mf-linear, solver auto or least-squares",
            hint="Leave these settings out, or choose another method.",
        )  # fmt: skip
    if prepared.data.positives_only:
        return [replace(unseen.all_rank_stages(prepared)[0], name="all-rank")], {}
    members = path(settings.gamma if isinstance(settings.gamma, float) else MILD)
    naive, weighted = prepared.first_stage("mf"), prepared.first_stage("ips")
    stages = [
        Stage("mf", lambda done: robust_problem(naive, "mf")),
        *(Stage(name, _narrow(own), sweeps=4 * SWEEPS) for name, own in _narrow_fits(prepared).items()),
        Stage("ips", lambda done: robust_problem(weighted, "ips"), start="mf", sweeps=2 * SWEEPS),
        *(Stage(one.name, _member(prepared, one), start=one.start, sweeps=SWEEPS) for one in members),
    ]
    return stages, {one.name: one.gamma for one in members}


def members_of(prepared: Prepared, done: Done) -> dict[str, LowRank]:
    """Scores of the members, by name, on the CPU."""
    data, ratings = prepared.data, prepared.log.ratings
    members = {} if data.positives_only else {"bias": closed_form("bias", ratings, 1, 0)}
    for name, fitted in done.items():
        members[name] = LowRank.of(*(side[0].detach().cpu() for side in (fitted.phi.lefts, fitted.phi.rights)))
    return members


class Rows(NamedTuple):
    """Uniform rows that calibrate: none of them trained the members, none of them tests."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    liked: np.ndarray


def calibration_rows(prepared: Prepared) -> Rows:
    """Uniform rows held out for calibration and validation, without pairs of the log; none where
    they are too few."""
    split, select = prepared.split, prepared.settings.select
    parts = [split.propensity] if split.propensity is not None else []
    if split.selection == "uniform" and select != "none":
        parts.append(split.validation)
    user = np.concatenate([np.zeros(0, np.int64), *(part.user for part in parts)])
    item = np.concatenate([np.zeros(0, np.int64), *(part.item for part in parts)])
    target = np.concatenate([np.zeros(0), *(prepared.log.target(part) for part in parts)])
    liked = np.concatenate([np.zeros(0, bool), *(part.label == 1 for part in parts)])
    kept = ~pairs_in(user, item, prepared.data.n_items, prepared.log.parts())
    kept &= kept.sum() >= FEWEST
    return Rows(user[kept], item[kept], target[kept], liked[kept])


def _narrow_fits(prepared: Prepared) -> dict[str, Prepared]:
    """The log as seen by fits of `mf` with fewer columns and a plain L2."""
    base, dim = prepared.first_stage("mf"), prepared.settings.dim_number
    return {
        f"mf, dim {own}": replace(base, settings=base.settings.replace(dim=own, l2=DEFAULT_L2 * factor))
        for own, factor in NARROW
        if own < dim
    }


def _narrow(own: Prepared) -> Build:
    return lambda done: robust_problem(own, f"mf {own.settings.dim}")


@torch.no_grad()
def cold_rows(prepared: Prepared, done: Done, term: Term, side: str, width: int) -> torch.Tensor:
    """A term's side for an entity without features, and for one with each feature alone, [1 +
    features, columns].

    A weight that varies with the entity is at its mean.
    """
    trained = (term.left() if side == "user" else term.right()).mean(0, keepdim=True)
    if term.stage not in done:  # features had no part in it
        return trained.expand(width + 1, -1)
    backbone = _narrow_fits(prepared).get(term.stage, prepared).backbone("cold").cpu()
    backbone.load_state_dict(with_prefix(done[term.stage].parameters, "phi."))
    design = Design.of(sparse.csr_array(sparse.eye(width + 1, width, -1, format="csr")))
    cold = backbone.cold_users(design) if side == "user" else backbone.cold_items(design)
    for tower in backbone.user_towers if side == "user" else backbone.item_towers:
        if tower.uses_ids:
            mean = tower(slice(None)).mean(0)
            cold[:, : backbone.dim] += mean[: backbone.dim]
            cold[:, backbone.dim if side == "user" else backbone.dim + 1] += mean[backbone.dim]
    scale = term.user_scale if side == "user" else term.item_scale
    return cold.double() * (term.weight if side == "user" else 1.0) * (1.0 if scale is None else float(scale.mean()))


Build = Callable[[Done], Problem]


def _member(prepared: Prepared, member: Member) -> Build:
    def build(done: Done) -> Problem:
        if member.gamma == float("inf"):
            return all_rank_problem(prepared, member.name)
        q = done["ips" if prepared.settings.adjusts else "mf"].phi
        return signed_problem(prepared, member.name, q, member.gamma, member.unseen_weight)

    return build


def signed_stages(prepared: Prepared) -> Sequence[Stage]:
    """`signed-rd`, `signed-puid`: unseen ratings get the mean that uniform rows show, or, where
    many rows favour one, another point of a path along (Γ, λ)."""
    usual, settings = unseen.stages(prepared), prepared.settings
    open_to_choice = (
        settings.gamma == "auto" and settings.unseen_weight == Settings.model_fields["unseen_weight"].default
    )
    if not open_to_choice or not settings.is_linear or prepared.data.positives_only or prepared.gamma.mean_log <= 0.0:
        return usual
    rows = calibration_rows(prepared)
    if rows.user.size < ENOUGH or rows.liked.all() or not rows.liked.any():
        return usual
    found = [*usual[:-1], replace(usual[-1], name="Γ of the mean")]
    for gamma, weight in POINTS:
        name, start = f"Γ {gamma:g}, λ {weight:g}", found[-1].name
        found.append(Stage(name, _point(prepared, name, gamma, weight), start=start, sweeps=SWEEPS))
    names = [stage.name for stage in found[len(usual) - 1 :]]
    return [
        *found,
        Stage("main", lambda done: _chosen(prepared, [(name, done[name]) for name in names], rows)),
    ]


def _point(prepared: Prepared, name: str, gamma: float, weight: float) -> Build:
    return lambda done: unseen.path_problem(prepared, name, done["seen"].phi, gamma, weight)


def _chosen(prepared: Prepared, points: Sequence[tuple[str, Fitted]], rows: Rows) -> Fitted:
    """The first point whose AUC on uniform rows is not clearly below the best one's.

    The Γ of the mean comes first: another point may order a little better and be far off the
    ratings.
    """
    liked = rows.liked
    values = [placements(pair_scores(fitted.phi, rows.user, rows.item), liked) for _, fitted in points]
    best = max(range(len(points)), key=lambda k: float(values[k][liked].mean()))
    lacks = (values[best] - value for value in values)
    near = (
        lack[liked].mean() <= CLEAR_AUC * np.sqrt(sum(lack[p].var() / p.sum() for p in (liked, ~liked)))
        for lack in lacks
    )
    name, fitted = points[next(k for k, bearable in enumerate(near) if bearable)]
    words = f"the AUC of {rows.user.size:,} uniform ratings along a path: {name}"
    validator, notes = (
        prepared.validator(),
        {"gamma_set_by": words, "uniform_rows_used": "scale of Γ, λ"},
    )
    score = None if validator is None else validator.score(fitted.phi)
    # a point of the path takes few sweeps on purpose
    return replace(fitted, history=[], best_score=score, notes=notes, unfinished=())

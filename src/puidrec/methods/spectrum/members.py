"""The members of `spectrum`: models fitted on the log alone, along Γ, dim and L2. Only this module
calls what fits them.

`bias`; `mf` (Γ = 1), also with other numbers of columns; `ips`; `signed-rd` at two Γ; `all-rank`
(Γ = ∞). Along Γ each starts from its neighbour and needs a few sweeps only: the mixture
corrects what is left.

A log of likes has no ratings to fit: q = 1, and models along Γ differ from `all-rank` by a scale
and a constant. So `all-rank` is the only member, and the mixture may add exposure factors where
uniform rows ask for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from scipy import sparse

from puidrec.errors import InputError
from puidrec.methods import unseen
from puidrec.methods.baselines import closed_form
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Problem, Stage, with_prefix
from puidrec.methods.robust import robust_problem
from puidrec.methods.spectrum.terms import Term
from puidrec.methods.unseen import all_rank_problem, signed_problem
from puidrec.scores.features import Design
from puidrec.scores.low_rank import LowRank

MILD = 1.1
"""Γ of the prior where the sign of selection is known."""
SWEEPS = 8
"""Sweeps of a member that starts from its neighbour."""
OTHER_DIMS = (2, 8)
"""Columns of further fits of `mf`."""


class Member(NamedTuple):
    """A point of the path: Γ (infinite: `all-rank`), and the member it starts from."""

    name: str
    gamma: float
    start: str


def path(gamma: float = MILD) -> tuple[Member, ...]:
    """The members along Γ; the first one is the mild one, or at the Γ that the caller gives.

    Points between (Γ 1.5 and 10) and heavier weights of unseen pairs (λ 3 and 5) changed no error
    by more than .3 % in worlds of `bench/worlds.py`, and were left out.
    """
    return (
        Member("mild", gamma, "mf"),
        Member("Γ 3", 3.0, "mild"),
        Member("all-rank", float("inf"), "Γ 3"),
    )


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
    members = path(settings.gamma if isinstance(settings.gamma, float) else MILD)
    naive, weighted = prepared.first_stage("mf"), prepared.first_stage("ips")
    stages = [
        Stage("mf", lambda done: robust_problem(naive, "mf"), sweeps=10 * SWEEPS),
        *(_other(name, own) for name, own in _other_fits(prepared).items()),
        Stage("ips", lambda done: robust_problem(weighted, "ips"), start="mf", sweeps=2 * SWEEPS),
        *(
            Stage(one.name, _member(prepared, one), start=one.start, sweeps=SWEEPS)
            for one in members
        ),
    ]
    return stages, {one.name: one.gamma for one in members}


def members_of(prepared: Prepared, done: Done) -> dict[str, LowRank]:
    """Scores of the members, by name, on the CPU."""
    data, ratings = prepared.data, prepared.log.ratings
    members = {} if data.positives_only else {"bias": closed_form("bias", ratings, 1, 0)}
    for name, fitted in done.items():
        members[name] = LowRank.of(
            *(side[0].detach().cpu() for side in (fitted.phi.lefts, fitted.phi.rights))
        )
    return members


def _other_fits(prepared: Prepared) -> dict[str, Prepared]:
    """The log as seen by fits of `mf` with other numbers of columns."""
    base, dim = prepared.first_stage("mf"), prepared.settings.dim_number
    return {
        f"mf, dim {own}": replace(base, settings=base.settings.replace(dim=own))
        for own in OTHER_DIMS
        if own != dim
    }


def _other(name: str, own: Prepared) -> Stage:
    return Stage(name, lambda done: robust_problem(own, name), sweeps=2 * SWEEPS)


@torch.no_grad()
def cold_rows(prepared: Prepared, done: Done, term: Term, side: str, width: int) -> torch.Tensor:
    """A term's side for an entity without features, and for one with each feature alone, [1 +
    features, columns].

    A weight that varies with the entity is at its mean.
    """
    trained = (term.left() if side == "user" else term.right()).mean(0, keepdim=True)
    if term.stage not in done:  # features had no part in it
        return trained.expand(width + 1, -1)
    backbone = _other_fits(prepared).get(term.stage, prepared).backbone("cold").cpu()
    backbone.load_state_dict(with_prefix(done[term.stage].parameters, "phi."))
    design = Design.of(sparse.csr_array(sparse.eye(width + 1, width, -1, format="csr")))
    cold = backbone.cold_users(design) if side == "user" else backbone.cold_items(design)
    for tower in backbone.user_towers if side == "user" else backbone.item_towers:
        if tower.uses_ids:
            mean = tower(slice(None)).mean(0)
            cold[:, : backbone.dim] += mean[: backbone.dim]
            cold[:, backbone.dim if side == "user" else backbone.dim + 1] += mean[backbone.dim]
    scale = term.user_scale if side == "user" else term.item_scale
    return (
        cold.double()
        * (term.weight if side == "user" else 1.0)
        * (1.0 if scale is None else float(scale.mean()))
    )


Build = Callable[[Done], Problem]


def _member(prepared: Prepared, member: Member) -> Build:
    def build(done: Done) -> Problem:
        if member.gamma == float("inf"):
            return all_rank_problem(prepared, member.name)
        q = done["ips" if prepared.settings.adjusts else "mf"].phi
        return signed_problem(prepared, member.name, q, member.gamma, 1.0)

    return build

"""The stages of `spectrum`: members along a warm-started path of (Γ, λ), then their mixture.

Members are fitted on the log alone: `mf` (Γ = 1), `ips`, `signed-rd` at several (Γ, λ), `all-rank` (Γ = ∞). Each starts
from its neighbour and needs a few sweeps only: the mixture corrects what is left.

A log of likes has no ratings to fit: q = 1, and models along Γ differ from `all-rank` by a scale and a constant. So
`all-rank` is the only member, and the mixture may add exposure factors where uniform rows ask for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from puidrec.errors import InputError
from puidrec.spectrum.blend import blend
from puidrec.train.blocks import UserPartition
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Done, Problem, Stage
from puidrec.train.robust import robust_problem
from puidrec.train.unseen import all_rank_problem, signed_problem

MILD = 1.1
"""Γ of the prior where the sign of selection is known."""
SWEEPS = 8
"""Sweeps of a member that starts from its neighbour."""
ALONE_SWEEPS = 15
"""Sweeps of the only member of a log of likes, as `all-rank` has by itself."""


class Member(NamedTuple):
    """A point of the path: Γ (infinite: `all-rank`) and λ, and the member it starts from."""

    name: str
    gamma: float
    unseen_weight: float
    start: str


def path(gamma: float = MILD) -> tuple[Member, ...]:
    """The members along Γ; the first one is the mild one, or at the Γ that the caller gives."""
    return (
        Member("mild", gamma, 1.0, "mf"),
        Member("Γ 1.5", 1.5, 1.0, "mild"),
        Member("Γ 3", 3.0, 1.0, "Γ 1.5"),
        Member("Γ 10", 10.0, 1.0, "Γ 3"),
        Member("all-rank", float("inf"), 1.0, "Γ 10"),
        Member("Γ 30, λ 3", 30.0, 3.0, "all-rank"),
        Member("Γ 10, λ 5", 10.0, 5.0, "Γ 30, λ 3"),
        Member("Γ 3, λ 3", 3.0, 3.0, "Γ 10, λ 5"),
    )


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """Members one after the other, then the mixture in closed form; every process computes that."""
    settings = prepared.settings
    if settings.backbone not in ("mf", "mf-linear") or settings.solver == "adam" or settings.block_users:
        found = f"backbone {settings.backbone}, solver {settings.solver}, block_users {settings.block_users}"
        raise InputError(
            "spectrum is solved by least squares", found=found,
            expected="backbone mf or mf-linear, solver auto or least-squares, block_users 0",
            hint="Leave these settings out, or choose another method.",
        )  # fmt: skip
    if prepared.data.positives_only:
        return [
            Stage("all-rank", lambda done: all_rank_problem(prepared, "main", partition), sweeps=ALONE_SWEEPS),
            Stage("main", lambda done: blend(prepared, done, {})),
        ]
    members = path(settings.gamma if isinstance(settings.gamma, float) else MILD)
    naive, weighted = prepared.first_stage("mf"), prepared.first_stage("ips")
    return [
        Stage("mf", lambda done: robust_problem(naive, "mf", partition)),
        Stage("ips", _from("mf", lambda done: robust_problem(weighted, "ips", partition), partition), True, 2 * SWEEPS),
        *(Stage(one.name, _member(prepared, one, partition), True, SWEEPS) for one in members),
        Stage("main", lambda done: blend(prepared, done, {one.name: one.gamma for one in members})),
    ]


Build = Callable[[Done], Problem]


def _member(prepared: Prepared, member: Member, partition: UserPartition) -> Build:
    def build(done: Done) -> Problem:
        if member.gamma == float("inf"):
            return all_rank_problem(prepared, member.name, partition)
        q = done["ips" if prepared.settings.adjusts else "mf"].phi
        return signed_problem(prepared, member.name, partition, q, member.gamma, member.unseen_weight)

    return _from(member.start, build, partition)


def _from(start: str, build: Build, partition: UserPartition) -> Build:
    """The problem with the parameters of a member before it."""

    def warm(done: Done) -> Problem:
        problem = build(done)
        for step in problem.steps:
            step.load(partition.take_own_parameters(step, done[start].parameters))
        return problem

    return warm

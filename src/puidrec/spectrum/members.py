"""The stages of `spectrum`: members along a warm-started path of (Γ, λ), then their mixture.

Members are fitted on the log alone: `mf` (Γ = 1), `ips`, `signed-rd` at several (Γ, λ), `all-rank` (Γ = ∞). Each starts
from its neighbour and needs a few sweeps only: the mixture corrects what is left. Uniform rows say whether the path
pulls unseen ratings down (people pick what they like) or up.

A log of likes has no ratings to fit: q = 1, and models along Γ differ from `all-rank` by a scale and a constant. So
`all-rank` is the only member, and the mixture may add exposure factors where uniform rows ask for them.

`signed-rd` and `signed-puid` have a path of their own where many uniform rows say which of its points ranks best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.auc import placements
from puidrec.methods import unseen
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Fitted, Problem, Stage
from puidrec.methods.robust import robust_problem
from puidrec.methods.unseen import all_rank_problem, signed_problem
from puidrec.optimise.stopping import pair_scores
from puidrec.settings import Settings
from puidrec.spectrum.blend import CLEAR_MEAN, Rows, blend, calibration_rows, gap_of_means

MILD = 1.1
"""Γ of the prior where the sign of selection is known."""
SWEEPS = 8
"""Sweeps of a member that starts from its neighbour."""
ENOUGH = 500
"""Uniform rows from which they choose Γ and λ of the signed methods."""
CLEAR_AUC = 2.33
"""Standard errors by which a point of the path must order better: one in a hundred logs by chance."""
POINTS = ((3.0, 1.0), (10.0, 1.0), (30.0, 3.0), (10.0, 5.0), (3.0, 3.0))
"""(Γ, λ) that they choose among, beside the Γ of their mean with λ = 1."""


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


def stages(prepared: Prepared) -> list[Stage]:
    """Members one after the other, then the mixture in closed form; every process computes that."""
    settings = prepared.settings
    if not settings.is_linear:
        found = f"backbone {settings.backbone}, solver {settings.solver}"
        raise InputError(
            "spectrum is solved by least squares", found=found,
            expected="backbone mf or mf-linear, solver auto or least-squares",
            hint="Leave these settings out, or choose another method.",
        )  # fmt: skip
    if prepared.data.positives_only:
        return [
            replace(unseen.all_rank_stages(prepared)[0], name="all-rank"),
            Stage("main", lambda done: blend(prepared, done, {})),
        ]
    members = path(settings.gamma if isinstance(settings.gamma, float) else MILD)
    naive, weighted = prepared.first_stage("mf"), prepared.first_stage("ips")
    rows = calibration_rows(prepared)
    return [
        Stage("mf", lambda done: robust_problem(naive, "mf")),
        Stage("ips", lambda done: robust_problem(weighted, "ips"), start="mf", sweeps=2 * SWEEPS),
        *(Stage(one.name, _member(prepared, one, rows), start=one.start, sweeps=SWEEPS) for one in members),
        Stage("main", lambda done: blend(prepared, done, {one.name: one.gamma for one in members})),
    ]


Build = Callable[[Done], Problem]


def _member(prepared: Prepared, member: Member, rows: Rows) -> Build:
    def build(done: Done) -> Problem:
        signed = _with_sign(prepared, rows, done["mf"])
        if member.gamma == float("inf"):
            return all_rank_problem(signed, member.name)
        q = done["ips" if prepared.settings.adjusts else "mf"].phi
        return signed_problem(signed, member.name, q, member.gamma, member.unseen_weight)

    return build


def _with_sign(prepared: Prepared, rows: Rows, mf: Fitted) -> Prepared:
    """Unseen ratings are pulled down along the path; up, where uniform ratings are clearly above what `mf` predicts."""
    if prepared.settings.liked is not None or not rows.user.size:
        return prepared
    avoided = gap_of_means(rows, pair_scores(mf.phi, rows.user, rows.item))[1] > CLEAR_MEAN
    return replace(prepared, settings=prepared.settings.replace(liked=False)) if avoided else prepared


def signed_stages(prepared: Prepared) -> Sequence[Stage]:
    """`signed-rd`, `signed-puid`: unseen ratings get the mean that uniform rows show, or, where many rows favour one,
    another point of a path along (Γ, λ)."""
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
    return [*found, Stage("main", lambda done: _chosen(prepared, [(name, done[name]) for name in names], rows))]


def _point(prepared: Prepared, name: str, gamma: float, weight: float) -> Build:
    return lambda done: unseen.path_problem(prepared, name, done["seen"].phi, gamma, weight)


def _chosen(prepared: Prepared, points: Sequence[tuple[str, Fitted]], rows: Rows) -> Fitted:
    """The first point whose AUC on uniform rows is not clearly below the best one's.

    The Γ of the mean comes first: another point may order a little better and be far off the ratings.
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
    validator, notes = prepared.validator(), {"gamma_set_by": words, "uniform_rows_used": "scale of Γ, λ"}
    score = None if validator is None else validator.score(fitted.phi)
    # a point of the path takes few sweeps on purpose
    return replace(fitted, history=[], best_score=score, notes=notes, unfinished=())

"""`auto-debias`: weights and imputed values that are learned so that training on the log lowers the
error of uniform rows.

"AutoDebias: learning to debias for recommendation" (Chen et al., SIGIR 2021) trains φ on

    L(φ; ψ) = mean_O w₁ (s − r)² + λ · mean_D w₂ (s − m)²,

λ `unseen_weight`, and ψ = (w₁, w₂, m) so that one step of φ down L lowers mean_U (s − r)² over
uniform rows. Its w are exponentials of sums over one-hot users, items and labels, its m takes three
values. Assumed here, so that the sum over D is exact and a few uniform rows can teach ψ:

* log w₁ = ψ·(z_u, z_i, h) and log w₂ = ψ·(1, z_u, z_i, o), with z the standardised log number of
  rows of a user or item in place of the one-hot codes, and h = ±½ for ratings above and below the
  mean of the log;
* m is σ of a number each for unseen pairs, ratings below and ratings above the mean of the log.
  They start at the log's mean, and at the means of both halves; w₁ and w₂ start at 1;
* the step of φ that ψ looks ahead to moves the vectors l_u of users, each by `LOOK_AHEAD` over its
  own curvature, so that it is separate for every user;
* ψ has a standard normal prior, which counts as much as the variance of uniform ratings says.

With l'_u = l_u − η_u ∂L/∂l_u and v_u = ∂mean_U e/∂l'_u, the gradient of mean_U e(l') in ψ is that
of

    −Σ_u η_u ⟨v_u, ∂L/∂l_u⟩ = −(derivative of L along the scores ds_ui = η_u ⟨v_u, q_i⟩)

at constant v: sums over O and a Gram identity, no second derivative of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from puidrec.data.dataset import Interactions
from puidrec.losses.whole_space import inner_sum, square_sum
from puidrec.methods.field.weights import activity
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Problem, Stage, adam_step
from puidrec.optimise.adam import Step
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import LogPattern, sampled_product

LOOK_AHEAD = 0.25
"""Length of the step that ψ looks ahead to, in units of the inverse curvature of a user's bias."""


class Rows(NamedTuple):
    """Pairs and their ratings."""

    pattern: LogPattern
    target: Tensor

    def scores(self, factors: LowRank) -> Tensor:
        """Scores of the pairs."""
        return sampled_product(factors.lefts[0], factors.rights[0], self.pattern)


class LearnedWeights(nn.Module):
    """ψ, and what it makes of users, items and logged pairs."""

    def __init__(self, users: Tensor, items: Tensor, means: Tensor) -> None:
        super().__init__()
        self.seen = nn.Parameter(users.new_zeros(3))
        """Of z_u, z_i and h in log w₁."""
        self.everywhere = nn.Parameter(users.new_zeros(4))
        """Of 1, z_u, z_i and o in log w₂."""
        self.imputed = nn.Parameter(users.new_zeros(3))
        """Log-odds of m beyond its start: unseen, low, high."""
        self.users, self.items = users, items
        self.mean, self.start = means[0], torch.logit(means.clamp(0.02, 0.98))

    def sides(self) -> tuple[Tensor, Tensor]:
        """w₂ of unseen pairs is α_u β_i: α of users, and β."""
        one, user, item, _ = self.everywhere
        return torch.exp(one + user * self.users), torch.exp(item * self.items)

    def values(self) -> Tensor:
        """m of unseen pairs, of low and of high ratings."""
        return torch.sigmoid(self.start + self.imputed)

    def logged(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """w₁, w₂ and m of the logged pairs."""
        z_u, z_i = self.users[rows.pattern.user], self.items[rows.pattern.col.long()]
        high = rows.target > self.mean
        user, item, label = self.seen
        first = torch.exp(user * z_u + item * z_i + label * (high.to(z_u) - 0.5))
        one, user, item, seen = self.everywhere
        second = torch.exp(one + user * z_u + item * z_i + seen)
        _, below, above = self.values()
        return first, second, torch.where(high, above, below)

    def square_norm(self) -> Tensor:
        """Σ ψ²."""
        return torch.stack([parameter.square().sum() for parameter in self.parameters()]).sum()


@dataclass
class AutoDebiasProblem(Problem):
    """φ on the weighted log and all pairs, then ψ on uniform rows, in turns: there is no one
    objective to solve."""

    observed: Rows
    learned: LearnedWeights
    """ψ."""
    uniform: Rows
    """Uniform rows that train."""
    prior: float
    """Variance of the uniform ratings over their number."""

    @property
    def steps(self) -> Sequence[Step]:
        """φ, then ψ."""
        learned = self.learned
        return (
            adam_step(self.settings, "phi", self.phi, lambda: self.loss(self.phi.factors())),
            Step("weights", learned, self.look_ahead, lambda: self.prior * learned.square_norm()),
        )

    def loss(self, phi: LowRank) -> Tensor:
        """L, at constant ψ."""
        observed, pattern = self.observed, self.observed.pattern
        with torch.no_grad():
            first, second, values = self.learned.logged(observed)
            (alpha, beta), unseen = self.learned.sides(), self.learned.values()[0]
            beside = alpha[pattern.user] * beta[pattern.col.long()]
        scores = observed.scores(phi)
        fit = first * (scores - observed.target).square()
        seen = second * (scores - values).square() - beside * (scores - unseen).square()
        everywhere = square_sum(phi.minus(constant(unseen, phi)).scaled(alpha.sqrt(), beta.sqrt()))
        share = self.settings.unseen_weight / phi.n_pairs
        logged = torch.sum(fit / len(pattern) + share * seen, dtype=torch.float64)
        return logged + share * everywhere

    def slope(self, phi: LowRank, along: LowRank) -> Tensor:
        """The derivative of L along a change of the scores, as a function of ψ."""
        observed, pattern = self.observed, self.observed.pattern
        first, second, values = self.learned.logged(observed)
        (alpha, beta), unseen = self.learned.sides(), self.learned.values()[0]
        beside = alpha[pattern.user] * beta[pattern.col.long()]
        scores, change = observed.scores(phi), observed.scores(along)
        fit = first * (scores - observed.target)
        seen = second * (scores - values) - beside * (scores - unseen)
        everywhere = inner_sum(phi.minus(constant(unseen, phi)).scaled(alpha, beta), along)
        share = self.settings.unseen_weight / phi.n_pairs
        logged = torch.sum((fit / len(pattern) + share * seen) * change, dtype=torch.float64)
        return 2.0 * (logged + share * everywhere)

    def look_ahead(self) -> Tensor:
        """mean_U e after a step of the users down L: its value, and its gradient in ψ."""
        observed, uniform = self.observed, self.uniform
        with torch.no_grad():
            phi = self.phi.factors()
        ones = phi.lefts[0].new_ones(phi.n_items, 1)
        rows = observed.pattern.matmul(torch.ones_like(observed.target), ones)
        usual = len(observed.pattern) / phi.n_users
        step = (
            LOOK_AHEAD * phi.n_users / (rows / usual + self.settings.unseen_weight).clamp_min(1e-3)
        )
        with torch.enable_grad():
            left = phi.lefts[0].detach().requires_grad_()
            (down,) = torch.autograd.grad(self.loss(LowRank.of(left, phi.rights[0])), left)
            moved = (left.detach() - step * down).requires_grad_()
            errors = (uniform.scores(LowRank.of(moved, phi.rights[0])) - uniform.target).square()
            value = torch.sum(errors, dtype=torch.float64) / len(uniform.pattern)
            (slope,) = torch.autograd.grad(value, moved)
        gain = self.slope(phi, LowRank.of(step * slope, phi.rights[0]))
        return value.detach() + gain.detach() - gain


def constant(value: Tensor, like: LowRank) -> LowRank:
    """One value for all pairs."""
    left = like.lefts[0]
    return LowRank.of(value.to(left).expand(like.n_users, 1), left.new_ones(like.n_items, 1))


def stages(prepared: Prepared) -> list[Stage]:
    """One problem, whose steps take turns."""
    rows = prepared.uniform_rows()
    return [Stage("main", lambda done: _problem(prepared, rows))]


def _problem(prepared: Prepared, rows: Interactions) -> AutoDebiasProblem:
    log, data = prepared.log, prepared.data
    order = np.argsort(rows.user, kind="stable")
    pattern = LogPattern.from_pairs(rows.user[order], rows.item[order], data.n_users, data.n_items)
    target = np.asarray(log.target(rows), dtype=np.float64)[order]
    uniform = Rows(pattern.to(prepared.settings.device), log.tensor(target))
    observed = Rows(log.operator.require_simple("auto-debias"), log.column(log.target).values)
    users, items = (log.tensor(z) for z in activity(prepared))
    weights = LearnedWeights(users, items, log.tensor(_means(prepared)))
    prior = float(target.var(ddof=1)) / len(rows)
    phi = prepared.backbone("main phi")
    return AutoDebiasProblem(prepared.settings, phi, observed, weights, uniform, prior)


def _means(prepared: Prepared) -> np.ndarray:
    """The mean of the log's ratings, of those up to it, and of those above it."""
    log, sums = prepared.log, np.zeros((2, 2))
    for part in log.rows.parts():
        target = np.asarray(log.target(part), dtype=np.float64)
        for k, chosen in enumerate((target <= log.target_mean, target > log.target_mean)):
            sums[k] += target[chosen].sum(), chosen.sum()
    return np.append(log.target_mean, sums[:, 0] / np.maximum(sums[:, 1], 1.0))

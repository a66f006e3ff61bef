"""Losses over all pairs that are no loss of one score per pair and a square: Adam trains them.

**`multi-ips`, `multi-dr`**: exposure, rating and (DR) imputation heads on shared representations,
trained together by one joint loss. The exposure head c is fitted by least squares over all pairs,
Σ_D (c − o)² = Σ_D c² − 2 Σ_O c + |O|, and gives the rating head its weights 1/c, clipped and held
constant: a propensity learned with the rating rather than before it. The squares stand for
cross-entropy, which the papers have: at the mean exposure ρ its second-order expansion is (c −
o)²/(2ρ(1 − ρ)). Without that factor exposure, 0 or seldom 1, weighs next to nothing beside the
ratings, and what co-exposure says of taste never reaches the shared representations.

**`cvib`**: logged and unseen pairs are to have means that agree, as mutual information asks for.
"Information theoretic counterfactual learning from missing-not-at-random feedback" (CVIB; Wang et
al., NeurIPS 2020) bounds what a representation tells of exposure. With p = σ(score), and m₁, m₀ the
means of p over logged and over unseen pairs, it minimises

    mean_O CE(p, r) + α · CE(m₁, m₀) + γ · mean_D (p log p + (1 − p) log(1 − p)),
    CE(m₁, m₀) = −m₁ log m₀ − (1 − m₁) log(1 − m₀),

α `information_weight` and γ `confidence_penalty`. m₀ and the last term are exact, one tile of pairs
at a time, where the paper draws unseen pairs. Assumed: the penalty counts both outcomes, over all
pairs. Public code takes p log p of logged pairs alone, which is least at p = 1/e: it draws what was
seen towards a constant.

**`auto-debias`**: weights and imputed values that are learned so that training on the log lowers
the error of uniform rows. "AutoDebias: learning to debias for recommendation" (Chen et al., SIGIR
2021) trains φ on

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from puidrec.data.dataset import Interactions
from puidrec.losses.pair_loss import RobustLoss, pair_sum
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Problem, Stage, adam_step, backbone_penalty
from puidrec.optimise.adam import Step
from puidrec.scores.log import LogPattern, Row, sampled_product
from puidrec.scores.low_rank import LowRank, square_sum, tiled_sum
from puidrec.scores.towers import EXPOSURE, IMPUTATION, RATING, SharedHeads
from puidrec.settings import MethodParams

FLOOR = 0.25
"""Share of the mean exposure below which the exposure head is not trusted: least squares may go to
0 and below."""
LEAST_VARIANCE = 1e-6
"""Of exposure: logs of all pairs, or of next to none, leave nothing to divide by."""
LEAST_MEAN = 1e-6
"""Means are kept this far from 0 and 1, where their logarithm ends."""
LOOK_AHEAD = 0.25
"""Length of the step that ψ looks ahead to, in units of the inverse curvature of a user's bias."""


@dataclass
class Rows:
    """Pairs and their ratings."""

    pattern: LogPattern
    target: Tensor

    @classmethod
    def of_log(cls, prepared: Prepared) -> Rows:
        """The training rows, in memory."""
        log = prepared.log
        pattern = log.operator.require_simple(prepared.settings.method)
        return cls(pattern, log.column(log.target).values)

    def scores(self, factors: LowRank) -> Tensor:
        """Scores of the pairs."""
        return sampled_product(factors.lefts[0], factors.rights[0], self.pattern)


# multi-ips, multi-dr


@dataclass
class MultiProblem(Problem):
    """One joint loss: exposure over D, rating by IPS or DR with the exposure head's weights,
    imputation over O."""

    observed: Rows
    heads: SharedHeads

    @property
    def steps(self) -> Sequence[Step]:
        """All heads at once: sharing is the point."""
        return (Step("heads", self.heads, self.loss, self._penalty),)

    def factors(self) -> LowRank:
        """The rating head."""
        return self.heads.factors(RATING)

    def imputation(self) -> LowRank | None:
        """The imputation head of Multi-DR."""
        return self.heads.factors(IMPUTATION) if self.settings.spec.imputes else None

    def loss(self) -> Tensor:
        """mean_D (c − o)²/(2ρ(1 − ρ)), and the rating by IPS, or by DR with the imputation over O;
        weights 1/c, c not below a share of the mean exposure ρ."""
        observed, exposure, rating = self.observed, self.heads.factors(EXPOSURE), self.factors()
        r, n_pairs = observed.target, exposure.n_pairs
        chance, prediction, rate = (
            observed.scores(exposure),
            observed.scores(rating),
            r.numel() / n_pairs,
        )
        squares = square_sum(exposure) - 2.0 * torch.sum(chance, dtype=torch.float64) + r.numel()
        fit = squares / (2.0 * max(rate * (1.0 - rate), LEAST_VARIANCE))
        low = max(self.settings.min_propensity, FLOOR * rate)
        weights = 1.0 / chance.detach().clamp(low, 1.0)
        row, imputation = Row(r=r, a=weights, b=weights), self.imputation()
        if imputation is None:
            return (fit + pair_sum(RobustLoss(), prediction, row)) / n_pairs
        output = observed.scores(imputation)
        labels = Row(r=r, a=weights, b=weights, g=output.detach())
        gap = pair_sum(RobustLoss(head="label"), prediction, labels)
        imputed = square_sum(rating.minus(imputation.detach()))
        return (fit + imputed + gap + pair_sum(RobustLoss(), output, row)) / n_pairs

    def _penalty(self) -> Tensor:
        heads = self.heads.bias_penalty() + self.heads.map_penalty()
        return backbone_penalty(self.phi, self.settings) + self.settings.l2_number * heads


def multi_stages(prepared: Prepared) -> list[Stage]:
    """`multi-ips`, `multi-dr`."""

    def build(done: Done) -> MultiProblem:
        settings, log, observed = prepared.settings, prepared.log, Rows.of_log(prepared)
        mean = log.target_mean
        rate = (len(log.rows) + 0.5) / (prepared.data.n_pairs + 1.0)  # inside (0, 1)
        means = (rate, mean, mean) if settings.spec.imputes else (rate, mean)
        heads = SharedHeads(
            prepared.backbone("main heads", 0.0), means, own=settings.ids is not False
        )
        heads = heads.to(log.dtype).to(settings.device)
        return MultiProblem(settings, heads.backbone, observed, heads)

    return [Stage("main", build)]


# cvib


class CvibParams(MethodParams):
    """What only `cvib` has."""

    information_weight: float = Field(
        0.1, ge=0, description="α, weight of the information term between logged and unseen pairs."
    )
    confidence_penalty: float = Field(
        0.01, ge=0, description="γ, weight of the entropy of predictions."
    )


@dataclass
class InformationProblem(Problem):
    """The naive loss and both information terms, which have no identity over all pairs."""

    prepared: Prepared
    observed: Rows

    @property
    def steps(self) -> Sequence[Step]:
        """φ alone."""
        return (adam_step(self.settings, "phi", self.phi, self.loss),)

    def loss(self) -> Tensor:
        """mean_O CE + α CE(m₁, m₀) + γ mean_D of the negative entropy."""
        params = self.settings.own(CvibParams)
        phi, r = self.phi.factors(), self.observed.target
        s, n_seen = self.observed.scores(phi), max(r.numel(), 1)
        total = torch.sum(self.prepared.error.value(s, r), dtype=torch.float64) / n_seen
        if params.information_weight:  # −m₁ log m₀ − (1 − m₁) log(1 − m₀)
            seen = torch.sigmoid(s).sum(dtype=torch.float64)
            everywhere = tiled_sum(lambda rows, columns, scores: torch.sigmoid(scores), phi)
            unseen = (everywhere - seen) / max(phi.n_pairs - n_seen, 1)
            m1, m0 = (m.clamp(LEAST_MEAN, 1.0 - LEAST_MEAN) for m in (seen / n_seen, unseen))
            contrast = m1 * torch.log(m0) + (1.0 - m1) * torch.log1p(-m0)
            total = total - params.information_weight * contrast
        if params.confidence_penalty:  # p log p + (1 − p) log(1 − p) is p s − log(1 + exp s)
            entropy = tiled_sum(lambda rows, columns, s: torch.sigmoid(s) * s - softplus(s), phi)
            total = total + params.confidence_penalty * entropy / phi.n_pairs
        return total


def cvib_stages(prepared: Prepared) -> list[Stage]:
    """`cvib`."""

    def build(done: Done) -> InformationProblem:
        phi = prepared.backbone("main phi")
        return InformationProblem(prepared.settings, phi, prepared, Rows.of_log(prepared))

    return [Stage("main", build)]


# auto-debias


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

    def values(self) -> Tensor:
        """m of unseen pairs, of low and of high ratings."""
        return torch.sigmoid(self.start + self.imputed)

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
        """L: what logged pairs differ by from unseen ones, and the sum over D as if all were
        unseen."""
        learned, (pattern, target) = self.learned, (self.observed.pattern, self.observed.target)
        user, item, high = pattern.user, pattern.col.long(), target > learned.mean
        scores, (unseen, below, above) = self.observed.scores(phi), learned.values()
        of_user, of_item, of_label = learned.seen
        sides = of_user * learned.users[user] + of_item * learned.items[item]
        fit = torch.exp(sides + of_label * (high.to(scores) - 0.5)) * (scores - target).square()
        one, of_user, of_item, seen = learned.everywhere
        alpha, beta = torch.exp(one + of_user * learned.users), torch.exp(of_item * learned.items)
        own = torch.exp(seen) * (scores - torch.where(high, above, below)).square()
        beside = alpha[user] * beta[item] * (own - (scores - unseen).square())
        ones = phi.rights[0].new_ones(phi.n_items, 1)
        level = LowRank.of(unseen.to(ones).expand(phi.n_users, 1), ones)
        everywhere = square_sum(phi.minus(level).scaled(alpha.sqrt(), beta.sqrt()))
        share = self.settings.unseen_weight / phi.n_pairs
        logged = torch.sum(fit / len(pattern) + share * beside, dtype=torch.float64)
        return logged + share * everywhere

    def look_ahead(self) -> Tensor:
        """mean_U e after a step of the users down L: its value, and its gradient in ψ.

        With l'_u = l_u − η_u ∂L/∂l_u and v_u = ∂mean_U e/∂l'_u, the gradient is that of −Σ_u η_u
        ⟨v_u, ∂L/∂l_u⟩ at constant v: of the derivative of L along d_u = η_u v_u. L is quadratic in
        l, so that this is a difference of two values of L, at any distance.
        """
        observed, uniform, unseen_weight = self.observed, self.uniform, self.settings.unseen_weight
        with torch.no_grad():
            phi = self.phi.factors()
            left, right = phi.lefts[0], phi.rights[0]
        rows = observed.pattern.row_start.diff()[:, None] / (len(observed.pattern) / phi.n_users)
        step = LOOK_AHEAD * phi.n_users / (rows.to(left) + unseen_weight).clamp_min(1e-3)
        with torch.enable_grad():
            start = left.clone().requires_grad_()
            (down,) = torch.autograd.grad(self.loss(LowRank.of(start, right)), start)
            moved = (left - step * down).requires_grad_()
            errors = (uniform.scores(LowRank.of(moved, right)) - uniform.target).square()
            value = torch.sum(errors, dtype=torch.float64) / len(uniform.pattern)
            (slope,) = torch.autograd.grad(value, moved)
        along = step * slope
        far = float(left.norm() / along.norm().clamp_min(1e-30))  # as long as l: no digits are lost
        ends = (self.loss(LowRank.of(left + sign * far * along, right)) for sign in (1.0, -1.0))
        gain = (next(ends) - next(ends)) / (2.0 * far)
        return value.detach() + gain.detach() - gain


def auto_debias_stages(prepared: Prepared) -> list[Stage]:
    """`auto-debias`."""
    rows = prepared.uniform_rows()
    return [Stage("main", lambda done: _auto_debias(prepared, rows))]


def _auto_debias(prepared: Prepared, rows: Interactions) -> AutoDebiasProblem:
    log, data = prepared.log, prepared.data
    order = np.argsort(rows.user, kind="stable")
    pattern = LogPattern.from_pairs(rows.user[order], rows.item[order], data.n_users, data.n_items)
    target = np.asarray(log.target(rows), dtype=np.float64)[order]
    uniform, observed = (
        Rows(pattern.to(prepared.settings.device), log.tensor(target)),
        Rows.of_log(prepared),
    )
    mean = log.target_mean
    seen = observed.target.double().cpu().numpy()
    halves = [seen[high].mean() if high.any() else 0.0 for high in (seen <= mean, seen > mean)]
    users, items = (log.tensor(z) for z in prepared.log.activity)
    weights = LearnedWeights(users, items, log.tensor(np.array([mean, *halves])))
    prior = float(target.var(ddof=1)) / len(rows)
    phi = prepared.backbone("main phi")
    return AutoDebiasProblem(prepared.settings, phi, observed, weights, uniform, prior)

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from puidrec.errors import PuidError
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender
from puidrec.optimise import adam
from puidrec.optimise.adam import Adam, Trainer
from puidrec.optimise.stopping import JUDGE_EVERY, WARM_UP, Stopping
from puidrec.settings import Settings


def fresh() -> list[torch.nn.Parameter]:
    """Two parameters that learn and one that has no gradient."""
    return [torch.nn.Parameter(torch.linspace(-1, 2, n)) for n in (4, 5, 6)]


def steps(optimizer, weights, n) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        (weights[1].pow(4).sum() + (weights[0] * 3).exp().sum()).backward()
        optimizer.step()


def test_steps_are_those_of_torch() -> None:
    ours, theirs = fresh(), fresh()
    steps(Adam(ours, 0.1), ours, 12)
    steps(torch.optim.Adam(theirs, lr=0.1, fused=True), theirs, 12)
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))
    assert torch.equal(ours[2], fresh()[2])


def test_it_goes_on_as_if_nothing_had_happened() -> None:
    whole, half, other = fresh(), fresh(), fresh()
    steps(Adam(whole, 0.1), whole, 7)
    first, second = Adam(half, 0.1), Adam(other, 0.1)
    steps(first, half, 3)
    for mine, theirs in zip(other, half, strict=True):
        mine.data.copy_(theirs.data)
    state = {name: tensor.clone() for name, tensor in first.state("adam.phi").items()}
    assert set(state) == {
        f"adam.phi.{k}.{name}" for k in (0, 1) for name in ("step", "exp_avg", "exp_avg_sq")
    }
    second.restore(state, "adam.phi")
    steps(first, half, 1)  # must not reach what was restored
    steps(second, other, 4)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(other, whole, strict=True))


def test_moments_of_another_model_are_refused() -> None:
    first = fresh()
    optimizer = Adam(first, 0.1)
    steps(optimizer, first, 1)
    state = optimizer.state("adam")
    with pytest.raises(ValueError, match="shape"):
        Adam(fresh()[::-1], 0.1).restore(state, "adam")
    with pytest.raises(KeyError, match=r"adam\.0\.x"):
        Adam(fresh(), 0.1).restore({**state, "adam.0.x": torch.zeros(4)}, "adam")
    del state["adam.1.exp_avg"]
    with pytest.raises(KeyError):
        Adam(fresh(), 0.1).restore(state, "adam")


def test_training_loads_neither_the_compiler_nor_what_it_does_not_use() -> None:
    code = (
        "import sys; from puidrec.data.synthetic import simulate\n"
        "from puidrec.model import Recommender\n"
        "data = simulate('mixed', 40, 25, density=0.2, rng=0).data\n"
        "Recommender('bpuid-dr', epochs=2, dim=3).fit(data)\n"
        "heavy = ('torch._dynamo', 'sklearn', 'pandas', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[]\n"


def trainer_of(prepared, validator=None):
    """A trainer of the method's only stage, and its problem."""
    (stage,) = stages_of(prepared)
    problem, settings = stage.build({}), prepared.settings
    return Trainer(
        problem.steps,
        problem.factors,
        "main",
        settings.epochs,
        settings.lr,
        settings.patience,
        validator,
    )


@pytest.mark.parametrize("backbone", ["mf", "mf-linear", "mf-mlp"])
@pytest.mark.parametrize("target", ["rating", "binary"])
@pytest.mark.parametrize("loss", ["squared", "absolute", "cross-entropy"])
@pytest.mark.parametrize(
    ("method", "head"), [("ips", "label"), ("dr", "label"), ("dr", "residual"), ("dr", "direct")]
)
def test_three_epochs_of_each_step_lower_its_loss(
    method, head, loss, target, backbone, prepare
) -> None:
    prepared = prepare(
        method, head=head, loss=loss, target=target, backbone=backbone, lr=0.003, l2=0.0
    )
    trainer = trainer_of(prepared)
    for step in trainer.steps:
        values = []
        for _ in range(4):
            trainer.optimizers[step.name].zero_grad()
            value = step.loss()
            value.backward()
            trainer.optimizers[step.name].step()
            values.append(float(value.detach()))
        assert np.isfinite(values).all()
        assert values[3] < values[0]


@pytest.mark.parametrize("method", ["mf", "ips", "rd-ips", "puid-ips", "multi-ips", "multi-dr"])
def test_the_loss_goes_down_over_a_run(method, prepare) -> None:
    trainer = trainer_of(prepare(method, epochs=30, l2=0.0, lr=0.01))
    trainer.run()
    history = trainer.history
    name = next(key for key in history[0] if key.startswith("loss"))
    assert history[-1][name] < 0.95 * history[0][name]


class Scripted:
    """A validator that gives these scores, one per judgement, and remembers the models it
    judged."""

    def __init__(self, *scores):
        self.scores, self.seen = iter(scores), []

    def score(self, factors):
        self.seen.append(factors.lefts[0].clone())
        return next(self.scores)


@pytest.fixture
def judge_every(monkeypatch):
    return lambda epochs: monkeypatch.setattr(adam, "JUDGE_EVERY", epochs)


@pytest.mark.parametrize("every", [1, 5])
def test_the_best_epoch_is_returned_not_the_last(every, prepare, judge_every) -> None:
    judge_every(every)
    validator = Scripted(0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0)
    trainer = trainer_of(prepare("mf", epochs=8 * every, patience=100), validator)
    trainer.stopping.smoothing, trainer.stopping.warm_up = 0.0, 0
    trainer.run()
    assert trainer.stopping.best_epoch + 1 == 4 * every
    users = trainer.scores().lefts[0]
    assert torch.equal(users, validator.seen[3])
    assert not torch.equal(users, validator.seen[-1])
    scores = {row["epoch"]: row["score"] for row in trainer.history if "score" in row}
    assert scores == {every * k: 9 * (k == 4) for k in range(1, 9)}
    assert [row["epoch"] for row in trainer.history] == list(range(1, 8 * every + 1))


@pytest.mark.parametrize("every", [1, 5])
def test_a_best_epoch_before_an_interruption_is_still_the_best_after_it(
    every, prepare, judge_every
) -> None:
    judge_every(every)
    before, after = Scripted(0.0, 9.0, 0.0), Scripted(0.0, 0.0)
    first = trainer_of(prepare("mf", epochs=3 * every, patience=100), before)
    first.stopping.smoothing, first.stopping.warm_up = 0.0, 0
    first.run()
    second = trainer_of(prepare("mf", epochs=5 * every, patience=100), after)
    second.restore(first.state())
    second.run()
    assert (second.stopping.best_epoch + 1, len(second.history)) == (2 * every, 5 * every)
    assert torch.equal(second.scores().lefts[0], before.seen[1])


@pytest.mark.parametrize(
    ("every", "patience", "epochs"),
    [(1, 5, WARM_UP + 6), (5, 1, 30), (5, 5, 30), (5, 6, 35), (5, 10, 35), (7, 5, 28)],
)
def test_patience_ends_a_run(every, patience, epochs, prepare, judge_every) -> None:
    """The first candidate comes after the warm-up, the end with the first judgement that patience
    allows for."""
    judge_every(every)
    validator = Scripted(*(-float(k) for k in range(100)))
    trainer = trainer_of(prepare("mf", epochs=100, patience=patience), validator)
    trainer.run()
    assert len(trainer.history) == epochs
    assert trainer.stopping.best_epoch + 1 == min(
        k for k in range(every, 100, every) if k > WARM_UP
    )


def test_judging_changes_nothing_but_the_choice_of_the_epoch(prepare, judge_every) -> None:
    """And judging each epoch chooses as the stopping rule does that is told each score."""
    prepared = prepare("puid-dr", epochs=32, patience=30, select="observational")
    fits = []
    for every in (1, JUDGE_EVERY):
        judge_every(every)
        fits.append(trainer_of(prepared, prepared.validator()))
        fits[-1].run()
    each, some = (fit.history for fit in fits)
    rule = Stopping(patience=30, warm_up=16)
    assert (
        fits[0].stopping.best_epoch + 1
        == [row["epoch"] for row in each if rule.update(row["score"])][-1]
    )
    assert [{**row, "score": 0} for row in each] == [{**row, "score": 0} for row in some]
    judged = [*range(JUDGE_EVERY, 32, JUDGE_EVERY), 32]
    assert {row["epoch"]: row["score"] for row in some if "score" in row} == {
        k: each[k - 1]["score"] for k in judged
    }


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_rounding_does_not_choose_the_epoch_of_a_flat_curve(seed, prepare) -> None:
    """A tie goes to the earliest epoch after the warm-up, whatever the seventh digit of the
    scores."""
    rounding = (
        np.zeros(20) if seed is None else np.random.default_rng(seed).uniform(-1e-7, 1e-7, 20)
    )
    trainer = trainer_of(prepare("mf", epochs=100, patience=40), Scripted(*(0.7 + rounding)))
    trainer.run()
    assert trainer.stopping.best_epoch + 1 == 25


@pytest.mark.parametrize("given", [{"patience": 0}, {"select": "none"}])
@pytest.mark.parametrize("epochs", [1, 4, 5, 7, 10])
def test_without_early_stopping_the_last_epoch_is_kept(epochs, given, world) -> None:
    options = {"dim": 3, "l2": 0.1, "solver": "adam", "epochs": epochs, **given}
    model = Recommender("multi-ips", **options).fit(world(0))
    assert (model.report_["best_epoch"], len(model.history_)) == (epochs, epochs)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 19])
def test_a_short_run_returns_a_trained_model(epochs, world) -> None:
    given = {"dim": 3, "l2": 0.1, "backbone": "mf", "solver": "adam"}
    model = Recommender("mf", epochs=epochs, **given).fit(world(0))
    assert min(epochs, JUDGE_EVERY) <= model.report_["best_epoch"] <= epochs
    untrained = model.user_factors_[:, :3].std()
    start = Recommender("mf", epochs=1, lr=1e-12, **given).fit(world(0))
    assert not np.allclose(start.user_factors_, model.user_factors_, atol=1e-4)
    assert untrained > 0


def test_progress_tells_stage_epochs_and_figures(prepare, world) -> None:
    calls = []
    Recommender("brd-ips", epochs=6, dim=2, l2=0.1, solver="adam").fit(
        world(0), progress=lambda *call: calls.append(call)
    )
    told = [call for call in calls if call[3]]
    assert [call[:3] for call in told] == [
        (s, 6 * k + e, 12) for k, s in enumerate(("benchmark", "main")) for e in range(1, 7)
    ]
    assert all({"epoch", "loss_phi"} <= call[3].keys() for call in told)
    assert [call[1] for call in told if "score" in call[3]] == [5, 6, 11, 12]


def test_divergence_is_told_with_what_to_do(prepare) -> None:
    with pytest.raises(PuidError, match=r"diverged in epoch \d+.*lower lr") as caught:
        trainer_of(prepare("ips", lr=1e30, epochs=30)).run()
    assert len(str(caught.value).splitlines()) == 1


def test_no_global_random_state_is_read_or_moved(world) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Recommender("puid-dr", epochs=2, dim=2, l2=0.1, backbone="mf-mlp").fit(world(0))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = Recommender("puid-dr", epochs=2, dim=2, l2=0.1, backbone="mf-mlp").fit(world(0))
    assert np.array_equal(first.user_factors_, second.user_factors_)


def test_regularisation_shrinks(prepare) -> None:
    norms = []
    for l2 in (0.0, 5.0):
        prepared = prepare("mf", l2=l2, epochs=40, backbone="mf", lr=0.05)
        trainer = trainer_of(prepared)
        trainer.run()
        norms.append(float(trainer.scores().lefts[0][:, :3].detach().norm()))
    assert norms[1] < 0.5 * norms[0]
    assert Settings.of("mf").l2_number > 0

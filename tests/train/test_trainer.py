from __future__ import annotations

import numpy as np
import pytest
import torch

from puidrec.errors import PuidError
from puidrec.model import Recommender
from puidrec.settings import Settings
from puidrec.train.stages import stages_of
from puidrec.train.trainer import Trainer


def trainer_of(prepared, validator=None, **given):
    stage = stages_of(prepared)[-1]
    return Trainer(stage.build({}), prepared.settings, validator, stage="main", save=None, **given)


@pytest.mark.parametrize("backbone", ["mf", "mf-linear", "mf-mlp"])
@pytest.mark.parametrize("target", ["rating", "binary"])
@pytest.mark.parametrize("loss", ["squared", "absolute", "cross-entropy"])
@pytest.mark.parametrize(("method", "head"), [("ips", "label"), ("dr", "label"), ("dr", "residual"), ("dr", "direct")])
def test_three_epochs_of_each_step_lower_its_loss(method, head, loss, target, backbone, prepare) -> None:
    prepared = prepare(method, head=head, loss=loss, target=target, backbone=backbone, lr=0.003, l2=0.0)
    trainer = trainer_of(prepared)
    users = trainer.problem.n_users
    for step in trainer.problem.steps:
        values = []
        for _ in range(4):
            trainer.optimizers[step.name].zero_grad()
            value = step.loss(0, users)
            value.backward()
            trainer.optimizers[step.name].step()
            step.moved()
            values.append(float(value.detach()))
        assert np.isfinite(values).all()
        assert values[3] < values[0]


@pytest.mark.parametrize("method", ["mf", "ips", "rd-ips", "puid-ips", "multi-ips", "multi-dr"])
def test_the_loss_goes_down_over_a_run(method, prepare) -> None:
    history = trainer_of(prepare(method, epochs=30, l2=0.0, lr=0.01)).run().history
    name = next(key for key in history[0] if key.startswith("loss"))
    assert history[-1][name] < 0.95 * history[0][name]


def test_the_best_epoch_is_returned_not_the_last(prepare) -> None:
    class Scripted:
        scores = iter([0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0])

        def score(self, factors):
            self.seen = [*getattr(self, "seen", []), factors.lefts[0].clone()]
            return next(self.scores)

    validator = Scripted()
    trainer = trainer_of(prepare("mf", epochs=8, patience=100), validator)
    trainer.stopping.smoothing, trainer.stopping.warm_up = 0.0, 0
    fitted = trainer.run()
    assert fitted.best_epoch == 4
    assert torch.equal(fitted.phi.lefts[0], validator.seen[3])
    assert not torch.equal(fitted.phi.lefts[0], validator.seen[-1])
    assert [row["score"] for row in fitted.history] == [0, 0, 0, 9, 0, 0, 0, 0]


def test_a_best_epoch_before_an_interruption_is_still_the_best_after_it(prepare) -> None:
    class Once:
        def __init__(self, *scores):
            self.scores, self.seen = iter(scores), []

        def score(self, factors):
            self.seen.append(factors.lefts[0].clone())
            return next(self.scores)

    before, after = Once(0.0, 9.0, 0.0), Once(0.0, 0.0)
    first = trainer_of(prepare("mf", epochs=3, patience=100), before)
    first.stopping.smoothing, first.stopping.warm_up = 0.0, 0
    first.run()
    second = trainer_of(prepare("mf", epochs=5, patience=100), after)
    second.restore(first.state())
    fitted = second.run()
    assert (fitted.best_epoch, len(fitted.history)) == (2, 5)
    assert torch.equal(fitted.phi.lefts[0], before.seen[1])


def test_patience_ends_a_run(prepare) -> None:
    class Falling:
        value = 0.0

        def score(self, _):
            self.value -= 1.0
            return self.value

    trainer = trainer_of(prepare("mf", epochs=100, patience=5), Falling())
    assert len(trainer.run().history) == trainer.stopping.warm_up + 5 + 1


@pytest.mark.parametrize("epochs", [1, 2, 5, 19])
def test_a_short_run_returns_a_trained_model(epochs, world) -> None:
    model = Recommender("mf", epochs=epochs, dim=3, backbone="mf").fit(world(0))
    assert 1 <= model.report_["best_epoch"] <= epochs
    untrained = model.user_factors_[:, :3].std()
    start = Recommender("mf", epochs=1, dim=3, backbone="mf", lr=1e-12).fit(world(0))
    assert not np.allclose(start.user_factors_, model.user_factors_, atol=1e-4)
    assert untrained > 0


def test_progress_tells_stage_epochs_and_figures(prepare, world) -> None:
    calls = []
    Recommender("brd-ips", epochs=3, dim=2).fit(world(0), progress=lambda *call: calls.append(call))
    assert [call[:3] for call in calls] == [(s, e, 3) for s in ("benchmark", "main") for e in (1, 2, 3)]
    assert all({"epoch", "loss_phi", "score"} <= call[3].keys() for call in calls)


def test_divergence_is_told_with_what_to_do(prepare) -> None:
    with pytest.raises(PuidError, match=r"diverged in epoch \d+.*lower lr") as caught:
        trainer_of(prepare("ips", lr=1e30, epochs=30)).run()
    assert len(str(caught.value).splitlines()) == 1


def test_blocks_cover_all_users_in_an_order_of_the_epoch(prepare) -> None:
    trainer = trainer_of(prepare("mf", block_users=7))
    orders = [list(trainer._blocks(epoch)) for epoch in range(6)]
    for blocks in orders:
        assert sorted(blocks)[0] == (0, 7)
        assert sum(stop - start for start, stop in blocks) == 40
        assert len(set(blocks)) == len(blocks) == 6
    assert len({tuple(blocks) for blocks in orders}) > 1
    assert orders[2] == list(trainer_of(prepare("mf", block_users=7))._blocks(2))


def test_no_global_random_state_is_read_or_moved(world) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Recommender("puid-dr", epochs=2, dim=2, backbone="mf-mlp").fit(world(0))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = Recommender("puid-dr", epochs=2, dim=2, backbone="mf-mlp").fit(world(0))
    assert np.array_equal(first.user_factors_, second.user_factors_)


def test_regularisation_shrinks(prepare) -> None:
    norms = []
    for l2 in (0.0, 5.0):
        prepared = prepare("mf", l2=l2, epochs=40, backbone="mf", lr=0.05)
        norms.append(float(trainer_of(prepared).run().phi.lefts[0][:, :3].norm()))
    assert norms[1] < 0.5 * norms[0]
    assert Settings.of("mf").l2 > 0

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.traces import cell_shift, entity_traces, pair_shift


def evidence_of(simulation):
    d = simulation.data
    sizes = {"n_users": d.n_users, "n_items": d.n_items}
    return Evidence.from_log(d.logged.user, d.logged.item, users=d.users, items=d.items, **sizes)


@pytest.fixture(scope="module")
def half_complete():
    simulation = simulate("half-complete", rng=3)
    return simulation, evidence_of(simulation)


def test_traces_follow_hidden_traits_and_know_their_error(half_complete):
    simulation, evidence = half_complete
    phi = simulation.truth.matrix("phi").mean(axis=1)
    incomplete = evidence.users["mood"].is_null().to_numpy()
    trace = pair_shift(evidence, "features").user
    assert np.corrcoef(trace.mean[incomplete], phi[incomplete])[0, 1] > 0.9
    assert np.abs(trace.mean[~incomplete]).mean() < 0.1  # recorded: nothing left to find
    error = trace.mean - phi
    assert np.sqrt(np.mean(error[incomplete] ** 2)) < 0.35
    assert np.mean(np.abs(error) < 2.0 * np.sqrt(trace.variance) + 0.02) > 0.9


def test_items_without_traits_leave_no_trace(half_complete):
    _, evidence = half_complete
    assert np.abs(entity_traces(evidence, "features")[1].mean).mean() < 0.08


def test_features_too_fine_for_bins_are_hidden_from_cells_only():
    evidence = evidence_of(simulate("no-confounding", rng=0))
    cleared = np.abs(entity_traces(evidence, "features")[0].mean).mean()
    assert cleared < 0.6 * np.abs(entity_traces(evidence, "cells")[0].mean).mean()
    assert cleared < 0.08


def test_around_two_way_only_uncertainty_is_left(half_complete):
    _, evidence = half_complete
    shift = pair_shift(evidence, "two-way")
    assert not shift.user.mean.any()
    assert not shift.cell.any()
    assert np.array_equal(shift.user.variance, entity_traces(evidence, "two-way")[0].variance)


def test_shift_from_cell_rates_is_below_zero_where_traits_are_strong(half_complete):
    _, evidence = half_complete
    shift = cell_shift(evidence.two_way, evidence.counts)
    assert shift.shape == evidence.counts.cells.shape
    weight = evidence.counts.pairs / evidence.counts.pairs.sum()
    assert -0.5 < (weight * shift).sum() < 0.0  # the mean over traits lies above the typical pair

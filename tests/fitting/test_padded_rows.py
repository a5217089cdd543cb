"""Fits, trainings, and several at once, of data sets of similar size share compiled programs, and
padding changes no result. The rows that are held out at random are those that are drawn without
padding."""

import jax
import numpy as np
import optax
import pytest
from least_squares import local_polynomial
from marks import slow

import attnkernel as ak
from attnkernel._core import rows as row_buckets
from attnkernel._core.rows import MAX_PADDED_ROWS, bucket_size
from attnkernel.objectives._hold_out import draw_rows


def data(n):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, 1))
    return x, np.sin(6 * x[:, 0]) + 0.3 * rng.normal(size=n), rng.uniform(0.5, 2.0, n)


def model(order=0):
    return ak.KernelRegression(ak.Gaussian(0.3), order=order)


def fit(n, model):
    x, y, _ = data(n)
    return ak.fit(model, x, y, objective=ak.AICc(), starts=1)


def test_another_number_of_rows_of_a_bucket_compiles_nothing(programs):
    first, second = (fit(n, model(1)) for n in (33, 39))
    first(np.linspace(0.0, 1.0, 18)), first.minima()
    programs.clear()
    third = fit(36, model(1))
    at = np.linspace(0.0, 1.0, 23)
    found, _ = third(at), third.minima()
    assert not programs
    x, lengthscale = np.asarray(third.x, float), np.asarray(third.model.kernel.lengthscale)
    expected = local_polynomial(at, x, lengthscale, 1) @ np.asarray(third.y)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert len({float(each.loss) for each in (first, second, third)}) == 3


def test_bias_reduced_fits_share_a_program_too(programs):
    reduced = ak.models.BiasReduced(model(), 4)
    first = fit(33, reduced)
    programs.clear()
    second = fit(38, reduced)
    assert not programs
    assert float(first.loss) != float(second.loss)


class MeanOfAll(ak.objectives.Objective):
    """An objective of a user's own, which reads every row and no weights."""

    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        assert x.shape[0] == 37
        return ((y - model(x, x, y, prior=ak.priors.ExcludeSelf())) ** 2).mean()


@pytest.mark.slow
def test_rows_are_not_padded_where_something_may_read_them(x64):
    x, y, _ = data(37)
    alone = ak.fit(model(), x, y, objective=MeanOfAll(), starts=1)
    padded = ak.fit(model(), x, y, starts=1)
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-9)
    assert padded.x.shape[0] == 37
    assert padded.objective.weights is None
    kernel = ak.NearestNeighbours(ak.kernels.Tricube(1.0), fraction=0.3)
    nearest = ak.KernelRegression(kernel.on(0) * ak.Gaussian(0.5))
    assert not nearest.can_pad_rows

    @jax.jit
    def both(x, y):
        return nearest(x, x, y), ak.attend(x, x, y[:, None], kernel=nearest.kernel)[:, 0]

    np.testing.assert_allclose(*both(x, y), rtol=1e-9)


KEY = np.array([0, 3], np.uint32)


def train(n, size=5, weighted=False, **options):
    x, y, weights = data(n)
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "key": jax.device_put(KEY)} | options
    weights = weights if weighted else None
    return ak.fit(model(), x, y, objective=ak.HoldOut(size), weights=weights, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "weighted"), [(5, True), (1, False), (5, False)])
def test_a_padded_training_equals_one_of_the_rows_alone(x64, monkeypatch, programs, size, weighted):
    """And another number of rows of the same bucket compiles nothing."""
    padded = train(37, size, weighted)
    programs.clear()
    other = train(38, size, weighted)
    assert not programs
    assert other.x.shape == (38, 1)
    assert (other.objective.weights is not None) == weighted
    assert float(padded.loss) != float(other.loss)
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = train(37, size, weighted)
    np.testing.assert_allclose(padded.history["loss"], alone.history["loss"], rtol=1e-12)
    lengthscales = (fit.model.kernel.lengthscale for fit in (padded, alone))
    np.testing.assert_allclose(*lengthscales, rtol=1e-12)


def test_the_first_loss_is_that_of_the_rows_drawn_from_all(x64):
    x, y, weights = data(37)
    drawn = jax.jit(lambda key: jax.random.permutation(jax.random.split(key)[1], 37))
    rows = np.asarray(drawn(KEY))[:5]
    kept = np.setdiff1d(np.arange(37), rows)
    predicted = local_polynomial(x[rows], x[kept], 0.3, weights=weights[kept]) @ y[kept]
    expected = np.average((y[rows] - predicted) ** 2, weights=weights[rows])
    found = train(37, weighted=True).history["loss"][0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("count", [30, 1660, slow(2), slow(1620)])
def test_rows_that_do_not_count_do_not_change_the_draw(count):
    """In any place; 1620 rows are sorted once, 1660 twice, and both are padded to 1664."""
    is_counted = np.zeros(row_buckets.bucket_size(count), bool)
    is_counted[np.random.default_rng(0).permutation(len(is_counted))[:count]] = True

    @jax.jit
    @jax.vmap
    def computed(key, is_counted):
        drawn = [draw_rows(key, len(is_counted), h, is_counted) for h in (1, 2)]
        return drawn, jax.random.permutation(key, count)

    keys = np.random.default_rng(3).integers(0, 2**32, (20, 2), np.uint32)
    drawn, rows = computed(keys, np.tile(is_counted, (20, 1)))
    for h, found in enumerate(drawn, 1):
        np.testing.assert_array_equal(found, np.flatnonzero(is_counted)[rows[:, :h]])


def test_rows_are_not_padded_where_random_bits_depend_on_their_number():
    assert ak.HoldOut(5).can_pad_rows
    with jax.threefry_partitionable(False):
        assert not ak.HoldOut(5).can_pad_rows


def test_sizes_grow_by_a_sixteenth_at_most_from_256_rows():
    sizes = np.array([bucket_size(n) for n in range(1, MAX_PADDED_ROWS + 1)])
    given = np.arange(1, MAX_PADDED_ROWS + 1)
    assert np.all(sizes >= given)
    assert np.all(np.diff(sizes) >= 0)
    assert np.all(sizes - given < np.maximum(8, given / 16))
    assert len(np.unique(sizes)) == 112
    assert [bucket_size(n) for n in (0, MAX_PADDED_ROWS + 1)] == [0, MAX_PADDED_ROWS + 1]

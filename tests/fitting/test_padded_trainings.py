"""Trainings, and several fits at once, of data sets of similar size share compiled programs.

The rows that are held out at random are those that are drawn without padding.
"""

import jax
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak
from attnkernel._core import rows as row_buckets
from attnkernel.objectives._hold_out import draw_rows

KEY = np.array([0, 3], np.uint32)
KEYS = np.array([[0, 3], [1, 4]], np.uint32)


def model():
    return ak.KernelRegression(ak.Gaussian(0.2))


def data(n):
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, 1))
    return x, np.sin(6 * x[:, 0]) + 0.3 * rng.normal(size=n), rng.uniform(0.5, 2.0, n)


def train(n, size=5, weighted=False, **options):
    x, y, weights = data(n)
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "key": jax.device_put(KEY)} | options
    weights = weights if weighted else None
    return ak.fit(model(), x, y, objective=ak.HoldOut(size), weights=weights, **options)


def fits(n, in_axes=(None, None, 0), **options):
    """Two trainings, of one data set or of two, or searches."""
    x, y, _ = data(n)
    objective = ak.HoldOut(np.array([1, 5]), at_most=5)
    if in_axes[1] == 0:
        x, y, objective = np.stack([x, x**2]), np.stack([y, 2 * y]), ak.LeaveOneOut()
        return ak.fit_many(model(), x, y, objective=objective, in_axes=in_axes, steps=20, starts=2)
    options = {"optimizer": optax.sgd(0.1), "steps": 5, "key": jax.device_put(KEYS)}
    return ak.fit_many(model(), x, y, objective=objective, in_axes=in_axes, **options)


@pytest.mark.parametrize(("size", "weighted"), [(5, True), slow(1, False), slow(5, False)])
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
    kernel = np.exp(-0.5 * ((x[rows] - x[kept].T) / 0.2) ** 2) * weights[kept]
    predicted = kernel @ y[kept] / kernel.sum(axis=1)
    expected = np.average((y[rows] - predicted) ** 2, weights=weights[rows])
    found = train(37, weighted=True).history["loss"][0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "in_axes", [(None, None, 0), slow((None, 0, None))], ids=["sizes", "data sets"]
)
def test_several_padded_fits_share_a_program_and_equal_those_of_the_rows_alone(
    x64, monkeypatch, programs, in_axes
):
    padded = fits(37, in_axes)
    programs.clear()
    other = fits(38, in_axes)
    assert not programs
    assert other.x.shape[-2:] == (38, 1)
    assert np.all(np.asarray(padded.loss) != np.asarray(other.loss))
    monkeypatch.setattr(row_buckets, "MAX_PADDED_ROWS", 0)
    alone = fits(37, in_axes)
    if in_axes[1] is None:
        np.testing.assert_allclose(padded.history["loss"], alone.history["loss"], rtol=1e-9)
    # of searches both starts meet at one minimum, and rounding tells whose history is kept
    np.testing.assert_allclose(padded.starts.loss, alone.starts.loss, rtol=1e-9)
    assert (padded.starts.edges is None) == (alone.starts.edges is None)
    assert jax.tree.structure(padded) == jax.tree.structure(alone)
    assert jax.tree.map(np.shape, padded) == jax.tree.map(np.shape, alone)


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


def test_a_training_that_holds_out_another_number_compiles_only_its_steps(programs):
    train(300, steps=7)
    programs.clear()
    train(300, size=6, steps=8)
    assert programs == ["jit(_advance_training)"]

"""Hold-out and leave-one-out against loops in NumPy, their profiles, samples and refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.objectives._hold_out import draw_rows

N = 17


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(N, 1))
    return jax.device_put((x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=N)))


def predict(x_new, x, y, lengthscale):
    weights = np.exp(-0.5 * ((x_new[:, None] - x[None]) / lengthscale) ** 2)
    return weights @ y / weights.sum(1)


def leave_one_out(x, y, lengthscale):
    """The mean square of the errors of a loop over rows."""
    others = [(np.delete(x, i), np.delete(y, i)) for i in range(len(x))]
    found = [predict(x[i : i + 1], *seen, lengthscale)[0] for i, seen in enumerate(others)]
    return np.mean((y - found) ** 2)


def test_hold_out_is_the_mean_square_error_of_the_held_out_rows(x64):
    """Holds out 1 row, 5 rows and all but one; the size is a number or an array."""
    x, y = sample()
    sizes = (1, 5, N - 1)
    model = ak.KernelRegression(ak.Gaussian(0.3))

    @jax.jit
    def computed(x, y, key, traced):
        as_arrays = [ak.HoldOut(size, at_most=N - 1) for size in traced]
        as_numbers = [ak.HoldOut(size) for size in sizes]
        found = [[o(model, x, y, key=key) for o in group] for group in (as_arrays, as_numbers)]
        return found, jax.random.permutation(key, N)

    losses, order = jax.device_get(computed(x, y, np.array([0, 3], np.uint32), np.array(sizes)))
    flat, labels = np.asarray(x)[:, 0], np.asarray(y)
    expected = []
    for size in sizes:
        held, seen = order[:size], order[size:]
        error = labels[held] - predict(flat[held], flat[seen], labels[seen], 0.3)
        expected.append(np.mean(error**2))
    np.testing.assert_allclose(losses, [expected, expected], rtol=1e-12)


def test_leave_one_out_is_the_mean_square_error_of_a_loop(x64):
    """And its profile is that at each lengthscale."""
    x, y = sample()
    at = np.array([0.1, 0.3, 2.0])
    expected = [leave_one_out(np.asarray(x)[:, 0], np.asarray(y), length) for length in at]
    model = ak.KernelRegression(ak.Gaussian(0.3))
    one = jax.jit(ak.LeaveOneOut().__call__)(model, x, y)
    np.testing.assert_allclose(one, expected[1], rtol=1e-12)
    found = ak.profile(model, x, y, at, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_squared_errors_of_several_labels_are_added(x64):
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(0.3))

    @jax.jit
    def computed(x, y, key):
        labels = (y, y**2, jnp.stack([y, y**2], axis=1))
        objectives = (ak.HoldOut(4), ak.LeaveOneOut())
        return [[o(model, x, each, key=key) for each in labels] for o in objectives]

    for one, other, both in jax.device_get(computed(x, y, np.zeros(2, np.uint32))):
        np.testing.assert_allclose(both, one + other, rtol=1e-12)


@pytest.mark.parametrize(
    ("lengthscales", "objective", "message"),
    [
        (np.ones(2), ak.HoldOut(2), "HoldOut"),
        (np.array([0.5, -0.25]), ak.LeaveOneOut(), r"lengthscales.*-0\.25"),
        (np.array([0.5, 0.0]), ak.LeaveOneOut(), r"lengthscales.*0\.5, 0\.0"),
    ],
    ids=["stochastic objective", "negative lengthscale", "lengthscale 0"],
)
def test_arguments_of_a_profile_that_are_refused(lengthscales, objective, message):
    x, y = sample()
    with pytest.raises(ValueError, match=message):
        ak.profile(ak.KernelRegression(ak.Gaussian(1.0)), x, y, lengthscales, objective=objective)


@pytest.mark.parametrize("wide", [True, slow(False)], ids=["float64", "float32"])
@pytest.mark.parametrize("partitionable", [True, False], ids=["partitionable keys", "old keys"])
def test_first_row_without_sorting_is_that_of_the_permutation(partitionable, wide):
    """Up to 1625 rows the permutation sorts once; beyond, it is called."""

    @jax.jit
    @jax.vmap
    def computed(key):
        sizes = (2, 1625, 1626)
        return [(draw_rows(key, n, 1), jax.random.permutation(key, n)[:1]) for n in sizes]

    keys = np.random.default_rng(2).integers(0, 2**32, (300, 2), np.uint32)
    with jax.threefry_partitionable(partitionable), jax.enable_x64(wide):
        for rows, expected in computed(keys):
            np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "size.*at least 1.*got 0"),
        ((5, 3), "at_most=3.*got 5"),
        ((np.array([1, 9]), 4), r"at_most=4.*\[1 9\]"),
        ((np.array([1, 9]),), "at_most="),
        ((np.float32(0.5),), "integer.*0.5"),
    ],
)
def test_hold_out_sizes_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ak.HoldOut(*arguments)


@pytest.mark.parametrize("size", [N, N + 4])
def test_hold_out_must_leave_a_row(size):
    with pytest.raises(ValueError, match=rf"HoldOut\({size}\).*{N} rows.*1 and {N - 1}"):
        ak.HoldOut(size).check(N)


def test_hold_out_needs_a_key():
    x, y = sample()
    with pytest.raises(ValueError, match="pass key="):
        ak.HoldOut(2)(ak.KernelRegression(ak.Gaussian(1.0)), x, y)


def one_of_each_part(n, parts):
    """A row at random of each of equal parts of n rows, by the generator with seed 0."""
    ends = np.arange(parts + 1) * n // parts
    return np.random.default_rng(0).integers(ends[:-1], ends[1:])


@pytest.mark.parametrize("n", [3001, slow(1024)])
def test_sample_of_leave_one_out_is_some_of_its_terms_in_any_order_of_rows(x64, n):
    """Compares a model of one kernel, and a model of one head with that kernel."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-2, 2, size=(n, 1)), rng.normal(size=n)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    keys = np.argsort(x[:, 0])[one_of_each_part(n, 1024)]
    longer = (n / len(keys)) ** 0.2
    error = []
    for k in one_of_each_part(1024, 128):
        others = np.delete(keys, k)
        at = x[keys[k]]
        error.append(predict(at, x[others, 0], y[others], 0.3 * longer)[0] - y[keys[k]])
    expected = np.mean(np.square(error)) / longer**4

    @eqx.filter_jit
    def computed(x, y, objective):
        heads = ak.MultiheadKernelRegression(ak.PerHead([ak.Gaussian(0.3)]), np.ones(1))
        return objective(model, x, y), objective(heads, x, y)

    for at in (np.arange(n), rng.permutation(n)):
        drawn = ak.LeaveOneOut().subsample(*jax.device_put((x[at], y[at])), 10)
        np.testing.assert_allclose(computed(*drawn), [expected, expected], rtol=1e-12)


def test_sample_for_one_start_is_leave_one_out_of_fewer_rows(x64):
    n, fewer = 2**17, 4000
    x = np.random.default_rng(0).uniform(-2, 2, size=(n, 2))
    y = np.sin(2 * x[:, 0])
    rows = np.argsort(x[:, 0])[one_of_each_part(n, fewer)]
    longer = (n / fewer) ** (1 / 6)
    errors = []
    for some in np.split(np.arange(fewer), 40):
        squares = sum((x[rows[some], None, d] - x[None, rows, d]) ** 2 for d in range(2))
        weights = np.exp(-0.5 * squares / (0.1 * longer) ** 2)
        weights[np.arange(len(some)), some] = 0.0
        errors.append(y[rows[some]] - weights @ y[rows] / weights.sum(1))
    expected = np.mean(np.square(errors)) / longer**4
    *data, objective = ak.LeaveOneOut().subsample(*jax.device_put((x, y)), 1)
    model = ak.KernelRegression(ak.Gaussian(0.1))
    found = eqx.filter_jit(lambda objective, *data: objective(model, *data))(objective, *data)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_leave_one_out_has_a_sample_only_of_many_rows():
    """From 1024 rows, or 131 072 for a single start."""

    def has_sample(rows, starts):
        x, y = jax.device_put((np.zeros((rows, 1)), np.zeros(rows)))
        return ak.LeaveOneOut().subsample(x, y, starts) is not None

    assert not has_sample(1023, 10)
    assert not has_sample(2**17 - 1, 1)
    assert has_sample(1024, 10)
    assert has_sample(2**17, 1)


def test_values_that_are_not_numbers_are_named_with_row_and_column():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6.0) ** 2
    model, given = ak.KernelRegression(ak.Gaussian(1.0)), x.astype(object)
    np.testing.assert_array_equal(model(given, given, y), model(x, x, y))
    for value in ("a", None, [1.0]):
        given[4, 1] = value
        with pytest.raises(ValueError, match=r"x.*row 4, column 1"):
            ak.fit(model, given, y, objective=ak.LeaveOneOut())


def test_hold_out_of_rows_without_weight_is_zero_and_their_nan_is_ignored(x64):
    x = np.linspace(0.0, 1.0, 50)[:, None]
    y, weights = np.sin(6 * x[:, 0]), np.r_[np.zeros(25), np.ones(25)]
    model = ak.KernelRegression(ak.Gaussian(0.2))
    key = np.array([0, 3], np.uint32)
    options = {"optimizer": optax.adam(0.1), "steps": 50, "key": jax.device_put(key)}
    unlabelled = np.where(weights > 0, y, np.nan)
    fit = ak.fit(model, x, unlabelled, objective=ak.HoldOut(1), weights=weights, **options)
    assert not np.any(np.asarray(fit.starts.diverged))
    assert np.all(np.isfinite(fit.history["loss"]))
    apart = x.copy()
    apart[:25] -= 9.0 * np.arange(1, 26)[:, None]  # no neighbours, so no prediction

    @jax.jit
    @jax.value_and_grad
    def computed(half_width, x, y, weights, key):
        model = ak.KernelRegression(ak.Epanechnikov(half_width))
        return ak.HoldOut(20).with_weights(weights)(model, x, y, key=key)

    assert np.all(np.isfinite(computed(0.3, apart, y, weights, key)))


def test_weights_of_another_length_are_refused():
    x, y = np.linspace(0.0, 1.0, 20), np.sin(np.arange(20.0))
    for objective in (ak.LeaveOneOut, ak.GCV, ak.AICc, lambda **w: ak.KFold(5, **w)):
        with pytest.raises(ValueError, match=r"weights of shape .19,., and there are 20 rows"):
            ak.fit(
                ak.KernelRegression(ak.Gaussian(0.1)),
                x,
                y,
                objective=objective(weights=np.ones(19)),
            )


def test_weights_with_an_index_go_to_fit(as_users_run_it):
    with pytest.raises(ValueError, match=r"pass them as ak.fit"):
        ak.LeaveOneOut(weights=pd.Series(np.ones(20)))

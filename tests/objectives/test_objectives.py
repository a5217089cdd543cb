"""Objectives against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnkernel as ak
from attnkernel.fit._objectives import _first_rows

N = 17


def sample():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(N, 1))
    return jnp.asarray(x), jnp.asarray(np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=N))


def predict(x_new, x, y, lengthscale):
    weights = np.exp(-0.5 * ((x_new[:, None] - x[None]) / lengthscale) ** 2)
    return weights @ y / weights.sum(1)


@pytest.mark.parametrize("size", [1, 5, N - 1])
def test_hold_out_is_a_loop_over_held_out_rows(x64, size):
    x, y = sample()
    key = jax.random.PRNGKey(3)
    order = np.asarray(jax.random.permutation(key, N))
    held, seen = order[:size], order[size:]
    flat, labels = np.asarray(x)[:, 0], np.asarray(y)
    error = labels[held] - predict(flat[held], flat[seen], labels[seen], 0.3)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    for objective in (ak.HoldOut(size), ak.HoldOut(jnp.array(size), at_most=N - 1)):
        np.testing.assert_allclose(objective(model, x, y, key=key), np.mean(error**2), rtol=1e-12)


def test_leave_one_out_is_a_loop(x64):
    x, y = sample()
    flat, labels = np.asarray(x)[:, 0], np.asarray(y)
    errors = []
    for i in range(N):
        seen = np.arange(N) != i
        errors.append(labels[i] - predict(flat[i : i + 1], flat[seen], labels[seen], 0.3)[0])
    value = ak.LeaveOneOut()(ak.KernelRegression(ak.Gaussian(0.3)), x, y)
    np.testing.assert_allclose(value, np.mean(np.square(errors)), rtol=1e-12)


def test_several_outputs_add_their_errors(x64):
    x, y = sample()
    model, key = ak.KernelRegression(ak.Gaussian(0.3)), jax.random.PRNGKey(0)
    for objective in (ak.HoldOut(4), ak.LeaveOneOut()):
        one, other = (objective(model, x, labels, key=key) for labels in (y, y**2))
        both = objective(model, x, jnp.stack([y, y**2], axis=1), key=key)
        np.testing.assert_allclose(both, one + other, rtol=1e-12)


def test_profile_is_the_objective_at_each_lengthscale(x64):
    x, y = sample()
    model, at = ak.KernelRegression(ak.Gaussian(1.0)), np.array([0.1, 0.5, 2.0])
    expected = [ak.LeaveOneOut()(ak.KernelRegression(ak.Gaussian(ell)), x, y) for ell in at]
    found = ak.profile(model, x, y, at, objective=ak.LeaveOneOut())
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_drawn_objective_has_no_profile():
    x, y = sample()
    with pytest.raises(ValueError, match="drawn anew"):
        ak.profile(ak.KernelRegression(ak.Gaussian(1.0)), x, y, np.ones(2), objective=ak.HoldOut(2))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("partitionable", [True, False])
@pytest.mark.parametrize("n", [2, 1625, 1626])
def test_first_row_without_sorting_is_that_of_the_permutation(n, partitionable, wide):
    with jax.threefry_partitionable(partitionable), jax.enable_x64(wide):
        keys = jax.random.split(jax.random.PRNGKey(n), 300)
        rows = jax.vmap(lambda key: _first_rows(key, n, 1))(keys)
        expected = jax.vmap(lambda key: jax.random.permutation(key, n)[:1])(keys)
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "at least 1 row"),
        ((5, 3), "no more than at_most=3; got 5"),
        ((np.array([1, 9]), 4), "no more than at_most=4"),
        ((np.array([1, 9]),), "needs at_most="),
        ((np.float32(0.5),), "whole number of rows"),
    ],
)
def test_hold_out_sizes_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        ak.HoldOut(*arguments)


@pytest.mark.parametrize("size", [N, N + 4])
def test_hold_out_must_leave_a_row(size):
    with pytest.raises(ValueError, match=rf"HoldOut\({size}\).*there are {N} rows.*between 1 and"):
        ak.HoldOut(size).check(N)


def test_hold_out_without_a_key_says_so():
    x, y = sample()
    with pytest.raises(ValueError, match="pass key="):
        ak.HoldOut(2)(ak.KernelRegression(ak.Gaussian(1.0)), x, y)


@pytest.mark.parametrize("n", [1024, 3001])
def test_a_sample_is_some_terms_of_leave_one_out_in_any_order(x64, n):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-2, 2, size=(n, 1)), rng.normal(size=n)
    model = ak.KernelRegression(ak.Gaussian(0.3))
    keys = np.argsort(x[:, 0])
    keys = keys[np.arange(1024) * n // 1024 + n // 2048]
    longer = (n / len(keys)) ** 0.2
    error = []
    for k in np.arange(128) * len(keys) // 128 + len(keys) // 256:
        others = np.delete(keys, k)
        at = x[keys[k]]
        error.append(predict(at, x[others, 0], y[others], 0.3 * longer)[0] - y[keys[k]])
    expected = np.mean(np.square(error)) / longer**4
    for at in (np.arange(n), rng.permutation(n)):
        shuffled = jnp.asarray(x[at]), jnp.asarray(y[at])
        objective, *data = ak.LeaveOneOut().on_sample(*shuffled, 10)
        np.testing.assert_allclose(objective(model, *data), expected, rtol=1e-12)


def test_a_sample_of_many_rows_is_of_a_model_that_suits_fewer(x64):
    n, fewer = 2**17, 4000
    x = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, size=(n, 2)))
    y = jnp.sin(2 * x[:, 0])
    rows = np.argsort(x[:, 0])[np.arange(fewer) * n // fewer + n // (2 * fewer)]
    longer = (n / fewer) ** (1 / 6)
    objective, *data = ak.LeaveOneOut().on_sample(x, y, 1)
    suited = ak.KernelRegression(ak.Gaussian(0.1 * longer))
    expected = ak.LeaveOneOut()(suited, x[rows], y[rows]) / longer**4
    for weights in (None, jnp.array([1.0])):
        model = ak.KernelRegression(ak.Gaussian(0.1))
        if weights is not None:
            model = ak.MultiheadKernelRegression(jax.vmap(ak.Gaussian)(jnp.array([0.1])), weights)
        np.testing.assert_allclose(objective(model, *data), expected, rtol=1e-12)


def test_few_rows_have_no_sample():
    for rows, starts in ((1023, 10), (2**17 - 1, 1)):
        assert ak.LeaveOneOut().on_sample(jnp.zeros((rows, 1)), jnp.zeros(rows), starts) is None
    for rows, starts in ((1024, 10), (2**17, 1)):
        assert ak.LeaveOneOut().on_sample(jnp.zeros((rows, 1)), jnp.zeros(rows), starts) is not None


@pytest.mark.parametrize("value", ["a", None, [1.0]])
def test_what_is_no_number_is_named_with_its_place(value):
    x = np.arange(12.0).reshape(6, 2).astype(object)
    y = np.arange(6.0) ** 2
    model = ak.KernelRegression(ak.Gaussian(1.0))
    np.testing.assert_allclose(model(x, x, y), model(x.astype(float), x.astype(float), y))
    x[4, 1] = value
    with pytest.raises(ValueError, match=r"x must be numbers; row 4, column 1 \(counted"):
        ak.fit(model, x, y, objective=ak.LeaveOneOut())


def test_hold_out_of_rows_without_weight(x64):
    """A draw of such rows alone asks for nothing, and no NaN of theirs counts."""
    x = jnp.linspace(0.0, 1.0, 50)[:, None]
    y, weights = jnp.sin(6 * x[:, 0]), jnp.r_[jnp.zeros(25), jnp.ones(25)]
    model = ak.KernelRegression(ak.Gaussian(0.2))
    options = {"optimizer": optax.adam(0.1), "steps": 50, "key": jax.random.PRNGKey(0)}
    fit = ak.fit(model, x, y, objective=ak.HoldOut(1), weights=weights, **options)
    assert not fit.starts.diverged.any()
    assert np.all(np.isfinite(fit.history["loss"]))
    assert np.any(np.asarray(fit.history["loss"]) == 0.0)
    apart = x.at[:25].add(-9.0 * jnp.arange(1, 26)[:, None])  # no neighbours, so no prediction
    objective = ak.HoldOut(20).weighted(weights)
    loss, slope = jax.value_and_grad(
        lambda h: objective(
            ak.KernelRegression(ak.Epanechnikov(h)), apart, y, key=jax.random.PRNGKey(3)
        )
    )(0.3)
    assert np.isfinite(loss)
    assert np.isfinite(slope)

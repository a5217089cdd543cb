"""Weights of rows, and predictions where no label has weight: alike in every regressor."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import KERNELS

import attnkernel as ak
from attnkernel.priors import HeldOut, Where

N = 12
X = np.linspace(0.0, 1.0, N)
Y = np.stack([np.sin(6 * X), X**2], axis=1)
AT = np.array([0.1, 0.55, 0.93])
KEY = jax.random.PRNGKey(0)


def regressors(on_empty="nan"):
    kernel = ak.Epanechnikov(0.3)
    constant = ak.KernelRegression(kernel, on_empty=on_empty)
    heads = ak.PerHead([kernel, ak.Epanechnikov(0.5)])
    learned = ak.LearnedKernelRegression(1, 2, kernel=ak.Gaussian(1.0), on_empty=on_empty, key=KEY)
    return {
        "local constant": constant,
        "local linear": ak.KernelRegression(kernel, order=1, on_empty=on_empty),
        "bias-reduced": ak.BiasReduced(constant, 3),
        "heads": ak.MultiheadKernelRegression(heads, on_empty=on_empty),
        "learned": learned,
        "mean and variance": ak.MeanVarianceRegression(constant, constant),
    }


@eqx.filter_jit
def predict(models, x_new, x, y, **options):
    return {name: model(x_new, x, y, **options) for name, model in models.items()}


def require_equal(found, expected, **tolerances):
    for name, one in jax.device_get(expected).items():
        for a, b in zip(jax.tree.leaves(found[name]), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a, b, err_msg=name, **tolerances)


def test_rows_of_weight_zero_are_ignored(x64):
    """Whatever their labels are."""
    dropped = np.arange(N) % 4 == 1
    weights = np.where(dropped, 0.0, 1.0 + np.arange(N) % 3)
    spoilt = np.where(dropped[:, None], 1e30, Y)
    whole = predict(regressors(), AT, X, spoilt, weights=weights)
    part = [rows[~dropped] for rows in (X, Y)]
    require_equal(whole, predict(regressors(), AT, *part, weights=weights[~dropped]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [bool, float])
def test_search_boxes_ignore_rows_of_weight_zero(x64, dtype):
    """The boxes of every kernel and of the models."""
    weights = (np.arange(N) % 4 != 1).astype(dtype)
    x = np.stack([np.arange(N) % 5, X**3], axis=1)  # a column of categories, or of ties
    models = {name: model for name, model in regressors().items() if hasattr(model, "search_box")}

    @eqx.filter_jit
    def boxes(x, part, weights):
        several = (KERNELS, x, part), (models, x[:, 1:], part[:, 1:])
        return [
            {
                name: (each.search_box(rows, weights), each.search_box(kept))
                for name, each in of.items()
            }
            for of, rows, kept in several
        ]

    for found in boxes(jnp.asarray(x, float), jnp.asarray(x[weights > 0], float), weights):
        for name, (whole, part) in found.items():
            leaves = (jax.tree.leaves(eqx.filter(box, eqx.is_array)) for box in (whole, part))
            for a, b in zip(*leaves, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=name)
    assert {"local constant", "bias-reduced", "heads", "mean and variance"} <= models.keys()


def test_a_row_of_weight_two_counts_twice(x64):
    """But in a left-out residual, which leaves out both copies or one."""
    models = regressors()
    del models["mean and variance"]
    twice = np.arange(N) % 3 == 0
    copies = np.repeat(np.arange(N), 1 + twice)
    found = predict(models, AT, X, Y, weights=1.0 + twice)
    require_equal(found, predict(models, AT, X[copies], Y[copies]), rtol=1e-9)


@pytest.mark.parametrize("on_empty", ["nan", "nearest", "mean"])
def test_predictions_without_a_label_follow_on_empty(x64, on_empty):
    """The prior hides all rows from the first query, and the last rows from the others."""
    weights = 1.0 + np.arange(N) % 3
    far = np.array([9.0, 30.0])
    models = regressors(on_empty)
    del models["learned"]  # its kernel reaches everywhere
    found = predict(models, far, X, Y, prior=Where(lambda i, j: (i > 0) & (j < 7)), weights=weights)
    mean = np.average(Y[:7], axis=0, weights=weights[:7])
    expected = {"nan": np.full(2, np.nan), "nearest": Y[6], "mean": mean}[on_empty]
    for name, out in found.items():
        out = out[0] if isinstance(out, tuple) else out
        assert np.isnan(out[0]).all(), name
        np.testing.assert_allclose(out[1], expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("on_empty", ["nan", "nearest", "mean"])
def test_a_learned_regression_follows_on_empty(x64, on_empty):
    """Its kernel is compact in the projected inputs; its own prior hides the last rows."""
    options = {"kernel": ak.Boxcar(0.1), "prior": Where(lambda i, j: j < 7), "key": KEY}
    model = ak.LearnedKernelRegression(1, 2, on_empty=on_empty, **options)
    found = predict({"": model}, np.array([1e3]), X, Y)[""][0]
    expected = {"nan": [np.nan] * 2, "nearest": Y[6], "mean": Y[:7].mean(axis=0)}[on_empty]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_raise_is_an_error_in_every_regressor():
    hidden = HeldOut(np.ones(N, bool))
    for name, model in regressors("raise").items():
        with pytest.raises(Exception, match="no label within reach"):
            jax.block_until_ready(model(AT, X, Y, prior=hidden))
        assert name


def test_heads_of_a_rule_and_of_a_kernel(x64):
    """Either may be for each head, as in `attend`."""
    temperatures = ak.PerHead(eqx.filter_vmap(ak.Softmax)(jnp.array([0.5, 2.0])))
    model = ak.MultiheadKernelRegression(ak.Gaussian(0.3), np.array([2.0, -1.0]), rule=temperatures)
    one, other = (
        ak.KernelRegression(ak.Gaussian(0.3), rule=ak.Softmax(tau))(AT, X, Y[:, 0])
        for tau in (0.5, 2.0)
    )
    np.testing.assert_allclose(model(AT, X, Y[:, 0]), 2 * one - other, rtol=1e-9)


def test_policies_that_need_one_prior_are_refused_with_priors_of_heads():
    alibi = ak.PerHead([ak.Alibi(0.5), ak.Alibi(1.0)])
    with pytest.raises(ValueError, match=r"on_empty='mean'.*prior"):
        ak.LearnedKernelRegression(1, num_heads=2, prior=alibi, on_empty="mean", key=KEY)

"""Weights of rows, and predictions where no label has weight: alike in every regressor."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import KERNELS
from marks import slow

import attnkernel as ak
from attnkernel.priors import HeldOut, MaskFunction

N = 12
X = np.linspace(0.0, 1.0, N)
Y = np.stack([np.sin(6 * X), X**2], axis=1)
AT = np.array([0.1, 0.55, 0.93])


def regressors(on_empty="nan"):
    kernel = ak.Epanechnikov(0.3)
    constant = ak.KernelRegression(kernel, on_empty=on_empty)
    heads = ak.PerHead([kernel, ak.Epanechnikov(0.5)])
    options = {"on_empty": on_empty, "key": jax.random.PRNGKey(0)}
    return {
        "local constant": constant,
        "local linear": ak.KernelRegression(kernel, order=1, on_empty=on_empty),
        "bias-reduced": ak.models.BiasReduced(constant, 3),
        "heads": ak.MultiheadKernelRegression(heads, on_empty=on_empty),
        "learned": ak.LearnedKernelRegression(1, 2, kernel=ak.Gaussian(1.0), **options),
        "mean and variance": ak.MeanVarianceRegression(constant, constant),
    }


@eqx.filter_jit
def predict(left_out, x_new, x, y, *, on_empty="nan", **options):
    """Predictions of all regressors but one."""
    models = regressors(on_empty)
    del models[left_out]
    return {name: model(x_new, x, y, **options) for name, model in models.items()}


def test_a_weight_of_k_is_k_rows_and_a_weight_of_0_none(x64):
    """Whatever the labels of rows of weight 0 are. A left-out residual, which the variance needs,
    leaves out both copies or one: of it see `test_mean_variance.py`."""
    counts = np.arange(N) % 3
    spoilt = np.where(counts[:, None] > 0, Y, 1e30)
    copies = np.repeat(np.arange(N), counts)
    without = "mean and variance"
    found = predict(without, AT, X, spoilt, weights=1.0 * counts)
    expected = predict(without, AT, X[copies], Y[copies])
    for name, out in expected.items():
        np.testing.assert_allclose(found[name], out, rtol=1e-9, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [bool, slow(float)])
def test_search_boxes_ignore_rows_of_weight_zero(x64, dtype):
    """The boxes of every kernel and of the models."""
    weights = (np.arange(N) % 4 != 1).astype(dtype)
    x = np.stack([np.arange(N) % 5, X**3], axis=1)  # a column of categories, or of ties

    @jax.jit
    def boxes(x, part, weights):
        models = regressors()
        del models["learned"]
        several = (KERNELS, x, part), (models, x[:, 1:], part[:, 1:])
        found = {
            name: (each.search_box(rows, weights), each.search_box(kept))
            for of, rows, kept in several
            for name, each in of.items()
        }
        return eqx.filter(found, eqx.is_array)

    found = jax.device_get(boxes(x, x[weights > 0], weights))
    for name, (whole, part) in found.items():
        for a, b in zip(*map(jax.tree.leaves, (whole, part)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("on_empty", ["mean", slow("nan"), slow("nearest")])
def test_predictions_without_a_label_follow_on_empty(x64, on_empty):
    """The prior hides all rows from the first query, and the last rows from the others."""
    weights = 1.0 + np.arange(N) % 3
    far = np.array([9.0, 30.0])
    options = {"prior": MaskFunction(lambda i, j: (i > 0) & (j < 7)), "weights": weights}
    # the kernel of the learned regression reaches everywhere
    found = jax.device_get(predict("learned", far, X, Y, on_empty=on_empty, **options))
    mean = np.average(Y[:7], axis=0, weights=weights[:7])
    expected = {"nan": np.full(2, np.nan), "nearest": Y[6], "mean": mean}[on_empty]
    for name, out in found.items():
        out = out[0] if isinstance(out, tuple) else out
        assert np.isnan(out[0]).all(), name
        np.testing.assert_allclose(out[1], expected, rtol=1e-12, err_msg=name)


def test_a_learned_regression_follows_on_empty(x64):
    """Its kernel is compact in the projected inputs; its own prior hides the last rows."""
    expected = {"nan": [np.nan] * 2, "nearest": Y[6], "mean": Y[:7].mean(axis=0)}

    @jax.jit
    def results(x, y):
        prior, key = MaskFunction(lambda i, j: j < 7), jax.random.PRNGKey(0)
        options = {"kernel": ak.kernels.Boxcar(0.1), "prior": prior, "key": key}
        models = [ak.LearnedKernelRegression(1, 2, on_empty=each, **options) for each in expected]
        return [model(np.array([1e3]), x, y)[0] for model in models]

    np.testing.assert_allclose(results(X, Y), list(expected.values()), rtol=1e-12)


@pytest.mark.slow
def test_raise_is_an_error_in_every_regressor():
    """One program, in which a regressor is chosen by its number."""

    @jax.jit
    def prediction(number):
        models = regressors("raise").values()
        return jax.lax.switch(
            number,
            [
                lambda model=model: sum(
                    map(jnp.sum, jax.tree.leaves(model(AT, X, Y, prior=hidden)))
                )
                for model in models
            ],
        )

    hidden = HeldOut(np.ones(N, bool))
    for number in range(6):
        with pytest.raises(Exception, match="no label within reach"):
            jax.block_until_ready(prediction(number))


def test_heads_of_a_rule_and_of_a_kernel(x64):
    """Either may be for each head, as in `attend`."""

    @jax.jit
    def results(temperatures):
        kernel = ak.Gaussian(0.3)
        rules = eqx.filter_vmap(ak.Softmax)(temperatures)
        model = ak.MultiheadKernelRegression(kernel, np.array([2.0, -1.0]), rule=ak.PerHead(rules))
        return model(AT, X, Y[:, 0])

    of_pairs = -0.5 * ((AT[:, None] - X) / 0.3) ** 2
    weights = np.exp(of_pairs / np.array([0.5, 2.0])[:, None, None])
    one, other = weights @ Y[:, 0] / weights.sum(axis=2)
    np.testing.assert_allclose(results(np.array([0.5, 2.0])), 2 * one - other, rtol=1e-9)


def test_policies_that_need_one_prior_are_refused_with_priors_of_heads():
    alibi = ak.PerHead([ak.Alibi(0.5), ak.Alibi(1.0)])
    options = {"num_heads": 2, "prior": alibi, "on_empty": "mean"}
    with pytest.raises(ValueError, match=r"on_empty='mean'.*prior"):
        jax.eval_shape(lambda: ak.LearnedKernelRegression(1, **options, key=jax.random.PRNGKey(0)))

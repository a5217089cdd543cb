"""Numbers held fixed, of kernels, dimensions and heads, stay as they are in a fit."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from marks import slow

import attnkernel as ak
from attnkernel import priors


def fixed_and_trained():
    """Yields kernels with a fixed number and a trained one, and how to read the two."""
    both = ak.Gaussian(ak.fixed(0.3)).on(0) * ak.Gaussian(0.5).on(1)
    vector = ak.Gaussian(ak.fixed(np.array([0.3, 2.0])))
    yield both, lambda k: k.first.kernel.lengthscale, lambda k: k.second.kernel.lengthscale
    yield ak.kernels.RationalQuadratic(ak.fixed(0.3)), lambda k: k.lengthscale, lambda k: k.alpha
    yield ak.Periodic(0.5, ak.fixed(3.0)), lambda k: k.period, lambda k: k.lengthscale
    yield ak.Gaussian(metric=ak.fixed(np.eye(2) + 0.2)), lambda k: k.metric, lambda k: k.lengthscale
    yield vector * ak.Laplace(2.0), lambda k: k.first.lengthscale, lambda k: k.second.lengthscale
    mixed = ak.kernels.LiRacine(ak.fixed(0.2)).on(0) * ak.Gaussian(0.5).on(1)
    yield mixed, lambda k: k.first.kernel.bandwidth, lambda k: k.second.kernel.lengthscale


@pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")  # many kernels, of few rows
@pytest.mark.parametrize(
    "options",
    [{"starts": 1}, slow({"optimizer": optax.adam(0.1), "steps": 3})],
    ids=["bfgs", "adam"],
)
def test_a_fixed_number_of_a_kernel_stays_in_a_fit_in_which_others_move(x64, options):
    kernels, fixed_of, trained_of = zip(*fixed_and_trained(), strict=True)
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, 30), rng.random(30)], axis=1)
    y = np.sin(6 * x[:, 1]) + 0.1 * rng.normal(size=30)
    model = ak.KernelRegression(math.prod(kernels[1:], start=kernels[0]))
    unfitted = float(eqx.filter_jit(ak.LeaveOneOut())(model, x, y))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), **options)
    product = fit.model.kernel
    for i in reversed(range(len(kernels))):
        product, found = (product.first, product.second) if i else (None, product)
        np.testing.assert_array_equal(fixed_of[i](found), fixed_of[i](kernels[i]))
        assert float(trained_of[i](found)) != float(trained_of[i](kernels[i]))
    assert float(fit.loss) < unfitted


def test_a_fixed_number_of_a_kernel_is_rescaled(x64):
    kernels = [kernel for kernel, _, _ in fixed_and_trained()]
    q = np.stack([[0, 2, 1, 1], np.random.default_rng(0).random(4)], axis=1)
    longer = [ak.kernels.rescaled(kernel, 2.0) for kernel in kernels]
    assert [len(jax.tree.leaves(each)) for each in longer] == [
        len(jax.tree.leaves(each)) for each in kernels
    ]
    # lengths twice as long are inputs half as far apart; halved categories are still different.
    # A period stays
    chord = ak.Periodic(1.0, ak.fixed(3.0))

    @eqx.filter_jit
    def scores(longer, factor, q):
        found = [kernel.pairwise(q, q) for kernel in longer]
        traced = [ak.kernels.rescaled(kernel, factor).pairwise(q, q) for kernel in kernels]
        expected = [kernel.pairwise(0.5 * q, 0.5 * q) for kernel in kernels]
        expected[2] = chord.pairwise(q, q)
        return found, traced, expected

    found = zip(*scores(longer, jnp.float64(2.0), jnp.asarray(q)), strict=True)
    for concrete, traced, expected in found:
        np.testing.assert_allclose(concrete, expected, rtol=1e-12)
        np.testing.assert_allclose(traced, expected, rtol=1e-12)


def test_a_model_of_fixed_numbers_is_not_fitted(x64):
    x, y = np.random.default_rng(0).random((2, 20))
    model = ak.KernelRegression(ak.Gaussian(ak.fixed(0.3)))
    with pytest.raises(ValueError, match="model has nothing to fit: every number is fixed"):
        ak.fit(model, x, y, objective=ak.LeaveOneOut())
    free = ak.KernelRegression(ak.Gaussian(0.3))
    at = np.array([0.1, 0.3])
    profiles = [ak.profile(each, x, y, at, objective=ak.LeaveOneOut()) for each in (model, free)]
    np.testing.assert_allclose(*profiles, rtol=1e-13)


def test_fixed_lengthscales_of_dimensions_and_of_heads(x64):
    rng = np.random.default_rng(1)
    x, v = rng.normal(size=(7, 2)), rng.normal(size=(7, 3))
    lengths = np.array([[0.5, 2.0], [1.0, 3.0]])
    one, fixed_metrics = ak.fixed(1.0), [ak.fixed(np.diag(each**-2)) for each in lengths]
    trained = ak.PerHead([ak.Gaussian(each) for each in lengths])
    fixed = ak.PerHead([ak.Gaussian(ak.fixed(each)) for each in lengths])
    metric = ak.PerHead([ak.Gaussian(one, metric=each) for each in fixed_metrics])
    single = [np.float32(array) for array in (x, x, v)]

    @eqx.filter_jit
    def results(trained, x, v, single):
        kernel = ak.Gaussian(ak.fixed(lengths[0]))
        of_method = [
            ak.attend(*single, kernel=kernel, method=method)
            for method in (ak.methods.Dense(), ak.methods.Blockwise(2, 2))
        ]
        return [ak.attend(x, x, v, kernel=heads) for heads in (trained, fixed, metric)], of_method

    (expected, *others), of_method = results(trained, x, v, single)
    for heads, found in zip((fixed, metric), others, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert not [leaf for leaf in jax.tree.leaves(heads) if eqx.is_inexact_array(leaf)]
    with pytest.raises(ValueError, match=r"2 lengthscales.*3 dimensions"):
        ak.attend(v, v, v, kernel=ak.Gaussian(ak.fixed(lengths[0])))
    for out in of_method:
        np.testing.assert_allclose(out, np.asarray(expected)[0], rtol=1e-4, atol=1e-5)


HEADS, ROWS, DIM = 4, 5, 3


@pytest.mark.parametrize(
    ("part", "of_head"),
    [
        (
            {"prior": ak.Alibi(heads=HEADS)},
            lambda h: {"prior": ak.Alibi(ak.fixed(2.0 ** (-2.0 * (h + 1))))},
        ),
        (
            {"rule": ak.Softmax(ak.fixed(np.array([0.5, 1.0, 2.0, 4.0])))},
            lambda h: {"rule": ak.Softmax(ak.fixed(2.0 ** (h - 1)))},
        ),
    ],
    ids=["slopes", "temperatures"],
)
@pytest.mark.parametrize("method", [ak.methods.Dense(), ak.methods.Blockwise(2, 2)], ids=repr)
def test_fixed_numbers_of_heads(x64, part, of_head, method):
    """They are those of each head, summed at once, and no optimiser sees them."""
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, HEADS, ROWS, DIM))
    given = {name: ak.PerHead(value) for name, value in part.items()}
    assert not [leaf for leaf in jax.tree.leaves(given) if eqx.is_inexact_array(leaf)]
    kernel = ak.DotProduct()

    @jax.jit
    def both(q, k, v):
        together = ak.attend(q, k, v, kernel=kernel, method=method, **given)
        alone = {"kernel": kernel, "method": ak.methods.Dense()}
        heads = [ak.attend(q[h], k[h], v[h], **alone, **of_head(h)) for h in range(HEADS)]
        return together, jnp.stack(heads)

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-12)
    with pytest.raises(ValueError, match=r"shape \(4,\).*PerHead"):
        ak.attend(q[0], k[0], v[0], kernel=kernel, method=method, **part)


def test_slopes_of_heads_are_those_of_the_paper():
    np.testing.assert_allclose(priors.alibi_slopes(8), 0.5 ** np.arange(1.0, 9.0))
    assert isinstance(priors.alibi_slopes(8), np.ndarray)
    for options in ({}, {"slope": 0.5, "heads": 8}, {"heads": 0}):
        with pytest.raises(ValueError, match=r"heads"):
            ak.Alibi(**options)

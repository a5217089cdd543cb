"""Local likelihood where windows are separated, all zero, empty or rank-deficient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak


@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("order", [1, slow(2)])
def test_separated_labels_have_a_bounded_fit_and_finite_derivatives(x64, dtype, least, order):
    """Labels 0 left of 1 and 1 right of it, within a hole of the design: the maximum is at
    infinity in windows of both, and where all labels are equal."""
    x = np.concatenate([np.linspace(0.0, 0.8, 9), np.linspace(1.2, 2.0, 9)]).astype(dtype)
    y = (x > 1).astype(dtype)
    x_new = np.array([0.0, 0.9, 1.1, 2.0], dtype)

    @jax.jit
    def computed(lengthscale, x_new, x, y):
        def predict(lengthscale, y):
            model = ak.LocalLikelihood(
                ak.Epanechnikov(lengthscale), family=ak.Binomial(), order=order
            )
            return model(x_new, x, y)

        loss = lambda *at: ak.LeaveOneOut()(  # noqa: E731
            ak.LocalLikelihood(ak.Epanechnikov(at[0]), family=ak.Binomial(), order=order),
            x[:, None],
            at[1],
        )
        return (
            predict(lengthscale, y),
            jax.jacrev(predict, (0, 1))(lengthscale, y),
            jax.grad(loss, (0, 1))(lengthscale, y),
        )

    mean, *slopes = computed(jnp.asarray(0.7, dtype), x_new, x, y)
    assert mean.dtype == dtype
    assert 0.0 <= mean[0] < least
    assert mean[1] < 0.5 < mean[2]
    assert 1.0 - least < mean[3] <= 1.0
    assert all(np.all(np.isfinite(part)) for part in jax.tree.leaves(slopes))


def test_counts_of_zero_in_reach_predict_zero(x64):
    x = np.linspace(0.0, 4.0, 41)
    y = np.where(x > 2, 5.0, 0.0)
    model = ak.LocalLikelihood(ak.Epanechnikov(0.5), family=ak.Poisson(), order=1)
    mean = model(np.array([1.0, 3.0]), x, y)
    np.testing.assert_allclose(mean, [0.0, 5.0], rtol=1e-12, atol=1e-100)
    settled = model.local_fit(np.array([1.0]), x, y).coefficients[0, :, 0]
    np.testing.assert_array_equal(settled, [jnp.log(ak.Poisson().inside(jnp.zeros(()))), 0.0])
    assert np.isfinite(ak.LeaveOneOut()(model, jnp.asarray(x)[:, None], jnp.asarray(y)))


@pytest.mark.parametrize("order", [0, 1])
def test_empty_windows_follow_the_policy(x64, order):
    x, y = np.linspace(0.0, 1.0, 11), np.linspace(1.0, 2.0, 11)
    predict = lambda on_empty: ak.LocalLikelihood(  # noqa: E731
        ak.Boxcar(0.25), family=ak.Gamma(), order=order, on_empty=on_empty
    )(np.array([0.5, 7.0]), x, y)
    assert np.isnan(predict("nan")[1])
    np.testing.assert_allclose(predict("nearest")[1], 2.0)
    np.testing.assert_allclose(predict("mean"), [predict("nan")[0], 1.5])
    with pytest.raises(Exception, match="no label within reach"):
        jax.block_until_ready(predict("raise"))


def test_a_design_that_does_not_determine_the_slope_gives_the_local_mean(x64):
    """Two rows at one input: order 1 is of lower order there, with a flag and a warning."""
    x, y = np.array([0.0, 0.0, 1.0, 1.2]), np.array([2.0, 4.0, 1.0, 1.0])
    model = ak.LocalLikelihood(ak.Boxcar(0.5), family=ak.Poisson(), order=1)
    local = model.local_fit(np.zeros(1), x, y)
    assert local.deficient[0]
    np.testing.assert_allclose(local.coefficients[0, 0, 0], np.log(3.0), rtol=1e-12)
    with pytest.warns(ak.ExtrapolationWarning, match="local linear, Poisson"):
        model(np.zeros(1), x, y)

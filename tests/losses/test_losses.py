"""Robust losses against their formulas and those of statsmodels."""

import jax
import numpy as np
import pytest
from statsmodels.robust import norms

import attnkernel as ak


@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        (ak.losses.Bisquare(), norms.TukeyBiweight(6.0 * 0.6744897501960817)),
        (ak.losses.Bisquare(4.685), norms.TukeyBiweight(4.685)),
        (ak.Huber(), norms.HuberT(1.345)),
        (ak.Huber(2.0), norms.HuberT(2.0)),
    ],
)
def test_weights_and_influence_equal_those_of_statsmodels(x64, loss, theirs):
    u = np.r_[np.linspace(-7.1, 7.1, 57), 0.0, loss.cutoff]

    @jax.jit
    def computed(u):
        return loss.weight(u), loss.influence(u), jax.vmap(jax.grad(loss.influence))(u)

    weights, influence, slopes = computed(u)
    tolerance = 100 * np.finfo(np.float64).eps
    np.testing.assert_allclose(weights, theirs.weights(u), atol=tolerance)
    np.testing.assert_allclose(influence, theirs.psi(u), atol=10 * tolerance)
    # not at the cutoff, where the influence has a kink
    slopes, expected = np.asarray(slopes)[:-1], theirs.psi_deriv(u[:-1])
    np.testing.assert_allclose(slopes, expected, atol=10 * tolerance)


@pytest.mark.parametrize("loss", [ak.losses.Bisquare, ak.Huber])
def test_cutoffs_are_positive_numbers(loss):
    for cutoff in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cutoff must be a positive number"):
            loss(cutoff)
    assert loss() == loss(loss().cutoff) != loss(3.0)


def test_losses_are_summed_over_the_labels_of_a_row():
    y, prediction = np.float32([[1.0, 2.0], [0.0, 3.0]]), np.float32([[3.0, 1.0], [0.0, 7.0]])
    losses = (ak.squared_error, ak.losses.absolute_error, ak.losses.CheckLoss(0.25))
    found = jax.jit(lambda p, y: [loss(p, y) for loss in losses])(prediction, y)
    np.testing.assert_array_equal(found, [[5.0, 16.0], [3.0, 4.0], [1.75, 3.0]])

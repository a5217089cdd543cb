"""The local quadratic fit that is the centre of a bias-corrected band."""

import jax
import numpy as np
import pytest

import attnkernel as ak


@pytest.mark.parametrize(("columns", "power"), [(1, 1 / 5 - 1 / 4), (2, 1 / 6 - 1 / 5)])
def test_lengthscale_of_the_correction_shrinks_at_the_rate_without_categories(x64, columns, power):
    """A column of categories has no smoothing bias of its own, and no part in the rate."""
    kernel = ak.Gaussian(0.3 * np.ones(columns)).on(*range(columns))
    mixed = ak.KernelRegression(kernel * ak.kernels.LiRacine(0.2).on(columns), order=1)
    corrected = mixed.bias_corrected(100, columns + 1)
    lengthscales = [leaf for leaf in jax.tree.leaves(corrected.kernel) if leaf.shape == (columns,)]
    np.testing.assert_allclose(np.exp(lengthscales[0]), 0.3 * 100**power, rtol=1e-12)
    assert corrected.order == 2

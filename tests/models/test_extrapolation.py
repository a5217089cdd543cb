"""Predictions far outside the data, or that the data do not determine: one warning, and flags."""

import warnings

import jax
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel.local import ExtrapolationWarning

X = np.linspace(0.0, 1.0, 60)
Y = np.sin(6.0 * X)
LENGTHSCALE = 0.1
KIND = {1: "local linear", 2: "local quadratic"}


def regression(order):
    return ak.KernelRegression(ak.Gaussian(LENGTHSCALE), order=order)


@pytest.mark.parametrize(("order", "outside"), [(2, 3.0), slow(1, 4.0)])
def test_extrapolation_is_told_with_the_number_of_queries(order, outside):
    """Three lengthscales outside, float32 and float64 give other functions of order 2."""
    x_new = np.array([0.0, 0.5, 1.0 + outside * LENGTHSCALE, -outside * LENGTHSCALE])
    with pytest.warns(ExtrapolationWarning, match=f"{KIND[order]}, at 4 queries: at [12] "):
        regression(order)(x_new, X, Y)
    local = regression(order).local_fit(x_new, X, Y)
    flags = np.asarray(local.extrapolates) | np.asarray(local.deficient)
    np.testing.assert_array_equal(flags, [0, 0, 1, 1])


def test_inside_the_data_at_order_0_and_under_jit_there_is_no_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regression(2)(X, X, Y)
        regression(0)(X + 0.5, X, Y)
        jax.jit(lambda x_new: regression(2)(x_new, X, Y))(X + 0.3)
    assert caught == []


def test_terms_that_the_data_do_not_determine_are_told():
    two = np.r_[np.zeros(5), np.ones(5)]
    with pytest.warns(ExtrapolationWarning, match="at 3 the data do not determine all terms"):
        ak.KernelRegression(ak.Gaussian(1.0), order=2)(np.array([0.2, 0.5, 0.8]), two, two)


def test_flags_are_those_of_their_formula(x64):
    """(S⁻¹)₁₁ of the moments of NumPy, on both sides of 100."""
    x_new = np.linspace(-0.35, 0.5, 31)
    for order in (1, 2):
        local = regression(order).local_fit(x_new, X, Y)
        u = X - x_new[:, None]
        w = np.exp(-0.5 * (u / LENGTHSCALE) ** 2)
        basis = (u / LENGTHSCALE)[..., None] ** np.arange(order + 1)
        moments = np.einsum("qk,qka,qkb->qab", w / w.sum(1, keepdims=True), basis, basis)
        found = np.linalg.inv(moments)[:, 0, 0]
        expected = found > 100
        assert np.min(np.abs(found - 100)) > 1e-3  # far above rounding
        assert 0 < np.sum(expected) < len(x_new)
        np.testing.assert_array_equal(local.extrapolates, expected)


def test_float32_determines_a_quadratic_with_few_neighbours_in_reach():
    """Moments are summed as they are: about their mean over all keys they would lose digits."""
    x = np.linspace(-3.0, 3.0, 150, dtype=np.float32)
    at = np.linspace(-3.0, 3.0, 201, dtype=np.float32)
    found = ak.KernelRegression(ak.Gaussian(0.0728), order=2).local_fit(at, x, np.sin(3 * x))
    assert not np.asarray(found.deficient).any()

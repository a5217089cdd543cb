"""Kernels of inner products, and learned projections, against their formulas."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak

QUERIES, KEYS, DIM = 5, 7, 3
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(QUERIES, DIM)), RNG.normal(size=(KEYS, DIM))
WEIGHT, MATRIX = RNG.normal(size=DIM), RNG.normal(size=(DIM, DIM))
PRODUCTS = Q @ K.T
LENGTHS = np.linalg.norm(Q, axis=1)[:, None] * np.linalg.norm(K, axis=1)[None]


def linear(out, bias=True, seed=0, into=DIM):
    return eqx.nn.Linear(into, out, use_bias=bias, key=jax.random.PRNGKey(seed))


def gaussian(q, k, length):
    return -0.5 * ((q[:, None] - k[None]) ** 2).sum(axis=2) / length**2


TABLE = {
    "dot product": (ak.DotProduct, PRODUCTS / np.sqrt(DIM)),
    "dot product, scaled": (lambda: ak.DotProduct(0.3), 0.3 * PRODUCTS),
    "cosine": (lambda: ak.CosineSimilarity(4.0), 4.0 * PRODUCTS / LENGTHS),
    "polynomial": (lambda: ak.Polynomial(4, 0.5, 2.0), np.log((2.0 * PRODUCTS + 0.5) ** 4)),
    "bilinear": (lambda: ak.Bilinear(MATRIX), Q @ MATRIX @ K.T),
    "additive": (lambda: ak.Additive(WEIGHT), np.tanh(Q[:, None] + K[None]) @ WEIGHT),
    "soft cap": (
        lambda: ak.SoftCapped(ak.DotProduct(1.0), 2.0),
        2.0 * np.tanh(PRODUCTS / 2.0),
    ),
}


@pytest.mark.parametrize("name", list(TABLE))
def test_kernels_are_their_formulas(x64, name):
    make, expected = TABLE[name]
    kernel, q, k = make(), jnp.asarray(Q), jnp.asarray(K)
    np.testing.assert_allclose(kernel.pairwise(q, k), expected, rtol=1e-12, atol=1e-14)
    one_by_one = [[kernel.log_pair(a, b) for b in k] for a in q[:2]]
    np.testing.assert_allclose(one_by_one, expected[:2], rtol=1e-12, atol=1e-14)
    reduced, q, k = kernel.reduced(q, k)
    np.testing.assert_allclose(reduced.pairwise(q, k), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (lambda: ak.Gaussian(0.7), lambda q, k: gaussian(q, k, 0.7)),
        (ak.DotProduct, lambda q, k: q @ k.T / np.sqrt(2)),
    ],
)
def test_projections_before_any_kernel(x64, make, formula):
    """Queries of three inputs, keys of four; and so in the one call."""
    keys = np.concatenate([K, K[:, :1] ** 2], axis=1)
    before = ak.Projected(make(), linear(2), linear(2, False, 1, into=4))
    q = Q @ np.asarray(before.query_proj.weight).T + np.asarray(before.query_proj.bias)
    k = keys @ np.asarray(before.key_proj.weight).T
    weights = np.exp(formula(q, k))
    v = RNG.normal(size=(KEYS, 2))
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    for method in (ak.Dense(), ak.Blockwise(2, 3)):
        ours = ak.attend(Q, keys, v, kernel=before, method=method)
        np.testing.assert_allclose(ours, expected, rtol=1e-11)


def test_a_projected_kernel_is_summed_as_the_kernel_that_it_is(x64):
    """By the method of the kernel within, for the dimension after the projection."""
    q, v = jnp.asarray(Q), jnp.ones((QUERIES, 1))
    before = ak.Projected(ak.Laplace(0.5), linear(1), linear(1, seed=1))
    ours = ak.attend(q, q, v, kernel=before, method=ak.Sorted())
    np.testing.assert_allclose(ours, ak.attend(q, q, v, kernel=before), rtol=1e-12, atol=1e-14)
    rows = jax.ShapeDtypeStruct((4000, DIM), jnp.float64)
    assert isinstance(ak.select_method(rows, rows, rows, kernel=before).method, ak.Sorted)


def test_derivatives_where_formulas_have_none(x64):
    """A vector of length 0, a base of 0: no weight lost to NaN, gradients of 0."""
    zero, k = jnp.zeros((1, DIM)), jnp.asarray(K)

    def total(kernel, q):
        scores = kernel.pairwise(q, k)
        return jnp.sum(jnp.where(jnp.isneginf(scores), 0.0, scores))

    for kernel in (ak.CosineSimilarity(), ak.Polynomial(2, offset=0.0)):
        slopes = jax.grad(lambda q, kernel=kernel: total(kernel, q))(zero)
        np.testing.assert_array_equal(slopes, 0.0)
        second = jax.hessian(lambda q, kernel=kernel: total(kernel, q))(zero)
        assert np.isfinite(second).all()
    assert np.isneginf(ak.Polynomial(2, offset=0.0).pairwise(zero, k)).all()
    np.testing.assert_array_equal(ak.CosineSimilarity().pairwise(zero, k), 0.0)
    # no square overflows, none vanishes
    for scale in (1e-200, 1e200):
        near = ak.CosineSimilarity().pairwise(scale * jnp.asarray(Q), k)
        np.testing.assert_allclose(near, PRODUCTS / LENGTHS, rtol=1e-12, atol=1e-14)


def test_a_soft_cap_leaves_pairs_without_weight_without():
    kernel = ak.SoftCapped(ak.Epanechnikov(1.0), 2.0)
    x = jnp.array([[0.0], [0.5], [3.0]])
    scores = kernel.pairwise(x, x)
    np.testing.assert_array_equal(np.isneginf(scores), np.abs(x - x.T) >= 1)
    assert np.isneginf(kernel.upper_bound(x[0], x[0], x[2], x[2]))
    slopes = jax.grad(lambda x: jnp.sum(jnp.exp(kernel.pairwise(x, x))))(x)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda: ak.Polynomial(3), "degree must be an even whole number from 2.*got 3"),
        (lambda: ak.SoftCapped(ak.DotProduct(), 0.0), "cap must be positive"),
        (lambda: ak.Bilinear(np.ones((3, 2))), r"shape \(dim_q, dim_k\) = \(3, 4\); got \(3, 2\)"),
        (lambda: ak.Additive(np.ones(3)), "dimension of its weight, 3; got 3 and 4"),
        (ak.DotProduct, "same dimension; got 3 and 4"),
        (lambda: ak.DotProduct() * ak.Gaussian(), "same dimension; got 3 and 4"),
        (
            lambda: ak.Projected(ak.DotProduct(), linear(2), linear(5, into=4)),
            "same dimension; got 2 and 5",
        ),
        (
            lambda: ak.Projected(ak.DotProduct(), linear(2), linear(2)),
            r"key_proj must take one point, shape \(4,\)",
        ),
    ],
)
def test_points_that_a_kernel_cannot_compare(kernel, message):
    with pytest.raises(ValueError, match=message):
        ak.attend(Q, np.ones((KEYS, 4)), np.ones((KEYS, 1)), kernel=kernel())

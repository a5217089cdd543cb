"""Kernels of inner products, and learned projections, against their formulas."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from refusals import assert_refused

import attnkernel as ak
from attnkernel.kernels import (
    AdditiveScore,
    Bilinear,
    CosineSimilarity,
    Kernel,
    Polynomial,
    Projected,
    SoftCapped,
)
from attnkernel.methods import Blockwise, Dense, Sorted

QUERIES, KEYS, DIM = 5, 7, 3
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(QUERIES, DIM)), RNG.normal(size=(KEYS, DIM))
WEIGHT, MATRIX = RNG.normal(size=DIM), RNG.normal(size=(DIM, DIM))
PRODUCTS = Q @ K.T
LENGTHS = np.linalg.norm(Q, axis=1)[:, None] * np.linalg.norm(K, axis=1)[None]


def linear(out, bias=True, seed=0, into=DIM):
    """A linear layer whose weights NumPy draws."""
    rng = np.random.default_rng(seed)
    make = lambda: eqx.nn.Linear(into, out, use_bias=bias, key=jax.random.PRNGKey(0))  # noqa: E731
    draw = lambda leaf: jax.device_put(rng.normal(size=leaf.shape).astype(leaf.dtype))  # noqa: E731
    return jax.tree.map(draw, eqx.filter_eval_shape(make))


def project(points, layer):
    return points @ np.asarray(layer.weight).T + np.asarray(layer.bias)


TABLE = {
    "dot product": (ak.DotProduct, PRODUCTS / np.sqrt(DIM)),
    "dot product, scaled": (lambda: ak.DotProduct(0.3), 0.3 * PRODUCTS),
    "cosine": (lambda: CosineSimilarity(4.0), 4.0 * PRODUCTS / LENGTHS),
    "polynomial": (lambda: Polynomial(4, 0.5, 2.0), np.log((2.0 * PRODUCTS + 0.5) ** 4)),
    "bilinear": (lambda: Bilinear(MATRIX), Q @ MATRIX @ K.T),
    "additive": (lambda: AdditiveScore(WEIGHT), np.tanh(Q[:, None] + K[None]) @ WEIGHT),
    "soft cap": (lambda: SoftCapped(ak.DotProduct(1.0), 2.0), 2.0 * np.tanh(PRODUCTS / 2.0)),
}


def test_kernels_are_their_formulas(x64):
    """All pairs at once, one by one, and after what depends on one point alone is precomputed."""

    @eqx.filter_jit
    def scores(kernels, q, k):
        def of_kernel(kernel):
            simpler, a, b = kernel.precomputed(q, k)
            one_by_one = Kernel.pairwise(kernel, q, k)
            return kernel.pairwise(q, k), one_by_one, simpler.pairwise(a, b)

        return {name: of_kernel(kernel) for name, kernel in kernels.items()}

    for name, three in scores({name: make() for name, (make, _) in TABLE.items()}, Q, K).items():
        for found in three:
            expected = TABLE[name][1]
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13, err_msg=name)


def test_projections_before_any_kernel(x64):
    """Queries of three inputs, keys of four; by dense and by streaming sums."""
    keys = np.concatenate([K, K[:, :1] ** 2], axis=1)
    before = Projected(ak.Gaussian(0.7), linear(2), linear(2, False, 1, into=4))
    q = project(Q, before.query_proj)
    k = keys @ np.asarray(before.key_proj.weight).T
    weights = np.exp(-0.5 * ((q[:, None] - k[None]) ** 2).sum(axis=2) / 0.7**2)
    v = RNG.normal(size=(KEYS, 2))
    expected = weights @ v / weights.sum(axis=1, keepdims=True)

    @eqx.filter_jit
    def by_both(kernel, q, k, v):
        methods = Dense(), Blockwise(2, 3)
        return [ak.attend(q, k, v, kernel=kernel, method=method) for method in methods]

    for ours in by_both(before, Q, keys, v):
        np.testing.assert_allclose(ours, expected, rtol=1e-11)


def test_a_projected_kernel_takes_the_method_of_the_kernel_within(x64):
    """For the dimension after the projection."""
    v = RNG.normal(size=(KEYS, 1))
    before = Projected(ak.Laplace(0.5), linear(1), linear(1, seed=1))
    q, k = (project(Q, before.query_proj), project(K, before.key_proj))
    weights = np.exp(-np.abs(q - k.T) / 0.5)
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    ours = ak.attend(Q, K, v, kernel=before, method=Sorted())
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)
    rows = jax.ShapeDtypeStruct((4000, DIM), jnp.float64)
    assert isinstance(ak.attention.select_method(rows, rows, rows, kernel=before).method, Sorted)


def test_derivatives_where_formulas_have_none(x64):
    """A vector of length 0, a base of 0: no weight is NaN, gradients are 0."""

    @eqx.filter_jit
    def derivatives(kernel, q, k):
        def total(q):
            scores = kernel.pairwise(q, k)
            return jnp.sum(jnp.where(jnp.isneginf(scores), 0.0, scores))

        return kernel.pairwise(q, k), jax.grad(total)(q), jax.hessian(total)(q)

    kernels = CosineSimilarity(), Polynomial(2, offset=0.0)
    points = np.zeros((1, DIM)), K
    found = eqx.filter_jit(lambda kernels: [derivatives(one, *points) for one in kernels])(kernels)
    for (scores, slopes, second), expected in zip(found, (0.0, -np.inf), strict=True):
        np.testing.assert_array_equal(scores, np.full((1, KEYS), expected))
        np.testing.assert_array_equal(slopes, 0.0)
        assert np.isfinite(second).all()


def test_the_cosine_of_vectors_of_any_length(x64):
    """No square overflows, none vanishes."""
    cosine = eqx.filter_jit(CosineSimilarity().pairwise)
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(cosine(scale * Q, K), PRODUCTS / LENGTHS, rtol=1e-12, atol=1e-14)


def test_a_soft_cap_leaves_pairs_without_weight_without():
    kernel = SoftCapped(ak.Epanechnikov(1.0), 2.0)
    x = np.array([[0.0], [0.5], [3.0]], np.float32)

    @eqx.filter_jit
    def evaluated(kernel, x):
        weights = jax.grad(lambda x: jnp.sum(jnp.exp(kernel.pairwise(x, x))))
        boxes = ak.kernels.PointBoxes(x[0], x[0], x[2], x[2])
        return kernel.pairwise(x, x), kernel.score_upper_bound(boxes), weights(x)

    scores, bound, slopes = evaluated(kernel, x)
    np.testing.assert_array_equal(np.isneginf(scores), np.abs(x - x.T) >= 1)
    assert np.isneginf(bound)
    assert np.isfinite(slopes).all()


def test_points_that_a_kernel_cannot_compare_are_refused():
    def attend(kernel):
        return lambda: ak.attend(Q, np.ones((KEYS, 4)), np.ones((KEYS, 1)), kernel=kernel)

    def projected(key_proj):
        return attend(Projected(ak.DotProduct(), linear(2), key_proj))

    assert_refused(
        (lambda: Polynomial(3), r"degree.*even.*at least 2.*got 3"),
        (lambda: SoftCapped(ak.DotProduct(), 0.0), r"cap.*positive.*0\.0"),
        (attend(Bilinear(np.ones((3, 2)))), r"\(dim_q, dim_k\) = \(3, 4\); got \(3, 2\)"),
        (attend(AdditiveScore(np.ones(3))), r"Additive.* 3; got 3 and 4"),
        (attend(ak.DotProduct()), r"same dimension; got 3 and 4"),
        (projected(linear(5, into=4)), r"same dimension; got 2 and 5"),
        (projected(linear(2)), r"key_proj.*\(4,\)"),
    )

"""Law 2: kernels of the distance. Formulas in NumPy, large blocks, derivatives, lengthscales."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_formulas import FORMULAS
from marks import slow
from refusals import assert_refused
from slopes import assert_slopes

import attnkernel as ak

QUERIES, KEYS, DIM = 5, 7, 3


def points(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@eqx.filter_jit
def scores_of(kernels, q, k):
    """All pairs at once, and one by one, of each kernel."""
    return [(kernel.pairwise(q, k), ak.kernels.Kernel.pairwise(kernel, q, k)) for kernel in kernels]


def test_kernels_are_their_formulas(x64):
    """Each with one lengthscale; two with one per dimension, and with a full metric; a product."""
    q, k = points(0, QUERIES, DIM), points(1, KEYS, DIM)
    lengths, metric = np.array([0.8, 1.3, 5.0]), np.eye(DIM) + 0.2
    steps = q[:, None] - k[None]
    by_column = np.linalg.norm(steps / lengths, axis=2)
    by_metric = np.sqrt(np.einsum("qkc,cd,qkd->qk", steps, metric, steps)) / 2.0
    kernels = [make(2.0) for make in FORMULAS]
    expected = [formula(np.linalg.norm(steps / 2.0, axis=2)) for formula in FORMULAS.values()]
    for make in (ak.Gaussian, ak.Epanechnikov):
        kernels += [make(lengths), make(2.0, metric=metric)]
        expected += [FORMULAS[make](by_column), FORMULAS[make](by_metric)]
    kernels += [ak.Periodic(0.6, 2.3), ak.Gaussian(2.0) * ak.Gaussian(lengths)]
    periodic = -2 * (np.sin(np.pi * steps / 2.3) ** 2).sum(axis=2) / 0.6**2
    expected += [periodic, expected[0] + FORMULAS[ak.Gaussian](by_column)]
    for found, log_weights in zip(scores_of(kernels, q, k), expected, strict=True):
        for scores in found:
            np.testing.assert_allclose(scores, log_weights, rtol=1e-12, atol=1e-13)


def test_custom_kernel_is_one_method(x64):
    class Exponential(ak.kernels.Kernel):
        rate: float

        def log_pair(self, q, k):
            return -self.rate * jnp.sum(jnp.abs(q - k))

    q, k = points(0, QUERIES, DIM), points(1, KEYS, DIM)
    expected = -1.5 * np.abs(q[:, None] - k[None]).sum(-1)
    plain, half = scores_of([Exponential(1.5), ak.kernels.rescaled(Exponential(1.5), 2.0)], q, k)
    np.testing.assert_allclose(plain[0], expected, rtol=1e-14)
    for scores in half:
        np.testing.assert_allclose(scores, expected / 2, rtol=1e-14)
    low, high = Exponential(1.5).search_box(jax.device_put(q))
    assert (low.rate, high.rate) == (1.5, 1.5)  # not an array: nothing to bound


def test_shift_invariant_in_float32():
    # the inputs must be representable: with steps of 2^-10 around 1e4 the shift is exact
    grid = np.arange(64, dtype=np.float32)[:, None] / 1024
    kernels = [make(0.1) for make in (*FORMULAS, ak.Periodic)]
    pairs = eqx.filter_jit(lambda kernels, x: [kernel.pairwise(x, x) for kernel in kernels])
    for near, far in zip(pairs(kernels, grid), pairs(kernels, grid + 10_000), strict=True):
        np.testing.assert_array_equal(near, far)


def test_gradients_are_those_of_the_formulas(x64):
    """In the points and in the lengthscale, by central differences of the formulas."""
    rng = np.random.default_rng(0)  # within the support: less than 2 apart
    q, k = (rng.uniform(size=(n, DIM)) for n in (QUERIES, KEYS))
    weights = np.cos(np.arange(QUERIES * KEYS)).reshape(QUERIES, KEYS)

    @jax.jit
    def slopes(kernels, q):
        def total(kernel, q):
            return jnp.sum(weights * kernel.pairwise(q, jnp.asarray(k)))

        gradients = [jax.grad(total, (0, 1))(kernel, q) for kernel in kernels]
        return [(kernel.lengthscale_parameter.z, points) for kernel, points in gradients]

    found = slopes([make(2.0) for make in FORMULAS], q)
    for of_both, formula in zip(found, FORMULAS.values(), strict=True):

        def total(log, q, formula=formula):
            distances = np.linalg.norm(q[:, None] - k[None], axis=2)
            return np.sum(weights * formula(distances / np.exp(log)))

        assert_slopes(of_both, total, (np.log(2.0), q), step=1e-6, rtol=1e-6, atol=1e-8)


COMPACT = [make for make in FORMULAS if issubclass(make, ak.kernels.Compact)]


def test_compact_kernels_have_no_weight_or_gradient_from_the_end_of_their_support(x64):
    kernels = [make(2.0) for make in COMPACT]
    beyond = np.array([2.0, 2.5, 1e6])[:, None]  # 2 is the end itself

    @jax.jit
    def scores_and_slopes(kernels, q):
        def weights(kernel, q):
            return jnp.sum(jnp.exp(kernel.pairwise(q, jnp.zeros((1, 1)))))

        scores = [kernel.pairwise(q, jnp.zeros((1, 1))) for kernel in kernels]
        return scores, [jax.grad(weights, (0, 1))(kernel, q) for kernel in kernels]

    scores, slopes = scores_and_slopes(kernels, beyond)
    assert len(kernels) == 7
    np.testing.assert_array_equal(scores, -np.inf)
    for leaf in jax.tree.leaves(slopes):
        np.testing.assert_array_equal(leaf, 0.0)


def test_upper_bounds_are_above_the_scores_of_two_boxes(x64):
    """And close to the score of two points, but for a metric."""
    q, k = points(0, QUERIES, DIM), points(1, KEYS, DIM)
    metric = np.array([[3.0, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 1.5]])
    kernels = [make(2.0) for make in FORMULAS] + [ak.Gaussian(np.array([0.8, 1.3, 5.0]))]
    kernels += [ak.Gaussian(2.0, metric=metric), ak.kernels.SoftCapped(ak.Gaussian(0.5), 3.0)]
    # of each two boxes the rows of q and of k: single points, neighbours, all
    rows = [(slice(i, i + 1), slice(j, j + 1)) for i, j in np.ndindex(QUERIES, KEYS)]
    rows += [(slice(i, i + 2), slice(j, j + 2)) for i, j in np.ndindex(QUERIES - 1, KEYS - 1)]
    rows += [(slice(None), slice(None))]
    boxes = [(q[i].min(0), q[i].max(0), k[j].min(0), k[j].max(0)) for i, j in rows]

    @eqx.filter_jit
    def evaluated(kernels, boxes):
        bounds = [jax.vmap(kernel.score_upper_bound)(boxes) for kernel in kernels]
        return [kernel.pairwise(jnp.asarray(q), jnp.asarray(k)) for kernel in kernels], bounds

    stacked = ak.kernels.PointBoxes(*map(np.stack, zip(*boxes, strict=True)))
    all_scores, all_bounds = map(np.asarray, evaluated(kernels, stacked))
    for kernel, scores, bounds in zip(kernels, all_scores, all_bounds, strict=True):
        highest = np.array([scores[i, j].max() for i, j in rows])
        assert (highest <= bounds).all()
        if getattr(kernel, "metric_parameter", None) is None:
            seen = (np.arange(len(rows)) < scores.size) & (highest > -np.inf)
            np.testing.assert_allclose(bounds[seen], highest[seen], rtol=1e-2, atol=1e-3)


def test_derivatives_finite_at_coincident_points():
    """To second order, in the point and in what a kernel can learn."""
    lengths = np.array([0.5, 1.0, 2.0])
    kernels = [make(0.5) for make in (*FORMULAS, ak.Periodic)]
    kernels += [ak.Gaussian(lengths), ak.kernels.Matern32(0.5, metric=np.eye(DIM) + 0.2)]

    @jax.jit
    def derivatives(kernels, x):
        def value(kernel, q):
            return kernel.log_pair(q, x)

        along = [jax.tree.map(jnp.ones_like, kernel) for kernel in kernels]
        slopes = jax.grad(value, (0, 1))
        both, one = zip(kernels, along, strict=True), jnp.ones_like(x)
        first_and_second = [jax.jvp(slopes, (of, x), (change, one)) for of, change in both]
        return first_and_second, jax.hessian(value, (0, 1))(kernels[0], x)

    for leaf in jax.tree.leaves(derivatives(kernels, np.ones(DIM, np.float32))):
        assert np.isfinite(leaf).all()


class Logistic(ak.kernels.Scaled):
    """1 / cosh² of half the difference, per column."""

    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        return -2.0 * jnp.sum(jnp.logaddexp(half, -half))


POINTS = [jax.device_put(points(seed, rows, DIM)) for seed, rows in ((0, QUERIES), (1, KEYS))]
LOGISTIC = Logistic(np.ones(2))


def test_wrong_lengthscales_are_refused():
    sentence = r"lengthscale must be positive and .*; got .*try"
    assert_refused(
        (lambda: ak.Gaussian(np.array([1.0, -2.0])), sentence),
        (lambda: ak.Gaussian(np.ones((2, 2))), "one per dimension"),
        (lambda: ak.Gaussian(np.ones(2)).pairwise(*POINTS), r"has 2 lengthscales.*3 dimensions"),
        (lambda: ak.attend(*POINTS, POINTS[1], kernel=LOGISTIC), r"2 lengthscales.*3 dimensions"),
    )


GAPS = np.array([0.0, 1.0, 2.0, 4.0, 8.0])[:, None]  # the mean gap is 2, the median gap 1.5


def test_bounds_are_half_a_gap_and_ten_ranges(x64):
    """The scale of each dimension; constant columns have no scale."""
    constant = np.stack([np.arange(5.0), np.full(5, 3.0)], axis=1)

    @jax.jit
    def results(x, constant):
        one, two = ak.Gaussian(1.0), ak.Gaussian(np.ones(2))
        boxes = one.search_box(x), two.search_box(constant), one.search_box(constant)
        return [[side.lengthscale for side in box] for box in boxes]

    of_one, of_two, of_both = jax.device_get(results(GAPS, constant))
    np.testing.assert_allclose(of_one, [0.75, 80.0])
    np.testing.assert_allclose(of_two, [[0.5, 1.0], [40.0, 1.0]])
    np.testing.assert_allclose(of_both, [0.5, 40.0])


def test_each_input_has_a_neighbour_at_the_lower_bound(x64):
    kinds = ak.kernels.Boxcar, ak.Epanechnikov, ak.kernels.Tricube
    weights = np.array([1.0, 1.0, 2.0, 0.0, 1.0])
    cases = {
        "rows": ((GAPS, None), 1.01 * 4.0),
        "a row without weight": ((GAPS, weights), 1.01 * 6.0),
        "booleans": ((GAPS, weights > 0), 1.01 * 6.0),
        "every row twice": ((np.repeat(GAPS, 2, axis=0), None), 0.5 * 8 / 9),
    }
    search = jax.jit(lambda *parts: [kind(1.0).search_box(*parts) for kind in kinds])
    for name, (parts, expected) in cases.items():
        for lower, upper in (*search(*parts), ak.kernels.Tricube(1.0).search_box(*parts)):
            np.testing.assert_allclose(lower.lengthscale, expected, rtol=1e-12, err_msg=name)
            np.testing.assert_allclose(upper.lengthscale, 80.0, rtol=1e-12, err_msg=name)


def test_each_column_has_a_bound_of_its_own(x64):
    x = np.concatenate([GAPS, GAPS[::-1] ** 2], axis=1)
    lower, _ = ak.Epanechnikov(np.ones(2)).search_box(x)
    np.testing.assert_allclose(lower.lengthscale, [4.04, 1.01 * 48.0], rtol=1e-12)


def test_lengthscales_may_come_in_low_precision():
    kernel = ak.Gaussian(np.array([0.5, 2.0], jnp.bfloat16))
    assert kernel.lengthscale_parameter.z.dtype == jnp.float32
    np.testing.assert_allclose(kernel.lengthscale, [0.5, 2.0], rtol=1e-6)


SCALES = {
    "one": lambda dim: {"lengthscale": 1.0},
    "per dimension": lambda dim: {"lengthscale": 1.0 + np.arange(dim)},
    "metric": lambda dim: {"lengthscale": 1.0, "metric": np.eye(dim) + 0.2},
}


@pytest.mark.parametrize(
    ("dim", "scale"),
    [(2, "one"), slow(7, "per dimension"), slow(2, "per dimension"), slow(7, "metric")],
)
def test_large_blocks_are_the_pairs_one_by_one(x64, dim, scale, monkeypatch):
    """The code path of large blocks: products of matrices, in the value and in derivatives."""
    monkeypatch.setattr("attnkernel.kernels._distances.MAX_UNROLLED_PAIRS", 0)
    kernel = ak.kernels.Matern32(**SCALES[scale](dim))
    q, k = points(0, QUERIES, dim), points(1, KEYS, dim)

    @jax.jit
    def both(kernel, q, k):
        def derivatives(function):
            arguments = kernel, q, k
            wave = lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)  # noqa: E731
            along = jax.tree.map(wave, arguments)
            value, change = jax.jvp(function, arguments, along)
            gradient = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1, 2))(*arguments)
            return jax.tree.leaves((value, change, gradient))

        return derivatives(type(kernel).pairwise), derivatives(ak.kernels.Kernel.pairwise)

    for factor in (3.0, 0.1):  # points close to the centre, and far from it, in lengthscales
        ours, expected = jax.device_get(both(ak.kernels.rescaled(kernel, factor), q, k))
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("dim", "scale"), [(7, "one"), slow(1, "one"), slow(7, "per dimension"), slow(7, "metric")]
)
def test_derivatives_of_points_many_lengthscales_apart(x64, dim, scale):
    """In float32 those of float64: for two clusters, 20 000 lengthscales apart."""
    x = np.random.default_rng(0).uniform(size=(200, dim))
    x = np.float32(x + (np.arange(200) % 2 * 1000.0)[:, None])
    along = points(1, 200, dim)

    @jax.jit
    def curvature(kernel, x, along):
        def total(kernel, q):
            return jnp.sum(jnp.exp(kernel.pairwise(q, x)) * along[None, :, 0])

        moves = jax.tree.map(jnp.ones_like, kernel), along
        return jax.tree.leaves(jax.jvp(jax.grad(total, (0, 1)), (kernel, x), moves))

    def in_precision(dtype):
        lengths = 0.05 if scale != "per dimension" else np.linspace(0.05, 0.1, dim)
        metric = np.eye(dim) + 0.2 if scale == "metric" else None
        kernel = jax.tree.map(lambda leaf: leaf.astype(dtype), ak.Gaussian(lengths, metric=metric))
        return jax.device_get(curvature(kernel, x.astype(dtype), along.astype(dtype)))

    both = in_precision(np.float32), in_precision(np.float64)
    for got, exact in zip(*both, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * float(np.abs(exact).max()))


def test_a_kernel_with_a_lengthscale_is_one_method_too(x64):
    @jax.jit
    def results(x):
        boxes = Logistic(5.0).search_box(x), ak.Gaussian(1.0).search_box(x)
        wide = ak.kernels.rescaled(Logistic(0.5), 4.0), Logistic(2.0)
        lengths = [[side.lengthscale for side in box] for box in boxes]
        return lengths, [kernel.pairwise(x, x) for kernel in wide]

    ends, wide = jax.device_get(results(points(0, KEYS, 1)))
    np.testing.assert_allclose(*ends, rtol=1e-14)
    assert repr(Logistic(0.25)) == "Logistic(lengthscale=0.25)"
    np.testing.assert_allclose(*wide, rtol=1e-13)


def test_the_unit_of_a_query_is_its_distance_to_the_nearest_keys(x64):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(7, 2)), rng.normal(size=(19, 2))
    options = {4: {"neighbours": 4}, 5: {"fraction": 0.29}, 1: {"fraction": 0.01}}
    nearest = functools.partial(ak.NearestNeighbours, ak.kernels.Tricube(1.3))
    kernels = {m: nearest(**each) for m, each in options.items()}

    @jax.jit
    def weights(q, k):
        return {m: ak.attention_weights(q, k, kernel=kernel) for m, kernel in kernels.items()}

    distance = np.linalg.norm(q[:, None] - k, axis=-1)
    for m, found in jax.device_get(weights(q, k)).items():
        unit = 1.3 * np.sort(distance, axis=1)[:, [m - 1]]
        expected = np.where(distance < unit, 1 - (distance / unit) ** 3, 0.0) ** 3
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
        assert ((found > 0).sum(axis=1) >= m).all()

"""Law 2: kernels. The formula in NumPy, the maps over pairs, and gradients at the hard points."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak

QUERIES, KEYS, DIM = 5, 7, 3


def points(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def gaussian_by_hand(q, k, lengthscale):
    out = np.empty((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            out[i, j] = -0.5 * sum(((q[i] - k[j]) / lengthscale) ** 2)
    return out


@pytest.mark.parametrize("lengthscale", [0.3, 2.0, np.array([0.2, 1.0, 5.0])])
def test_gaussian_is_its_formula(x64, lengthscale):
    q, k = points(0, QUERIES, DIM), points(1, KEYS, DIM)
    scores = ak.Gaussian(lengthscale).pairwise(jnp.asarray(q), jnp.asarray(k))
    np.testing.assert_allclose(scores, gaussian_by_hand(q, k, lengthscale), rtol=1e-14)


def test_product_adds_logarithms(x64):
    q, k = jnp.asarray(points(0, QUERIES, DIM)), jnp.asarray(points(1, KEYS, DIM))
    first, second = ak.Gaussian(0.7), ak.Gaussian(jnp.array([1.0, 2.0, 3.0]))
    expected = first.pairwise(q, k) + second.pairwise(q, k)
    np.testing.assert_allclose((first * second).pairwise(q, k), expected, rtol=1e-14)


@pytest.mark.parametrize("kernel", [ak.Gaussian, ak.Tricube, ak.Periodic])
def test_a_stretched_kernel_has_a_longer_lengthscale(x64, kernel):
    heads = jax.vmap(kernel)(jnp.array([0.5, 2.0])).stretched(3.0)
    np.testing.assert_allclose(jnp.exp(heads.log_lengthscale), [1.5, 6.0], rtol=1e-14)
    both = (kernel(0.5) * ak.DotProduct()).stretched(3.0)
    np.testing.assert_allclose(both.first.lengthscale, 1.5, rtol=1e-14)
    assert both.second == ak.DotProduct()
    assert kernel is not ak.Periodic or both.first.period == 1.0


def test_custom_kernel_is_one_method(x64):
    class Exponential(ak.Kernel):
        rate: float

        def log_pair(self, q, k):
            return -self.rate * jnp.sum(jnp.abs(q - k))

    q, k = points(0, QUERIES, DIM), points(1, KEYS, DIM)
    expected = -1.5 * np.abs(q[:, None] - k[None]).sum(-1)
    scores = Exponential(1.5).pairwise(jnp.asarray(q), jnp.asarray(k))
    np.testing.assert_allclose(scores, expected, rtol=1e-14)
    half, pair = Exponential(1.5).stretched(2.0), (jnp.asarray(q[0]), jnp.asarray(k[0]))
    for found in (half.pairwise(jnp.asarray(q), jnp.asarray(k)), half.log_pair(*pair)):
        np.testing.assert_allclose(
            found, scores / 2 if found.ndim else scores[0, 0] / 2, rtol=1e-14
        )
    low, high = Exponential(1.5).bounds(jnp.asarray(q))
    assert (low.rate, high.rate) == (1.5, 1.5)  # not an array: nothing to bound


def test_shift_invariant_in_float32():
    # the inputs must be representable: with steps of 2^-10 around 1e4 the shift is exact
    grid = np.arange(64, dtype=np.float32)[:, None] / 1024
    kernel = ak.Gaussian(0.1)
    near = kernel.pairwise(jnp.asarray(grid), jnp.asarray(grid))
    far = kernel.pairwise(jnp.asarray(grid + 10_000), jnp.asarray(grid + 10_000))
    np.testing.assert_array_equal(near, far)


@pytest.mark.parametrize("lengthscale", [0.5, (0.5, 1.0, 2.0)])
def test_derivatives_finite_at_coincident_points(lengthscale):
    x = jnp.ones(DIM)

    def value(log_lengthscale, q):
        kernel = eqx.tree_at(lambda k: k.log_lengthscale, ak.Gaussian(1.0), log_lengthscale)
        return kernel.log_pair(q, x)

    arguments = (jnp.log(jnp.asarray(lengthscale)), x)
    for derivative in (jax.grad(value, (0, 1)), jax.hessian(value, (0, 1))):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(derivative(*arguments)))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), np.array([1.0, -2.0])])
def test_lengthscale_must_be_positive(bad):
    with pytest.raises(ValueError, match=r"lengthscale must be positive and finite; got .*Try|try"):
        ak.Gaussian(bad)


def test_number_of_lengthscales_must_fit():
    with pytest.raises(ValueError, match=r"has 2 lengthscales.*3 dimensions"):
        ak.Gaussian(jnp.ones(2)).pairwise(jnp.ones((QUERIES, DIM)), jnp.ones((KEYS, DIM)))


def test_matrix_of_lengthscales_is_refused():
    with pytest.raises(ValueError, match="one per dimension"):
        ak.Gaussian(jnp.ones((2, 2)))


def test_repr_shows_lengthscales():
    assert repr(ak.Gaussian(0.5)) == "Gaussian(lengthscale=0.5)"
    assert repr(ak.Gaussian(jnp.array([1.0, 2.0]))) == "Gaussian(lengthscale=[1, 2])"
    inside = []
    jax.jit(lambda v: inside.append(repr(ak.Gaussian(v))))(1.0)
    assert inside == ["Gaussian(log_lengthscale=f32[], metric_factor=None)"]


def test_unhalved_convention(x64):
    d = 0.37
    kernel = ak.Gaussian(ak.kernels.convert_lengthscale(0.2, source="unhalved"))
    score = kernel.log_pair(jnp.array([0.0]), jnp.array([d]))
    np.testing.assert_allclose(score, -((d / 0.2) ** 2), rtol=1e-14)
    back = ak.kernels.convert_lengthscale(kernel.lengthscale, target="unhalved")
    np.testing.assert_allclose(back, 0.2, rtol=1e-14)


def test_unknown_convention_names_the_known():
    with pytest.raises(ValueError, match="'fwhm'; known are 'standard', 'unhalved'"):
        ak.kernels.convert_lengthscale(1.0, source="fwhm")


def test_bounds_are_half_a_gap_and_ten_ranges(x64):
    x = jnp.array([0.0, 1.0, 2.0, 4.0, 8.0])[:, None]
    lower, upper = ak.Gaussian(1.0).bounds(x)
    # the mean gap is 2, the median gap 1.5
    np.testing.assert_allclose([lower.lengthscale, upper.lengthscale], [0.75, 80.0])


def test_bounds_per_dimension_skip_constant_columns(x64):
    x = jnp.stack([jnp.arange(5.0), jnp.full(5, 3.0)], axis=1)
    lower, upper = ak.Gaussian(jnp.ones(2)).bounds(x)
    np.testing.assert_allclose(lower.lengthscale, [0.5, 1.0])
    np.testing.assert_allclose(upper.lengthscale, [40.0, 1.0])
    lower, upper = ak.Gaussian(1.0).bounds(x)
    np.testing.assert_allclose([lower.lengthscale, upper.lengthscale], [0.5, 40.0])


def test_lengthscales_may_come_in_low_precision():
    kernel = ak.Gaussian(jnp.array([0.5, 2.0], jnp.bfloat16))
    assert kernel.log_lengthscale.dtype == jnp.float32
    np.testing.assert_allclose(kernel.lengthscale, [0.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("dim", [2, 7])
@pytest.mark.parametrize("scale", ["one", "per dimension", "metric"])
@pytest.mark.parametrize("lengthscale", [3.0, 0.1])  # close to the centre, and far from it
def test_many_pairs_at_once_are_the_pairs_one_by_one(x64, dim, scale, lengthscale, monkeypatch):
    """The road of large blocks: products of matrices, in the value and in derivatives."""
    monkeypatch.setattr("attnkernel.kernels._radial._FEW", 0)
    kernel = {
        "one": lambda: ak.Matern32(lengthscale),
        "per dimension": lambda: ak.Matern32(lengthscale * (1.0 + jnp.arange(dim))),
        "metric": lambda: ak.Matern32(lengthscale, metric=jnp.eye(dim) + 0.2),
    }[scale]()
    q, k = jnp.asarray(points(0, QUERIES, dim)), jnp.asarray(points(1, KEYS, dim))
    arguments = (kernel, q, k)
    along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), arguments)

    def one_by_one(kernel, q, k):
        return ak.Kernel.pairwise(kernel, q, k)

    def at_once(kernel, q, k):
        return kernel.pairwise(q, k)

    @functools.partial(jax.jit, static_argnums=0)
    def everything(function):
        value, change = jax.jvp(function, arguments, along)
        gradient = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1, 2))(*arguments)
        return jax.tree.leaves((value, change, gradient))

    for ours, expected in zip(everything(at_once), everything(one_by_one), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 7])
@pytest.mark.parametrize("scale", ["one", "per dimension", "metric"])
def test_derivatives_of_points_many_lengthscales_apart(x64, dim, scale):
    """In float32 those of float64: for two clusters, 20 000 lengthscales apart."""
    x = np.float32(
        np.random.default_rng(0).uniform(size=(200, dim)) + (np.arange(200) % 2 * 1000.0)[:, None]
    )
    along = points(1, 200, dim)

    def derivatives(dtype):
        lengths = 0.05 if scale != "per dimension" else jnp.linspace(0.05, 0.1, dim)
        metric = jnp.eye(dim) + 0.2 if scale == "metric" else None
        kernel = jax.tree.map(lambda leaf: leaf.astype(dtype), ak.Gaussian(lengths, metric=metric))

        def total(kernel, q):
            scores = kernel.pairwise(q, jnp.asarray(x, dtype))
            return jnp.sum(jnp.exp(scores) * jnp.asarray(along[None, :, 0], dtype))

        def slope(kernel, q):
            return jax.grad(total, (0, 1))(kernel, q)

        q = jnp.asarray(x, dtype)
        arguments = (kernel, q)
        moves = (jax.tree.map(jnp.ones_like, kernel), jnp.asarray(along, dtype))
        return jax.tree.leaves(jax.jit(lambda *a: jax.jvp(slope, a, moves))(*arguments))

    both = derivatives(jnp.float32), derivatives(jnp.float64)
    for got, exact in zip(*both, strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * float(jnp.abs(exact).max()))


class Logistic(ak.kernels.Scaled):
    """1 / cosh² of half the difference, per column."""

    def log_pair(self, q, k):
        half = 0.5 * (q - k) / self.lengthscale
        return -2.0 * jnp.sum(jnp.logaddexp(half, -half))


def test_kernel_with_a_lengthscale_is_one_method_too(x64):
    x, y = points(0, KEYS, 1), points(1, KEYS, 1)[:, 0]
    model = ak.KernelRegression(Logistic(jnp.asarray(5.0)))
    fitted = ak.fit(model, x, y, objective=ak.LeaveOneOut())
    ends = [float(side.kernel.lengthscale) for side in model.bounds(jnp.asarray(x))]
    assert ends == [float(side.lengthscale) for side in ak.Gaussian(1.0).bounds(jnp.asarray(x))]
    assert ends[0] <= float(fitted.model.kernel.lengthscale) <= ends[1]
    assert len(np.unique(fitted.starts.begin.kernel.lengthscale)) == 10
    least = min(ak.profile(model, x, y, np.geomspace(*ends, 500), objective=ak.LeaveOneOut()))
    assert fitted.loss <= least + 1e-12
    assert repr(Logistic(0.25)) == "Logistic(lengthscale=0.25)"
    wide = Logistic(0.5).stretched(4.0)
    x = jnp.asarray(x)
    np.testing.assert_allclose(wide.pairwise(x, x), Logistic(2.0).pairwise(x, x), rtol=1e-13)


def test_kernel_with_a_lengthscale_refuses_what_it_cannot_be(x64):
    with pytest.raises(ValueError, match="lengthscale must be"):
        Logistic(-1.0)
    with pytest.raises(ValueError, match="2 lengthscales, one per dimension, but the points have"):
        ak.attend(*(points(i, KEYS, DIM) for i in range(3)), kernel=Logistic(np.ones(2)))

"""`Fourier` of float32 arrays: float64 inside, float32 outside, every transformation of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from marks import needs_finufft

import attnkernel as ak
from attnkernel import priors
from attnkernel._core.double_precision import in_float64
from attnkernel.methods import Dense, Fourier

pytestmark = needs_finufft

QUERIES, KEYS = 41, 53
HIDDEN = np.arange(KEYS) % 3 == 1


def data(dim=1):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, dim), (KEYS, dim), (KEYS, 2))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def number(lengthscale, q, k, v, method):
    kernel, prior = ak.Gaussian(lengthscale), priors.HeldOut(HIDDEN) & priors.ExcludeSelf()
    rule = ak.Softmax(0.7, sink_mass=0.1)
    value, log_mass = ak.attend(
        q, k, v, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
    )
    return jnp.sum(jnp.sin(value)) + jnp.sum(log_mass**2)


@pytest.mark.slow
def test_gradient_equals_that_of_float64():
    at = np.float32(0.3), *data()
    gradient = jax.jit(jax.grad(number, (0, 1, 2, 3)), static_argnums=4)
    with jax.numpy_rank_promotion("allow"):  # jax-finufft broadcasts ranks in its derivatives
        slopes = jax.device_get(gradient(*at, Fourier()))
    with jax.enable_x64(True):
        exact = gradient(*(np.float64(array) for array in at), Dense())
    for slope, expected in zip(slopes, exact, strict=True):
        assert slope.dtype == jnp.float32
        np.testing.assert_allclose(slope, expected, rtol=0, atol=2e-6 * np.max(np.abs(slope)))


def tiny(x, y):
    """A function whose second term float32 has no digits for."""
    return in_float64(lambda x, y: [1e9 * ((1.0 + 1e-9 * jnp.sin(x * y)) - 1.0)], x, y)[0]


TRANSFORMED = {
    "gradient": lambda f, x, y: jax.grad(lambda *at: f(*at).sum(), (0, 1))(x, y),
    "change": lambda f, x, y: jax.jvp(f, (x, y), (y, x)),
    "forward over reverse": lambda f, x, y: jax.hessian(lambda *at: f(*at).sum(), (0, 1))(x, y),
    "reverse over reverse": lambda f, x, y: jax.jacrev(jax.grad(lambda x: f(x, y).sum()))(x),
    "batch": lambda f, x, y: jax.vmap(f, (0, None))(x, y[0]),
    "gradients of a batch": lambda f, x, y: jax.vmap(jax.jit(jax.grad(f)))(x, y),
    "gradient of a loop": lambda f, x, y: jax.grad(
        lambda x: jax.lax.map(lambda b: f(x * b, y), jnp.arange(1.0, 3.0)).sum()
    )(x),
    "checkpoint": lambda f, x, y: jax.grad(jax.checkpoint(lambda x: f(x, y).sum()))(x),
    "shard_map": lambda f, x, y: jax.shard_map(
        f,
        mesh=jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=PartitionSpec("rows"),
        out_specs=PartitionSpec("rows"),
    )(x, y),
}


def test_every_transformation_of_jax():
    """The function has no digits in float32: it stays in float64, the results do not."""
    x, y = np.random.default_rng(2).normal(size=(2, 5)).astype(np.float32)

    @functools.partial(jax.jit, static_argnums=0)
    def results(function, x, y):
        return {name: transform(function, x, y) for name, transform in TRANSFORMED.items()}

    found = results(tiny, x, y)
    with jax.enable_x64(True):
        exact = results(lambda x, y: jnp.sin(x * y), np.float64(x), np.float64(y))
    for name, expected in exact.items():
        for one, other in zip(*map(jax.tree.leaves, (found[name], expected)), strict=True):
            assert one.dtype == jnp.float32
            # rounding of 1 + 1e-9 in float64 is 1e-16 beside 1e-9
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6, err_msg=name)


@functools.partial(jax.jit, static_argnames="method")
def predicted(lengthscale, q, k, v, method):
    mask = priors.HeldOut(jnp.arange(len(k)) % 7 == 0)
    return ak.attend(
        q, k, v, kernel=ak.Gaussian(lengthscale), prior=mask, method=method, return_log_mass=True
    )


def test_hard_inputs_equal_float64():
    """Clusters, far queries, an offset of x and of y, tiny and large lengthscales."""
    rng = np.random.default_rng(1)
    uniform = rng.uniform(-3, 3, 300)
    clusters = np.concatenate([uniform[:280] * 1e-3, 1e3 * (1 + np.arange(20))])
    label = np.sin(3 * uniform) + 0.1 * rng.normal(size=300)
    for x, y in ((uniform, label), (clusters, label), (uniform + 1e4, label + 1e4)):
        k, v = (a[:, None].astype(np.float32) for a in (x, y))
        q = np.concatenate([k[::3], k[:3] + 1e-3, [[-9e3], [9e4]]]).astype(np.float32)
        for lengthscale in (1e-30, 1e-4, 0.03, 1.0, 1e3, 1e30):
            ours, log_mass = predicted(np.float32(lengthscale), q, k, v, Fourier())
            with jax.enable_x64(True):
                wide = (np.float64(a) for a in (np.float32(lengthscale), q, k, v))
                exact, exact_log_mass = predicted(*wide, Dense())
            np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=2e-9)
            exact_log_mass = np.maximum(exact_log_mass, np.finfo(np.float32).min)
            np.testing.assert_allclose(log_mass, exact_log_mass, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_recomputed_counts_the_same_queries_as_in_float64(programs):
    (q, k, v), kernel = data(), ak.Gaussian(0.01)
    jax.clear_caches()
    programs.clear()
    ours = Fourier().recomputed(q, k, v, kernel=kernel)
    assert programs == ["jit(_count_uncertified)"]
    with jax.enable_x64(True):
        wide = (np.float64(a) for a in (q, k, v))
        exact = Fourier().recomputed(*wide, kernel=ak.Gaussian(np.float32(0.01)))
    assert 0 < int(ours) == int(exact)


def test_auto_takes_it_from_float32_shapes():
    shapes = (jax.ShapeDtypeStruct((10**5, 1), jnp.float32),) * 3
    assert ak.select_method(*shapes, kernel=ak.Gaussian(0.3)).method == Fourier()


def test_integers_booleans_and_modules_pass_through():
    kernel = ak.Gaussian(np.array([1.0, 3.0]))
    count, wide, flag = in_float64(
        lambda kernel, i, b: (jnp.sum(i), kernel.lengthscale + 1e-12 - 1.0, b),
        kernel,
        jax.device_put(np.arange(3)),
        jax.device_put(np.array(True)),
    )
    assert (int(count), bool(flag)) == (3, True)
    assert count.dtype == jnp.int32
    np.testing.assert_allclose(np.asarray(wide)[0], 1e-12, rtol=1e-3)

"""`Fourier` of float32 arrays: float64 inside, float32 outside, every transformation of JAX."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel import priors
from attnkernel._core.double_precision import in_float64

pytestmark = needs_finufft

QUERIES, KEYS = 41, 53
HIDDEN = np.arange(KEYS) % 3 == 1


def data(dim=1):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, dim), (KEYS, dim), (KEYS, 2))
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def number(lengthscale, q, k, v, method):
    kernel, prior = ak.Gaussian(lengthscale), priors.HeldOut(HIDDEN) & priors.ExcludeSelf()
    rule = ak.Softmax(0.7, sink_mass=0.1)
    value, log_mass = ak.attend(
        q, k, v, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
    )
    return jnp.sum(jnp.sin(value)) + jnp.sum(log_mass**2)


TRANSFORMED = {
    "gradient": lambda f: jax.grad(f, (0, 1, 2, 3)),
    "change": lambda f: lambda *at: jax.jvp(f, at, at),
    "forward over reverse": jax.hessian,
    "reverse over reverse": lambda f: jax.grad(jax.grad(f)),
    "batch": lambda f: lambda a, *at: jax.vmap(lambda a: f(a, *at))(a * jnp.arange(1.0, 3.0)),
    "gradients of a batch": lambda f: (
        lambda a, *at: jax.vmap(jax.jit(jax.grad(lambda a: f(a, *at))))(a * jnp.arange(1.0, 3.0))
    ),
    "gradient of a loop": lambda f: (
        lambda a, *at: jax.grad(
            lambda a: jax.lax.map(lambda b: f(a * b, *at), jnp.arange(1.0, 3.0)).sum()
        )(a)
    ),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.parametrize(
    "name",
    [
        "gradient",
        "forward over reverse",
        "gradients of a batch",
        *(
            slow(name)
            for name in (
                "change",
                "reverse over reverse",
                "batch",
                "gradient of a loop",
                "checkpoint",
            )
        ),
    ],
)
def test_transformations_equal_those_of_float64(name):
    at = jnp.asarray(0.3, jnp.float32), *data()
    transform = TRANSFORMED[name]
    with jax.numpy_rank_promotion("allow"):  # jax-finufft broadcasts ranks in its derivatives
        ours = jax.jit(transform(functools.partial(number, method=ak.Fourier())))(*at)
        with jax.enable_x64(True):
            wide = tuple(jnp.asarray(np.float64(array)) for array in at)
            exact = jax.jit(transform(functools.partial(number, method=ak.Dense())))(*wide)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6 * np.max(np.abs(other)))


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
            ours, log_mass = predicted(np.float32(lengthscale), q, k, v, ak.Fourier())
            with jax.enable_x64(True):
                wide = (jnp.asarray(np.float64(a)) for a in (np.float32(lengthscale), q, k, v))
                exact, exact_log_mass = predicted(*wide, ak.Dense())
            np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=2e-9)
            exact_log_mass = np.maximum(exact_log_mass, np.finfo(np.float32).min)
            np.testing.assert_allclose(log_mass, exact_log_mass, rtol=2e-6, atol=2e-6)


def test_recomputed_counts_the_same_queries_as_in_float64(programs):
    (q, k, v), kernel = data(), ak.Gaussian(0.01)
    programs.clear()
    ours = ak.Fourier().recomputed(q, k, v, kernel=kernel)
    assert programs == ["jit(_count_uncertified)"]
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.float64(a)) for a in (q, k, v))
        assert ours == ak.Fourier().recomputed(*wide, kernel=ak.Gaussian(np.float32(0.01)))
    assert ours > 0


def test_auto_takes_it_from_float32_shapes():
    shapes = (jax.ShapeDtypeStruct((10**5, 1), jnp.float32),) * 3
    assert ak.select_method(*shapes, kernel=ak.Gaussian(0.3)).method == ak.Fourier()


def test_integers_booleans_and_modules_pass_through():
    kernel = eqx.filter_vmap(ak.Gaussian)(jnp.array([1.0, 3.0]))
    count, wide, flag = in_float64(
        lambda kernel, i, b: (jnp.sum(i), kernel.lengthscale + 1e-12 - 1.0, b),
        kernel,
        jnp.arange(3),
        jnp.array(True),
    )
    assert (count, flag) == (3, True)
    assert count.dtype == jnp.int32
    np.testing.assert_allclose(wide[0], 1e-12, rtol=1e-3)


def test_inside_shard_map():
    q, k, v = data()
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))

    def of_rows(q):
        return ak.attend(q, k, v, kernel=ak.Gaussian(0.3), method=ak.Fourier())

    rows = PartitionSpec("rows")
    ours = jax.jit(jax.shard_map(of_rows, mesh=mesh, in_specs=rows, out_specs=rows))(q)
    np.testing.assert_allclose(ours, of_rows(q), rtol=1e-6)

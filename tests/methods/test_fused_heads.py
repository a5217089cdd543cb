"""`Fused` with heads of queries that share keys: equal to `Dense`, and without copies of keys."""

import functools
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators import interpreted, lowered
from marks import slow

import attnkernel as ak

QUERIES, KEYS = 96, 384  # of keys whole blocks, so that only copies make their arrays larger
KEY_HEADS, SHARING, HEAD = 2, 3, 128  # heads of keys, heads of queries of each, columns
PLATFORMS = ["cuda", slow("tpu")]


def grouped(dim, dim_v):
    rng = np.random.default_rng(0)
    shapes = (SHARING, QUERIES, dim), (1, KEYS, dim), (1, KEYS, dim_v)
    return [rng.normal(size=(KEY_HEADS, *shape)).astype(jnp.bfloat16) for shape in shapes]


def of_sines(method, *data, **parts):
    """A number that depends on all values and log-masses of attention, and the values."""
    options = {"kernel": ak.DotProduct()} | parts
    value, log_mass = ak.attend(*data, **options, method=method, return_log_mass=True)
    wide = jnp.promote_types(value.dtype, jnp.float32)
    return jnp.sum(jnp.sin(value), dtype=wide) + 0.1 * jnp.sum(log_mass, dtype=wide), value


def assert_near(found, dense, off):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(dense), strict=True):
        assert one.shape == other.shape
        one, other = np.asarray(one, float), np.asarray(other)
        assert np.abs(one - other).max() < off * np.abs(other).max()


def check_against_dense(function, method, data):
    """Checks `function(method, *data)` against `Dense` in float64."""
    run = jax.jit(function, static_argnums=0)
    found = jax.device_get(run(method, *data))
    with jax.enable_x64(True):
        dense = run(ak.methods.Dense(), *(x.astype(np.float64) for x in data))
    assert_near(found, dense, 0.05)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_heads_that_share_keys_equal_dense(emulated_cudnn, platform):
    slopes = jax.grad(functools.partial(of_sines, prior=ak.Causal()), (1, 2, 3), has_aux=True)
    batch = [np.stack([x, -x, 2 * x]) for x in grouped(5, 3)]
    check_against_dense(slopes, interpreted(platform=platform), batch)


@pytest.mark.parametrize("derivative", [jax.grad, slow(jax.jacrev)])
def test_gradients_of_each_head_in_the_keys_they_share(emulated_cudnn, derivative):
    """`vmap` of a gradient returns one for each head, not the sum that a gradient of all has."""
    q, k, v = (x[0] for x in grouped(5, 3))

    def slopes(method, q, k, v):
        def number(k):
            value = of_sines(method, q, k, v)[1]
            return jnp.sum(value) if derivative is jax.grad else jnp.sum(value, axis=0)

        return derivative(number)(k)

    each = jax.vmap(slopes, in_axes=(None, 0, None, None))
    check_against_dense(each, interpreted(), (q, k[0], v[0]))


def of_axes(method):
    """Attention along batch axes of size 1 of the keys."""
    call = functools.partial(ak.attend, kernel=ak.DotProduct(), method=method)
    return call, grouped(HEAD, HEAD)


def of_vmap(method):
    """Attention under the user's own `jax.vmap`."""
    call = functools.partial(ak.attend, kernel=ak.DotProduct(), prior=ak.Causal(), method=method)
    q, k, v = grouped(HEAD, HEAD)
    return jax.vmap(jax.vmap(call, (0, None, None))), (q, k[:, 0], v[:, 0])


def of_module(method):
    """A module with fewer heads of keys than of queries."""
    sizes = {"qk_size": HEAD, "vo_size": HEAD, "num_kv_heads": KEY_HEADS}
    options = {"prior": ak.Window(50, 0) & ak.Causal(), "method": method}
    options |= {"dtype": jnp.bfloat16, "key": jax.random.PRNGKey(0)}
    module = ak.MultiheadAttention(KEY_HEADS * SHARING, 7, **sizes, **options)
    rows = [np.zeros((count, 7)).astype(jnp.bfloat16) for count in (QUERIES, KEYS, KEYS)]
    return eqx.filter_jit(module), rows


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("way", [of_axes, slow(of_vmap), slow(of_module)])
def test_no_array_holds_the_keys_of_each_head(way, platform):
    call, data = way(ak.methods.Fused(platform=platform))

    def number(*data):
        return jnp.sum(call(*data).astype(jnp.float32) ** 2)

    found = lowered([platform], jax.grad(number, (0, 1, 2)), *data)
    shapes = re.findall(r"tensor<((?:\d+x)+)[a-z]", str(found.mlir_module()))
    sizes = [math.prod(int(axis) for axis in shape[:-1].split("x")) for shape in shapes]
    assert KEY_HEADS * KEYS * HEAD <= max(sizes) < KEY_HEADS * SHARING * KEYS * HEAD

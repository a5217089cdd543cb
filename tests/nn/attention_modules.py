"""Modules, arrays and the formula of attention that the tests of attention modules share."""

import contextlib
from unittest import mock

import equinox as eqx
import jax
import numpy as np


def rows_of(*shapes, seed=0):
    """Normal arrays, in NumPy."""
    rng = np.random.default_rng(seed)
    arrays = tuple(rng.normal(size=shape) for shape in shapes)
    return arrays if len(arrays) > 1 else arrays[0]


@contextlib.contextmanager
def drawn_by_numpy():
    """Inside, NumPy draws the weights of modules, which compiles nothing."""
    rng = np.random.default_rng(0)

    def uniform(key, shape, dtype, minval, maxval):
        return jax.device_put(rng.uniform(minval, maxval, shape).astype(dtype))

    def normal(key, shape):
        return jax.device_put(rng.normal(size=shape).astype(jax.dtypes.canonicalize_dtype(float)))

    def split(key, num):
        return [key] * num

    with mock.patch.multiple(jax.random, uniform=uniform, normal=normal, split=split):
        yield


def built(cls, *args, **options):
    """A module whose weights NumPy draws."""
    with drawn_by_numpy():
        return cls(*args, **options, key=jax.device_put(np.zeros(2, np.uint32)))


@eqx.filter_jit
def built_by_key(cls, *args, **options):
    """A module whose weights JAX draws from a key."""
    return cls(*args, **options, key=jax.random.PRNGKey(0))


def numpy_attention(q, k, v, mask=None):
    """The formula of one head."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def projected(module, x):
    """Queries, keys and values of one sequence without biases: (rows, heads, size) each."""
    heads = (module.num_heads, module.num_kv_heads, module.num_kv_heads)
    linears = (module.query_proj, module.key_proj, module.value_proj)
    parts = [x @ np.asarray(linear.weight).T for linear in linears]
    return tuple(part.reshape(len(x), n, -1) for part, n in zip(parts, heads, strict=True))

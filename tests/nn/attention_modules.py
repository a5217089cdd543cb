"""Modules, arrays and the formula of attention that the tests of attention modules share."""

import equinox as eqx
import jax
import numpy as np


def rows_of(*shapes, seed=0):
    """Normal arrays, in NumPy."""
    rng = np.random.default_rng(seed)
    arrays = tuple(rng.normal(size=shape) for shape in shapes)
    return arrays if len(arrays) > 1 else arrays[0]


@eqx.filter_jit
def built(cls, *args, **options):
    """A module of random weights, made by one program; those of one key for all classes."""
    return cls(*args, **options, key=jax.random.PRNGKey(0))


def pytorch_arrays():
    """Rows, the four weights and biases of a module of two heads, and (q, k, v) of two heads."""
    rows, weights, biases = rows_of((5, 6), (4, 6, 6), (4, 6))
    return rows, weights, biases, rows_of((2, 5, 6), (2, 7, 6), (2, 7, 3), seed=2)


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
    return tuple(
        (x @ np.asarray(linear.weight).T).reshape(len(x), count, -1)
        for linear, count in zip(linears, heads, strict=True)
    )

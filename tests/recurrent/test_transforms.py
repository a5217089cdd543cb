"""Online regression exported with symbolic sizes, and within `jax.shard_map` over its batch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec
from marks import slow

from attnkernel.recurrent import DeltaRule, LinearAttention, RecursiveLeastSquares, regress

BATCH, ROWS, DIM = 4, 70, 3  # 70 rows: a chunk of 64, and a part of one
CASES: dict[str, Any] = {
    "linear": LinearAttention,
    "normalised": lambda: LinearAttention(True),
    "delta": DeltaRule,
    "least squares": lambda: RecursiveLeastSquares(0.3),
}


def value_and_gradients(name, q, k, v, **more):
    """The results, the last state, and gradients of a sum of the results."""
    q, k = (array / jnp.linalg.norm(array, axis=-1, keepdims=True) for array in (q, k))
    options = {"log_decay": jnp.array(-0.1), "rate": jnp.array(0.5), "estimator": CASES[name]()}

    def number(q, k, v):
        found = regress(q, k, v, **options, **more)
        return jnp.sum(jnp.sin(found[0])), found

    return jax.grad(number, (0, 1, 2), has_aux=True)(q, k, v)


def data(batch=BATCH, rows=ROWS):
    return tuple(np.abs(np.random.default_rng(0).normal(size=(3, batch, rows, DIM))))


@functools.cache
def expected(name, batch=BATCH, rows=ROWS, **options):
    """The results on one device, of known sizes."""
    run = jax.jit(functools.partial(value_and_gradients, name, **options))
    return jax.device_get(run(*data(batch, rows)))


def assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize("name", CASES)
def test_shard_map_over_the_batch(x64, name):
    options = {"axis_types": (AxisType.Auto,), "devices": jax.devices()[:2]}
    mesh, each = jax.make_mesh((2,), ("d",), **options), PartitionSpec("d")
    within = jax.shard_map(
        functools.partial(value_and_gradients, name),
        mesh=mesh,
        in_specs=(each, each, each),
        out_specs=each,
    )
    assert_close(jax.jit(within)(*data()), expected(name))


@pytest.mark.parametrize("name", ["delta", *(slow(name) for name in CASES if name != "delta")])
def test_one_exported_program_takes_every_size(as_users_run_it, x64, name):
    """Any batch by chunks of a known number of rows; any batch and number of rows row by row."""
    # checked annotations compare the axes of batches as integers, which symbolic sizes are not
    batch, rows = export.symbolic_shape("b, n")
    for length, count, options in ((ROWS, ROWS, {}), (rows, 5, {"method": "recurrent"})):
        shape = jax.ShapeDtypeStruct((batch, length, DIM), float)
        run = jax.jit(functools.partial(value_and_gradients, name, **options))
        program = export.export(run)(shape, shape, shape)
        assert_close(program.call(*data(BATCH, count)), expected(name, BATCH, count, **options))
    run = jax.jit(functools.partial(value_and_gradients, name))
    with pytest.raises(ValueError, match=r"chunked.*symbolic.*'recurrent'"):
        export.export(run)(shape, shape, shape)

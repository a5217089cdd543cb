"""Attention of arrays on a mesh: of explicit axes, as `jax.make_mesh` makes it by default, and
within `jax.shard_map`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from marks import slow

import attnkernel as ak

pytestmark = pytest.mark.multi_device
BATCH, ROWS, DIM = 8, 16, 3
DOT = {"kernel": ak.DotProduct()}
CASES = {
    "dense": DOT | {"method": ak.Dense()},
    "blocks": DOT | {"method": ak.Blockwise(4, 4), "prior": ak.Causal()},
    "entmax": DOT | {"method": ak.Blockwise(4, 4), "rule": ak.Entmax(1.5)},
    "heads": {
        "kernel": ak.PerHead(jax.vmap(ak.Gaussian)(jnp.linspace(0.5, 2.0, BATCH))),
        "method": ak.Blockwise(4, 4),
    },
    "linear": {"kernel": ak.EluFeatures(), "method": ak.Linear()},
}


def mesh_of(devices, kind):
    return jax.make_mesh((devices,), ("d",), axis_types=(kind,), devices=jax.devices()[:devices])


def data():
    return tuple(np.random.default_rng(0).normal(size=(3, BATCH, ROWS, DIM)))


def assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("devices", [2, slow(8)])
@pytest.mark.parametrize("axis", ["members", "rows"])
@pytest.mark.parametrize("name", ["blocks", *(slow(n) for n in CASES if n != "blocks")])
def test_explicit_axes(x64, name, axis, devices):
    """Value and gradients; the value is laid out as the queries are."""
    mesh = mesh_of(devices, AxisType.Explicit)
    spec = PartitionSpec("d") if axis == "members" else PartitionSpec(None, "d")
    with jax.set_mesh(mesh):
        on_mesh = [jax.device_put(part, NamedSharding(mesh, spec)) for part in data()]
        found = jax.jit(functools.partial(value_and_slopes, name))(*on_mesh)
    assert tuple(found[1].sharding.spec)[: len(spec)] == tuple(spec)
    assert_close(found, off_mesh(name))


def value_and_slopes(name, q, k, v):
    def number(q, k, v):
        out = ak.attend(q, k, v, **CASES[name])
        return jnp.sum(jnp.sin(out)), out

    return jax.grad(number, (0, 1, 2), has_aux=True)(q, k, v)


@functools.cache
def off_mesh(name):
    """The reference of a case, compiled once for all meshes."""
    return jax.device_get(jax.jit(functools.partial(value_and_slopes, name))(*data()))


EACH, WHOLE = PartitionSpec("d"), PartitionSpec()


def line(q, k, v, **parts):
    """Attention over the first column alone."""
    return ak.attend(q[..., :1], k[..., :1], v, **parts)


def one_value(q, k, v, **parts):
    """Attention over one column of values, as large sums of light kernels store no weights."""
    return ak.attend(q, k, v[..., :1], **parts)


def many_columns(q, k, v, **parts):
    """Attention over so many columns that squared distances of many pairs are products."""
    twice = [jnp.concatenate([points, points**2], axis=-1) for points in (q, k)]
    return ak.attend(*twice, v, **parts)


def regression(q, k, v, **parts):
    """The local linear fit of each member of the batch."""
    return jax.vmap(ak.KernelRegression(order=1, **parts))(q, k, v)


def heads(q, k, v, **parts):
    """The heads of `MultiheadAttention`, by its default method, of each member of the batch."""
    module = ak.MultiheadAttention(3, DIM, key=jax.random.key(0), **parts)
    return jax.vmap(module)(q, k, v)


GAUSS = {"kernel": ak.Gaussian(0.7)}
WITHIN = {
    "dense": (ak.attend, GAUSS | {"method": ak.Dense()}),
    "blocks": (ak.attend, GAUSS | {"method": ak.Blockwise(4, 4)}),
    "causal": (ak.attend, GAUSS | {"method": ak.Blockwise(4, 4), "prior": ak.Causal()}),
    "entmax": (ak.attend, GAUSS | {"method": ak.Blockwise(4, 4), "rule": ak.Entmax(1.5)}),
    "dense entmax": (ak.attend, GAUSS | {"method": ak.Dense(), "rule": ak.Entmax(1.5)}),
    "unmaterialised": (one_value, GAUSS | {"method": ak.Blockwise(8, 8)}),
    "sorted": (line, {"kernel": ak.Laplace(0.7), "method": ak.Sorted()}),
    "sorted compact": (line, {"kernel": ak.Triweight(0.7), "method": ak.Sorted()}),
    "fourier": (line, GAUSS | {"method": ak.Fourier()}),
    "additive": (ak.attend, {"kernel": ak.Additive(jnp.arange(1.0, DIM + 1))}),
    "many columns": (many_columns, {"kernel": ak.Gaussian(jnp.linspace(0.7, 3.0, 2 * DIM))}),
    "neighbours": (ak.attend, {"kernel": ak.NearestNeighbours(ak.Gaussian(0.7), 0.5)}),
    "linear": (ak.attend, {"kernel": ak.EluFeatures(), "method": ak.Linear()}),
    "causal linear": (
        ak.attend,
        {"kernel": ak.EluFeatures(), "method": ak.Linear(), "prior": ak.Causal()},
    ),
    "linear in blocks": (ak.attend, {"kernel": ak.EluFeatures(), "method": ak.Blockwise(4, 4)}),
    "local linear": (regression, GAUSS),
    "local linear in blocks": (regression, GAUSS | {"method": ak.Blockwise(4, 4)}),
    "heads": (heads, {"kernel": ak.DotProduct()}),
    "local linear heads": (heads, GAUSS | {"order": 1}),
}


def value_and_gradients(function, parts, kernel, q, k, v):
    """The outputs, and the gradients of a sum of them in the kernel, q, k and v."""
    moving, fixed = eqx.partition(kernel, eqx.is_inexact_array)

    def number(moving, q, k, v):
        out = function(q, k, v, **parts | {"kernel": eqx.combine(moving, fixed)})
        return jnp.sum(jnp.sin(out)), out

    return jax.grad(number, (0, 1, 2, 3), has_aux=True)(moving, q, k, v)


def nearest(q, k, v, **parts):
    """Regression where many queries are out of reach of all labels: each takes the nearest."""
    return jax.vmap(ak.KernelRegression(on_empty="nearest", **parts))(q, k, v)


def weights(q, k, v, **parts):
    return ak.attention_weights(q, k, **parts)


WHOLE_FUNCTIONS = {
    "local linear": (regression, GAUSS),
    "nearest": (nearest, {"kernel": ak.Triweight(0.3)}),
    "heads": (heads, {"kernel": ak.DotProduct()}),
    "local linear heads": (heads, GAUSS | {"order": 1}),
    "weights": (weights, GAUSS),
}


@pytest.mark.parametrize("axis", ["members", "rows"])
@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE_FUNCTIONS)
def test_functions_on_explicit_axes(x64, name, axis):
    """Of models and weights the value and gradients; the value is laid out as the queries are."""
    mesh = mesh_of(2, AxisType.Explicit)
    spec = EACH if axis == "members" else PartitionSpec(None, "d")
    case = WHOLE_FUNCTIONS[name]
    run = jax.jit(functools.partial(value_and_gradients, *case))
    with jax.set_mesh(mesh):
        arrays = (jax.device_put(part, NamedSharding(mesh, spec)) for part in data())
        found = run(case[1]["kernel"], *arrays)
    assert tuple(found[1].sharding.spec)[: len(spec)] == tuple(spec)
    assert_close(found, direct("whole", name))


@pytest.mark.parametrize("devices", [2, slow(8)])
@pytest.mark.parametrize("name", ["blocks", *(slow(name) for name in WITHIN if name != "blocks")])
def test_shard_map(x64, name, devices, request, monkeypatch):
    """Within `jax.shard_map` over the batch, which checks along which axes arrays vary."""
    if name == "unmaterialised":
        request.getfixturevalue("force_unmaterialised")
    if name == "many columns":
        monkeypatch.setattr("attnkernel.kernels._radial.MAX_UNROLLED_PAIRS", 0)
    with jax.numpy_rank_promotion("allow" if name == "fourier" else "raise"):
        assert_mapped_is_direct(name, devices, (EACH, EACH, EACH), EACH)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "blocks", "entmax", "sorted"])
def test_shard_map_over_the_queries(x64, name):
    """Keys and values are whole on every device."""
    queries = PartitionSpec(None, "d")
    assert_mapped_is_direct(name, 2, (queries, WHOLE, WHOLE), queries)


def assert_mapped_is_direct(name, devices, of_arrays, of_output):
    """Values and gradients; those in what is whole on every device are summed over the devices."""
    mesh = mesh_of(devices, AxisType.Auto)
    run = functools.partial(value_and_gradients, *WITHIN[name])
    specs = (WHOLE, *of_arrays)
    within = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(specs, of_output))
    assert_close(jax.jit(within)(WITHIN[name][1]["kernel"], *data()), direct("within", name))


@functools.cache
def direct(table, name):
    """Value and gradients without a mesh, compiled once for all meshes."""
    case = {"within": WITHIN, "whole": WHOLE_FUNCTIONS}[table][name]
    run = jax.jit(functools.partial(value_and_gradients, *case))
    return jax.device_get(run(case[1]["kernel"], *data()))

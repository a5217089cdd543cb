"""Attention of arrays on a mesh: of explicit axes, as `jax.make_mesh` makes it by default, and
within `jax.shard_map`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from marks import needs_finufft, slow

import attnkernel as ak
from attnkernel.kernels import AdditiveScore, EluFeatures, Triweight
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sorted

pytestmark = pytest.mark.multi_device
BATCH, ROWS, DIM = 8, 16, 3
EACH, WHOLE = PartitionSpec("d"), PartitionSpec()
EACH_ROW = PartitionSpec(None, "d")


def mesh_of(devices, kind):
    return jax.make_mesh((devices,), ("d",), axis_types=(kind,), devices=jax.devices()[:devices])


def data():
    return tuple(np.random.default_rng(0).normal(size=(3, BATCH, ROWS, DIM)))


def line(q, k, v, **parts):
    """Attention over the first column alone."""
    return ak.attend(q[..., :1], k[..., :1], v, **parts)


def one_value(q, k, v, **parts):
    """Attention over one column of values, as large sums of cheap kernels store no weights."""
    return ak.attend(q, k, v[..., :1], **parts)


def many_columns(q, k, v, **parts):
    """Attention over so many columns that squared distances of many pairs are products."""
    twice = [jnp.concatenate([points, points**2], axis=-1) for points in (q, k)]
    return ak.attend(*twice, v, **parts)


def regression(q, k, v, **parts):
    """The local linear fit of each member of the batch."""
    return jax.vmap(ak.KernelRegression(order=1, **parts))(q, k, v)


def nearest(q, k, v, **parts):
    """Regression where many queries are out of reach of all labels: each takes the nearest."""
    return jax.vmap(ak.KernelRegression(on_empty="nearest", **parts))(q, k, v)


def heads(q, k, v, **parts):
    """The heads of `MultiheadAttention` of each member of the batch."""
    module = ak.MultiheadAttention(3, DIM, key=jax.random.key(0), **parts)
    return jax.vmap(module)(q, k, v)


def weights(q, k, v, **parts):
    return ak.attention_weights(q, k, **{name: parts[name] for name in parts if name != "method"})


GAUSS, DOT, ELU = ({"kernel": k} for k in (ak.Gaussian(0.7), ak.DotProduct(), EluFeatures()))
BLOCKS, CAUSAL, ENTMAX = (
    {"method": Blockwise(4, 4)},
    {"prior": ak.Causal()},
    {"rule": ak.Entmax(1.5)},
)
WITHIN = {
    "causal": {"causal": (ak.attend, GAUSS | BLOCKS | CAUSAL)},
    "blocks": {
        "blocks": (ak.attend, GAUSS | BLOCKS),
        "entmax": (ak.attend, GAUSS | BLOCKS | ENTMAX),
        "dense entmax": (ak.attend, GAUSS | ENTMAX | {"method": Dense()}),
    },
    "unmaterialised": {"unmaterialised": (one_value, GAUSS | {"method": Blockwise(8, 8)})},
    "sorted": {
        "laplace": (line, {"kernel": ak.Laplace(0.7), "method": Sorted()}),
        "compact": (line, {"kernel": Triweight(0.7), "method": Sorted()}),
    },
    "fourier": {"fourier": (line, GAUSS | {"method": Fourier()})},
    "kernels": {
        "additive": (ak.attend, {"kernel": AdditiveScore(np.arange(1.0, DIM + 1))}),
        "many columns": (many_columns, {"kernel": ak.Gaussian(np.linspace(0.7, 3.0, 2 * DIM))}),
        "neighbours": (ak.attend, {"kernel": ak.NearestNeighbours(ak.Gaussian(0.7), 0.5)}),
    },
    "linear": {
        "linear": (ak.attend, ELU | {"method": Linear()}),
        "causal linear": (ak.attend, ELU | CAUSAL | {"method": Linear()}),
        "linear in blocks": (ak.attend, ELU | BLOCKS),
    },
    "models": {
        "local linear in blocks": (regression, GAUSS | BLOCKS),
        "heads": (heads, DOT),
        "local linear heads": (heads, GAUSS | {"order": 1}),
    },
}
OVER_QUERIES = WITHIN["blocks"] | {"laplace": WITHIN["sorted"]["laplace"]}
EXPLICIT = {
    "blocks": {"blocks": (ak.attend, DOT | BLOCKS | CAUSAL)},
    "sums": {
        "dense": (ak.attend, DOT | {"method": Dense()}),
        "entmax": (ak.attend, DOT | BLOCKS | ENTMAX),
        "heads": (
            ak.attend,
            {"kernel": ak.PerHead(ak.Gaussian(np.linspace(0.5, 2.0, BATCH)))} | BLOCKS,
        ),
        "linear": (ak.attend, ELU | {"method": Linear()}),
    },
    "functions": {
        "local linear": (regression, GAUSS),
        "nearest": (nearest, {"kernel": Triweight(0.3)}),
        "heads of a module": (heads, DOT),
        "weights": (weights, GAUSS),
    },
}


def values_and_gradients(cases, kernels, q, k, v):
    """By case the outputs, and the gradients of a sum of them in the kernel, q, k and v."""

    def of_case(name):
        function, parts = cases[name]
        moving, fixed = eqx.partition(kernels[name], eqx.is_inexact_array)

        def number(moving, q, k, v):
            out = function(q, k, v, **parts | {"kernel": eqx.combine(moving, fixed)})
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(number, (0, 1, 2, 3), has_aux=True)(moving, q, k, v)

    return {name: of_case(name) for name in cases}


def kernels_of(cases):
    return {name: parts["kernel"] for name, (_, parts) in cases.items()}


def assert_equal_to_dense(found, cases):
    """Checks results on a mesh against the dense reference without one."""
    dense = {
        name: (function, parts | {"method": Dense()}) for name, (function, parts) in cases.items()
    }
    expected = jax.jit(functools.partial(values_and_gradients, dense))(kernels_of(cases), *data())
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if "fourier" in cases else {"rtol": 1e-9, "atol": 1e-9}
    for name in cases:
        for one, other in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(np.asarray(one), other, **tolerance, err_msg=name)


@pytest.mark.parametrize("spec", [EACH, EACH_ROW], ids=["members", "rows"])
@pytest.mark.parametrize("group", ["blocks", slow("sums"), slow("functions")])
def test_explicit_axes(x64, group, spec):
    """Values and gradients; the value is laid out as the queries are."""
    mesh, cases = mesh_of(2, AxisType.Explicit), EXPLICIT[group]
    with jax.set_mesh(mesh):
        on_mesh = [jax.device_put(part, NamedSharding(mesh, spec)) for part in data()]
        run = jax.jit(functools.partial(values_and_gradients, cases))
        found = run(kernels_of(cases), *on_mesh)
    for name, (_, value) in found.items():
        assert tuple(value.sharding.spec)[: len(spec)] == tuple(spec), name
    assert_equal_to_dense(found, cases)


@pytest.mark.parametrize(
    ("group", "devices"),
    [
        ("causal", 2),
        slow("causal", 8),
        *(slow(name, 2) for name in WITHIN if name not in ("causal", "fourier")),
        pytest.param("fourier", 2, marks=[pytest.mark.slow, needs_finufft]),
    ],
)
def test_shard_map(x64, group, devices, request, monkeypatch):
    """Within `jax.shard_map` over the batch, which checks along which axes arrays vary."""
    if group == "unmaterialised":
        request.getfixturevalue("force_unmaterialised")
    if group == "kernels":
        monkeypatch.setattr("attnkernel.kernels._distances.MAX_UNROLLED_PAIRS", 0)
    with jax.numpy_rank_promotion("allow" if group == "fourier" else "raise"):
        assert_mapped_is_dense(WITHIN[group], devices, (EACH, EACH, EACH), EACH)


@pytest.mark.slow
def test_shard_map_over_the_queries(x64):
    """Keys and values are whole on every device."""
    assert_mapped_is_dense(OVER_QUERIES, 2, (EACH_ROW, WHOLE, WHOLE), EACH_ROW)


def assert_mapped_is_dense(cases, devices, of_arrays, of_output):
    """Values and gradients; those in what is whole on every device are summed over the devices."""
    within = jax.shard_map(
        functools.partial(values_and_gradients, cases),
        mesh=mesh_of(devices, AxisType.Auto),
        in_specs=(WHOLE, *of_arrays),
        out_specs=dict.fromkeys(cases, ((WHOLE, *of_arrays), of_output)),
    )
    assert_equal_to_dense(jax.jit(within)(kernels_of(cases), *data()), cases)

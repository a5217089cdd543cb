"""Attention of arrays on a mesh of explicit axes, as `jax.make_mesh` makes it by default."""

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


@pytest.mark.parametrize("devices", [2, slow(8)])
@pytest.mark.parametrize("axis", ["members", "rows"])
@pytest.mark.parametrize("name", ["blocks", *(slow(n) for n in CASES if n != "blocks")])
def test_explicit_axes(x64, name, axis, devices):
    """Value and gradients; the value is laid out as the queries are."""
    mesh = jax.make_mesh(
        (devices,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:devices]
    )
    spec = PartitionSpec("d") if axis == "members" else PartitionSpec(None, "d")
    q, k, v = np.random.default_rng(0).normal(size=(3, BATCH, ROWS, DIM))

    def both(q, k, v):
        def number(q, k, v):
            out = ak.attend(q, k, v, **CASES[name])
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(number, (0, 1, 2), has_aux=True)(q, k, v)

    expected = jax.jit(both)(q, k, v)
    with jax.set_mesh(mesh):
        on_mesh = [jax.device_put(part, NamedSharding(mesh, spec)) for part in (q, k, v)]
        found = jax.jit(both)(*on_mesh)
    assert tuple(found[1].sharding.spec)[: len(spec)] == tuple(spec)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-12)

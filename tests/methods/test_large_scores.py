"""Scores so large that the logarithm of a mass rounds away how many keys share the highest one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from marks import slow

import attnkernel as ak

METHODS = {
    "blocks": lambda mesh: ak.Blockwise(3, 2),
    "one block": lambda mesh: ak.Blockwise(),
    "sharded": ak.Sharded,
    "ring": lambda mesh: ak.Sharded(mesh, ring=True),
    "sharded dense": lambda mesh: ak.Sharded(mesh, inner=ak.Dense()),
}
KERNELS = {
    "dot": ak.DotProduct(),
    "bilinear": ak.Bilinear(jnp.eye(3)),
    "polynomial": ak.Polynomial(),
    "cosine": ak.CosineSimilarity(),
}


@pytest.mark.multi_device
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kernel", ["dot", *(slow(name) for name in KERNELS if name != "dot")])
def test_equals_the_dense_reference(kernel, name):
    """Of keys that come three times, in float32; from a scale of 1e25 a score is +inf."""
    rng = np.random.default_rng(0)
    # terms of one sign: the sum of an overflow above and one below is NaN
    q, k = (jnp.asarray(np.abs(rng.normal(size=(7, 3))), jnp.float32) for _ in range(2))
    q = q * jnp.asarray([[1.0], [-1.0]] * 3 + [[1.0]], jnp.float32)
    k = jnp.concatenate([k[:3], k[:3], k[:3], k[3:]])
    v = jnp.asarray(rng.normal(size=(len(k), 3)), jnp.float32)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def both(method, scale):
        points = q * scale, k * scale
        parts = {"kernel": KERNELS[kernel], "method": method, "return_log_mass": True}
        return ak.attend(*points, v, **parts)

    for scale in (2.0**17, 1e18, 1e25):
        expected = both(ak.Dense(), scale)
        assert np.all(np.isfinite(expected[0]))
        for found, other in zip(both(METHODS[name](mesh), scale), expected, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)

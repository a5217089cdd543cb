"""Scores so large that the logarithm of a mass rounds away how many keys share the highest one."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from marks import slow

import attnkernel as ak
from attnkernel.kernels import Bilinear, CosineSimilarity, Polynomial
from attnkernel.methods import Blockwise, Dense, Sharded

METHODS = {
    "blocks": lambda mesh: Blockwise(3, 2),
    "one block": lambda mesh: Blockwise(),
    "sharded": Sharded,
    "ring": lambda mesh: Sharded(mesh, ring=True),
    "sharded dense": lambda mesh: Sharded(mesh, inner=Dense()),
}
KERNELS = {
    "dot": ak.DotProduct(),
    "bilinear": Bilinear(np.eye(3)),
    "polynomial": Polynomial(),
    "cosine": CosineSimilarity(),
}


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *(("dot", name) for name in METHODS),
        *(slow(kernel, "blocks") for kernel in KERNELS if kernel != "dot"),
        slow("bilinear", "one block"),
        slow("polynomial", "sharded"),
        slow("cosine", "ring"),
    ],
)
def test_equals_the_dense_reference(kernel, name):
    """Of keys that come three times, in float32; from a scale of 1e25 a score is +inf."""
    rng = np.random.default_rng(0)
    # terms of one sign: the sum of an overflow above and one below is NaN
    q, k = np.abs(rng.normal(size=(2, 7, 3))).astype(np.float32)
    q *= np.float32([[1.0], [-1.0]] * 3 + [[1.0]])
    k = np.concatenate([k[:3], k[:3], k[:3], k[3:]])
    v = rng.normal(size=(len(k), 3)).astype(np.float32)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    @jax.jit
    def both(q, k, v):
        parts = {"kernel": KERNELS[kernel], "return_log_mass": True}
        return [ak.attend(q, k, v, **parts, method=m) for m in (METHODS[name](mesh), Dense())]

    for scale in (2.0**17, 1e18, 1e25):
        found, expected = both(q * np.float32(scale), k * np.float32(scale), v)
        assert np.all(np.isfinite(expected[0]))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

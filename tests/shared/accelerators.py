"""Accelerators without one: kernels interpreted, cuDNN by its formula, programs lowered."""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import attnkernel as ak

CHECKS = [  # custom calls that are not promised to mean the same in other versions
    export.DisabledSafetyCheck.custom_call(name)
    for name in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward", "tpu_custom_call")
]


def interpreted(dtype=None, platform="cuda"):
    return ak.methods.Fused(dtype, platform=platform, interpret=True)


def cudnn_by_formula(q, k, v, *, limits):
    """What cuDNN's documentation says of arrays (batch, rows, heads, columns), one head of keys."""
    assert q.shape[0] == k.shape[0] == v.shape[0]
    assert k.shape[2] == v.shape[2] == 1
    scores = jnp.einsum("bqhc,bkc->bqhk", q, k[:, :, 0], preferred_element_type=jnp.float32)
    left, right = limits
    assert right == 0 if left is not None else right in (0, None)
    i, j = np.indices((q.shape[1], k.shape[1]))
    if right == 0:
        seen = (j <= i) & (i - j <= (k.shape[1] if left is None else left))
        scores = jnp.where(seen[None, :, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=3).astype(v.dtype)
    out = jnp.einsum("bqhk,bkc->bqhc", weights, v[:, :, 0], preferred_element_type=jnp.float32)
    log_mass = jax.nn.logsumexp(scores, axis=3, keepdims=True)
    return [out.astype(v.dtype), jax.lax.stop_gradient(log_mass)]


@contextlib.contextmanager
def abstract_gpu():
    """Names a GPU and the version of cuDNN, without either."""
    gpu = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    version = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    mesh = AbstractMesh((), (), abstract_device=gpu)
    with use_abstract_mesh(mesh), mock.patch(version, return_value=91100):
        yield


def lowered(platforms, function, *arrays):
    """Returns the program of `function(*arrays)` for some platforms."""
    where = abstract_gpu() if "cuda" in platforms else contextlib.nullcontext()
    with where:
        exported = export.export(jax.jit(function), platforms=platforms, disabled_checks=CHECKS)
        return exported(*arrays)

"""`Fused` without an accelerator: its kernels interpreted, cuDNN by its formula, programs lowered
for GPU and TPU; heads of queries that share keys."""

import contextlib
import functools
import math
import re
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from laws import to_float64
from marks import slow

import attnkernel as ak
from attnkernel import priors
from attnkernel.attention import Auto
from attnkernel.kernels import EluFeatures, SoftCapped
from attnkernel.methods import (
    Blockwise,
    Dense,
    Fused,
    Linear,
    Sharded,
    Sorted,
    _fused,
)

CHECKS = [  # custom calls that are not promised to mean the same in other versions
    export.DisabledSafetyCheck.custom_call(name)
    for name in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward", "tpu_custom_call")
]


def interpreted(dtype=None, platform="cuda"):
    return ak.methods.Fused(dtype, platform=platform, interpret=True)


def cudnn_by_formula(q, k, v, limits):
    """What cuDNN's documentation says of one head."""
    scores = jnp.einsum("qc,kc->qk", q, k, preferred_element_type=jnp.float32)
    left, right = limits
    assert right == 0 if left is not None else right in (0, None)
    i, j = np.indices((len(q), len(k)))
    if right == 0:
        seen = (j <= i) & (i - j <= (len(k) if left is None else left))
        scores = jnp.where(seen, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=1).astype(v.dtype)
    out = jnp.einsum("qk,kc->qc", weights, v, preferred_element_type=jnp.float32)
    return out.astype(v.dtype), jax.lax.stop_gradient(jax.nn.logsumexp(scores, axis=1))


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


@pytest.fixture
def emulated_cudnn(monkeypatch):
    """Computes cuDNN's sum by its documented formula, in the programs of `interpreted` alone."""
    monkeypatch.setattr(_fused, "attend_by_cudnn", cudnn_by_formula)


QUERIES, KEYS = 131, 149  # more than one block of each, and neither whole
HIDDEN = np.arange(KEYS) % 3 == 1
PRIORS = {
    "none": None,
    "held out": priors.HeldOut(HIDDEN),
    "causal": ak.Causal(),
    "causal, and held out": priors.HeldOut(HIDDEN | (np.arange(KEYS) < 5)) & ak.Causal(),
    "window": ak.Window(20, 7),
    "causal window": ak.Window(30, 7) & ak.Causal(),
    "segments": priors.Segments(np.arange(QUERIES) // 50 - 1, np.arange(KEYS) // 40 - 1),
}
PRIORS["all"] = PRIORS["causal, and held out"] & PRIORS["window"] & PRIORS["segments"]


CAPPED = SoftCapped(ak.DotProduct(), ak.fixed(2.0))
PLATFORMS = ("cpu", "cuda", "tpu")


def rows(dim, dim_v, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (QUERIES, dim), (KEYS, dim), (KEYS, dim_v)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def compare(method, *data, dense_dtype=None, **parts):
    """Values and log-masses by a method and by `Dense`, of the same arrays, in one program."""

    @jax.jit
    def both(*data):
        wide = [x.astype(dense_dtype or x.dtype) for x in data]
        attended = functools.partial(ak.attend, **parts, return_log_mass=True)
        return attended(*data, method=method), attended(*wide, method=Dense())

    return jax.device_get(both(*data))


@pytest.mark.parametrize(
    ("platform", "kernel", "prior", "dtype", "dim", "dim_v"),
    [
        ("tpu", CAPPED, "all", jnp.bfloat16, 3, 5),
        ("cuda", ak.Gaussian(0.9), "none", jnp.float16, 5, 2),
        ("cuda", ak.DotProduct(), "causal window", jnp.bfloat16, 7, 128),
        slow("tpu", ak.Gaussian(0.9), "all", jnp.bfloat16, 3, 5),
        slow("tpu", ak.DotProduct(), "window", jnp.bfloat16, 128, 128),
        slow("tpu", ak.Gaussian(0.9), "segments", jnp.bfloat16, 125, 2),
        slow("cuda", ak.Gaussian(0.9), "causal, and held out", jnp.bfloat16, 3, 5),
        slow("cuda", ak.DotProduct(), "held out", jnp.float16, 7, 7),
    ],
)
def test_half_precision_error_bound(emulated_cudnn, platform, kernel, prior, dtype, dim, dim_v):
    q, k, v = rows(dim, dim_v, dtype)
    named = {"kernel": kernel, "prior": PRIORS[prior], "return_log_mass": True}

    @functools.partial(jax.jit, static_argnums=0)
    def call(method, *data):
        return ak.attend(*data, **named, method=method)

    value, log_mass = jax.device_get(call(interpreted(platform=platform), q, k, v))
    assert value.dtype == dtype
    with jax.enable_x64(True):
        wide = (x.astype(np.float64) for x in (q, k, v))
        dense, dense_mass = jax.device_get(call(Dense(), *wide))
    unit = float(jnp.finfo(dtype).eps) / 2
    near = [np.asarray(x, float) for x in (q, k)]
    if isinstance(kernel, ak.Gaussian):
        near = [(x - near[1].mean(axis=0)) / 0.9 for x in near]
    size = 1.0 if isinstance(kernel, ak.Gaussian) else 1 / np.sqrt(dim)
    off = 2 * unit * size * np.prod([np.linalg.norm(x, axis=1).max() for x in near])
    highest = np.abs(np.asarray(v, float)).max()
    worst = 2 * np.expm1(off) * highest + 4 * unit * highest
    assert np.abs(np.asarray(value, float) - dense).max() < worst
    seen = ~np.isneginf(dense_mass)
    np.testing.assert_array_equal(np.isneginf(log_mass), ~seen)
    log_mass, dense_mass = np.asarray(log_mass, float)[seen], dense_mass[seen]
    allowed = off + 4 * unit * (np.abs(dense_mass).max() + 20)
    assert np.abs(log_mass - dense_mass).max() < allowed


def heads_and_batches():
    """Two members of a batch, of three heads with a kernel each."""
    data = [np.stack([x, -x])[:, None] for x in rows(3, 5, jnp.bfloat16)]
    return data, ak.PerHead(ak.Gaussian(np.array([0.8, 1.0, 1.4])))


@pytest.mark.parametrize("platform", [slow("cuda"), "tpu"])
def test_heads_and_batches(emulated_cudnn, platform):
    data, kernel = heads_and_batches()
    parts = {"kernel": kernel, "prior": ak.Causal(), "dense_dtype": np.float32}
    (ours, _), (dense, _) = compare(interpreted(platform=platform), *data, **parts)
    assert ours.shape == (2, 3, QUERIES, 5)
    assert np.abs(ours.astype(float) - dense).max() < 0.1


def test_half_precision_is_shift_invariant(emulated_cudnn):
    q, k, v = rows(2, 1)
    data = q + np.float32(30.0), k + np.float32(30.0), v
    (ours, _), (dense, _) = compare(interpreted("bfloat16"), *data, kernel=ak.Gaussian(0.7))
    assert np.abs(ours - dense).max() < 0.06


def test_squared_keys_are_exact_in_bfloat16(emulated_cudnn):
    """Integers whose products are exact in bfloat16 and whose squares are not."""
    rng = np.random.default_rng(0)
    half = rng.integers(-15, 16, size=(70, 2))
    k = np.concatenate([half, -half]).astype(np.float32)
    v = rng.integers(-8, 9, size=(140, 1)).astype(np.float32)
    ours, dense = compare(interpreted("bfloat16"), k[::3], k, v, kernel=ak.Gaussian(1.0))
    assert np.abs(ours[0] - dense[0]).max() < 0.06
    np.testing.assert_allclose(ours[1], dense[1], atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_points_far_from_each_other_in_half_precision(emulated_cudnn, dtype):
    """1200 lengthscales apart: squares of 7e5, where float16 ends at 65504."""
    columns = [-600.0, 600.0, 0.0], [-600.0, -600.0, 600.0], [1.0, 3.0, 7.0]
    q, k, v = np.array(columns).astype(dtype)[..., None]
    named = {"kernel": ak.Gaussian(1.0), "method": interpreted(), "return_log_mass": True}
    out, log_mass = jax.device_get(jax.jit(lambda *data: ak.attend(*data, **named))(q, k, v))
    np.testing.assert_allclose(out[:2].astype(float), [[2.0], [7.0]], rtol=1e-2)
    assert np.isfinite(out.astype(float)).all()
    assert not np.isnan(log_mass.astype(float)).any()


@pytest.mark.parametrize("platform", ["cuda", slow("tpu")])
def test_gradients_in_half_precision(emulated_cudnn, platform):
    q, k, v = rows(3, 5, jnp.bfloat16)

    def number(method, kernel, *data):
        parts = {"kernel": kernel, "prior": PRIORS["causal, and held out"], "method": method}
        value, log_mass = ak.attend(*data, **parts, return_log_mass=True)
        seen = jnp.where(jnp.isneginf(log_mass), 0.0, log_mass)
        wide = jnp.promote_types(value.dtype, jnp.float32)
        return jnp.sum(jnp.sin(value), dtype=wide) + 0.1 * jnp.sum(seen, dtype=wide)

    gradient = jax.jit(jax.grad(number, (1, 2, 3, 4)), static_argnums=0)
    ours = gradient(interpreted(platform=platform), ak.Gaussian(0.9), q, k, v)
    with jax.enable_x64(True):
        dense = gradient(Dense(), *map(to_float64, (ak.Gaussian(0.9), q, k, v)))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(dense), strict=True):
        one, other = np.asarray(one, float), np.asarray(other)
        assert np.abs(one - other).max() < 0.05 * np.abs(other).max()


def lowered_gradient(platforms, method, kernel, *data, prior=None):
    """Returns the program of the gradient of a sum of squares of `attend`."""

    def number(q, k, v):
        out = ak.attend(q, k, v, kernel=kernel, prior=prior, method=method)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    return lowered(platforms, jax.grad(number, (0, 1, 2)), *data)


@pytest.mark.parametrize(
    ("method", "kernel", "devices"),
    [
        (Blockwise(), ak.Matern52(0.3), 1),
        (Auto(), ak.Gaussian(0.3), 1),
        slow(Sorted(), ak.Epanechnikov(0.3), 1),
        slow(Linear(), EluFeatures(), 1),
        *(slow(Sharded(ring=ring), ak.Gaussian(0.3), 8) for ring in (False, True)),
    ],
)
def test_methods_lower_for_every_platform(method, kernel, devices):
    found = lowered_gradient(PLATFORMS, method, kernel, *rows(1, 3))
    assert set(found.platforms) == set(PLATFORMS)
    assert found.nr_devices == devices


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "call"), [("cuda", "cudnn$fmhaSoftmax"), ("tpu", "tpu_custom_call")]
)
def test_fused_lowers_to_the_named_call(platform, call):
    prior = PRIORS["causal, and held out"] & ak.Window(64, 9)
    data, kernel = heads_and_batches()
    found = lowered_gradient([platform], Fused(platform=platform), kernel, *data, prior=prior)
    assert call in str(found.mlir_module())


def test_queries_whose_window_lies_behind_the_last_key(emulated_cudnn):
    q, k, v = rows(3, 2, jnp.bfloat16)
    named = {"kernel": ak.DotProduct(), "prior": ak.Window(5, 0), "return_log_mass": True}
    call = jax.jit(lambda *data: ak.attend(*data, **named, method=interpreted()))
    value, log_mass = jax.device_get(call(q, k[:40], v[:40]))
    np.testing.assert_array_equal(np.isneginf(log_mass), np.arange(QUERIES) > 44)
    assert not np.any(value[45:].astype(float))


SHORT, LONG = 96, 384  # of keys whole blocks, so that only copies make their arrays larger
KEY_HEADS, SHARING, HEAD = 2, 3, 128  # heads of keys, heads of queries of each, columns
ACCELERATORS = ["cuda", slow("tpu")]


def grouped(dim, dim_v):
    rng = np.random.default_rng(0)
    shapes = (SHARING, SHORT, dim), (1, LONG, dim), (1, LONG, dim_v)
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


@pytest.mark.parametrize("platform", ACCELERATORS)
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


def of_module(method):
    """A module with fewer heads of keys than of queries."""
    sizes = {"qk_size": HEAD, "vo_size": HEAD, "num_kv_heads": KEY_HEADS}
    options = {"prior": ak.Window(50, 0) & ak.Causal(), "method": method}
    options |= {"dtype": jnp.bfloat16, "key": jax.random.PRNGKey(0)}
    module = ak.MultiheadAttention(KEY_HEADS * SHARING, 7, **sizes, **options)
    rows = [np.zeros((count, 7)).astype(jnp.bfloat16) for count in (SHORT, LONG, LONG)]
    return eqx.filter_jit(module), rows


def lowered_with_shared_keys(platform, way):
    """Returns the program of a gradient of attention in which heads of queries share keys."""
    call, data = way(ak.methods.Fused(platform=platform))

    def number(*data):
        return jnp.sum(call(*data).astype(jnp.float32) ** 2)

    return str(lowered([platform], jax.grad(number, (0, 1, 2)), *data).mlir_module())


@pytest.mark.parametrize("way", [of_axes, slow(of_module)])
def test_heads_that_share_keys_lower_to_cudnn(way):
    assert "cudnn$fmhaSoftmaxBackward" in lowered_with_shared_keys("cuda", way)


@pytest.mark.parametrize("way", [slow(of_axes), slow(of_module)])
def test_no_array_of_tpus_holds_the_keys_of_each_head(way):
    shapes = re.findall(r"tensor<((?:\d+x)+)[a-z]", lowered_with_shared_keys("tpu", way))
    sizes = [math.prod(int(axis) for axis in shape[:-1].split("x")) for shape in shapes]
    assert KEY_HEADS * LONG * HEAD <= max(sizes) < KEY_HEADS * SHARING * LONG * HEAD

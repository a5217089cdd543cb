"""`Fused` without an accelerator: its kernels interpreted, or lowered for GPU and TPU."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from accelerators import interpreted, lowered
from laws import assert_agree, evaluate, to_float64
from marks import slow

import attnkernel as ak
from attnkernel import priors

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


# Other tests run these methods on a CPU, and lower some for a TPU.
PLATFORMS = [slow("cpu"), "cuda", slow("tpu")]


def rows(dim, dim_v, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (QUERIES, dim), (KEYS, dim), (KEYS, dim_v)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("kernel", "prior", "dim", "dim_v"),
    [
        slow(ak.Gaussian(0.7), "none", 1, 1),
        (ak.Gaussian(jnp.array([0.5, 1.1, 0.8])), "all", 3, 5),
        slow(ak.Matern32(0.9), "held out", 2, 17),
        slow(ak.Matern52(2.5), "causal", 11, 3),
        slow(ak.Laplace(0.9), "window", 2, 2),
        (ak.SoftCapped(ak.DotProduct(1.7), ak.fixed(0.5)), "all", 11, 3),
        slow(ak.DotProduct(), "causal", 3, 17),
        slow(
            ak.Gaussian(0.8, metric=jnp.array([[2.0, 0.3], [0.3, 0.5]])),
            "none",
            2,
            1,
        ),
    ],
)
def test_pallas_kernel_equals_dense(kernel, prior, dim, dim_v):
    parts = kernel, PRIORS[prior], ak.Softmax(1.3, sink_mass=0.02), *rows(dim, dim_v)
    found = evaluate(interpreted(), *parts)
    with jax.enable_x64(True):
        dense = evaluate(ak.Dense(), *map(to_float64, parts))
    assert_agree(found, dense, rtol=2e-4, atol=2e-4)


def test_common_shift_of_points_changes_nothing():
    q, k, v = rows(2, 1)

    def call(far):
        points = (q + far).astype(jnp.float32), (k + far).astype(jnp.float32)
        return ak.attend(*points, v, kernel=ak.Gaussian(0.1), method=interpreted())

    # numbers near 1e4 lie 1e-3 apart: round to that first
    q, k = (jnp.round(x * 1024) / 1024 for x in (q, k))
    np.testing.assert_allclose(call(8192.0), call(0.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("platform", "kernel", "prior", "dtype", "dim", "dim_v"),
    [
        ("tpu", ak.Gaussian(0.9), "all", jnp.bfloat16, 3, 5),
        ("tpu", ak.SoftCapped(ak.DotProduct(), ak.fixed(2.0)), "segments", jnp.bfloat16, 128, 9),
        ("cuda", ak.Gaussian(0.9), "none", jnp.float16, 5, 2),
        ("cuda", ak.DotProduct(), "causal", jnp.bfloat16, 128, 11),
        ("cuda", ak.DotProduct(), "causal window", jnp.bfloat16, 7, 128),
        slow("tpu", ak.DotProduct(), "window", jnp.bfloat16, 128, 128),
        slow("tpu", ak.Gaussian(0.9), "segments", jnp.bfloat16, 125, 2),
        slow("cuda", ak.Gaussian(0.9), "causal, and held out", jnp.bfloat16, 3, 5),
        slow("tpu", ak.DotProduct(), "causal", jnp.bfloat16, 16, 11),
        slow("cuda", ak.DotProduct(), "held out", jnp.float16, 7, 7),
    ],
)
def test_half_precision_error_bound(emulated_cudnn, platform, kernel, prior, dtype, dim, dim_v):
    q, k, v = rows(dim, dim_v, dtype)
    named = {"kernel": kernel, "prior": PRIORS[prior], "return_log_mass": True}
    value, log_mass = ak.attend(q, k, v, **named, method=interpreted(platform=platform))
    assert value.dtype == dtype
    with jax.enable_x64(True):
        double = ak.attend(*map(to_float64, (q, k, v)), **named, method=ak.Dense())
    dense, dense_mass = map(np.asarray, double)
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
    assert np.abs(np.asarray(log_mass, float)[seen] - dense_mass[seen]).max() < off + 4 * unit * (
        np.abs(dense_mass[seen]).max() + 20
    )


@pytest.mark.parametrize(
    ("platform", "dtype"),
    [slow("cuda", jnp.float32), slow("cuda", jnp.bfloat16), ("tpu", jnp.bfloat16)],
)
def test_heads_and_batches(emulated_cudnn, platform, dtype):
    data = [jnp.stack([x, -x])[:, None] for x in rows(3, 5, dtype)]
    kernel = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(jnp.array([0.8, 1.0, 1.4])))
    named = {"kernel": kernel, "prior": ak.Causal()}
    ours = ak.attend(*data, **named, method=interpreted(platform=platform))
    dense = ak.attend(*(x.astype(jnp.float32) for x in data), **named, method=ak.Dense())
    assert ours.shape == (2, 3, QUERIES, 5)
    off = 1e-5 if dtype == jnp.float32 else 0.1
    assert np.abs(np.asarray(ours, float) - np.asarray(dense)).max() < off


@pytest.mark.parametrize("far", [0.0, 30.0])
def test_half_precision_is_shift_invariant(emulated_cudnn, far):
    q, k, v = rows(2, 1)
    call = [
        ak.attend(q + far, k + far, v, kernel=ak.Gaussian(0.7), method=method)
        for method in (interpreted("bfloat16"), ak.Dense())
    ]
    assert np.abs(call[0] - call[1]).max() < 0.06


def test_squared_keys_are_exact_in_bfloat16(emulated_cudnn):
    """Integers whose products are exact in bfloat16 and whose squares are not."""
    rng = np.random.default_rng(0)
    half = rng.integers(-15, 16, size=(70, 2))
    k = jnp.asarray(np.concatenate([half, -half]), jnp.float32)
    q, v = k[::3], jnp.asarray(rng.integers(-8, 9, size=(140, 1)), jnp.float32)
    out = [
        ak.attend(q, k, v, kernel=ak.Gaussian(1.0), method=method, return_log_mass=True)
        for method in (interpreted("bfloat16"), ak.Dense())
    ]
    assert np.abs(out[0][0] - out[1][0]).max() < 0.06
    np.testing.assert_allclose(out[0][1], out[1][1], atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_points_far_from_each_other_in_half_precision(emulated_cudnn, dtype):
    """1200 lengthscales apart: squares of 7e5, where float16 ends at 65504."""
    k = jnp.array([[-600.0], [-600.0], [600.0]], dtype)
    q, v = jnp.array([[-600.0], [600.0], [0.0]], dtype), jnp.array([[1.0], [3.0], [7.0]], dtype)
    out, log_mass = ak.attend(
        q, k, v, kernel=ak.Gaussian(1.0), method=interpreted(), return_log_mass=True
    )
    np.testing.assert_allclose(np.asarray(out[:2], float), [[2.0], [7.0]], rtol=1e-2)
    assert np.isfinite(np.asarray(out, float)).all()
    assert not np.isnan(np.asarray(log_mass, float)).any()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_gradients_in_half_precision(emulated_cudnn, platform):
    q, k, v = rows(3, 5, jnp.bfloat16)

    def number(method, kernel, *data):
        value, log_mass = ak.attend(
            *data,
            kernel=kernel,
            prior=PRIORS["causal, and held out"],
            method=method,
            return_log_mass=True,
        )
        seen = jnp.where(jnp.isneginf(log_mass), 0.0, log_mass)
        wide = jnp.promote_types(value.dtype, jnp.float32)
        return jnp.sum(jnp.sin(value), dtype=wide) + 0.1 * jnp.sum(seen, dtype=wide)

    gradient = jax.jit(jax.grad(number, (1, 2, 3, 4)), static_argnums=0)
    ours = gradient(interpreted(platform=platform), ak.Gaussian(0.9), q, k, v)
    with jax.enable_x64(True):
        dense = gradient(ak.Dense(), *map(to_float64, (ak.Gaussian(0.9), q, k, v)))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(dense), strict=True):
        one, other = np.asarray(one, float), np.asarray(other)
        assert np.abs(one - other).max() < 0.05 * np.abs(other).max()


def lowered_attend(platform, method, kernel, *data, derivative, prior=None):
    """Returns the program of a sum of squares of `attend`, or of its gradient."""

    def number(q, k, v):
        out = ak.attend(q, k, v, kernel=kernel, prior=prior, method=method)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    return lowered(platform, jax.grad(number, (0, 1, 2)) if derivative else number, *data)


@pytest.mark.parametrize("derivative", [slow(False), True])
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("method", "kernel"),
    [
        (ak.Dense(), ak.Gaussian(0.3)),
        (ak.Blockwise(), ak.Matern52(0.3)),
        (ak.Sorted(), ak.Epanechnikov(0.3)),
        (ak.Linear(), ak.EluFeatures()),
        (ak.Auto(), ak.Gaussian(0.3)),
    ],
)
def test_methods_lower_for_every_platform(platform, method, kernel, derivative):
    data = rows(1, 3)
    found = lowered_attend(platform, method, kernel, *data, derivative=derivative)
    assert found.platforms == (platform,)
    if platform == "cpu":
        out = found.call(*data)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(out))


@pytest.mark.multi_device
@pytest.mark.parametrize("derivative", [slow(False), True])
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("ring", [False, True])
def test_sharded_lowers_for_every_platform(platform, ring, derivative):
    method = ak.Sharded(ring=ring)
    found = lowered_attend(platform, method, ak.Gaussian(0.3), *rows(2, 3), derivative=derivative)
    assert found.nr_devices == 8


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("derivative", [slow(False), True])
@pytest.mark.parametrize(
    ("platform", "dtype", "call"),
    [
        ("cuda", jnp.float32, "xla.gpu.triton"),
        ("cuda", jnp.bfloat16, "cudnn$fmhaSoftmax"),
        ("tpu", jnp.bfloat16, "tpu_custom_call"),
    ],
)
def test_fused_lowers_to_the_named_call(platform, dtype, call, derivative):
    method = ak.Fused(platform=platform)
    prior = PRIORS["causal, and held out"] & ak.Window(64, 9)
    # a batch of two, and three heads
    data = [jnp.stack([x, x])[:, None] for x in rows(3, 5, dtype)]
    kernel = ak.PerHead(eqx.filter_vmap(ak.Gaussian)(jnp.array([0.2, 0.3, 0.4])))
    found = lowered_attend(platform, method, kernel, *data, derivative=derivative, prior=prior)
    assert call in str(found.mlir_module())


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (ak.Fused(), {}, "cpu.*ak.Blockwise"),
        (ak.Fused(platform="tpu"), {}, "TPU.*bfloat16.*float32"),
        (ak.Fused("float16", platform="tpu"), {}, "TPU.*bfloat16.*float16"),
        (
            ak.Fused(platform="cuda"),
            {"kernel": ak.Epanechnikov(0.3)},
            "float32.*DotProduct and SoftCapped.*got Epanechnikov$",
        ),
        (
            ak.Fused("bfloat16", platform="cuda"),
            {"kernel": ak.SoftCapped(ak.DotProduct(), ak.fixed(2.0))},
            "bfloat16.*got SoftCapped.*dtype=jnp.float32",
        ),
        (
            ak.Fused("bfloat16", platform="cuda"),
            {"kernel": ak.Laplace(0.3)},
            "bfloat16.*Gaussian, DotProduct.*Laplace",
        ),
        (ak.Fused(platform="cuda"), {"rule": ak.Uniform()}, "Softmax.*Uniform"),
        (ak.Fused(platform="cuda"), {"prior": ak.Causal(1)}, "got Causal of another offset"),
        (ak.Fused("bfloat16", platform="cuda"), {"prior": ak.Window(3, 3)}, "to the left alone"),
        (
            ak.Fused("bfloat16", platform="cuda"),
            {"prior": PRIORS["segments"]},
            "Window.*got Segments",
        ),
        (
            ak.Fused("bfloat16", platform="tpu"),
            {"kernel": ak.SoftCapped(ak.DotProduct(), 50.0)},
            r"ak\.fixed.*got SoftCapped",
        ),
        (
            ak.Fused("bfloat16", platform="tpu"),
            {"kernel": ak.SoftCapped(ak.DotProduct(), ak.fixed(2.0)), "rule": ak.Softmax(2.0)},
            "temperature that is fixed",
        ),
        (ak.Fused(platform="cuda"), {"prior": priors.ExcludeSelf()}, "excludes the row"),
        (ak.Fused("float16", platform="cuda"), {"dim": 127}, "128.*130"),
    ],
)
def test_unsupported_tasks_are_refused(method, changes, message):
    changes = {"kernel": ak.Gaussian(0.3), "dim": 2} | changes
    data = rows(changes.pop("dim"), 1)
    with pytest.raises(ValueError, match=message):
        ak.attend(*data, **changes, method=method)


def test_versions_of_jax_without_the_log_mass_of_cudnn_are_refused(monkeypatch):
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda q, k, v: v)
    with pytest.raises(ValueError, match="no log-mass of cuDNN"):
        ak.attend(*rows(2, 1), kernel=ak.Gaussian(0.3), method=ak.Fused("float16", platform="cuda"))


def test_queries_whose_window_lies_behind_the_last_key(emulated_cudnn):
    q, k, v = rows(3, 2, jnp.bfloat16)
    named = {"kernel": ak.DotProduct(), "prior": ak.Window(5, 0), "return_log_mass": True}
    value, log_mass = ak.attend(q, k[:40], v[:40], **named, method=interpreted())
    np.testing.assert_array_equal(np.isneginf(log_mass), np.arange(QUERIES) > 44)
    assert not np.any(np.asarray(value[45:], float))


def test_float64_is_refused(x64):
    with pytest.raises(ValueError, match="float64"):
        ak.attend(*rows(2, 1, float), kernel=ak.Gaussian(0.3), method=ak.Fused(platform="cuda"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype.*bfloat16.*int8"),
        ({"platform": "rocm"}, "platform.*rocm"),
        ({"interpret": None}, "interpret.*None"),
    ],
)
def test_invalid_options(options, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    with pytest.raises(ValueError, match=message):
        ak.Fused(**options)


def test_float32_is_rounded_only_on_request(emulated_cudnn):
    """float32 inputs keep their digits unless a half-precision dtype is named."""
    q, k, v = rows(2, 1)
    call = [
        ak.attend(q, k, v, kernel=ak.Gaussian(0.3), method=method)
        for method in (interpreted(), interpreted("bfloat16"), ak.Dense())
    ]
    assert np.abs(call[0] - call[2]).max() < 1e-5
    assert 1e-3 < np.abs(call[1] - call[2]).max() < 0.5

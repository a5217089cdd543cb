"""`Fused` without an accelerator: its kernels interpreted, or lowered for GPU and TPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators import interpreted, lowered
from laws import to_float64
from marks import slow

import attnkernel as ak
from attnkernel import priors
from attnkernel.attention import Auto
from attnkernel.kernels import EluFeatures, SoftCapped
from attnkernel.methods import Blockwise, Dense, Fused, Linear, Sharded, Sorted
from attnkernel.rules import Uniform

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
EPS = float(np.finfo(np.float32).eps)


def rows(dim, dim_v, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (QUERIES, dim), (KEYS, dim), (KEYS, dim_v)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def compare(method, *data, dense_dtype=None, **parts):
    """Values and log-masses by a method and by `Dense`, of the same arrays, in one program."""

    @jax.jit
    def both(*data):
        wide = [x.astype(dense_dtype or x.dtype) for x in data]
        options = parts | {"return_log_mass": True}
        return ak.attend(*data, **options, method=method), ak.attend(
            *wide, **options, method=Dense()
        )

    return jax.device_get(both(*data))


@pytest.mark.parametrize(
    ("platform", "kernel", "prior", "dtype", "dim", "dim_v"),
    [
        ("tpu", CAPPED, "all", jnp.bfloat16, 3, 5),
        ("cuda", ak.Gaussian(0.9), "none", jnp.float16, 5, 2),
        ("cuda", ak.DotProduct(), "causal window", jnp.bfloat16, 7, 128),
        slow("tpu", ak.Gaussian(0.9), "all", jnp.bfloat16, 3, 5),
        slow("tpu", CAPPED, "segments", jnp.bfloat16, 128, 9),
        slow("cuda", ak.DotProduct(), "causal", jnp.bfloat16, 128, 11),
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
    assert np.abs(np.asarray(log_mass, float)[seen] - dense_mass[seen]).max() < off + 4 * unit * (
        np.abs(dense_mass[seen]).max() + 20
    )


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


@pytest.mark.parametrize("far", [0.0, 30.0])
def test_half_precision_is_shift_invariant(emulated_cudnn, far):
    q, k, v = rows(2, 1)
    data = q + np.float32(far), k + np.float32(far), v
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
    q, k, v = (
        np.array(column).astype(dtype)[:, None]
        for column in ([-600.0, 600.0, 0.0], [-600.0, -600.0, 600.0], [1.0, 3.0, 7.0])
    )
    named = {"kernel": ak.Gaussian(1.0), "method": interpreted(), "return_log_mass": True}
    out, log_mass = jax.device_get(jax.jit(lambda *data: ak.attend(*data, **named))(q, k, v))
    np.testing.assert_allclose(out[:2].astype(float), [[2.0], [7.0]], rtol=1e-2)
    assert np.isfinite(out.astype(float)).all()
    assert not np.isnan(log_mass.astype(float)).any()


@pytest.mark.parametrize("platform", ["cuda", slow("tpu")])
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
    ("method", "kernel"),
    [
        (Blockwise(), ak.Matern52(0.3)),
        (Auto(), ak.Gaussian(0.3)),
        slow(Sorted(), ak.Epanechnikov(0.3)),
        slow(Linear(), EluFeatures()),
    ],
)
def test_methods_lower_for_every_platform(method, kernel):
    found = lowered_gradient(PLATFORMS, method, kernel, *rows(1, 3))
    assert set(found.platforms) == set(PLATFORMS)


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize("ring", [False, True])
def test_sharded_lowers_for_every_platform(ring):
    method = Sharded(ring=ring)
    found = lowered_gradient(PLATFORMS, method, ak.Gaussian(0.3), *rows(2, 3))
    assert set(found.platforms) == set(PLATFORMS)
    assert found.nr_devices == 8


@pytest.mark.parametrize(
    ("platform", "call"), [("cuda", "cudnn$fmhaSoftmax"), ("tpu", "tpu_custom_call")]
)
def test_fused_lowers_to_the_named_call(platform, call):
    prior = PRIORS["causal, and held out"] & ak.Window(64, 9)
    data, kernel = heads_and_batches()
    found = lowered_gradient([platform], Fused(platform=platform), kernel, *data, prior=prior)
    assert call in str(found.mlir_module())


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (Fused(), {}, "cpu.*ak.methods.Blockwise"),
        (Fused(platform="tpu"), {}, "takes bfloat16, not float32.*Blockwise"),
        (Fused("float16", platform="tpu"), {}, "takes bfloat16, not float16"),
        (Fused(platform="cuda"), {}, "takes bfloat16 and float16, not float32.*Blockwise"),
        (
            Fused("bfloat16", platform="tpu"),
            {"kernel": ak.Epanechnikov(0.3)},
            "DotProduct, and SoftCapped.*got Epanechnikov$",
        ),
        (
            Fused("bfloat16", platform="cuda"),
            {"kernel": CAPPED},
            "Gaussian and DotProduct; got SoftCapped$",
        ),
        (Fused("bfloat16", platform="cuda"), {"rule": Uniform()}, "Softmax.*Uniform"),
        (
            Fused("bfloat16", platform="cuda"),
            {"prior": ak.Causal(1)},
            "got Causal of another offset",
        ),
        (Fused("bfloat16", platform="cuda"), {"prior": ak.Window(3, 3)}, "to the left alone"),
        (
            Fused("bfloat16", platform="cuda"),
            {"prior": PRIORS["segments"]},
            "Window.*got Segments",
        ),
        (
            Fused("bfloat16", platform="tpu"),
            {"kernel": SoftCapped(ak.DotProduct(), 50.0)},
            r"ak\.fixed.*got SoftCapped",
        ),
        (
            Fused("bfloat16", platform="tpu"),
            {"kernel": CAPPED, "rule": ak.Softmax(2.0)},
            "temperature that is fixed",
        ),
        (
            Fused("bfloat16", platform="cuda"),
            {"prior": priors.ExcludeSelf()},
            "excludes the row",
        ),
        (Fused("float16", platform="cuda"), {"dim": 127}, "128.*130"),
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
        ak.attend(*rows(2, 1), kernel=ak.Gaussian(0.3), method=Fused("float16", platform="cuda"))


def test_queries_whose_window_lies_behind_the_last_key(emulated_cudnn):
    q, k, v = rows(3, 2, jnp.bfloat16)
    named = {"kernel": ak.DotProduct(), "prior": ak.Window(5, 0), "return_log_mass": True}
    call = jax.jit(lambda *data: ak.attend(*data, **named, method=interpreted()))
    value, log_mass = jax.device_get(call(q, k[:40], v[:40]))
    np.testing.assert_array_equal(np.isneginf(log_mass), np.arange(QUERIES) > 44)
    assert not np.any(value[45:].astype(float))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype.*bfloat16.*int8"),
        ({"platform": "rocm"}, "platform.*rocm"),
        ({"interpret": None}, "interpret.*None"),
    ],
)
def test_invalid_options(as_users_run_it, options, message):
    with pytest.raises(ValueError, match=message):
        Fused(**options)

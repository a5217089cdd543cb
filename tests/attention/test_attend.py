"""`attend`: its formula in NumPy, shapes, dtypes, programs, errors, and numbers that are not
finite; `select_method` tells what it would do."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import OneOfKernels
from marks import needs_finufft, slow
from programs import temporary_bytes
from refusals import assert_raises

import attnkernel as ak
from attnkernel.kernels import Boxcar, EluFeatures, Matern32, Triangular, Tricube
from attnkernel.methods import Blockwise, Dense, Sharded, Sorted
from attnkernel.priors import ExcludeSelf, MaskFunction
from attnkernel.rules import Uniform

QUERIES, KEYS, DIM, DIM_V = 5, 7, 3, 2
FOUR_KEYS = ak.priors.HeldOut(np.zeros(4, bool))


def arrays(dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, DIM_V))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def by_hand(q, k, v, lengthscale, allowed=lambda i, j: True, temperature=1.0, sink=0.0):
    squares = np.sum(((q[:, None] - k) / lengthscale) ** 2, axis=2)
    weights = np.exp(-0.5 * squares / temperature) * allowed(*np.indices(squares.shape))
    mass = weights.sum(axis=1) + sink
    return weights @ v / np.where(mass > 0, mass, 1.0)[:, None], mass


@pytest.mark.parametrize(
    ("prior", "allowed"),
    [
        (None, lambda i, j: True),
        (ExcludeSelf(), lambda i, j: i != j),
        (MaskFunction(lambda i, j: j < i), lambda i, j: j < i),  # the first query sees nothing
    ],
)
def test_attend_equals_its_formula(x64, prior, allowed):
    q, k, v = arrays()
    rules = [(temperature, sink) for temperature in (0.5, 1.0, 3.0) for sink in (0.0, 0.1)]

    @jax.jit
    def of_every_rule(q, k, v):
        parts = {"kernel": ak.Gaussian(0.8), "prior": prior, "method": Dense()}
        attended = functools.partial(ak.attend, q, k, v, **parts, return_log_mass=True)
        made = [ak.Softmax(ak.fixed(scale), sink_mass=ak.fixed(sink)) for scale, sink in rules]
        return [attended(rule=rule) for rule in made]

    for rule, (out, log_mass) in zip(rules, of_every_rule(q, k, v), strict=True):
        expected, mass = by_hand(q, k, v, 0.8, allowed, *rule)
        np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-15, err_msg=str(rule))
        np.testing.assert_allclose(np.exp(log_mass), mass, rtol=1e-13, err_msg=str(rule))


def test_gradients_match_finite_differences(x64):
    point, step = (*arrays(), np.float64(-0.3)), 1e-5
    tangent = tuple(np.sin(1.0 + np.arange(a.size)).reshape(a.shape) for a in point)
    cotangent = np.cos(np.arange(QUERIES * (DIM_V + 1))).reshape(QUERIES, -1)

    def value(q, k, v, log_lengthscale):
        kernel = ak.Gaussian(jnp.exp(log_lengthscale))
        out, log_mass = ak.attend(q, k, v, kernel=kernel, prior=ExcludeSelf(), return_log_mass=True)
        return jnp.concatenate([out, log_mass[:, None]], axis=1)

    def gradient(*point):
        return jax.grad(lambda *point: jnp.sum(cotangent * value(*point)), (0, 1, 2, 3))(*point)

    @jax.jit
    def computed(*point):
        along = lambda s: [a + s * step * b for a, b in zip(point, tangent, strict=True)]  # noqa: E731
        value_and_slope = jax.jvp(lambda *p: (value(*p), gradient(*p)), point, tangent)[1]
        values = jax.lax.map(lambda s: value(*along(s)), np.array([1.0, -1.0]))
        gradients = jax.lax.map(lambda s: gradient(*along(s)), np.array([1.0, -1.0]))
        return value_and_slope, values, gradients, gradient(*point)

    (slope, second), (up, down), gradients, reverse = jax.device_get(computed(*point))
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-6, atol=1e-8)
    of_reverse = sum(np.sum(a * b) for a, b in zip(reverse, tangent, strict=True))
    np.testing.assert_allclose(of_reverse, np.sum(cotangent * slope), rtol=1e-10)
    for found, (above, below) in zip(second, gradients, strict=True):
        np.testing.assert_allclose(found, (above - below) / (2 * step), rtol=1e-6, atol=1e-8)


def test_batch_axes_broadcast(x64):
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(11, 1, 5, 3)), rng.normal(size=(13, 7, 3)), rng.normal(size=(7, 2))
    out = np.asarray(ak.attend(q, k, v, kernel=ak.Gaussian(1.0)))
    assert out.shape == (11, 13, 5, 2)
    single, _ = by_hand(q[4, 0], k[9], v, 1.0)
    np.testing.assert_allclose(out[4, 9], single, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_output_has_the_dtype_of_the_query(dtype, tolerance):
    q, k, v = arrays()
    expected, _ = by_hand(q, k, v, 1.0)
    out = ak.attend(*(a.astype(jnp.dtype(dtype)) for a in (q, k, v)), kernel=ak.Gaussian(1.0))
    assert out.dtype == dtype
    np.testing.assert_allclose(np.asarray(out, float), expected, atol=4 * tolerance)


def test_half_precision_is_summed_in_float32():
    """Sums over 300 keys in bfloat16 are those in float64, rounded once."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(n, 1)).astype(jnp.bfloat16) for n in (QUERIES, 300, 300))
    results = ak.attend(q, k, v, kernel=ak.Gaussian(0.2), return_log_mass=True)
    value, mass = by_hand(*(np.asarray(a, float) for a in (q, k, v)), 0.2)
    for result, expected in zip(results, (value, np.log(mass)), strict=True):
        assert result.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(result, float), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": np.ones(3)}, r"q must have shape \(\*batch, rows, columns\); got \(3,\)"),
        ({"k": np.ones((7, 2))}, "dimension.* 3 and 2"),
        ({"v": np.ones((6, 2))}, r"key.* value.*k \(7, 3\) and v \(6, 2\)"),
        ({"q": np.ones((2, 5, 3)), "k": np.ones((4, 7, 3))}, "broadcast.*2, 5, 3.*4, 7, 3"),
        ({"kernel": 0.3}, "kernel must be a Kernel"),
        ({"rule": None}, "rule must be a Rule"),
        ({"method": "auto"}, "method must be a Method of attnkernel.*; got 'auto'"),
        ({"prior": ak.LeaveOneOut()}, "prior must be a Prior"),  # the objective of that name
        ({"prior": ~(ExcludeSelf() & FOUR_KEYS)}, r"shape \(7,\); got \(4,\)"),
    ],
)
def test_invalid_arguments(as_users_run_it, changes, message):
    arguments = dict(zip("qkv", arrays(np.float32), strict=True)) | {"kernel": ak.Gaussian(1.0)}
    assert_raises(message, ak.attend, **arguments | changes)


def test_a_second_call_compiles_nothing(programs):
    jax.clear_caches()
    q, k, v = arrays(np.float32)
    method = Blockwise(2, 2)
    for lengthscale in (1.0, 2.0):
        programs.clear()
        ak.attend(q, k, v, kernel=ak.Gaussian(lengthscale), method=method)
        assert bool(programs) == (lengthscale == 1.0)
    counts = []
    # the first call compiles; a new function that computes the same does not
    for width, at in ((1, 0), (1, 0), (2, 0), (2, 1)):
        near = jnp.arange(-1000, 1000) < width
        near = jax.jit(lambda place, near=near: near[place])  # a constant of its own
        prior = ~MaskFunction(lambda *places, near=near, at=at: near(places[at] + 1000))
        programs.clear()
        ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior, method=method)
        counts.append(len(programs))
    assert counts == [1, 0, 1, 1]


def test_mask_functions_may_read_arrays_of_outer_transformations():
    q, k, v = arrays(np.float32)

    def value(width):
        prior = MaskFunction(lambda i, j: jnp.abs(i - j) < width)
        return ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior, method=Blockwise(2, 2))

    expected = {
        width: by_hand(q, k, v, 1.0, lambda i, j, width=width: abs(i - j) < width)[0]
        for width in (1, 2, 3)
    }
    for first, second in ((1, 3), (2, 1)):
        found = jax.jit(jax.vmap(value))(np.array([first, second]))
        np.testing.assert_allclose(found, [expected[first], expected[second]], rtol=1e-5)


def test_variables_read_by_a_mask_function_may_change():
    q, k, v = arrays(np.float32)
    seen = {"keys": 2}
    prior = MaskFunction(lambda i, j: j < seen["keys"])
    for seen["keys"] in (2, 5):
        out = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior, method=Blockwise(2, 2))
        expected, _ = by_hand(q, k[: seen["keys"]], v[: seen["keys"]], 1.0)
        np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_large_batch_is_processed_in_chunks():
    members, n = 64, 1024
    attended = functools.partial(ak.attend, kernel=ak.Gaussian(1.0), method=Dense())
    shapes = [(members, n, 2)] * 3
    assert temporary_bytes(attended, *shapes) < 2**27  # all scores are 2**28 bytes
    x = np.random.default_rng(0).normal(size=(5, 2, n, 1)).astype(np.float32)
    out = np.asarray(ak.attend(x, x[:, :1], x, kernel=ak.Gaussian(1.0), method=Dense()))
    q, k, v = x[3, 1], x[3, 0], x[3, 1]
    weights = np.exp(-0.5 * (q - k.T).astype(float) ** 2)
    expected = weights @ v / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(out[3, 1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_non_finite_numbers_are_refused(name):
    arguments = {name: np.ones((2, 3, 1)) for name in "qkv"}
    arguments[name][1, 2, 0] = np.inf
    message = rf"{name} must be finite; 1 of 6 .* row \(1, 2\)"
    assert_raises(message, ak.attend, **arguments, kernel=ak.Gaussian(1.0))
    if name != "v":
        points = arguments["q"], arguments["k"]
        assert_raises(message, ak.attention_weights, *points, kernel=ak.Gaussian(1.0))


def selected(rows, dim, kernel, dtype=np.float32):
    shape = jax.ShapeDtypeStruct((rows, dim), dtype)
    return ak.attention.select_method(shape, shape, shape, kernel=kernel)


def test_select_method_does_not_run():
    epanechnikov = ak.Epanechnikov(0.3)
    for rows, dim, kernel, method in (
        (1024, 4, ak.Gaussian(), Dense()),
        (1025, 4, ak.Gaussian(), Blockwise()),
        (512, 4, ak.DotProduct(), Dense()),
        (513, 4, ak.DotProduct(), Blockwise()),
        (4096, 4, EluFeatures(), Blockwise()),
        (2000, 1, epanechnikov, Sorted()),
        (3000, 5, epanechnikov.on(2), Sorted()),
        (3000, 5, epanechnikov.on(2) * epanechnikov.on(1), Blockwise()),
    ):
        assert selected(rows, dim, kernel).method == method
    chosen, *refused = str(selected(10**6, 4, ak.Gaussian())).splitlines()
    assert chosen == "Blockwise()"
    reasons = r"Dense.*1000000 x 1000000.*MiB", r"Sorted.*Gaussian", r"Fourier.*3 dimensions, not 4"
    for line, pattern in zip(refused, reasons, strict=True):
        assert re.search(f"not {pattern}", line)
    assert re.search("4000000 .* 4194304", str(selected(2000, 1, ak.Gaussian(0.3))))


@needs_finufft
def test_select_method_treats_integers_as_floats(x64):
    assert selected(20_000, 1, ak.Gaussian(), int).method == ak.methods.Fourier()


ELEVEN_KEYS = np.linspace(0.0, 1.0, 11)[:, None]
ELEVEN_VALUES = np.arange(11.0)[:, None]
INVALID = np.array([[np.nan], [0.5], [np.inf]])
SEVERAL = (ak.Gaussian(0.3), ak.Laplace(0.3), Matern32(0.3), ak.Epanechnikov(0.3), Tricube(0.3))
NEAREST = ak.NearestNeighbours(Boxcar(1.0), neighbours=3)
RULES = (ak.Softmax(), ak.Entmax(1.5), Uniform())


@pytest.mark.parametrize(("method", "rules"), [(Blockwise(2, 3), RULES[:1]), slow(Dense(), RULES)])
def test_a_query_that_is_not_finite_is_nan_in_its_own_row_alone(x64, method, rules):
    @jax.jit
    def rows(queries):
        def of_kernel(kernel, rules):
            parts = {"kernel": kernel, "method": method}
            attended = functools.partial(ak.attend, queries, ELEVEN_KEYS, ELEVEN_VALUES, **parts)
            return jnp.stack([attended(rule=rule)[:, 0] for rule in rules])

        of_several = jax.lax.map(lambda i: of_kernel(OneOfKernels(SEVERAL, i), rules), np.arange(5))
        return jnp.concatenate([*of_several, of_kernel(NEAREST, RULES)])

    found, valid = jax.device_get((rows(INVALID), rows(np.tile(INVALID[1], (3, 1)))))
    assert found.shape == (5 * len(rules) + 3, 3)
    assert np.all(np.isnan(found[:, [0, 2]]))
    np.testing.assert_allclose(found[:, 1], valid[:, 1], rtol=1e-12)
    assert np.all(np.isfinite(valid))


@pytest.mark.parametrize(
    "method",
    [Dense(), Blockwise(2, 3), pytest.param(None, id="Sharded", marks=pytest.mark.multi_device)],
)
def test_a_key_that_is_not_a_number_is_not_ignored(x64, method):
    """Nor is a query of NaN or infinity taken for one that sees no key: its log-mass is NaN too."""
    kernels = (ak.Epanechnikov(0.3), Matern32(0.3), Triangular(0.3), Tricube(0.3))
    method = Sharded() if method is None else method

    @jax.jit
    def both(keys):
        hidden = ak.priors.HeldOut(jnp.arange(11) == 0)

        def of_kernel(i):
            parts = {"v": ELEVEN_VALUES, "kernel": OneOfKernels(kernels, i), "method": method}
            attended = functools.partial(ak.attend, INVALID, keys, **parts, return_log_mass=True)
            return attended(), attended(prior=hidden)

        return jax.lax.map(of_kernel, np.arange(4))

    keys = np.where(np.arange(11)[:, None] == 0, np.nan, ELEVEN_KEYS)
    plain, masked = jax.device_get(both(keys))
    for found in (*plain, *masked):  # values and log-masses
        assert np.all(np.isnan(found[:, [0, 2]]))
    for seen, unseen in zip(plain, masked, strict=True):
        assert np.all(np.isnan(seen[:, 1]))
        assert np.all(np.isfinite(unseen[:, 1]))


def test_weights_of_an_infinite_query_are_nan():
    weigh = jax.jit(lambda q: ak.attention_weights(q, ELEVEN_KEYS, kernel=ak.Gaussian(0.3)))
    weights = np.asarray(weigh(INVALID))
    assert np.all(np.isnan(weights[np.array([0, 2])]))
    np.testing.assert_allclose(np.sum(weights[1]), 1.0, rtol=1e-6)

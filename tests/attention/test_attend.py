"""`attend`: its formula in NumPy, shapes, dtypes, programs, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak
from attnkernel.kernels import Boxcar
from attnkernel.methods import Blockwise, Dense, Sorted
from attnkernel.priors import ExcludeSelf, MaskFunction

QUERIES, KEYS, DIM, DIM_V = 5, 7, 3, 2


def arrays(dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, DIM_V))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def by_hand(q, k, v, lengthscale, allowed=lambda i, j: True, temperature=1.0, sink=0.0):
    out = np.zeros((len(q), v.shape[1]))
    mass = np.zeros(len(q))
    for i in range(len(q)):
        for j in range(len(k)):
            if allowed(i, j):
                score = -0.5 * np.sum(((q[i] - k[j]) / lengthscale) ** 2)
                weight = np.exp(score / temperature)
                out[i] += weight * v[j]
                mass[i] += weight
        mass[i] += sink
        if mass[i] > 0:
            out[i] /= mass[i]
    return out, mass


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
        return [
            ak.attend(
                q,
                k,
                v,
                kernel=ak.Gaussian(0.8),
                prior=prior,
                rule=ak.Softmax(ak.fixed(temperature), sink_mass=ak.fixed(sink)),
                method=Dense(),
                return_log_mass=True,
            )
            for temperature, sink in rules
        ]

    for rule, (out, log_mass) in zip(rules, of_every_rule(q, k, v), strict=True):
        expected, mass = by_hand(q, k, v, 0.8, allowed, *rule)
        np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-15, err_msg=str(rule))
        np.testing.assert_allclose(np.exp(log_mass), mass, rtol=1e-13, err_msg=str(rule))


def test_sink_equals_dividing_by_sum_plus_epsilon(x64):
    """Far from all keys both fade to zero; without the sink the nearest label remains."""
    q, k, v = np.array([[0.0], [6.0]]), np.array([[0.0], [0.1]]), np.array([[1.0], [3.0]])
    kernel = ak.Gaussian(0.5)
    weights = np.exp(-0.5 * ((q - k.T) / 0.5) ** 2)
    expected = weights @ v / (weights.sum(1, keepdims=True) + 1e-16)
    parts = {"kernel": kernel, "rule": ak.Softmax(sink_mass=1e-16)}

    @jax.jit
    def computed(q, k, v):
        without_sink = ak.attend(q, k, v, kernel=kernel)
        return ak.attend(q, k, v, **parts), ak.attention_weights(q, k, **parts), without_sink

    out, found, without_sink = jax.device_get(computed(q, k, v))
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    np.testing.assert_allclose(found, weights / (weights.sum(1, keepdims=True) + 1e-16), rtol=1e-12)
    assert expected[1, 0] < 1e-13
    assert without_sink[1, 0] > 2.0


def test_far_from_all_keys_the_nearest_label_remains():
    """exp underflows in float32 at a distance of 20 lengthscales; log space does not."""
    q, k, v = np.array([[100.0]]), np.array([[0.0], [1.0]]), np.array([[5.0], [7.0]])
    out, log_mass = ak.attend(q, k, v, kernel=ak.Gaussian(0.05), return_log_mass=True)
    np.testing.assert_array_equal(out, [[7.0]])
    np.testing.assert_allclose(log_mass, -0.5 * (99 / 0.05) ** 2, rtol=1e-6)


def test_gradients_match_finite_differences(x64):
    q, k, v = arrays()

    tangent = tuple(
        np.sin(1.0 + np.arange(a.size)).reshape(a.shape) for a in (q, k, v, np.ones(()))
    )
    cotangent = np.cos(np.arange(QUERIES * (DIM_V + 1))).reshape(QUERIES, -1)
    point, step = (q, k, v, np.float64(-0.3)), 1e-5

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
    ("change", "message"),
    [
        ({"q": np.ones(3)}, r"q must have shape \(\*batch, rows, columns\); got \(3,\)"),
        ({"k": np.ones((7, 2))}, "dimension.* 3 and 2"),
        ({"v": np.ones((6, 2))}, r"key.* value.*k \(7, 3\) and v \(6, 2\)"),
        ({"q": np.ones((2, 5, 3)), "k": np.ones((4, 7, 3))}, "broadcast.*2, 5, 3.*4, 7, 3"),
    ],
)
def test_shapes_that_do_not_match(change, message):
    q, k, v = arrays(np.float32)
    arguments = {"q": q, "k": k, "v": v} | change
    with pytest.raises(ValueError, match=message):
        ak.attend(**arguments, kernel=ak.Gaussian(1.0))


def test_reason_of_a_method_is_reported():
    class Picky(Dense):
        def unsupported_reason(self, task):
            return "no such task"

    with pytest.raises(ValueError, match="Picky cannot evaluate this: no such task"):
        ak.attend(*arrays(np.float32), kernel=ak.Gaussian(1.0), method=Picky())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": 0.3}, "kernel must be a Kernel"),
        ({"rule": None}, "rule must be a Rule"),
        ({"method": "auto"}, "method must be a Method of attnkernel.*; got 'auto'"),
        ({"method": Dense}, "method must be a Method of attnkernel"),
        ({"prior": ak.LeaveOneOut()}, "prior must be a Prior"),  # the objective of that name
        ({"prior": ak.priors.HeldOut(np.zeros(4, bool))}, r"shape \(5,\); got \(4,\)"),
        (
            {"prior": ~(ak.priors.ExcludeSelf() & ak.priors.HeldOut(np.zeros(4, bool)))},
            r"shape \(5,\); got \(4,\)",
        ),
    ],
)
def test_invalid_arguments(as_users_run_it, changes, message):
    arguments = {"kernel": ak.Gaussian(1.0), **changes}
    with pytest.raises(ValueError, match=message):
        ak.attend(np.zeros((3, 2)), np.zeros((5, 2)), np.zeros((5, 1)), **arguments)


@pytest.mark.slow
def test_output_dtype_ignores_the_dtype_of_kernel_and_rule(x64):
    q, k, v = (a[:, :1].astype(np.float32) for a in arrays())

    @jax.jit
    def computed(q, k, v):
        kernel, rule = Boxcar(np.float64(2.0)), ak.Softmax(np.float64(0.7))
        methods = (Dense(), Blockwise(4, 4), Sorted())
        return [ak.attend(q, k, v, kernel=kernel, rule=rule, method=method) for method in methods]

    inside = np.abs(q - k.T) < 2.0
    expected = inside @ v / inside.sum(axis=1, keepdims=True)
    for out in computed(q, k, v):
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


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
    for width in (1, 1, 2):
        programs.clear()
        prior = ~MaskFunction(lambda i, j, width=width: i - j < width)
        ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior, method=method)
        counts.append(len(programs))
    assert counts == [1, 0, 1]


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
    shape = jax.ShapeDtypeStruct((members, n, 2), jnp.float32)
    program = jax.jit(lambda x: ak.attend(x, x, x, kernel=ak.Gaussian(1.0), method=Dense()))
    used = program.lower(shape).compile().memory_analysis().temp_size_in_bytes
    assert used < 2**27  # all scores are 2**28 bytes
    x = np.random.default_rng(0).normal(size=(5, 2, n, 1)).astype(np.float32)
    out = np.asarray(ak.attend(x, x[:, :1], x, kernel=ak.Gaussian(1.0), method=Dense()))
    q, k, v = x[3, 1], x[3, 0], x[3, 1]
    weights = np.exp(-0.5 * (q - k.T).astype(float) ** 2)
    np.testing.assert_allclose(
        out[3, 1], weights @ v / weights.sum(1, keepdims=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_non_finite_numbers_are_refused(name):
    arguments = {name: np.ones((2, 3, 1)) for name in "qkv"}
    arguments[name][1, 2, 0] = np.inf
    message = rf"{name} must be finite; 1 of 6 .* row \(1, 2\)"
    with pytest.raises(ValueError, match=message):
        ak.attend(**arguments, kernel=ak.Gaussian(1.0))
    if name != "v":
        with pytest.raises(ValueError, match=message):
            ak.attention_weights(arguments["q"], arguments["k"], kernel=ak.Gaussian(1.0))

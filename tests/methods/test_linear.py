"""`Linear`: exact for kernels of finite rank, unbiased with random features for others."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak

N, DIM, DIM_V = 137, 3, 5  # more than two chunks, the last of them short
HIDDEN = np.arange(N) % 3 == 0


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(N, size))) for size in (DIM, DIM, DIM_V))


@pytest.mark.parametrize(
    ("kernel", "prior"),
    [
        (ak.EluFeatures(), None),
        (ak.EluFeatures(), ak.Causal()),
        (ak.EluFeatures(), ak.priors.HeldOut(HIDDEN) & ak.Causal()),
        (ak.Taylor(), ak.priors.HeldOut(HIDDEN)),
        *(
            slow(*case)
            for case in (
                (ak.EluFeatures(), ak.priors.HeldOut(HIDDEN)),
                (ak.Taylor(), None),
                (ak.Taylor(), ak.Causal()),
            )
        ),
    ],
)
def test_value_gradient_and_jvp_for_finite_rank(x64, kernel, prior):
    """Value, log-mass, gradient and JVP, with a sink."""
    rule = ak.Softmax(sink_mass=ak.fixed(0.1))

    def everything(method):
        def outputs(qkv):
            return ak.attend(
                *qkv, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
            )

        def number(qkv):
            value, log_mass = outputs(qkv)
            return jnp.sum(jnp.sin(value)) + jnp.sum(log_mass**2)

        qkv = arrays()
        along = tuple(jnp.cos(x) for x in qkv)
        return jax.jit(
            lambda qkv: (outputs(qkv), jax.grad(number)(qkv), jax.jvp(outputs, (qkv,), (along,))[1])
        )(qkv)

    for both in zip(
        *(jax.tree.leaves(everything(m)) for m in (ak.Linear(), ak.Dense())), strict=True
    ):
        np.testing.assert_allclose(*both, rtol=1e-11, atol=1e-12)


def test_finite_rank_kernels_equal_their_formulas(x64):
    q, k, _ = (np.asarray(x)[:7] for x in arrays())
    elu = lambda x: np.where(x > 0, x + 1, np.exp(x))  # noqa: E731
    scores = q @ k.T / np.sqrt(DIM)
    for kernel, expected in (
        (ak.EluFeatures(), np.log(elu(q) @ elu(k).T)),
        (ak.Taylor(), np.log(1 + scores + scores**2 / 2)),
    ):
        ours = kernel.pairwise(jnp.asarray(q), jnp.asarray(k))
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)
        features = [
            f.factor * jnp.exp(f.log) for f in map(kernel.features, map(jnp.asarray, (q, k)))
        ]
        np.testing.assert_allclose(np.log(features[0] @ features[1].T), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "positive"),
    [
        (ak.Gaussian(1.5), True),
        (ak.DotProduct(0.5), False),
        slow(ak.Gaussian(1.5), False),
        slow(ak.DotProduct(0.5), True),
    ],
)
def test_random_features_are_unbiased(x64, kernel, positive):
    """The error of a weight falls as one over the square root of their number."""
    rng = np.random.default_rng(2)
    q, k = (jnp.asarray(0.5 * rng.normal(size=(5, DIM))) for _ in range(2))
    exact = jnp.exp(kernel.pairwise(q, k))

    def estimate(key, count):
        method = ak.Linear(ak.RandomFeatures(count, DIM, positive=positive, key=key))
        of_q, of_k = method.both(q, k, kernel, ak.Softmax())
        return (of_q.factor * jnp.exp(of_q.log)) @ (of_k.factor * jnp.exp(of_k.log)).T

    errors = []
    for count in (12, 192):
        keys = jax.random.split(jax.random.PRNGKey(3), 400)
        found = jax.jit(jax.vmap(lambda key, count=count: estimate(key, count)))(keys)
        spread = found.std(axis=0)
        assert (jnp.abs(found.mean(axis=0) - exact) < 5 * spread / 20 + 1e-12).all()
        errors.append(float(jnp.sqrt(jnp.mean((found - exact[None]) ** 2))))
    assert 2.8 < errors[0] / errors[1] < 5.7  # √16 = 4


def test_random_features_divide_by_the_temperature_and_get_no_gradient(x64):
    """exp(s / τ) is the kernel of the lengthscale √τ ℓ, or of the dot product times 1 / τ."""
    q, k, v = (rows[:7] for rows in arrays())
    same = [(ak.Gaussian(1.5), ak.Gaussian(1.05)), (ak.DotProduct(0.5), ak.DotProduct(0.5 / 0.49))]

    @eqx.filter_jit
    def both_and_slopes(method):
        def outputs(method, kernel, temperature=1.0):
            rule = ak.Softmax(temperature)
            return ak.attend(q, k, v, kernel=kernel, rule=rule, method=method, return_log_mass=True)

        found = [(outputs(method, a, 0.49), outputs(method, b)) for a, b in same]
        slopes = eqx.filter_grad(lambda method: jnp.sum(outputs(method, same[0][0])[0] ** 2))
        return found, slopes(method)

    method = ak.Linear(ak.RandomFeatures(11, DIM, key=jax.random.PRNGKey(8)))
    found, slopes = both_and_slopes(method)
    for at_temperature, rescaled in found:
        for one, other in zip(at_temperature, rescaled, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11)
    np.testing.assert_array_equal(slopes.features.directions, np.zeros((11, DIM)))


def test_orthogonal_features_have_less_variance(x64):
    q = jnp.asarray(np.random.default_rng(4).normal(size=(5, DIM)))
    exact = jnp.exp(ak.Gaussian(1.0).pairwise(q, q))

    @jax.jit
    def errors(keys):
        def one(key, orthogonal):
            features = ak.RandomFeatures(DIM, DIM, orthogonal=orthogonal, key=key)
            f = features(q, True)
            both = f.factor * jnp.exp(f.log)
            return jnp.mean((both @ both.T - exact) ** 2)

        return [
            jnp.mean(jax.vmap(functools.partial(one, orthogonal=o))(keys)) for o in (True, False)
        ]

    orthogonal, independent = errors(jax.random.split(jax.random.PRNGKey(5), 2000))
    assert orthogonal < 0.9 * independent
    rows = ak.RandomFeatures(DIM, DIM, key=jax.random.PRNGKey(0)).directions
    gram = rows @ rows.T
    np.testing.assert_allclose(gram, jnp.diag(jnp.diag(gram)), atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_causal_sums_do_not_depend_on_later_keys(dtype):
    """Features that grow by e^600 within a chunk: none of the first rows comes out empty."""
    x = (jnp.linspace(-300, 300, N)[:, None] * jnp.ones((1, DIM))).astype(dtype)
    v = arrays()[2].astype(dtype)
    ours, dense = (
        ak.attend(x, x, v, kernel=ak.EluFeatures(), prior=ak.Causal(), method=method)
        for method in (ak.Linear(), ak.Dense())
    )
    assert ours.dtype == dtype
    ours, dense = (np.asarray(out, np.float32) for out in (ours, dense))
    np.testing.assert_allclose(ours, dense, atol=2e-6 if dtype == jnp.float32 else 2e-2)


@pytest.mark.parametrize(
    ("kernel", "first"),
    [
        ("elu", 1),
        ("gaussian", 70),
        slow("elu", 70),
        slow("gaussian", 1),
    ],
)
def test_decoding_with_a_state_equals_the_full_pass(x64, kernel, first):
    features = ak.RandomFeatures(11, 2, key=jax.random.PRNGKey(1))
    options = {
        "elu": {"kernel": ak.EluFeatures(), "method": ak.Linear(), "num_kv_heads": 2},
        "gaussian": {
            "kernel": ak.Gaussian(0.9),
            "method": ak.Linear(features),
            "rotary": ak.Rotary(base=9.0),
        },
    }[kernel]
    module = ak.MultiheadAttention(4, 8, **options, prior=ak.Causal(), key=jax.random.PRNGKey(0))
    x = jnp.asarray(np.random.default_rng(6).normal(size=(75, 8)))
    full, cache = eqx.filter_jit(module)(x, x, x), module.recurrent_cache()
    step = eqx.filter_jit(module.step)
    out, cache = step(x[:first], cache)
    rows = [out]
    for t in range(first, 75):
        out, cache = step(x[t : t + 1], cache)
        rows.append(out)
    np.testing.assert_allclose(jnp.concatenate(rows), full, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("of_module", "of_cache", "size"),
    [
        slow(None, None, 1.0),
        (jnp.bfloat16, jnp.bfloat16, 1.0),
        (None, jnp.bfloat16, 1e4),
    ],
)
def test_state_is_summed_in_at_least_float32(of_module, of_cache, size):
    """After hundreds of rows a sum in bfloat16 no longer grows; one program serves all rows."""
    module = ak.MultiheadAttention(
        4,
        8,
        num_kv_heads=2,
        kernel=ak.EluFeatures(),
        method=ak.Linear(),
        dtype=of_module,
        key=jax.random.PRNGKey(0),
    )
    x = size * jax.random.normal(jax.random.PRNGKey(1), (401, 8), of_module)
    wide, x_wide = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, (module, x)
    )
    full = eqx.filter_jit(wide)(x_wide, x_wide, x_wide, prior=ak.Causal())
    cache = module.recurrent_cache(dtype=of_cache)
    assert cache.state.sums.dtype == jnp.float32
    programs = []

    @eqx.filter_jit
    def step(row, cache):
        programs.append(cache)
        return module.step(row, cache)

    rows = []
    for row in x:
        out, cache = step(row[None], cache)
        rows.append(out)
    out = jnp.concatenate(rows)
    assert out.dtype == x.dtype
    assert len(programs) == 1
    # float32 has a logarithm of 1e4 to 1e-3
    close = 1e-3 if size > 1 else 2e-6 if of_module is None else 2**-7
    # the last rows are means of many, and small
    for part in (slice(None), slice(300, None)):
        away = jnp.abs(out.astype(jnp.float32) - full)[part].max()
        assert away < close * jnp.abs(full[part]).max()


def test_float32_state_takes_float64_rows(x64):
    """The features of a float32 state and float64 rows are summed in float64, and then stored."""
    module = ak.MultiheadAttention(
        2, 6, kernel=ak.EluFeatures(), method=ak.Linear(), key=jax.random.PRNGKey(0)
    )
    x = jnp.asarray(np.random.default_rng(7).normal(size=(5, 6)))
    step = eqx.filter_jit(module.step)
    out, cache = step(x, module.recurrent_cache(dtype=jnp.float32))
    full = eqx.filter_jit(module)(x, x, x, prior=ak.Causal())
    np.testing.assert_allclose(out, full, rtol=1e-12)
    assert cache.state.maximum.dtype == cache.state.sums.dtype == jnp.float32
    assert step(x[:1], cache)[0].dtype == jnp.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"kernel": ak.Gaussian()}, "Gaussian.*features="),
        ({"kernel": ak.Cauchy()}, "random features.*Cauchy"),
        ({"prior": ak.Window(2, 0)}, r"HeldOut and Causal\(\).*got Window"),
        ({"prior": ak.Causal(3)}, "got Causal of another offset"),
        ({"rule": ak.Entmax(1.5)}, "Softmax.*Entmax"),
        ({"rule": ak.Softmax(0.5)}, "finite rank.*temperature 1"),
        (
            {
                "kernel": ak.Gaussian(),
                "method": ak.Linear(ak.RandomFeatures(4, 2, key=jax.random.PRNGKey(0))),
            },
            "2 dimensions.*3",
        ),
    ],
)
def test_unsupported_tasks_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        ak.attend(*arrays(), **({"kernel": ak.EluFeatures(), "method": ak.Linear()} | call))


def test_auto_never_selects_linear():
    rows = jax.ShapeDtypeStruct((4096, DIM), jnp.float32)
    chosen = ak.select_method(rows, rows, rows, kernel=ak.EluFeatures())
    assert isinstance(chosen.method, ak.Blockwise)


def test_recurrent_cache_needs_linear_attention():
    key = jax.random.PRNGKey(0)
    with pytest.raises(ValueError, match=r"make the module with method=ak\.Linear"):
        ak.MultiheadAttention(2, 4, key=key).recurrent_cache()
    windowed = ak.MultiheadAttention(
        2, 4, kernel=ak.EluFeatures(), prior=ak.Window(2, 0), method=ak.Linear(), key=key
    )
    with pytest.raises(ValueError, match=r"Linear cannot evaluate this: .*got Window"):
        windowed.recurrent_cache()


def test_negative_mass_gives_nan():
    """Trigonometric features may give a negative weight: there is no mean then."""
    features = ak.RandomFeatures(1, 1, positive=False, key=jax.random.PRNGKey(0))
    apart = jnp.array([[jnp.pi / features.directions[0, 0]]])  # cos π
    for rule in (ak.Softmax(), ak.Softmax(sink_mass=1.0)):
        value, log_mass = ak.attend(
            apart,
            jnp.zeros((1, 1)),
            jnp.array([[5.0]]),
            kernel=ak.Gaussian(1.0),
            method=ak.Linear(features),
            rule=rule,
            return_log_mass=True,
        )
        assert np.isnan(value[0, 0])
        assert np.isnan(log_mass[0])


def test_products_of_features_that_underflow():
    """Both keys are far below what float32 holds, and one of them is the nearer by far."""
    q, v = jnp.array([[0.0, -200.0]]), jnp.array([[0.0], [1.0]])
    k = jnp.array([[-200.0, 0.0], [-150.0, 0.0]])
    kernel = ak.EluFeatures()

    @jax.jit
    def results(q, k, v):
        methods = ak.Dense(), ak.Blockwise(1, 1), ak.Linear()
        means = [ak.attend(q, k, v, kernel=kernel, method=method) for method in methods]
        pairs = kernel.pairwise(q, k)
        slope = jax.grad(lambda q: kernel.pairwise(q, k)[0, 1])(q)
        many = jax.vmap(kernel.pairwise)(jnp.stack([q, jnp.ones_like(q)]), jnp.stack([k, k]))
        return means, pairs, slope, many[0]

    means, pairs, slope, first_of_many = results(q, k, v)
    np.testing.assert_allclose(means, np.ones((3, 1, 1)), rtol=1e-6)
    np.testing.assert_allclose(pairs, [[-199.3069, -150.0]], rtol=1e-6)
    np.testing.assert_allclose(slope, [[1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(first_of_many, pairs, rtol=1e-6)


@pytest.mark.parametrize("scale", [-0.7, 0.0, 0.7])
def test_random_features_of_a_scaled_dot_product(x64, scale):
    features = ak.RandomFeatures(4096, 2, key=jax.random.PRNGKey(0))
    q, k, v = jax.random.normal(jax.random.PRNGKey(1), (3, 7, 2))

    def total(scale, method):
        return jnp.sum(v * ak.attend(q, k, v, kernel=ak.DotProduct(scale), method=method))

    @jax.jit
    def totals_and_slopes(scale):
        return [jax.value_and_grad(total)(scale, m) for m in (ak.Linear(features), ak.Dense())]

    for ours, exact in zip(*totals_and_slopes(jnp.array(scale)), strict=True):
        assert ours == pytest.approx(float(exact), abs=0.1 * (1.0 + abs(float(exact))))

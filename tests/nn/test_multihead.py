"""MultiheadAttention and SelfAttention: against Equinox, jax.nn, PyTorch and NumPy; local linear
and bias-reduced attention."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, built_by_key, numpy_attention, projected, rows_of
from marks import slow
from refusals import assert_raises, assert_refused

import attnkernel as ak
from attnkernel.attention import Auto
from attnkernel.methods import Blockwise, Dense

QUERIES, KEYS, HEADS = 5, 7, 3
SIZES = {"query_size": 11, "key_size": 13, "value_size": 17, "output_size": 19}
SIZES |= {"qk_size": 2, "vo_size": 23}
BIASES = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}


LINEARS = ("query_proj", "key_proj", "value_proj", "output_proj")
INPUTS = rows_of((QUERIES, 11), (KEYS, 13), (KEYS, 17))


def with_weights(theirs, **options):
    """Our module with the weights of one of Equinox."""
    same = {name: getattr(theirs, name) for name in ("num_heads", *SIZES, *BIASES)}
    ours = built(ak.MultiheadAttention, **same, **options)
    linears = lambda module: [getattr(module, name) for name in LINEARS]  # noqa: E731
    return eqx.tree_at(linears, ours, linears(theirs))


@eqx.filter_jit
def attend_to_self(module, x, **options):
    return module(x, x, x, **options)


@eqx.filter_jit
def value_and_slopes(module, arrays, mask):
    """The output, and the gradients in every weight and input."""

    def loss(both):
        module, arrays = both
        out = module(*arrays, mask)
        return jnp.sum(jnp.sin(out)), out

    return eqx.filter_value_and_grad(loss, has_aux=True)((module, arrays))


MASKS = {
    "none": None,
    "matrix": np.random.default_rng(1).random((QUERIES, KEYS)) < 0.7,
    "per head": np.random.default_rng(2).random((HEADS, QUERIES, KEYS)) < 0.7,
}


@pytest.mark.parametrize(
    ("mask", "biases"),
    [("matrix", True), slow("none", True), slow("none", False), slow("per head", True)],
)
def test_equal_to_equinox_weight_for_weight(x64, mask, biases):
    """Values, and gradients in every weight and input."""
    options = SIZES | (BIASES if biases else {})
    theirs = built(eqx.nn.MultiheadAttention, HEADS, **options)
    mask = MASKS[mask]
    if mask is not None:
        mask = mask.copy()
        mask[..., 0] = True  # where no key is seen, the two differ
    expected = jax.tree.leaves(value_and_slopes(theirs, INPUTS, mask))
    for method in (Auto(), Blockwise(2, 3)):
        ours = with_weights(theirs, method=method)
        found = jax.tree.leaves(value_and_slopes(ours, INPUTS, mask))
        for both in zip(found, expected, strict=True):
            np.testing.assert_allclose(*both, rtol=1e-11, atol=1e-12)


def test_the_same_key_gives_the_same_module_and_dropout(x64):
    options = {"use_query_bias": True, "dropout_p": 0.25}
    modules = (ak.MultiheadAttention, eqx.nn.MultiheadAttention)
    ours, theirs = (built_by_key(cls, 2, 6, **options) for cls in modules)
    x, drawn = rows_of((QUERIES, 6)), jax.random.PRNGKey(4)
    whole = attend_to_self(ours, x, inference=True)
    np.testing.assert_allclose(whole, attend_to_self(theirs, x, inference=True), rtol=1e-12)
    out = attend_to_self(ours, x, key=drawn)
    np.testing.assert_allclose(out, attend_to_self(theirs, x, key=drawn), rtol=1e-12)
    assert np.abs(np.asarray(out) - whole).max() > 0.01
    assert eqx.nn.inference_mode(ours).dropout.inference
    assert_raises(r"key=.*inference=True", attend_to_self, ours, x)


@pytest.mark.slow
def test_process_heads_and_rotary_positions_are_those_of_equinox(x64):
    theirs = built(eqx.nn.MultiheadAttention, 2, 8)
    ours, turned = with_weights(theirs), with_weights(theirs, rotary=ak.Rotary(base=100.0))
    rope = eqx.nn.RotaryPositionalEmbedding(4, theta=100.0)
    x = rows_of((QUERIES, 8))

    def process(q, k, v):
        turn = jax.vmap(rope, in_axes=1, out_axes=1)
        return turn(q), turn(k), v

    def cut(q, k, v):
        return q[:, :1], k, v

    at = jax.device_put(np.arange(QUERIES) + 40)

    @eqx.filter_jit
    def results(theirs, ours, turned, x):
        of_both = [module(x, x, x, process_heads=process) for module in (theirs, ours)]
        return *of_both, turned(x, x, x), turned(x, x, x, positions=at, key_positions=at)

    expected, processed, found, shifted = results(theirs, ours, turned, x)
    np.testing.assert_allclose(processed, expected, rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(shifted, expected, rtol=1e-11)  # distances alone count
    assert_raises(r"process_heads.*shapes", attend_to_self, ours, x, process_heads=cut)


def test_self_attention_equals_its_formula(x64):
    """No biases, scores over √d."""
    module, x = built_by_key(ak.SelfAttention, 6), rows_of((QUERIES, 6))

    @eqx.filter_jit
    def results(module, x):
        causal = {"prior": ak.Causal()}
        batch = jax.vmap(module)(jnp.stack([x, 2 * x]))
        return batch[0], module(x), module(x, **causal), module.weights(x, **causal)

    member, whole, causal, weights = jax.device_get(results(module, x))
    linears = (module.query_proj, module.key_proj, module.value_proj)
    q, k, v = (x @ np.asarray(linear.weight).T for linear in linears)
    for one, other in itertools.combinations((q, k, v), 2):  # each is drawn on its own
        assert np.abs(one - other).min() > 1e-6
    np.testing.assert_allclose(whole, numpy_attention(q, k, v), rtol=1e-12)
    np.testing.assert_allclose(member, whole, rtol=1e-12)
    expected = numpy_attention(q, k, v, np.tri(QUERIES, dtype=bool))
    np.testing.assert_allclose(causal, expected, rtol=1e-12)
    np.testing.assert_allclose(weights @ v, causal, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)


def test_heads_that_share_keys(x64):
    """Grouped queries: consecutive heads share one head of keys and values, normed or not.

    Swapped norms of queries and keys would leave every q · k as it is, but not |q - k|.
    """
    sizes = {"num_kv_heads": 2, "qk_size": 5}
    module, x = built(ak.MultiheadAttention, 6, 12, **sizes), rows_of((QUERIES, 12))
    slopes = np.asarray(ak.priors.alibi_slopes(6))
    each = ak.PerHead(eqx.filter_vmap(ak.Alibi)(slopes))
    biased = built(ak.MultiheadAttention, 6, 12, **sizes, prior=each)
    normed = built(ak.MultiheadAttention, 6, 12, **sizes, kernel=ak.Gaussian(1.3), qk_norm=True)
    scales = rows_of(5, 5, seed=1)
    norms = lambda module: (module.query_norm.weight, module.key_norm.weight)  # noqa: E731
    normed = eqx.tree_at(norms, normed, scales)

    @eqx.filter_jit
    def results(module, biased, normed, x):
        return module(x, x, x), module.weights(x, x), biased.weights(x, x), normed.weights(x, x)

    out, weights, with_bias, with_norms = jax.device_get(results(module, biased, normed, x))
    q, k, v = projected(module, x)
    heads = [numpy_attention(q[:, h], k[:, h // 3], v[:, h // 3]) for h in range(6)]
    expected = np.concatenate(heads, axis=1) @ np.asarray(module.output_proj.weight).T
    np.testing.assert_allclose(out, expected, rtol=1e-11)
    assert weights.shape == (6, QUERIES, QUERIES)
    i = np.arange(QUERIES)
    for h in range(6):
        np.testing.assert_allclose(weights[h] @ v[:, h // 3], heads[h], rtol=1e-11)
        scores = q[:, h] @ k[:, h // 3].T / np.sqrt(5) - slopes[h] * abs(i[:, None] - i)
        expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(with_bias[h], expected, rtol=1e-6)
    unit = [part / np.sqrt(np.mean(part**2, axis=2, keepdims=True) + 1e-5) for part in (q, k)]
    q, k = (part * scale for part, scale in zip(unit, scales, strict=True))
    for h in range(6):
        squares = np.sum((q[:, None, h] - k[None, :, h // 3]) ** 2, axis=2)
        expected = np.exp(-0.5 * squares / 1.3**2)
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(with_norms[h], expected, rtol=1e-9)


LENGTHS = {"query_seq_lengths": np.array([9]), "key_value_seq_lengths": np.array([7])}


@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (ak.Causal(), {"is_causal": True}),
        (ak.Window(2, 1), {"local_window_size": (2, 1)}),
        (ak.priors.Lengths(queries=9, keys=7), LENGTHS),
    ],
)
def test_equal_to_jax_nn(prior, options):
    """Grouped queries, windows and lengths of `jax.nn.dot_product_attention`, in float32."""

    @jax.jit
    def both(q, k, v):
        expected = jax.nn.dot_product_attention(q, k, v, **options)
        heads = (x.swapaxes(0, 1) for x in (q, jnp.repeat(k, 3, axis=1), jnp.repeat(v, 3, axis=1)))
        return ak.attend(*heads, kernel=ak.DotProduct(), prior=prior).swapaxes(0, 1), expected

    ours, expected = both(*rows_of((13, 6, 5), (13, 2, 5), (13, 2, 5)))
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def test_layers_take_no_rows():
    def outputs(x):
        make = functools.partial(ak.MultiheadAttention, 2, 6, key=jax.random.PRNGKey(0))
        heads = {"num_heads": 2, "query_size": 6, "key": jax.random.PRNGKey(1)}
        latent = ak.nn.LatentAttention(latent_size=4, **heads)
        linear = ak.nn.RecurrentAttention(estimator=ak.recurrent.LinearAttention(), **heads)
        lines = make(kernel=ak.Gaussian(1.0), order=1)
        layers = latent, linear, ak.nn.BiasReducedAttention(make())
        of_keys = make()(jnp.ones((3, 6)), x, x)
        return of_keys, make()(x, x, x), lines(x, x, x), *(layer(x) for layer in layers)

    found = jax.eval_shape(outputs, jnp.zeros((0, 6)))
    assert [out.shape for out in found] == [(3, 6), *[(0, 6)] * 5]


def test_rows_that_see_no_key(x64):
    """Law 6: 0, and -inf, where other libraries give the mean of all values."""
    module, x = built(ak.MultiheadAttention, 2, 4), rows_of((3, 4))
    mask = np.ones((3, 3), bool)
    mask[1] = False

    @eqx.filter_jit
    def results(module, x):
        def loss(x):
            out = module(x, x, x, mask)
            return jnp.sum(out**2), out

        (_, out), slopes = jax.value_and_grad(loss, has_aux=True)(x)
        _, empty = module.attended(x, x, x, prior=ak.priors.MaskArray(jnp.asarray(mask)))
        return out, slopes, empty

    out, slopes, empty = jax.device_get(results(module, x))
    assert np.isfinite(out).all()
    assert np.isfinite(slopes).all()
    np.testing.assert_array_equal(np.all(out == 0.0, axis=1), [False, True, False])
    np.testing.assert_array_equal(empty, [False, True, False])


@pytest.mark.parametrize("method", [Blockwise(2, 4), slow(Dense())])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float16)])
def test_half_precision_at_scores_of_ten_thousand(dtype, method):
    q, k, v = (x.astype(dtype) for x in rows_of((5, 7), (11, 7), (11, 3)))
    q, k = (np.asarray(100 * x, dtype) for x in (q, k))

    @jax.jit
    def slopes_and_value(q):
        def total(q):
            out = ak.attend(q, *map(jnp.asarray, (k, v)), kernel=ak.DotProduct(), method=method)
            return jnp.sum(out.astype(jnp.float32)), out

        return jax.grad(total, has_aux=True)(q)

    slopes, out = jax.device_get(slopes_and_value(q))
    assert out.dtype == dtype
    assert np.isfinite(slopes.astype(np.float32)).all()
    expected = numpy_attention(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0.02, atol=0.02)


def made(*sizes, **options):
    return built(ak.MultiheadAttention, *(sizes or (2, 6)), **options)


ROWS = np.ones((3, 6), np.float32)
OTHER_HEADS = ak.PerHead(ak.Alibi(np.ones(3)))


def test_invalid_arguments_are_refused(as_users_run_it):
    assert_refused(
        (lambda: made(4, 6, num_kv_heads=3), r"num_heads.*num_kv_heads.*4 and 3"),
        (lambda: made(4, 3), r"qk_size.*query_size 3 and num_heads 4"),
        (lambda: made(rotary=ak.Rotary()), r"qk_size.*even.*3"),
        (lambda: made()(ROWS[:, :5], ROWS, ROWS), r"query .*\(rows, 6\).*\(3, 5\)"),
        (lambda: made()(ROWS, ROWS[:2], ROWS), "2 keys and 3 values"),
        (lambda: made()(ROWS, ROWS, ROWS, np.ones((3, 4), bool)), r"mask.*\(2, 3, 3\).*\(3, 4\)"),
        (lambda: made()(ROWS, ROWS, ROWS, ROWS[:, :3]), r"mask.*Boolean.*float32"),
        (lambda: made(prior=OTHER_HEADS)(ROWS, ROWS, ROWS), r"PerHead.*2 heads.*\(3,\)"),
        (lambda: made(4, 16, order=3), r"order must be 0.*1.*2.*got 3"),
        (lambda: made(2, 4, order=1, dropout_p=0.1), r"Dropout.*order 0.*dropout_p=0\.1"),
        (lambda: ak.nn.BiasReducedAttention(made(1, 4, key_size=3)), "those of one sequence"),
        (lambda: ak.nn.BiasReducedAttention(made(1, 4, dropout_p=0.5)), "no dropout"),
    )


@pytest.mark.parametrize("kv_heads", [2, slow(6)])
def test_local_linear_attention(x64, kv_heads):
    """Test-time regression (2025): slopes taken from weighted means, head by head; and decoded.

    Zuo et al. (2025) add λ to sums of weights that do not sum to 1: theirs is `ridge` times it.
    """
    rows, size, heads, qk, vo, ridge = 11, 12, 6, 3, 5, 0.07
    options = {"qk_size": qk, "vo_size": vo, "num_kv_heads": kv_heads, "prior": ak.Causal()}
    module = built(ak.MultiheadAttention, heads, size, order=1, ridge=ridge, **options)
    x = rows_of((rows, size))
    q, k, v = projected(module, x)
    out = np.zeros((rows, heads, vo))
    for i, h in itertools.product(range(rows), range(heads)):
        of = h // (heads // kv_heads)
        w = np.exp(k[: i + 1, of] @ q[i, h] / np.sqrt(qk))
        w = w / w.sum()
        d = k[: i + 1, of] - q[i, h]
        mean, gram = w @ d, (w[:, None] * d).T @ d + ridge * np.eye(qk)
        slope = np.linalg.solve(gram, mean)
        out[i, h] = (w * (1 - d @ slope)) @ v[: i + 1, of] / (1 - mean @ slope)
    expected = out.reshape(rows, -1) @ np.asarray(module.output_proj.weight).T

    @eqx.filter_jit
    def results(module, x):
        def one_row(cache, row):
            out, cache = module.step(row[None], cache)
            return cache, out[0]

        return module(x, x, x), jax.lax.scan(one_row, module.cache(rows), x)[1]

    for found in results(module, x):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


LENGTH, WIDTH = 9, 12


def test_the_dense_formula(x64):
    """(I − (I − A)ᵏ) V of each head, whose keys two queries share, and some rows hidden; k = 2:
    2A − A²."""
    heads, kv_heads = 6, 3
    module = built(ak.MultiheadAttention, heads, WIDTH, num_kv_heads=kv_heads, prior=ak.Causal())
    x, mask = rows_of((LENGTH, WIDTH)), np.tile(np.arange(LENGTH) != 3, (LENGTH, 1))

    @eqx.filter_jit
    def results(module, x):
        twice, thrice = (ak.nn.BiasReducedAttention(module, k) for k in (2, 3))
        found = twice(x), thrice(x), thrice(x, mask)
        return found, module.weights(x, x), module.weights(x, x, mask)

    found, whole, masked = jax.device_get(results(module, x))
    values = projected(module, x)[2].repeat(heads // kv_heads, axis=1)
    for ours, weights, iterations in zip(found, (whole, whole, masked), (2, 3, 3), strict=True):
        matrix = np.eye(LENGTH) - np.linalg.matrix_power(np.eye(LENGTH) - weights, iterations)
        if iterations == 2:
            np.testing.assert_allclose(matrix, 2 * weights - weights @ weights, atol=1e-12)
        out = np.einsum("hij,jhd->ihd", matrix, values).reshape(LENGTH, -1)
        expected = out @ np.asarray(module.output_proj.weight).T
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)

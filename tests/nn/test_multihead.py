"""Attention modules: weight for weight those of Equinox, and of PyTorch where it is installed."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnkernel as ak

QUERIES, KEYS, HEADS = 5, 7, 3
SIZES = {
    "query_size": 11,
    "key_size": 13,
    "value_size": 17,
    "output_size": 19,
    "qk_size": 2,
    "vo_size": 23,
}
BIASES = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def inputs():
    return arrays(
        (QUERIES, SIZES["query_size"]), (KEYS, SIZES["key_size"]), (KEYS, SIZES["value_size"])
    )


def with_weights(theirs, **options):
    """Our module with the weights of one of Equinox."""
    names = ("num_heads", *SIZES, *BIASES)
    same = {name: getattr(theirs, name) for name in names}
    ours = ak.MultiheadAttention(**same, **options, key=jax.random.PRNGKey(1))

    def weights(module):
        return [
            getattr(module, name)
            for name in ("query_proj", "key_proj", "value_proj", "output_proj", "dropout")
        ]

    return eqx.tree_at(weights, ours, weights(theirs))


MASKS = {
    "none": None,
    "matrix": np.random.default_rng(1).random((QUERIES, KEYS)) < 0.7,
    "per head": np.random.default_rng(2).random((HEADS, QUERIES, KEYS)) < 0.7,
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("method", [ak.Auto(), ak.Blockwise(2, 3)])
def test_equal_to_equinox_weight_for_weight(x64, mask, biases, method):
    """Values, and gradients in every weight and input."""
    options = SIZES | (BIASES if biases else {})
    theirs = eqx.nn.MultiheadAttention(HEADS, **options, key=jax.random.PRNGKey(0))
    ours = with_weights(theirs, method=method)
    mask = None if MASKS[mask] is None else jnp.asarray(MASKS[mask]).at[..., 0].set(True)

    def loss(module, q, k, v):
        out = module(q, k, v, mask)
        return jnp.sum(jnp.sin(out)), out

    for both in zip(
        *(
            jax.tree.leaves(eqx.filter_value_and_grad(loss, has_aux=True)(module, *inputs()))
            for module in (ours, theirs)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(*both, rtol=1e-11, atol=1e-12)
    slopes = [
        jax.grad(lambda qkv, module=module: loss(module, *qkv)[0])(inputs())
        for module in (ours, theirs)
    ]
    for both in zip(*slopes, strict=True):
        np.testing.assert_allclose(*both, rtol=1e-11, atol=1e-12)


def test_the_same_key_gives_the_same_module(x64):
    key = jax.random.PRNGKey(3)
    ours, theirs = (
        cls(2, 6, use_query_bias=True, dropout_p=0.25, key=key)
        for cls in (ak.MultiheadAttention, eqx.nn.MultiheadAttention)
    )
    x = arrays((QUERIES, 6))[0]
    np.testing.assert_allclose(
        ours(x, x, x, inference=True), theirs(x, x, x, inference=True), rtol=1e-12
    )
    # dropout draws the same numbers
    drawn = jax.random.PRNGKey(4)
    out = ours(x, x, x, key=drawn)
    np.testing.assert_allclose(out, theirs(x, x, x, key=drawn), rtol=1e-12)
    assert jnp.abs(out - ours(x, x, x, inference=True)).max() > 0.01
    assert eqx.nn.inference_mode(ours).dropout.inference
    with pytest.raises(ValueError, match="pass key=, a PRNG key; or inference=True"):
        ours(x, x, x)


def test_process_heads_and_rotary_positions_are_those_of_equinox(x64):
    theirs = eqx.nn.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))
    ours = with_weights(theirs)
    rope = eqx.nn.RotaryPositionalEmbedding(4, theta=100.0)
    x = arrays((QUERIES, 8))[0]

    def process(q, k, v):
        turn = jax.vmap(rope, in_axes=1, out_axes=1)
        return turn(q), turn(k), v

    expected = theirs(x, x, x, process_heads=process)
    np.testing.assert_allclose(ours(x, x, x, process_heads=process), expected, rtol=1e-12)
    turned = with_weights(theirs, rotary_base=100.0)(x, x, x)
    np.testing.assert_allclose(turned, expected, rtol=1e-12)
    shifted = with_weights(theirs, rotary_base=100.0)(
        x, x, x, positions=jnp.arange(QUERIES) + 40, key_positions=jnp.arange(QUERIES) + 40
    )
    np.testing.assert_allclose(shifted, expected, rtol=1e-11)  # of distances alone
    with pytest.raises(ValueError, match="process_heads must not change the shapes"):
        ours(x, x, x, process_heads=lambda q, k, v: (q[:, :1], k, v))


def numpy_attention(q, k, v, mask=None, scale=None):
    """The formula, one head, as one writes it down."""
    scores = q @ k.T * (1 / np.sqrt(q.shape[1]) if scale is None else scale)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def test_self_attention_is_its_formula(x64):
    """Documents C and D: no biases, scores over √d."""
    module = ak.SelfAttention(6, key=jax.random.PRNGKey(0))
    x = arrays((QUERIES, 6))[0]
    q, k, v = (
        np.asarray(x) @ np.asarray(p.weight).T
        for p in (module.query_proj, module.key_proj, module.value_proj)
    )
    np.testing.assert_allclose(module(x), numpy_attention(q, k, v), rtol=1e-12)
    causal = module(x, prior=ak.Causal())
    np.testing.assert_allclose(
        causal, numpy_attention(q, k, v, np.tri(QUERIES, dtype=bool)), rtol=1e-12
    )
    weights = module.weights(x, prior=ak.Causal())
    np.testing.assert_allclose(weights @ v, causal, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    batch = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(module)(batch)[0], module(x), rtol=1e-12)


def test_heads_that_share_keys(x64):
    """Grouped queries: consecutive heads share one head of keys and values."""
    module = ak.MultiheadAttention(6, 12, num_kv_heads=2, qk_size=5, key=jax.random.PRNGKey(0))
    x = arrays((QUERIES, 12))[0]
    q = np.asarray(x @ module.query_proj.weight.T).reshape(QUERIES, 6, 5)
    k = np.asarray(x @ module.key_proj.weight.T).reshape(QUERIES, 2, 5)
    v = np.asarray(x @ module.value_proj.weight.T).reshape(QUERIES, 2, 2)
    heads = [numpy_attention(q[:, h], k[:, h // 3], v[:, h // 3]) for h in range(6)]
    expected = np.concatenate(heads, axis=1) @ np.asarray(module.output_proj.weight).T
    np.testing.assert_allclose(module(x, x, x), expected, rtol=1e-11)
    weights = module.weights(x, x)
    assert weights.shape == (6, QUERIES, QUERIES)
    np.testing.assert_allclose(weights[4] @ v[:, 1], heads[4], rtol=1e-11)
    # a prior for each of the six
    slopes = ak.priors.alibi_slopes(6)
    biased = ak.MultiheadAttention(
        6,
        12,
        num_kv_heads=2,
        qk_size=5,
        prior=ak.PerHead(eqx.filter_vmap(ak.Alibi)(slopes)),
        key=jax.random.PRNGKey(0),
    )
    i = np.arange(QUERIES)
    for h in (0, 4):
        scores = q[:, h] @ k[:, h // 3].T / np.sqrt(5) - slopes[h] * abs(i[:, None] - i)
        expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(biased.weights(x, x)[h], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("prior", "options"),
    [
        (ak.Causal(), {"is_causal": True}),
        (ak.Window(2, 1), {"local_window_size": (2, 1)}),
        (
            ak.priors.Lengths(queries=9, keys=7),
            {"query_seq_lengths": 9, "key_value_seq_lengths": 7},
        ),
    ],
)
def test_equal_to_jax_nn(prior, options):
    """Grouped queries, windows and lengths of `jax.nn.dot_product_attention`, in float32."""
    q, k, v = arrays((13, 6, 5), (13, 2, 5), (13, 2, 5))
    options = {
        n: jnp.array([o]) if isinstance(o, int) and n != "is_causal" else o
        for n, o in options.items()
    }
    expected = jax.nn.dot_product_attention(q, k, v, **options)
    heads = (x.swapaxes(0, 1) for x in (q, jnp.repeat(k, 3, axis=1), jnp.repeat(v, 3, axis=1)))
    ours = ak.attend(*heads, kernel=ak.DotProduct(), prior=prior).swapaxes(0, 1)
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def test_equal_to_pytorch(x64):
    torch = pytest.importorskip("torch")
    heads, size, rows = 2, 6, 5
    (x,) = arrays((rows, size))
    theirs = torch.nn.MultiheadAttention(size, heads, bias=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
    ours = ak.MultiheadAttention(heads, size, **BIASES, key=jax.random.PRNGKey(0))
    stacked = (
        np.split(theirs.in_proj_weight.detach().numpy(), 3),
        np.split(theirs.in_proj_bias.detach().numpy(), 3),
    )
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    weights = [*stacked[0], theirs.out_proj.weight.detach().numpy()]
    biases = [*stacked[1], theirs.out_proj.bias.detach().numpy()]
    ours = eqx.tree_at(
        lambda m: [getattr(m, n).weight for n in names] + [getattr(m, n).bias for n in names],
        ours,
        [jnp.asarray(array) for array in (*weights, *biases)],
    )
    t = torch.tensor(np.asarray(x))
    hidden = torch.triu(torch.ones(rows, rows, dtype=torch.bool), diagonal=1)
    expected, _ = theirs(t, t, t, attn_mask=hidden)
    np.testing.assert_allclose(
        ours(x, x, x, prior=ak.Causal()), expected.detach().numpy(), rtol=1e-12
    )
    q, k, v = arrays((heads, rows, size), (heads, 7, size), (heads, 7, 3), seed=2)
    tensors = (torch.tensor(np.asarray(a)) for a in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    np.testing.assert_allclose(
        ak.attend(q, k, v, kernel=ak.DotProduct(), prior=ak.Causal()), expected.numpy(), rtol=1e-12
    )


OPTIONS = {
    "plain": {},
    "grouped, turned, normed": {"num_kv_heads": 2, "rotary_base": 50.0, "qk_norm": True},
    "alibi": {"prior": ak.PerHead(eqx.filter_vmap(ak.Alibi)(ak.priors.alibi_slopes(4)))},
    "gaussian, window": {"kernel": ak.Gaussian(0.8), "prior": ak.Window(2, 0)},
    "entmax, capped": {"rule": ak.Entmax(1.5), "kernel": ak.SoftCapped(ak.DotProduct(), 3.0)},
}


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize(("capacity", "ring"), [(13, False), (4, True)])
@pytest.mark.parametrize("first", [1, 3, 6])
def test_decoding_with_a_cache_is_the_full_pass(x64, options, capacity, ring, first):
    """Law 4: prefill, then one row at a time; a ring wraps twice."""
    module = ak.MultiheadAttention(4, 8, **OPTIONS[options], key=jax.random.PRNGKey(0))
    (x,) = arrays((13, 8))
    seen = ak.Window(capacity - 1, 0) if ring else ak.Causal()
    full = module(x, x, x, prior=seen)
    step = eqx.filter_jit(module.step)
    out, cache = step(x[:first], module.cache(capacity, ring=ring))
    rows = [out]
    for t in range(first, 13):
        out, cache = step(x[t : t + 1], cache)
        rows.append(out)
    np.testing.assert_allclose(jnp.concatenate(rows), full, rtol=1e-11, atol=1e-12)
    assert int(cache.length) == 13
    assert cache.keys.shape[0] == capacity


@pytest.mark.parametrize(("capacity", "ring"), [(13, False), (5, True)])
@pytest.mark.parametrize("scores", [1.0, 1e4])
def test_a_cache_of_bfloat16_rounds_what_it_stores_and_no_more(capacity, ring, scores):
    """Against the formula in float64 with keys and values rounded; scores up to 1e4."""
    module = ak.MultiheadAttention(2, 6, qk_size=5, vo_size=7, key=jax.random.PRNGKey(0))
    x = jnp.asarray(np.random.default_rng(8).normal(size=(13, 6)), jnp.float32)
    largest = jnp.abs(jnp.log(module.weights(x, x))).max()
    module = eqx.tree_at(
        lambda m: m.query_proj.weight, module, module.query_proj.weight * scores / largest
    )
    programs = []

    @eqx.filter_jit
    def step(row, cache):
        programs.append(cache)
        return module.step(row, cache)

    cache, rows = module.cache(capacity, ring=ring, dtype=jnp.bfloat16), []
    for row in x:
        out, cache = step(row[None], cache)
        rows.append(out)
    out = jnp.concatenate(rows)
    assert cache.keys.dtype == cache.values.dtype == jnp.bfloat16
    assert out.dtype == jnp.float32
    assert len(programs) == 1
    q, k, v = (
        jax.vmap(p)(x).reshape(13, 2, -1)
        for p in (module.query_proj, module.key_proj, module.value_proj)
    )
    k, v = (part.astype(jnp.bfloat16) for part in (k, v))
    q, k, v = (np.asarray(part, np.float64) for part in (q, k, v))
    i = np.arange(13)
    seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - capacity)
    heads = [numpy_attention(q[:, h], k[:, h], v[:, h], seen) for h in (0, 1)]
    expected = np.concatenate(heads, axis=1) @ np.asarray(module.output_proj.weight).T
    # float32 has a score of 1e4 to 1e-3
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 if scores == 1.0 else 1e-3)
    if scores == 1.0:
        full = module(x, x, x, prior=ak.Window(capacity - 1, 0) if ring else ak.Causal())
        assert 1e-6 < jnp.abs(out - full).max() < 2**-8 * jnp.abs(full).max()


def test_a_cache_that_is_full():
    module = ak.MultiheadAttention(2, 4, key=jax.random.PRNGKey(0))
    x = jnp.ones((3, 4))
    _, cache = module.step(x, module.cache(4))
    with pytest.raises(ValueError, match="A cache of 4 rows cannot take 3 more: it holds 3"):
        module.step(x, cache)
    with pytest.raises(Exception, match="A cache of 4 rows cannot take 3 more than it holds"):
        jax.block_until_ready(eqx.filter_jit(module.step)(x, cache))
    with pytest.raises(ValueError, match="capacity must be a number of rows from 1; got 0"):
        module.cache(0)


def test_rows_that_see_nothing(x64):
    """Law 6: 0, and -inf, where other libraries give the mean of all values."""
    module = ak.MultiheadAttention(2, 4, key=jax.random.PRNGKey(0))
    (x,) = arrays((3, 4))
    mask = jnp.ones((3, 3), bool).at[1].set(False)
    out, slopes = jax.value_and_grad(lambda x: jnp.sum(module(x, x, x, mask) ** 2))(x)
    assert np.isfinite(out)
    assert np.isfinite(slopes).all()
    np.testing.assert_array_equal(module(x, x, x, mask)[1], 0.0)
    _, empty = module.attended(x, x, x, prior=ak.priors.Given(mask))
    np.testing.assert_array_equal(empty, [False, True, False])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("method", [ak.Dense(), ak.Blockwise(2, 4)])
def test_half_precision_at_scores_of_ten_thousand(dtype, method):
    q, k, v = (x.astype(dtype) for x in arrays((5, 7), (11, 7), (11, 3)))
    q, k = 100 * q, 100 * k
    out, slopes = jax.value_and_grad(
        lambda q: jnp.sum(
            ak.attend(q, k, v, kernel=ak.DotProduct(), method=method).astype(jnp.float32)
        )
    )(q)
    assert np.isfinite(out)
    assert np.isfinite(np.asarray(slopes, np.float32)).all()
    ours = ak.attend(q, k, v, kernel=ak.DotProduct(), method=method)
    assert ours.dtype == dtype
    wide = (np.asarray(x, np.float64) for x in (q, k, v))
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), numpy_attention(*wide), rtol=0.02, atol=0.02
    )


def test_learned_regression_is_multihead_attention_of_pairs(x64):
    """Document A: keys and values are (x, y), queries x alone; Σ_h U_h of the heads."""
    model = ak.LearnedKernelRegression(2, 3, num_heads=2, qk_size=5, key=jax.random.PRNGKey(0))
    x_new, x, y = arrays((5, 2), (7, 2), (7, 3))
    pairs = np.concatenate([x, y], axis=1)
    inner = model.attention
    expected = 0.0
    for h in range(2):
        q = x_new @ inner.query_proj.weight[5 * h : 5 * h + 5].T
        k = pairs @ inner.key_proj.weight[5 * h : 5 * h + 5].T
        v = pairs @ inner.value_proj.weight[3 * h : 3 * h + 3].T
        expected += numpy_attention(*map(np.asarray, (q, k, v))) @ np.asarray(
            inner.output_proj.weight[:, 3 * h : 3 * h + 3].T
        )
    np.testing.assert_allclose(model(x_new, x, y), expected, rtol=1e-11)
    hidden = model(x_new, x, y, prior=ak.priors.HeldOut(np.ones(7, bool)))
    assert np.isnan(hidden).all()
    flat = ak.LearnedKernelRegression(1, key=jax.random.PRNGKey(0))
    assert flat(x_new[:, 0], x[:, 0], y[:, 0]).shape == (5,)


def test_learned_regression_is_fitted_like_the_others():
    data = ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=60)
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    model = ak.LearnedKernelRegression(
        1,
        num_heads=2,
        embedding=eqx.nn.MLP(1, 8, 16, 1, key=keys[0]),
        kernel=ak.Gaussian(1.0),
        key=keys[1],
    )
    fit = ak.fit(
        model,
        data.x,
        data.y,
        objective=ak.HoldOut(10),
        optimizer=optax.adam(0.01),
        steps=100,
        key=keys[2],
    )
    losses = fit.history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-20:].mean() < 0.7 * losses[:10].mean()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda a: a(4, 6, num_kv_heads=3),
            "num_heads must be a multiple of num_kv_heads.*4 and 3",
        ),
        (lambda a: a(4, 3), "qk_size is query_size // num_heads unless given.*query_size 3"),
        (lambda a: a(2, 6, rotary_base=1e4), "qk_size must be even; got 3"),
        (
            lambda a: a(2, 6)(jnp.ones((3, 5)), jnp.ones((3, 6)), jnp.ones((3, 6))),
            r"query must be one sequence, shape \(rows, 6\); got \(3, 5\)",
        ),
        (
            lambda a: a(2, 6)(jnp.ones((3, 6)), jnp.ones((4, 6)), jnp.ones((3, 6))),
            "Each key needs one value; got 4 keys and 3 values",
        ),
        (
            lambda a: a(2, 6)(*[jnp.ones((3, 6))] * 3, mask=jnp.ones((3, 4), bool)),
            r"mask must be Boolean.*\(queries, keys\) = \(3, 3\).*shape \(3, 4\)",
        ),
        (
            lambda a: a(2, 6)(*[jnp.ones((3, 6))] * 3, mask=jnp.ones((3, 3))),
            "mask must be Boolean.*dtype float32",
        ),
        (
            lambda a: a(2, 6, prior=ak.PerHead(eqx.filter_vmap(ak.Alibi)(jnp.ones(3))))(
                *[jnp.ones((3, 6))] * 3
            ),
            r"A PerHead of this module must have 2 heads; got \(3,\)",
        ),
    ],
)
def test_attention_that_cannot_be(make, message):
    attention = functools.partial(ak.MultiheadAttention, key=jax.random.PRNGKey(0))
    with pytest.raises(ValueError, match=message):
        make(attention)


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_local_linear_attention(x64, kv_heads):
    """Test-time regression (2025), written out: slopes taken from weighted means, head by head."""
    rows, size, heads, qk, vo, ridge = 11, 12, 6, 3, 5, 0.07
    module = ak.MultiheadAttention(
        heads,
        size,
        qk_size=qk,
        vo_size=vo,
        num_kv_heads=kv_heads,
        prior=ak.Causal(),
        order=1,
        ridge=ridge,
        key=jax.random.PRNGKey(0),
    )
    x = jax.random.normal(jax.random.PRNGKey(1), (rows, size))
    q = np.asarray(x @ module.query_proj.weight.T).reshape(rows, heads, qk)
    k = np.asarray(x @ module.key_proj.weight.T).reshape(rows, kv_heads, qk)
    v = np.asarray(x @ module.value_proj.weight.T).reshape(rows, kv_heads, vo)
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
    np.testing.assert_allclose(module(x, x, x), expected, rtol=1e-9, atol=1e-11)
    cache, decoded = module.cache(rows), []
    for row in x:
        one, cache = module.step(row[None], cache)
        decoded.append(one[0])
    np.testing.assert_allclose(jnp.stack(decoded), expected, rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match="order must be 0, 1 or 2"):
        ak.MultiheadAttention(2, 4, order=1, dropout_p=0.1, key=jax.random.PRNGKey(0))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dropout_p": 1.5}, "dropout_p must be a share"),
        ({"rotary_base": -1.0}, "rotary_base must be above 0"),
        ({"order": 3}, "order must be 0, 1 or 2"),
    ],
)
def test_options_out_of_range(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        ak.MultiheadAttention(4, 16, **wrong, key=jax.random.PRNGKey(0))

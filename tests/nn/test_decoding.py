"""Law 4: with every layer and cache, decoding equals the full pass; ragged and long sequences,
caches in half precision, rings that are written at once; drafts that are rejected, trees of drafts,
and what caches refuse."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, numpy_attention, rows_of
from marks import slow
from refusals import assert_raises, assert_refused

import attnkernel as ak
from attnkernel import recurrent

SIZE = 4
ROTARY = {"rotary": ak.Rotary(base=50.0)}
ELU = {"kernel": ak.kernels.EluFeatures()}
SCORE = ak.priors.ScoreFunction(lambda s, i, j, h: s * (1 + h) - 0.3 * (i - j), heads=2)
DELTA = {"decay": "row", "max_rate": 1.5, "qk_norm": True, "output_gate": True, "conv_width": 3}
attention = functools.partial(built, ak.MultiheadAttention)
regression = functools.partial(built, ak.nn.RecurrentAttention, 2, SIZE)


def slopes(heads):
    return {"prior": ak.PerHead(eqx.filter_vmap(ak.Alibi)(ak.priors.alibi_slopes(heads)))}


def with_memory():
    memory = map(jax.device_put, rows_of((3, 2, 2), (3, 2, 2)))
    return ak.nn.PersistentMemory(attention(2, SIZE, **ROTARY), *memory)


def bias_reduced():
    return ak.nn.BiasReducedAttention(attention(2, SIZE, num_kv_heads=1, **ROTARY), iterations=3)


def entmax():
    kernel = ak.kernels.SoftCapped(ak.DotProduct(), 3.0)
    return attention(4, SIZE, rule=ak.Entmax(1.5), kernel=kernel)


def random_features():
    features = eqx.filter_jit(ak.kernels.RandomFeatures)(11, 2, key=jax.random.PRNGKey(1))
    options = {"kernel": ak.Gaussian(0.9), "method": ak.methods.Linear(features)}
    return attention(2, SIZE, num_kv_heads=1, **options, **ROTARY)


def retention():
    estimator = recurrent.LinearAttention(normalised=True)
    return regression(estimator=estimator, decay="head", **ELU)


def mesa():
    return regression(estimator=recurrent.RecursiveLeastSquares(0.5), max_rate=1.0, decay="row")


LAYERS = {
    "plain": lambda: attention(4, SIZE),
    "multi-head": lambda: attention(4, SIZE, num_kv_heads=2, qk_size=2, qk_norm=True, **ROTARY),
    "alibi": lambda: attention(4, SIZE, **slopes(4)),
    "gaussian, window": lambda: attention(4, SIZE, kernel=ak.Gaussian(0.8), prior=ak.Window(2, 0)),
    "entmax, capped": entmax,
    "memory": with_memory,
    "bias reduced": bias_reduced,
    "latent": lambda: built(ak.nn.LatentAttention, 2, SIZE, 3, 5, rotary_size=2, **slopes(2)),
    "score function": lambda: attention(2, SIZE, prior=ak.PerHead(SCORE)),
    "linear": lambda: attention(2, SIZE, method=ak.methods.Linear(), **ROTARY, **ELU),
    "random features": random_features,
    "gated delta rule": lambda: regression(
        3, estimator=recurrent.DeltaRule(), use_output_bias=True, **DELTA
    ),
    "retention": retention,
    "mesa": mesa,
}
CACHES = {
    "full": {"capacity": 22},
    "ring": {"capacity": 4, "ring": True},
    "sinks": {"capacity": 7, "ring": True, "sinks": 2, "spare": 1},
    "spare": {"capacity": 11, "ring": True, "sinks": 1, "spare": 5},
}


@functools.cache
def layer_of(name):
    """The layer of a name, in float64."""
    with jax.enable_x64(True):
        return LAYERS[name]()


def empty(layer, cache):
    if cache is not None:
        return layer.cache(**CACHES[cache])
    return layer.cache() if isinstance(layer, ak.nn.RecurrentAttention) else layer.recurrent_cache()


def seen(cache):
    """The prior of the full pass that equals decoding with a cache."""
    if cache in (None, "full"):
        return ak.Causal()
    options = CACHES[cache]
    sinks, spare = options.get("sinks", 0), options.get("spare", 0)
    first = ak.Causal() & ak.priors.Lengths(keys=sinks)
    return ak.Window(options["capacity"] - sinks - spare - 1, 0) | first


def full_pass(layer, x, prior):
    if isinstance(layer, ak.nn.RecurrentAttention):
        return layer(x)
    takes_three = isinstance(layer, ak.MultiheadAttention | ak.nn.PersistentMemory)
    arrays = (x, x, x) if takes_three else (x,)
    return layer(*arrays, prior=prior)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


ROWS, AT_ONCE = 22, 9
COUNTS = np.array([[4, 2, 0], [3, 4, 1], [0, 1, 4], [4, 4, 1]])  # rows, by step and sequence


def padded_parts(x):
    """The rows of each step and sequence; those of padding hold NaN."""
    parts = np.full((*COUNTS.shape, 4, SIZE), np.nan)
    for (t, i), count in np.ndenumerate(COUNTS):
        before = COUNTS[:t, i].sum()
        parts[t, i, :count] = x[i, before : before + count]
    return parts


@eqx.filter_jit
def decode(layer, cache, x, parts):
    """The full passes, and decoding: several rows, then single ones; single ones; ragged parts."""
    full = jax.vmap(lambda x: full_pass(layer, x, seen(cache)))(x)
    start = empty(layer, cache)
    several, after = layer.step(x[0, :AT_ONCE], start)

    def one_row(caches, rows):
        out, caches = jax.vmap(layer.step)(rows[:, None], caches)
        return caches, out[:, 0]

    def ragged(caches, given):
        step = jax.vmap(lambda x, cache, count: layer.step(x, cache, count=count))
        out, caches = step(given[0], caches, given[1])
        return caches, (out, caches.length)

    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), start, after)
    rows = jnp.stack([x[0, :-AT_ONCE], x[0, AT_ONCE:]], axis=1)
    both, single = jax.lax.scan(one_row, both, rows)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(x)), start)
    _, of_parts = jax.lax.scan(ragged, many, (parts, COUNTS))
    return full, several, single, both.length, of_parts


# caches by layer; those of DEFAULT are tested by default
CASES = {
    "plain": ["full"],
    "multi-head": ["sinks"],
    "alibi": ["ring"],
    "gaussian, window": ["full"],
    "entmax, capped": ["ring"],
    "latent": ["sinks", "full"],
    "memory": ["ring"],
    "bias reduced": ["sinks"],
    "score function": ["ring"],
    **dict.fromkeys(
        ["linear", "random features", "gated delta rule", "retention", "mesa"], (None,)
    ),
}
PAIRS = [(name, cache) for name, caches in CASES.items() for cache in caches]
DEFAULT = {("alibi", "ring"), ("latent", "sinks"), ("memory", "ring"), ("gated delta rule", None)}


@pytest.mark.parametrize(
    ("name", "cache"), [pair if pair in DEFAULT else slow(*pair) for pair in PAIRS]
)
def test_decoding_equals_the_full_pass(x64, name, cache):
    """One row, 4 or 9 rows at a time; in ragged batches, rows of padding hold NaN and give 0."""
    x = rows_of((3, ROWS, SIZE))
    found = decode(layer_of(name), cache, x, padded_parts(x))
    full, several, single, lengths, (ragged, ragged_lengths) = jax.device_get(found)
    assert_close(several, full[0, :AT_ONCE])
    assert_close(single[:, 0], full[0, :-AT_ONCE])
    assert_close(single[:, 1], full[0, AT_ONCE:])
    np.testing.assert_array_equal(lengths, [ROWS - AT_ONCE, ROWS])
    np.testing.assert_array_equal(ragged_lengths, COUNTS.cumsum(axis=0))
    for (t, i), count in np.ndenumerate(COUNTS):
        before = COUNTS[:t, i].sum()
        assert_close(ragged[t, i, :count], full[i, before : before + count])
        assert np.all(ragged[t, i, count:] == 0.0)


@pytest.mark.parametrize("name", ["multi-head", *map(slow, ("gated delta rule", "latent"))])
def test_4096_rows_in_one_program_whose_memory_does_not_grow(x64, name):
    """With a state, or a ring of ten rows after two sinks."""
    layer = layer_of(name)
    has_ring = not isinstance(layer, ak.nn.RecurrentAttention)
    frequencies = np.arange(1, SIZE + 1) / 7.0

    def decode(layer, cache, steps):
        def next_row(carry, _):
            cache, _ = carry
            out, cache = layer.step(jnp.sin(cache.length * frequencies)[None], cache)
            return (cache, out[0]), None

        start = (cache, jnp.zeros(layer.output_size))
        return jax.lax.scan(next_row, start, length=steps)[0]

    start = layer.cache(12, ring=True, sinks=2) if has_ring else layer.cache()
    program = eqx.filter_jit(decode).lower(layer, start, 4096).compile()
    # the rows alone are 128 KiB
    assert program.compiled.memory_analysis().temp_size_in_bytes < 2**15
    after, last = program(layer, start, 4096)
    assert int(after.length) == 4096
    at = np.arange(4096)
    if has_ring:  # the rows that the last one sees
        at = np.concatenate([at[:2], at[-10:]])
    x = np.sin(at[:, None] * frequencies)

    @eqx.filter_jit
    def expected(layer, x):
        if not has_ring:
            return layer(x)
        if isinstance(layer, ak.nn.LatentAttention):
            return layer(x, positions=at)
        return layer(x[-1:], x, x, positions=jnp.asarray(at[-1:]), key_positions=jnp.asarray(at))

    # the scan rounds the arguments of sines, up to 2341 of them, in its own way
    np.testing.assert_allclose(last, expected(layer, x)[-1], rtol=1e-8, atol=1e-10)


def test_a_full_cache_refuses_more_rows():
    layer, x = built(ak.MultiheadAttention, 2, 4), jax.device_put(np.ones((3, 4), np.float32))
    _, cache = eqx.filter_jit(lambda x: layer.step(x, layer.cache(4)))(x)
    jax.eval_shape(lambda x: layer.step(x[:1], cache), x)  # the row that just fits
    assert_raises(r"4 rows.* 3 more.*holds 3", layer.step, x, cache)
    with pytest.raises(Exception, match=r"4 rows.* 3 more"):
        jax.block_until_ready(eqx.filter_jit(layer.step)(x, cache))
    assert_raises(r"capacity.*got 0", layer.cache, 0)


def test_a_bfloat16_cache_rounds_keys_and_values_alone():
    """Against the formula in float64 with keys and values rounded; scores up to 1e4."""
    plain = built(ak.MultiheadAttention, 2, 6, qk_size=5, vo_size=7)
    x = np.random.default_rng(8).normal(size=(13, 6)).astype("f")
    programs = []

    @eqx.filter_jit
    def step(module, row, cache):
        programs.append(cache)
        return module.step(row, cache)

    @eqx.filter_jit
    def results(module, x):
        heads = (module.query_proj, module.key_proj, module.value_proj)
        q, k, v = (jax.vmap(linear)(x).reshape(13, 2, -1) for linear in heads)
        k, v = (part.astype(jnp.bfloat16) for part in (k, v))
        return module(x, x, x, prior=ak.Causal()), module.weights(x, x), (q, k, v)

    largest = np.abs(np.log(results(plain, x)[1])).max()
    for scores in (1.0, 1e4):
        weight = plain.query_proj.weight * np.float32(scores / largest)
        module = eqx.tree_at(lambda m: m.query_proj.weight, plain, weight)
        cache, rows = module.cache(13, dtype=jnp.bfloat16), []
        for row in x:
            out, cache = step(module, row[None], cache)
            rows.append(out)
        assert cache.keys.dtype == cache.values.dtype == jnp.bfloat16
        assert out.dtype == jnp.float32
        out = np.concatenate(jax.device_get(rows))
        full, _, heads = jax.device_get(results(module, x))
        q, k, v = (part.astype(np.float64) for part in heads)
        seen = np.tri(13, dtype=bool)
        heads = [numpy_attention(q[:, h], k[:, h], v[:, h], seen) for h in (0, 1)]
        expected = np.concatenate(heads, axis=1) @ np.asarray(module.output_proj.weight).T
        # float32 has a score of 1e4 to 1e-3
        np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6 if scores == 1.0 else 1e-3)
        if scores == 1.0:
            assert 1e-6 < np.abs(out - full).max() < 2**-8 * np.abs(full).max()
    assert len(programs) == 1


def test_a_ring_keeps_the_last_rows_before_the_padding():
    """Eight rows, five of them valid, at once in a ring of four."""
    module = built(ak.MultiheadAttention, 2, 4)
    after = jax.jit(lambda x: module.step(x, module.cache(4, ring=True), count=5)[1])
    assert sorted(np.asarray(after(np.ones((8, 4), np.float32)).rows.numbers)) == [1, 2, 3, 4]


PARENTS = [-1, 0, 0, 1, 1, 2]  # of six drafts


def path_to(draft):
    return [] if draft < 0 else [*path_to(PARENTS[draft]), draft]


PATHS = [path_to(draft) for draft in range(6)]
MASK = np.array([[j in path for j in range(6)] for path in PATHS])
DEPTH = np.array([len(path) - 1 for path in PATHS])
RIGHT = np.array([4, 1, 0, 3, 4, 4])  # drafts that are right, four drafts at a time
KEPT = np.array([[0, 1, 4], [0, 2, 0]]), np.array([3, 2])  # rows of the tree, and how many


@eqx.filter_jit
def draft(layer, cache, x, drafts, sequences, tree):
    """Full passes; steps that go back to the right drafts; and a tree, of which paths are kept."""
    full = jax.vmap(lambda x: full_pass(layer, x, seen(cache)))(sequences)
    start = empty(layer, cache)

    def four_drafts(now, given):
        rows, length = given
        out, now = layer.step(rows, now)
        now = now.rollback(length)
        return now, (out, now.length)

    rejected = jax.lax.scan(four_drafts, start, (drafts, np.cumsum(RIGHT)))[1]
    before = layer.step(x[:7], start)[1]
    of_tree, drafted = layer.step(tree, before, mask=MASK, positions=7 + DEPTH)

    def go_on(rows, count):
        after = drafted.keep(before.length, rows, count)
        out, last = layer.step(jnp.stack([x[7], x[8]]), after)
        return out, last.length

    return full, rejected, of_tree, jax.vmap(go_on)(*KEPT)


@pytest.mark.parametrize("cache", ["spare", slow("full")])
@pytest.mark.parametrize("name", ["multi-head", slow("latent")])
def test_rejected_drafts_leave_no_trace_and_paths_of_a_tree_go_on(x64, name, cache):
    """Each draft is the last row of the sequence along its path."""
    x, other, tree = rows_of((16, SIZE), (4, SIZE), (6, SIZE))
    ends = np.cumsum(RIGHT)
    drafts = np.stack([x[start : start + 4] for start in ends - RIGHT])
    drafts = np.where(np.arange(4)[:, None] < RIGHT[:, None, None], drafts, other)
    kept = [rows[:count] for rows, count in zip(*KEPT, strict=True)]
    sequences = [np.concatenate([x[:7], tree[rows], x[7:]])[:16] for rows in (*PATHS, *kept)]
    found = draft(layer_of(name), cache, x, drafts, np.stack([x, *sequences]), tree)
    full, (rejected, lengths), of_tree, (after, last) = jax.device_get(found)
    np.testing.assert_array_equal(lengths, ends)
    for out, right, end in zip(rejected, RIGHT, ends, strict=True):
        assert_close(out[:right], full[0, end - right : end])
    for j, depth in enumerate(DEPTH):
        assert_close(of_tree[j], full[1 + j, 7 + depth])
    for out, whole, rows in zip(after, full[7:], kept, strict=True):
        assert_close(out, whole[7 + len(rows) : 9 + len(rows)])
    np.testing.assert_array_equal(last, 9 + KEPT[1])


@pytest.mark.parametrize("name", ["linear", slow("gated delta rule")])
def test_a_recurrent_layer_repeats_the_step_of_the_accepted_drafts(x64, name):
    x, accepted = rows_of((12, SIZE)), np.array([4, 1, 3, 4])
    starts = np.cumsum(accepted) - accepted
    right = np.arange(4)[:, None] < accepted[:, None, None]
    drafts = np.where(right, np.stack([x[start : start + 4] for start in starts]), 7.0)

    @eqx.filter_jit
    def results(layer, x):
        def four_drafts(now, given):
            rows, count = given
            step = jax.vmap(lambda count: layer.step(rows, now, count=count))
            out, after = step(jnp.stack([jnp.full_like(count, 4), count]))
            return jax.tree.map(lambda leaf: leaf[1], after), out[0]

        drafted = jax.lax.scan(four_drafts, empty(layer, None), (drafts, accepted))[1]
        return drafted, full_pass(layer, x, ak.Causal())

    out, full = jax.device_get(results(layer_of(name), x))
    for one, start, count in zip(out, starts, accepted, strict=True):
        assert_close(one[:count], full[start : start + count])


X = jax.device_put(np.ones((3, 4), np.float32))


heads = functools.cache(lambda: built(ak.MultiheadAttention, 2, 4))
latent = functools.cache(lambda: built(ak.nn.LatentAttention, 2, 4, 3))


@functools.cache
def filled(rows, back_to=None, **options):
    """A cache of four places, to which rows were added, and of which some were given back."""
    ones = jax.device_put(np.ones((rows, 1, 1), np.float32))
    cache = ak.nn.KVCache(4, 1, 1, 1, **options)
    back = lambda cache: cache if back_to is None else cache.rollback(back_to)  # noqa: E731
    return eqx.filter_jit(lambda cache: back(cache.append(ones, ones)[1]))(cache)


# the cache, the length to go back to, and the rows to keep
LOST = [
    ({"rows": 3}, 4, [0, 1]),
    ({"rows": 3}, 1, [1, 0]),
    ({"rows": 3}, 1, [0, 2]),
    ({"rows": 3}, 1, [-1, 0]),
    ({"rows": 3, "back_to": 1}, 1, [0, 1]),
    ({"rows": 6, "ring": True}, 2, [0, 1]),
]


def test_invalid_arguments_are_refused(as_users_run_it):
    other, step = ak.nn.KVCache(9, 2, 3, 2), functools.partial(heads().step, X, heads().cache(9))
    assert_refused(
        (lambda: step(count=4), r"count must be .* 0 to 3.*got 4"),
        (lambda: step(mask=np.ones((3, 2), bool)), r"mask .*\(3, 3\)"),
        (lambda: step(positions=[0, 1]), r"positions .*\(3,\); got \(2,"),
        (attention(2, 6, order=1, method=ak.methods.Linear(), **ELU).recurrent_cache, "of order 0"),
        (lambda: heads().step(X, None), "cache must be a KVCache or RecurrentCache"),
        (lambda: latent().step(X, ak.nn.RecurrentCache(X)), "cache must be a KVCache"),
        (lambda: latent().step(X, heads().cache(9)), r"keys of shape \(3, 2, 2\); got \(3, 1, 3\)"),
        (lambda: heads().step(X, other), r"keys and values must have .* keys of shape \(3, 2, 3\)"),
        (lambda: heads().cache(9, sinks=2), "sinks and spare are rows of a ring: pass ring=True"),
        (lambda: heads().cache(4, ring=True, sinks=2, spare=2), "must leave a row of the ring"),
    )


def test_errors_inside_jit_are_raised_at_run_time():
    message = "length and rows must name rows that the cache holds"
    keep = eqx.filter_jit(lambda cache, length, rows: cache.keep(length, rows))
    back = eqx.filter_jit(lambda cache, length: cache.rollback(length))
    for cache, length, rows in LOST:
        given = jax.device_put((length, np.array(rows)))
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(keep(filled(**cache), *given))
    ring = filled(6, ring=True)
    for cache in (ring, filled(3)):
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(back(cache, jax.device_put(4)))
    assert int(back(ring, jax.device_put(5)).length) == 5  # one row less is always in the ring
    step = eqx.filter_jit(lambda cache, count: heads().step(X, cache, count=count))
    with pytest.raises(Exception, match="count must be an integer from 0 to 3"):
        jax.block_until_ready(step(heads().cache(9), jax.device_put(4)))

"""Functions of the score and of two positions: against formulas in NumPy, for every method;
sequences that are packed into one."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from programs import temporary_bytes
from refusals import assert_raises

import attnkernel as ak
from attnkernel.kernels import Boxcar
from attnkernel.methods import Blockwise, Dense, Sharded, Sorted
from attnkernel.priors import AtPositions, MaskFunction, ScoreFunction, Segments

HEADS, N, DIM, DIM_V = 3, 11, 2, 3
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(2, N, DIM))
V = RNG.normal(size=(N, DIM_V))
COTANGENT = RNG.normal(size=(HEADS, N, DIM_V))
I, J = np.ogrid[:N, :N]  # noqa: E741  the indices of the equations
SCORES = Q @ K.T / np.sqrt(DIM)
CAUSAL = np.where(J <= I, 0.0, -np.inf)
CAP, TABLE = 1.3, RNG.normal(size=(HEADS, N))
TWO_DEVICES = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("devices",))
METHODS = {
    "dense": Dense(),
    "blockwise": Blockwise(3, 4),
    "sharded": Sharded(TWO_DEVICES),
    "ring": Sharded(TWO_DEVICES, ring=True),
}
DEVICES = pytest.mark.multi_device, pytest.mark.slow


class CappedBias(eqx.Module):
    """A soft cap after a learned bias of the distance, of one head."""

    table: jax.Array
    cap: jax.Array

    def __call__(self, score, i, j, h):
        return self.cap * jnp.tanh((score + self.table[jnp.abs(i - j)]) / self.cap)


def softmax(log_weights):
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def by_hand():
    """Values of all heads, and the derivatives of Σ C · value in q, the table and the cap."""
    values, of_q, of_table, of_cap = [], 0.0, np.zeros_like(TABLE), 0.0
    for head in range(HEADS):
        inner = (SCORES + TABLE[head][np.abs(I - J)]) / CAP
        shares = softmax(CAP * np.tanh(inner) + CAUSAL)
        out = shares @ V
        cotangent = COTANGENT[head]
        slope = shares * (cotangent @ V.T - np.sum(cotangent * out, axis=1, keepdims=True))
        of_score = slope * (1 - np.tanh(inner) ** 2)
        values.append(out)
        of_q = of_q + of_score @ K / np.sqrt(DIM)
        np.add.at(of_table[head], np.abs(I - J), of_score)
        of_cap += np.sum(slope * (np.tanh(inner) - inner * (1 - np.tanh(inner) ** 2)))
    return np.stack(values), of_q, of_table, of_cap


@pytest.mark.parametrize(
    "name", ["dense", "blockwise", pytest.param("sharded", marks=DEVICES), slow("ring")]
)
def test_values_and_gradients_are_those_of_the_formula(x64, name):
    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def gradients(q, table, cap):
        function = eqx.filter_vmap(lambda row: CappedBias(row, cap))(table)
        prior = ak.PerHead(ScoreFunction(function)) * ak.Causal()
        out = ak.attend(q, K, V, kernel=ak.DotProduct(), prior=prior, method=METHODS[name])
        return jnp.sum(COTANGENT * out), out

    found, out = gradients(Q, TABLE, CAP)
    for ours, expected in zip((out, *found), by_hand(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


# functions as flex attention has them, and the same in NumPy
FUNCTIONS = {
    "relative": (lambda s, i, j, h: s + (j - i), lambda s: s + (J - I)),
    "head": (lambda s, i, j, h: s * (h + 1) - 0.1 * h * i, lambda s: 2 * s - 0.1 * I),
    "falling": (lambda s, i, j, h: jnp.cos(s) - s, lambda s: np.cos(s) - s),
    "content": (
        lambda s, i, j, h: jnp.where((s < 0.3) | (i == j), s, -jnp.inf),
        lambda s: np.where((s < 0.3) | (I == J), s, -np.inf),
    ),
}


def test_functions_and_products_with_biases(x64):
    """A bias before the function is added to the score, one after it to the result."""
    bias = -0.4 * np.abs(I - J)
    parts, expected = [], []
    for function, in_numpy in FUNCTIONS.values():
        ours = ScoreFunction(function, heads=2)
        alone, scores = ak.PerHead(ours), in_numpy(SCORES)
        parts += [alone, ak.Alibi(0.4) * alone * ak.Causal(), ak.Causal() * alone * ak.Alibi(0.4)]
        expected += [scores, in_numpy(SCORES + bias) + CAUSAL, scores + bias + CAUSAL]
        parts.append(AtPositions(alone, np.arange(N)[::-1].copy(), np.arange(N)[::-1].copy()))
        expected.append(in_numpy(SCORES[::-1, ::-1])[::-1, ::-1])

    @jax.jit
    def of_last_head(q):
        options = {"kernel": ak.DotProduct(), "method": Dense()}
        return [ak.attend(q, K, V, prior=prior, **options)[1] for prior in parts]

    for found, log_weights in zip(of_last_head(Q), expected, strict=True):
        np.testing.assert_allclose(found, softmax(log_weights) @ V, rtol=1e-9, atol=1e-9)


def test_derivatives_in_what_a_function_reads(x64):
    """Arrays of an outer transformation, in place of those of a module."""

    def total(scale, method):
        prior = ScoreFunction(lambda s, i, j, h: s * scale[i % 2])
        out = ak.attend(Q, K, V, kernel=ak.DotProduct(), prior=prior, method=method)
        return jnp.sum(COTANGENT[0] * out)

    scale = np.array([0.7, 1.6])
    shares = softmax(SCORES * scale[I % 2])
    out = shares @ V
    slope = shares * (COTANGENT[0] @ V.T - np.sum(COTANGENT[0] * out, axis=1, keepdims=True))
    expected = [np.sum((slope * SCORES)[parity::2]) for parity in (0, 1)]

    @jax.jit
    def slopes(scale):
        return [jax.grad(total)(scale, method) for method in (Dense(), Blockwise(3, 4))]

    np.testing.assert_allclose(slopes(scale), [expected, expected], rtol=1e-9)


class LogDistance(ak.priors.Prior):
    """Whose derivative is not finite at the keys behind a query."""

    rate: jax.Array

    def log_pair(self, i, j):
        return -self.rate * jnp.log(i - j + 1.0)


def test_hidden_pairs_have_no_derivative(x64):
    """s − a log(i − j + 1) under a causal mask, before and after it, and where no key is seen."""

    @jax.jit
    def values_and_slopes(rate):
        def value(rate, lengths, name, method):
            score = ScoreFunction(lambda s, i, j, h: s - rate * jnp.log(i - j + 1.0))
            mask, prior = ak.Causal() & ak.priors.Lengths(*lengths), LogDistance(rate)
            both = {"score": mask * score, "after": score * mask, "prior": prior * mask}[name]
            out = ak.attend(Q, K, V, kernel=ak.DotProduct(), prior=both, method=METHODS[method])
            return jnp.sum(COTANGENT[0] * out)

        both = jax.vmap(jax.value_and_grad(value), in_axes=(None, 0, None, None))
        lengths = jnp.array([N, 0]), jnp.array([N, 0])  # a member of the batch, and an empty one
        cases = zip(("score", "after", "prior"), ("dense", "blockwise", "blockwise"), strict=True)
        return [both(rate, lengths, *case) for case in cases]

    log_distance = np.log(np.maximum(I - J, 0) + 1)
    shares = softmax(SCORES - 0.5 * log_distance + CAUSAL)
    mean = np.sum(shares * log_distance, axis=1, keepdims=True)
    slope = np.sum(COTANGENT[0] * (-(shares * (log_distance - mean)) @ V))
    for value, found in values_and_slopes(0.5):
        np.testing.assert_allclose(value, [np.sum(COTANGENT[0] * (shares @ V)), 0.0], rtol=1e-10)
        np.testing.assert_allclose(found, [slope, 0.0], rtol=1e-10)


def test_masked_blocks_are_skipped_and_masked_pairs_stay_so():
    """Values of NaN in blocks that a mask excludes reach no query, although f is finite there."""
    v = np.where(J.T < 8, V, np.nan).astype(np.float32)
    prior = MaskFunction(lambda i, j: j < 8) * ScoreFunction(lambda s, i, j, h: jnp.tanh(s))
    options = {"kernel": ak.DotProduct(), "prior": prior, "method": Blockwise(4, 4)}
    q, k = Q.astype(np.float32), K.astype(np.float32)
    out = jax.jit(lambda v: ak.attend(q, k, v, **options))(v)  # outside `jit` NaN is refused
    expected = softmax(np.tanh(SCORES[:, :8])) @ V[:8]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    compact = ScoreFunction(lambda s, i, j, h: 0.0 * s)  # pairs out of reach stay so
    x = np.arange(4.0, dtype=np.float32)[:, None]
    weights = ak.attention_weights(x, x, kernel=Boxcar(1.5), prior=compact)
    np.testing.assert_array_equal(np.asarray(weights) > 0, np.abs(x - x.T) <= 1)


@pytest.mark.slow
def test_scores_are_never_stored_for_all_pairs():
    def value(q):
        prior = ak.Causal() * ScoreFunction(lambda s, i, j, h: s * jnp.cos(0.1 * (i - j)))
        parts = {"kernel": ak.DotProduct(), "prior": prior, "method": Blockwise(64, 64)}
        return jnp.sum(ak.attend(q, q, q, **parts))

    more, fewer = (temporary_bytes(jax.grad(value), (n, 2)) for n in (4096, 2048))
    assert more - fewer < 2**20  # all scores would be 64 and 16 MiB


FUNCTION = ScoreFunction(lambda s, i, j, h: s)


def test_what_is_refused():
    x = np.ones((3, 1), np.float32)
    options = {"kernel": ak.DotProduct(), "method": Dense()}
    for changes, message in (
        ({"prior": FUNCTION, "method": Sorted(), "kernel": ak.Laplace(1.0)}, "got ScoreFunction"),
        ({"prior": ScoreFunction(lambda s, i, j, h: s, heads=3)}, "3 heads goes into ak.PerHead"),
        ({"prior": ScoreFunction(lambda s, i, j, h: s[None])}, r"function must .*shape \(1,\)"),
    ):
        assert_raises(message, ak.attend, x, x, x, **options | changes)
    message = r"must not both have a score function.*g\(f\(s"
    assert_raises(message, lambda: FUNCTION * ak.Causal() * FUNCTION)
    assert_raises(r"no log π\(i, j\).*ak\.attend", FUNCTION.pairwise, jnp.arange(2), jnp.arange(2))


OF_QUERIES, OF_KEYS = np.array([3, 0, 2]), np.array([4, 1, 3])
NUM_QUERIES, NUM_KEYS = 7, 9  # the last rows are padding


def offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def dense():
    """Whether query i and key j are of one sequence."""
    of_query, of_key = (np.repeat(np.arange(3), lengths) for lengths in (OF_QUERIES, OF_KEYS))
    allowed = np.zeros((NUM_QUERIES, NUM_KEYS), bool)
    allowed[: len(of_query), : len(of_key)] = of_query[:, None] == of_key
    return allowed


ROWS = {"num_queries": NUM_QUERIES, "num_keys": NUM_KEYS}


@jax.jit
def masks_at_run_time(lengths, offsets):
    return [Segments.from_lengths(*of, **ROWS) for of in (lengths, map(jnp.diff, offsets))]


@eqx.filter_jit
def pairwise(masks):
    """log π of all pairs, of each mask."""
    return [m.pairwise(jnp.arange(len(m.queries)), jnp.arange(len(m.keys))) for m in masks]


def test_a_query_sees_the_keys_of_its_sequence():
    lengths, starts = (OF_QUERIES, OF_KEYS), (offsets(OF_QUERIES), offsets(OF_KEYS))
    masks = [
        Segments.from_lengths(*lengths, **ROWS),
        Segments.from_lengths(*(side.tolist() for side in lengths), **ROWS),
        Segments.from_lengths(*map(np.diff, starts), **ROWS),
        *masks_at_run_time(lengths, starts),
    ]
    for log_prior in pairwise(masks):
        np.testing.assert_array_equal(np.exp(log_prior), dense())


def test_without_padding_queries_are_keys():
    mask = Segments.from_lengths([2, 1])
    np.testing.assert_array_equal(mask.queries, [0, 0, 1])
    np.testing.assert_array_equal(mask.keys, [0, 0, 1])
    (padded,) = pairwise([Segments.from_lengths([2, 1], num_queries=5)])
    # padding does not see padding
    np.testing.assert_array_equal(np.exp(padded)[3:], np.zeros((2, 5)))
    none = Segments.from_lengths(np.zeros(0, int), num_queries=2)
    np.testing.assert_array_equal(none.queries, [-1, -1])


def test_lengths_that_are_none_are_refused():
    assert_raises(r"queries must be lengths.*\[3, -1\]", Segments.from_lengths, [3, -1])
    assert_raises("same sequences; got 1 .*and 2", Segments.from_lengths, [3], [2, 1])
    assert_raises("num_queries.*at least 5.*got 4", Segments.from_lengths, [3, 2], num_queries=4)
    assert_raises("num_keys.*at least 4.*got 3", Segments.from_lengths, [3], [4], num_keys=3)
    square = np.array([[3]])
    assert_raises(r"queries must be integers.*shape \(1, 1\)", Segments.from_lengths, square)
    in_jit = jax.jit(Segments.from_lengths)
    assert_raises("num_queries must be given", in_jit, np.array([3]))

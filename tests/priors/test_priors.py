"""Law 3: the algebra of masks is that of dense Boolean matrices."""

import math

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import attnkernel as ak
from attnkernel.priors import (
    At,
    Given,
    HeldOut,
    Kerple,
    KeyWeights,
    LeaveOneOut,
    Lengths,
    Prefix,
    Segments,
    Table,
    Where,
)

QUERIES, KEYS = 5, 7
I, J = np.indices((QUERIES, KEYS))  # noqa: E741  the indices of the equations
HIDDEN = np.array([True, False, False, True, False, True, False])

LEAVES = {
    "held out": (HeldOut(HIDDEN), ~HIDDEN[J]),
    "leave one out": (LeaveOneOut(), I != J),
    "causal": (Where(lambda i, j: j <= i), J <= I),
}


def grow(children):
    return st.one_of(
        st.tuples(st.just("and"), children, children),
        st.tuples(st.just("or"), children, children),
        st.tuples(st.just("not"), children),
    )


def build(tree):
    """A mask and the dense matrix that it should be."""
    if isinstance(tree, str):
        return LEAVES[tree]
    parts = [build(child) for child in tree[1:]]
    if tree[0] == "not":
        return ~parts[0][0], ~parts[0][1]
    (a, dense_a), (b, dense_b) = parts
    return (a & b, dense_a & dense_b) if tree[0] == "and" else (a | b, dense_a | dense_b)


@given(st.recursive(st.sampled_from(sorted(LEAVES)), grow, max_leaves=6))
def test_algebra_is_boolean(tree):
    mask, dense = build(tree)
    log_prior = mask.pairwise(jnp.arange(QUERIES), jnp.arange(KEYS))
    np.testing.assert_array_equal(log_prior, np.where(dense, 0.0, -np.inf))


def test_blocks_are_parts_of_the_whole():
    mask = LeaveOneOut() & Where(lambda i, j: j <= i)
    whole = mask.pairwise(jnp.arange(QUERIES), jnp.arange(KEYS))
    block = mask.pairwise(jnp.arange(2, 4), jnp.arange(1, 6))
    np.testing.assert_array_equal(block, whole[2:4, 1:6])


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2), bool)])
def test_held_out_wants_booleans_per_key(bad):
    with pytest.raises(ValueError, match=r"Boolean array of shape \(keys,\)"):
        HeldOut(bad)


def test_forbidden_pairs_are_not_evaluated_into_the_result():
    """A NaN behind a mask stays behind it."""
    x = jnp.arange(4.0)[:, None].at[2].set(jnp.nan)
    prior = HeldOut(jnp.arange(4) == 2)
    out = jax.jit(
        lambda k: ak.attend(k[:2], k, jnp.ones((4, 1)), kernel=ak.Gaussian(1.0), prior=prior)
    )(x)
    np.testing.assert_array_equal(out, jnp.ones((2, 1)))


def test_masks_combine_with_masks_only():
    with pytest.raises(TypeError, match="unsupported operand"):
        ak.priors.LeaveOneOut() & 3  # type: ignore[operator]


SEGMENTS = np.array([2, 2, 5, 5, 5, 1, 1])
SEEN = np.random.default_rng(1).random((QUERIES, KEYS)) < 0.5
MORE = {
    "causal, shifted": (ak.Causal(offset=2), J <= I + 2),
    "window": (ak.Window(1, 2), (I - 1 <= J) & (J <= I + 2)),
    "prefix": (Prefix(3), (J < 3) | (J <= I)),
    "lengths": (Lengths(queries=3, keys=5), (I < 3) & (J < 5)),
    "keys alone": (Lengths(keys=jnp.array(4)), J < 4),
    "segments": (Segments(SEGMENTS[:QUERIES], SEGMENTS), SEGMENTS[I] == SEGMENTS[J]),
    "given": (Given(SEEN), SEEN),
    "causal, elsewhere": (
        At(ak.Causal(), jnp.array([9, 3, 4, 8, 0]), jnp.array([5, 6, 0, 1, 9, 3, 4])),
        np.array([5, 6, 0, 1, 9, 3, 4])[J] <= np.array([9, 3, 4, 8, 0])[I],
    ),
}


@pytest.mark.parametrize("name", list(MORE))
def test_masks_are_their_formulas_and_bound_their_blocks(name):
    mask, dense = MORE[name]
    log_prior = mask.pairwise(jnp.arange(QUERIES), jnp.arange(KEYS))
    np.testing.assert_array_equal(log_prior, np.where(dense, 0.0, -np.inf))
    passed_over = assert_bounded(mask, np.where(dense, 0.0, -np.inf))
    assert passed_over or name == "given"


def assert_bounded(prior, dense):
    """No block holds more than its bound; how many are passed over."""
    none = 0
    for low, high in ((0, 1), (2, 4), (1, 1)):
        for left, right in ((0, 1), (2, 4), (5, 6), (6, 6)):
            block = (jnp.array(a) for a in (low, high, left, right))
            bound = prior.upper_bound(*block)
            assert bound >= dense[low : high + 1, left : right + 1].max() - 1e-6
            none += bool(np.isneginf(bound))
    return none


def bucket(distance, buckets, most, both):
    """T5's rule, as published, of key position less query position."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = math.log(distance / exact) / math.log(most / exact) * (buckets - exact)
    return first + min(exact + int(grown + 1e-9), buckets - 1)


@pytest.mark.parametrize(
    ("buckets", "most", "both"), [(32, 128, True), (32, 128, False), (6, 20, True)]
)
def test_buckets_of_distances(buckets, most, both):
    prior = ak.RelativeBias(buckets, most, both)
    i = jnp.arange(300)
    ours = prior.bucket(i[:, None], i[None, :])
    expected = [
        [bucket(int(j - i), buckets, most, both) for j in range(300)] for i in (0, 150, 299)
    ]
    np.testing.assert_array_equal(ours[np.array([0, 150, 299])], expected)
    used = np.unique(ours)
    assert used.max() == buckets - 1
    # of two directions, distance 0 has the bucket of one: that of the other is never used
    assert len(used) == buckets - (1 if both else 0)


TABLE = np.random.default_rng(2).normal(size=(QUERIES, KEYS)).astype(np.float32)
BIASES = {
    "alibi": (ak.Alibi(0.3), -0.3 * np.abs(I - J)),
    "growing": (ak.Alibi(-0.3), 0.3 * np.abs(I - J)),
    "kerple": (Kerple(0.7, 1.3), -0.7 * np.log(1 + 1.3 * np.abs(I - J))),
    "table": (Table(TABLE), TABLE),
    "weights of keys": (KeyWeights(TABLE[0]), TABLE[0][J]),
    "relative": (
        ak.RelativeBias(np.arange(8.0) / 3, 10),
        np.array([[bucket(j - i, 8, 10, True) / 3 for j in range(KEYS)] for i in range(QUERIES)]),
    ),
    "masked bias": (ak.Causal() + ak.Alibi(0.3), np.where(J <= I, -0.3 * np.abs(I - J), -np.inf)),
    "elsewhere": (
        At(ak.Alibi(0.5) + ak.Causal(), jnp.arange(QUERIES) + 4, jnp.arange(KEYS)),
        np.where(J <= I + 4, -0.5 * np.abs(I + 4 - J), -np.inf),
    ),
}


@pytest.mark.parametrize("name", list(BIASES))
def test_biases_are_their_formulas_and_bound_their_blocks(name):
    prior, dense = BIASES[name]
    log_prior = prior.pairwise(jnp.arange(QUERIES), jnp.arange(KEYS))
    np.testing.assert_allclose(log_prior, dense, rtol=1e-5, atol=1e-6)
    assert_bounded(prior, dense)


def test_a_bias_multiplies_the_weights():
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((QUERIES, 2), (KEYS, 2), (KEYS, 3)))
    weights = np.exp(-0.5 * ((q[:, None] - k[None]) ** 2).sum(axis=2)) * np.exp(BIASES["alibi"][1])
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    for method in (ak.Dense(), ak.Blockwise(2, 2)):
        ours = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=ak.Alibi(0.3), method=method)
        np.testing.assert_allclose(ours, expected, rtol=2e-5)


def test_biases_are_learned(x64):
    """Slopes of every parameter, against differences."""
    rng = np.random.default_rng(4)
    q, k, v = (jnp.asarray(rng.normal(size=s)) for s in ((QUERIES, 2), (KEYS, 2), (KEYS, 1)))
    priors = (
        ak.Alibi(jnp.asarray(0.3)),
        Kerple(0.7, 1.3),
        Table(jnp.asarray(TABLE, float)),
        KeyWeights(jnp.asarray(TABLE[0], float)),
        ak.RelativeBias(jnp.arange(8.0) / 3, 10),
    )
    for prior in priors:
        moving, fixed = eqx.partition(prior, eqx.is_inexact_array)
        flat, unravel = jax.flatten_util.ravel_pytree(moving)

        @jax.jit
        def loss(flat, method=ak.Blockwise(2, 3), unravel=unravel, fixed=fixed):
            prior = eqx.combine(unravel(flat), fixed)
            out = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior, method=method)
            return jnp.sum(jnp.sin(out))

        slope = jax.grad(loss)(flat)
        along = jnp.cos(jnp.arange(flat.size))
        numeric = (loss(flat + 1e-6 * along) - loss(flat - 1e-6 * along)) / 2e-6
        np.testing.assert_allclose(slope @ along, numeric, rtol=1e-6)
        assert jnp.abs(slope).max() > 1e-4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ak.Window(-1, 0), "left must be a number of keys from 0; got -1"),
        (lambda: Given(np.ones((2, 3))), r"Boolean array of shape \(queries, keys\).*float"),
        (lambda: Given(np.ones((2, 3), bool)).check(2, 4), r"\(queries, keys\) = \(2, 4\)"),
        (lambda: Segments(np.ones((2, 3), int)), "whole numbers, one per row"),
        (
            lambda: Segments(np.ones(3, int)).check(3, 4),
            "one number per query and per key, 3 and 4",
        ),
        (lambda: At(ak.Causal(), np.ones(3)), "queries must be whole numbers"),
        (lambda: At(3, np.ones(3, int)), "prior must be a Prior"),
        (lambda: ak.RelativeBias(7), "an even number for two directions"),
        (lambda: ak.RelativeBias(32, 8), "max_distance must be more than the 8 distances"),
        (lambda: Table(SEEN), "For a Boolean mask use ak.priors.Given"),
        (lambda: KeyWeights(TABLE[0]).check(2, 3), r"one entry per key, shape \(3,\)"),
        (lambda: Kerple(-1.0), "rate must be positive"),
    ],
)
def test_priors_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("size", [True, -1])
def test_a_window_is_of_whole_numbers(size):
    with pytest.raises(ValueError, match="left must be a number of keys from 0"):
        ak.Window(size, 0)

"""Law 3: masks are Boolean matrices with their algebra; biases are formulas; both are bounded."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

import attnkernel as ak
from attnkernel.priors import (
    AtPositions,
    BiasTable,
    ExcludeSelf,
    Forget,
    HeldOut,
    Kerple,
    KeyWeights,
    Lengths,
    MaskArray,
    MaskFunction,
    Prefix,
    RelativeBias,
    Segments,
)

QUERIES, KEYS = 5, 7
I, J = np.indices((QUERIES, KEYS))  # noqa: E741  the indices of the equations
HIDDEN = np.array([True, False, False, True, False, True, False])

LEAVES = {
    "held out": (HeldOut(HIDDEN), ~HIDDEN[J]),
    "leave one out": (ExcludeSelf(), I != J),
    "causal": (MaskFunction(lambda i, j: j <= i), J <= I),
}


def drawn(rng, depth):
    """A mask and the dense matrix that it should be."""
    kind = rng.choice(["and", "or", "not"] if depth else sorted(LEAVES))
    if depth == 0:
        return LEAVES[kind]
    a, dense_a = drawn(rng, rng.integers(depth))
    if kind == "not":
        return ~a, ~dense_a
    b, dense_b = drawn(rng, rng.integers(depth))
    return (a & b, dense_a & dense_b) if kind == "and" else (a | b, dense_a | dense_b)


QUERY_POSITIONS, KEY_POSITIONS = jnp.arange(QUERIES), jnp.arange(KEYS)


@eqx.filter_jit
def pairwise(priors, i, j):
    return [prior.pairwise(i, j) for prior in priors]


def test_algebra_is_boolean():
    rng = np.random.default_rng(0)
    masks, dense = zip(*(drawn(rng, depth) for depth in np.arange(60) % 5), strict=True)
    whole = slice(None), slice(None)
    for i, j in (whole, (slice(2, 4), slice(1, 6))):  # all pairs, and a block of them
        found = pairwise(masks, np.arange(QUERIES)[i], np.arange(KEYS)[j])
        expected = np.where(np.array(dense)[:, i, j], 0.0, -np.inf)
        np.testing.assert_array_equal(found, expected)


SEGMENTS = np.array([2, 2, 5, 5, 5, 1, 1])
AT_I, AT_J = np.array([9, 3, 4, 8, 0]), np.array([5, 6, 0, 1, 9, 3, 4])
SEEN = np.random.default_rng(1).random((QUERIES, KEYS)) < 0.5
MORE = {
    "causal, shifted": (ak.Causal(offset=2), J <= I + 2),
    "causal, strictly": (ak.Causal(-1), J < I),
    "window": (ak.Window(1, 2), (I - 1 <= J) & (J <= I + 2)),
    "no window": (~ak.Window(2, 1), (J < I - 2) | (I + 1 < J)),
    "prefix": (Prefix(3), (J < 3) | (J <= I)),
    "lengths": (Lengths(queries=3, keys=5), (I < 3) & (J < 5)),
    "keys alone": (Lengths(keys=jnp.array(4)), J < 4),
    "segments": (Segments(SEGMENTS[:QUERIES], SEGMENTS), SEGMENTS[I] == SEGMENTS[J]),
    "given": (MaskArray(SEEN), SEEN),
    "causal, elsewhere": (AtPositions(ak.Causal(), AT_I, AT_J), AT_J[J] <= AT_I[I]),
}


# first and last query, first and last key
BLOCKS = itertools.product(((0, 1), (2, 4), (1, 1)), ((0, 1), (2, 4), (5, 6), (6, 6)))
BLOCKS = np.array([(*queries, *keys) for queries, keys in BLOCKS])


@eqx.filter_jit
def evaluated(priors):
    """log π of all pairs, and the bound of each block, of each prior."""
    bounds = [jax.vmap(one.score_upper_bound)(ak.priors.PositionBlock(*BLOCKS.T)) for one in priors]
    found = [prior.pairwise(QUERY_POSITIONS, KEY_POSITIONS) for prior in priors]
    return list(zip(found, bounds, strict=True))


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
    prior = RelativeBias(buckets, most, both)
    i = np.arange(300)
    ours = np.asarray(eqx.filter_jit(prior.bucket)(i[:, None], i[None, :]))
    for row in (0, 150, 299):
        expected = [bucket(j - row, buckets, most, both) for j in range(300)]
        np.testing.assert_array_equal(ours[row], expected)
    used = np.unique(ours)
    assert used.max() == buckets - 1
    # of two directions, distance 0 has the bucket of one: that of the other is never used
    assert len(used) == buckets - (1 if both else 0)


TABLE = np.random.default_rng(2).normal(size=(QUERIES, KEYS)).astype(np.float32)
FORGOTTEN = np.array(
    [
        [-np.sum(1 + np.abs(TABLE[0, j + 1 : i + 1])) if j <= i else -np.inf for j in range(KEYS)]
        for i in range(QUERIES)
    ]
)
BIASES = {
    "alibi": (ak.Alibi(0.3), -0.3 * np.abs(I - J)),
    "growing": (ak.Alibi(ak.fixed(-0.3)), 0.3 * np.abs(I - J)),
    "kerple": (Kerple(0.7, 1.3), -0.7 * np.log(1 + 1.3 * np.abs(I - J))),
    "table": (BiasTable(TABLE), TABLE),
    "weights of keys": (KeyWeights(TABLE[0]), TABLE[0][J]),
    "forget gates": (Forget(-1.0 - np.abs(TABLE[0])), FORGOTTEN),
    "relative": (
        RelativeBias(np.arange(8.0) / 3, 10),
        np.array([[bucket(j - i, 8, 10, True) / 3 for j in range(KEYS)] for i in range(QUERIES)]),
    ),
    "masked bias": (ak.Causal() * ak.Alibi(0.3), np.where(J <= I, -0.3 * np.abs(I - J), -np.inf)),
    "elsewhere": (
        AtPositions(ak.Alibi(0.5) * ak.Causal(), np.arange(QUERIES) + 4, np.arange(KEYS)),
        np.where(J <= I + 4, -0.5 * np.abs(I + 4 - J), -np.inf),
    ),
}


SAYS = np.full((QUERIES, KEYS), 0.5, np.float32)
SAYS[0, 1:], SAYS[1, 0] = np.inf, -np.inf
TRAINED = eqx.tree_at(lambda table: table.bias, BiasTable(np.zeros_like(SAYS)), SAYS)


def test_priors_are_their_formulas_and_bound_their_blocks():
    """A forbidden pair stays so, whatever another prior says of it."""
    masks = {name: (mask, np.where(dense, 0.0, -np.inf)) for name, (mask, dense) in MORE.items()}
    kept = np.where((J <= I) & np.isfinite(SAYS), SAYS, -np.inf)
    cases = masks | BIASES | {"forbidden": (ak.Causal() * TRAINED, kept)}
    found = evaluated([prior for prior, _ in cases.values()])
    for (name, (_, dense)), (log_prior, bounds) in zip(cases.items(), found, strict=True):
        rounding = 0 if name in masks else 16 * np.finfo(np.float32).eps
        np.testing.assert_allclose(log_prior, dense, rtol=rounding, atol=rounding, err_msg=name)
        for (low, high, left, right), bound in zip(BLOCKS, np.asarray(bounds), strict=True):
            assert bound >= dense[low : high + 1, left : right + 1].max() - rounding, name
        skips_none = name not in masks or name in ("given", "no window")
        assert np.isneginf(bounds).any() or skips_none


def test_forget_gates_hide_what_is_before_a_gate_of_zero():
    """A decay after a strong one keeps its digits; equal gates are `Alibi`, and one trained above 1
    counts as 1."""
    n = 3000
    log_gates = np.full(n, -20.0, np.float32)
    log_gates[-4:] = -np.inf, -0.1, -0.2, -0.3
    i = np.arange(n)[-4:]
    equal = ak.Causal() * ak.Alibi(ak.fixed(0.3))
    above = eqx.tree_at(lambda prior: prior.log_gates, Forget(-np.ones(4)), np.ones(4))

    @jax.jit
    def log_priors(i):
        first, equal_gates = i - n + 4, Forget(np.full(4, -0.3))
        of_first = [each.pairwise(first, first) for each in (equal_gates, above)]
        return Forget(log_gates).pairwise(i, i - 1), equal.pairwise(i, i), *of_first

    found, alibi, forgotten, unforgotten = map(np.asarray, log_priors(i))
    found = np.exp(found)
    expected = [[0.0, 1.0, 0.0, 0.0], [0.0, np.exp(-0.1), 1.0, 0.0]]
    np.testing.assert_allclose(found[:2], expected, rtol=1e-6)
    np.testing.assert_allclose(found[3], np.exp([-np.inf, -0.6, -0.5, -0.3]), rtol=1e-6)
    np.testing.assert_allclose(forgotten, alibi, rtol=1e-6)
    assert np.all(unforgotten[np.tril_indices(4)] == 0)


def test_biases_are_learned(x64):
    """Slopes along a direction of every parameter, against differences."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=s) for s in ((QUERIES, 2), (KEYS, 2), (KEYS, 1)))
    table = np.asarray(TABLE, float)
    priors = [BiasTable(table), KeyWeights(table[0]), Forget(-np.asarray(TABLE[0] ** 2, float))]
    priors += [ak.Alibi(np.asarray(0.3)), Kerple(0.7, 1.3), RelativeBias(np.arange(8.0) / 3, 10)]
    moving, fixed = eqx.partition(priors, eqx.is_inexact_array)

    def loss(moving, fixed):
        prior = eqx.combine(moving, fixed)
        out = ak.attend(q, k, v, kernel=ak.Gaussian(1.0), prior=prior)
        return jnp.sum(jnp.sin(out))

    def losses(step):
        def moved(leaf):
            return leaf + step * np.cos(np.arange(leaf.size)).reshape(leaf.shape)

        return [loss(*each) for each in zip(jax.tree.map(moved, moving), fixed, strict=True)]

    both = jax.jit(lambda step: (losses(step), jax.jacrev(losses)(step)))
    (above, _), (below, _) = both(1e-6), both(-1e-6)
    slopes = np.array(both(0.0)[1])
    np.testing.assert_allclose(slopes, np.subtract(above, below) / 2e-6, rtol=1e-6)
    assert np.min(np.abs(slopes)) > 1e-4


def test_invalid_priors_are_refused(as_users_run_it):
    assert_refused(
        (lambda: Segments(2**40 + np.arange(3)), "integers too large for int32"),
        (lambda: MaskArray(np.ones((2, 3), bool)).check(2, 4), r"query and key, shape \(2, 4\)"),
        (lambda: Segments(np.ones(3, int)).check(3, 4), r"per query and per key, 3 and 4"),
        (lambda: RelativeBias(7), r"even number"),
        (lambda: RelativeBias(32, 8), r"max_distance.*more than the 8"),
        (lambda: BiasTable(SEEN), r"ak\.priors\.MaskArray"),
        (lambda: KeyWeights(TABLE[0]).check(2, 3), r"per key, shape \(3,\)"),
        (lambda: Forget(np.ones(3)), "log_gates must be at most 0.*maximum is 1"),
        (lambda: Forget(-np.ones((2, 3))), r"one number per key.*PerHead"),
        (lambda: Forget(-np.ones(3)).check(3, 4), r"shape \(3,\) for 3 queries and 4 keys"),
    )


def test_masks_combine_with_masks_only():
    with pytest.raises(TypeError, match="unsupported operand"):
        ExcludeSelf() & 3  # type: ignore[operator]


def test_positions_of_short_and_unsigned_integers_do_not_wrap():
    i, positions = np.arange(4), np.arange(100, 104)
    cases = [
        (ak.Window(1, 0), np.uint8),
        (ak.Causal(-1), np.uint32),
        (ak.Alibi(1.0), np.uint8),
        (ak.priors.Kerple(1.0, 1.0), np.uint16),
        (ak.Causal(100), np.int8),
    ]
    shifted = [AtPositions(prior, positions.astype(dtype)) for prior, dtype in cases]
    shifted += [AtPositions(prior, positions.astype(np.int32)) for prior, _ in cases]
    found = np.reshape(pairwise([*shifted, *(prior for prior, _ in cases)], i, i), (3, 5, 4, 4))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])  # all depend on distances alone


def test_windows_and_offsets_of_the_largest_integer_are_unlimited():
    i, most = np.arange(4), 2**31 - 1
    np.testing.assert_array_equal(pairwise([ak.Window(most, most), ak.Causal(most)], i, i), 0.0)

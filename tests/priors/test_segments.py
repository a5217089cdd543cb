"""Sequences that are packed into one: by their lengths, or by where they begin."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from refusals import assert_refused

import attnkernel as ak
from attnkernel.priors import Segments

OF_QUERIES, OF_KEYS = np.array([3, 0, 2]), np.array([4, 1, 3])
NUM_QUERIES, NUM_KEYS = 7, 9  # the last rows are padding


def offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def dense():
    """Whether query i and key j are of one sequence, row by row."""
    allowed = np.zeros((NUM_QUERIES, NUM_KEYS), bool)
    first_query = first_key = 0
    for queries, keys in zip(OF_QUERIES, OF_KEYS, strict=True):
        for i in range(first_query, first_query + queries):
            for j in range(first_key, first_key + keys):
                allowed[i, j] = True
        first_query, first_key = first_query + queries, first_key + keys
    return allowed


ROWS = {"num_queries": NUM_QUERIES, "num_keys": NUM_KEYS}


@jax.jit
def masks_at_run_time(lengths, offsets):
    return Segments.from_lengths(*lengths, **ROWS), Segments.from_offsets(*offsets, **ROWS)


@eqx.filter_jit
def pairwise(masks):
    """log π of all pairs, of each mask."""
    return [m.pairwise(jnp.arange(len(m.queries)), jnp.arange(len(m.keys))) for m in masks]


def test_a_query_sees_the_keys_of_its_sequence():
    lengths, starts = (OF_QUERIES, OF_KEYS), (offsets(OF_QUERIES), offsets(OF_KEYS))
    masks = [
        Segments.from_lengths(*lengths, **ROWS),
        Segments.from_lengths(*(side.tolist() for side in lengths), **ROWS),
        Segments.from_offsets(*starts, **ROWS),
        *masks_at_run_time(lengths, starts),
    ]
    for log_prior in pairwise(masks):
        np.testing.assert_array_equal(np.exp(log_prior), dense())


def test_without_padding_queries_are_keys():
    for mask in (Segments.from_lengths([2, 1]), Segments.from_offsets([0, 2, 3])):
        np.testing.assert_array_equal(mask.queries, [0, 0, 1])
        np.testing.assert_array_equal(mask.keys, [0, 0, 1])
    (padded,) = pairwise([Segments.from_lengths([2, 1], num_queries=5)])
    # padding does not see padding
    np.testing.assert_array_equal(np.exp(padded)[3:], np.zeros((2, 5)))
    none = Segments.from_lengths(np.zeros(0, int), num_queries=2)
    np.testing.assert_array_equal(none.queries, [-1, -1])


def test_packed_sequences_attend_as_they_do_alone(x64):
    """Values, and gradients in the keys, of causal attention within each sequence."""
    lengths = np.array([5, 2, 6])
    rng = np.random.default_rng(0)
    x, cotangent = rng.normal(size=(2, lengths.sum(), 3))
    mask = ak.Causal() & Segments.from_lengths(lengths)

    def total(k, *, x, cotangent, prior, method):
        out = ak.attend(x, k, k, kernel=ak.DotProduct(), prior=prior, method=method)
        return jnp.sum(cotangent * out), out

    def alone(x, cotangent):
        """By hand: the values of one sequence, and dΣ C · value / dk."""
        scores = np.where(np.tri(len(x), dtype=bool), x @ x.T / np.sqrt(3), -np.inf)
        weights = np.exp(scores)
        weights = weights / weights.sum(axis=1, keepdims=True)
        out = weights @ x
        of_scores = weights * (cotangent @ x.T - np.sum(cotangent * out, axis=1)[:, None])
        return out, of_scores.T @ x / np.sqrt(3) + weights.T @ cotangent

    parts = [alone(*part) for part in zip(*(
        np.split(array, np.cumsum(lengths)[:-1]) for array in (x, cotangent)
    ), strict=True)]  # fmt: skip
    for method in (ak.methods.Dense(), ak.methods.Blockwise(4, 4)):
        options = {"x": x, "cotangent": cotangent, "prior": mask, "method": method}
        slope, out = jax.jit(jax.grad(functools.partial(total, **options), has_aux=True))(x)
        for found, place in ((out, 0), (slope, 1)):
            expected = np.concatenate([part[place] for part in parts])
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_blocks_of_two_sequences_are_skipped():
    mask = Segments.from_lengths([4, 8, 4])
    low = 4 * np.arange(4)
    i, j = (side.reshape(-1) for side in np.meshgrid(low, low, indexing="ij"))
    blocks = ak.priors.PositionBlock(i, i + 3, j, j + 3)
    expected = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    found = np.asarray(jax.jit(jax.vmap(mask.any_allowed))(blocks))
    np.testing.assert_array_equal(found.reshape(4, 4), expected)


def test_lengths_and_offsets_that_are_none_are_refused():
    assert_refused(
        (lambda: Segments.from_lengths([3, -1]), r"queries must be lengths.*\[3, -1\]"),
        (lambda: Segments.from_lengths([3], [2, 1]), "same sequences; got 1 .*and 2"),
        (lambda: Segments.from_lengths([3, 2], num_queries=4), "num_queries.*at least 5.*got 4"),
        (lambda: Segments.from_lengths([3], [4], num_keys=3), "num_keys.*at least 4.*got 3"),
        (
            lambda: Segments.from_lengths(np.array([[3]])),
            r"queries must be integers.*shape \(1, 1\)",
        ),
        (lambda: Segments.from_offsets([1, 3]), r"queries must be cumulative.*\[1, 3\]"),
        (lambda: Segments.from_offsets([0, 3], [0, 3, 2]), r"keys must be cumulative.*3, 2\]"),
        (lambda: Segments.from_offsets([]), "queries must be"),
        (lambda: jax.jit(Segments.from_lengths)(np.array([3])), "num_queries must be given"),
    )

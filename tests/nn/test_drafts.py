"""Speculative decoding: drafts that are rejected, trees of drafts, and what caches refuse."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, rows_of
from decoders import SIZE, assert_close, empty, full_pass, layer_of, seen
from marks import slow
from refusals import assert_refused

import attnkernel as ak

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


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "length", "rows"), LOST)
def test_rows_that_a_cache_does_not_hold_are_refused(as_users_run_it, cache, length, rows):
    asked = (
        rf"rows increasing.*spare=.*cannot go back to {length} and keep \[{rows[0]}, {rows[1]}\]"
    )
    with pytest.raises(ValueError, match=asked):
        filled(**cache).keep(length, rows)


def test_invalid_arguments_are_refused(as_users_run_it):
    assert_refused(
        (lambda: heads().step(X, heads().cache(9), count=4), r"count must be .* 0 to 3.*got 4"),
        (lambda: heads().step(X, heads().cache(9), count=1.5), "count must be an integer"),
        (lambda: heads().step(X, heads().cache(9), mask=np.ones((3, 2), bool)), r"mask .*\(3, 3\)"),
        (
            lambda: heads().step(X, heads().cache(9), positions=[0, 1]),
            r"positions .*\(3,\); got \(2,",
        ),
        (lambda: heads().step(X, None), "cache must be a KVCache or RecurrentCache"),
        (lambda: latent().step(X, ak.nn.RecurrentCache(X)), "cache must be a KVCache"),
        (lambda: latent().step(X, heads().cache(9)), r"keys of shape \(3, 2, 2\); got \(3, 1, 3\)"),
        (
            lambda: heads().step(X, ak.nn.KVCache(9, 2, 3, 2)),
            r"keys and values must have .* keys of shape \(3, 2, 3\)",
        ),
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

"""Speculative decoding: drafts that are rejected, trees of drafts, and what caches refuse."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, rows_of
from decoders import SIZE, assert_close, empty, full_pass, layer_of, seen, step
from marks import slow

import attnkernel as ak

PARENTS = [-1, 0, 0, 1, 1, 2]  # of six drafts


def path_to(draft):
    return [] if draft < 0 else [*path_to(PARENTS[draft]), draft]


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("multi-head", "spare"),
        slow("multi-head", "full"),
        slow("latent", "full"),
        slow("latent", "spare"),
    ],
)
def test_rejected_drafts_leave_no_trace(x64, name, cache):
    """Four drafts at a time, of which 0 to 4 are right; the others are other rows."""
    layer, x = layer_of(name), rows_of((19, SIZE))[:16]
    other = rows_of((4, SIZE), seed=1)
    expected = full_pass(layer, x, seen(cache))
    rollback = eqx.filter_jit(lambda cache, length: cache.rollback(length))
    now, length = empty(layer, cache), 0
    for accepted in (4, 1, 0, 3, 4, 4):
        right = np.arange(4)[:, None] < accepted
        drafts = np.where(right, x[length : length + 4], other)
        out, now = step(layer, drafts, now)
        assert_close(out[:accepted], expected[length : length + accepted])
        length += accepted
        now = rollback(now, length)
    assert length == int(now.length) == 16


@pytest.mark.parametrize("name", ["linear", slow("gated delta rule")])
def test_a_recurrent_layer_repeats_the_step_of_the_accepted_drafts(x64, name):
    layer, x = layer_of(name), rows_of((12, SIZE))
    expected = full_pass(layer, x, ak.Causal())
    now = empty(layer, None)
    for start, accepted in ((0, 4), (4, 1), (5, 3)):
        drafts = np.where(np.arange(4)[:, None] < accepted, x[start : start + 4], 7.0)
        out, _ = step(layer, drafts, now, count=jnp.asarray(4))
        assert_close(out[:accepted], expected[start : start + accepted])
        _, now = step(layer, drafts, now, count=jnp.asarray(accepted))
    out, _ = step(layer, x[8:], now, count=jnp.asarray(4))
    assert_close(out, expected[8:])


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("multi-head", "full"),
        ("latent", "spare"),
        slow("multi-head", "spare"),
        slow("latent", "full"),
    ],
)
def test_a_tree_of_drafts(x64, name, cache):
    """Each draft is the last row of the sequence along its path; the accepted path goes on."""
    layer, x, drafts = layer_of(name), *rows_of((12, SIZE), (6, SIZE))
    paths = [path_to(draft) for draft in range(6)]
    mask = np.array([[j in path for j in range(6)] for path in paths])
    depth = np.array([len(path) - 1 for path in paths])
    sequences = np.stack([np.concatenate([x[:7], drafts[p], x[:3]])[:10] for p in paths])
    along_paths = jax.vmap(lambda x: full_pass(layer, x, seen(cache)))(sequences)
    keep = eqx.filter_jit(lambda cache, *given: cache.keep(*given))
    _, before = step(layer, x[:7], empty(layer, cache))
    out, drafted = step(layer, drafts, before, mask=mask, positions=7 + depth)
    assert_close(out, along_paths[np.arange(6), 7 + depth])
    for accepted in ([0, 1, 4], [0, 2]):
        rows = np.pad(accepted, (0, 3 - len(accepted)))
        after = keep(drafted, before.length, rows, np.asarray(len(accepted)))
        whole = np.concatenate([x[:7], drafts[accepted], x[7:]])[:12]
        out, last = step(layer, whole[7 + len(accepted) : 9 + len(accepted)], after)
        assert_close(
            out, full_pass(layer, whole, seen(cache))[7 + len(accepted) : 9 + len(accepted)]
        )
        assert int(last.length) == 9 + len(accepted)


X = jnp.ones((3, 4))


@functools.cache
def heads():
    return built(ak.MultiheadAttention, 2, 4)


@functools.cache
def latent():
    return built(ak.nn.LatentAttention, 2, 4, 3)


@functools.cache
def filled(rows, **options):
    """A cache of four places, to which rows were added."""
    ones = jnp.ones((rows, 1, 1))
    return ak.nn.KVCache(4, 1, 1, 1, **options).append(ones, ones)[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heads().step(X, heads().cache(9), count=4), r"count must be .* 0 to 3.*got 4"),
        (lambda: heads().step(X, heads().cache(9), count=1.5), "count must be an integer"),
        (lambda: heads().step(X, heads().cache(9), mask=np.ones((3, 2), bool)), r"mask .*\(3, 3\)"),
        (
            lambda: heads().step(X, heads().cache(9), positions=[0, 1]),
            r"positions .*\(3,\); got \(2,",
        ),
        (lambda: heads().step(X, latent().cache(9)), "cache must be a KVCache or RecurrentCache"),
        (lambda: latent().step(X, heads().cache(9)), "cache must be a LatentCache"),
        (
            lambda: heads().step(X, ak.nn.KVCache(9, 2, 3, 2)),
            r"keys and values must have .* keys of shape \(3, 2, 3\)",
        ),
        (lambda: heads().cache(9, sinks=2), "sinks and spare are rows of a ring: pass ring=True"),
        (lambda: heads().cache(4, ring=True, sinks=2, spare=2), "must leave a row of the ring"),
        (lambda: filled(3).rollback(4), r"The cache of 3 rows cannot go back to 4 and keep \[\]"),
        (lambda: filled(3).keep(1, [1, 0]), r"rows increasing.*go back to 1 and keep \[1, 0\]"),
        (lambda: filled(3).keep(1, [0, 2]), r"cannot go back to 1 and keep \[0, 2\]"),
        (lambda: filled(3).keep(1, [-1]), r"cannot go back to 1 and keep \[-1\]"),
        (lambda: filled(3).rollback(1).keep(1, [0]), r"cannot go back to 1 and keep \[0\]"),
        (
            lambda: filled(6, ring=True).rollback(4),
            r"A ring overwrites its oldest rows: make it with spare=",
        ),
    ],
)
def test_invalid_arguments_are_refused(as_users_run_it, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_inside_jit_are_raised_at_run_time():
    with pytest.raises(Exception, match="length and rows must name rows that the cache holds"):
        jax.block_until_ready(eqx.filter_jit(lambda cache: cache.rollback(4))(filled(6, ring=True)))
    with pytest.raises(Exception, match="count must be an integer from 0 to 3"):
        jax.block_until_ready(step(heads(), X, heads().cache(9), count=jnp.asarray(4)))
    filled(6, ring=True).rollback(5)  # one row less is always in the ring

"""Law 3: the algebra of masks is that of dense Boolean matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import attnkernel as ak
from attnkernel.priors import HeldOut, LeaveOneOut, Where

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

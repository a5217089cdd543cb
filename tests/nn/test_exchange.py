"""Exchange with Equinox: checkpoints, masks and arguments of its module; strict promotion."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow

import attnkernel as ak
from attnkernel import priors

HEADS, SIZE, ROWS = 3, 6, 5
X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, SIZE)), jnp.float32)
KEYS = jax.random.split(jax.random.PRNGKey(0), 4)


class Block(eqx.Module):
    """A layer as users have it, with an attention of either library inside."""

    norm: eqx.nn.LayerNorm
    attention: eqx.Module
    mlp: eqx.nn.MLP

    def __init__(self, attention, key):
        self.norm, self.attention = eqx.nn.LayerNorm(SIZE), attention
        self.mlp = eqx.nn.MLP(SIZE, SIZE, 7, 1, key=key)

    def __call__(self, x):
        h = jax.vmap(self.norm)(x)
        return jax.vmap(self.mlp)(x + self.attention(h, h, h))


def pair(**options):
    """The same architecture with Equinox's attention and with ours, of other weights."""
    theirs = eqx.nn.MultiheadAttention(HEADS, SIZE, **options, key=KEYS[0])
    ours = ak.MultiheadAttention(HEADS, SIZE, **options, key=KEYS[1])
    return Block(theirs, KEYS[2]), Block(ours, KEYS[3])


@pytest.mark.parametrize(
    "options", [{}, {"use_query_bias": True, "use_output_bias": True, "dropout_p": 0.0}]
)
def test_checkpoints_go_both_ways(options):
    """Fixed numbers, such as a temperature of 1, are no leaves that a checkpoint would hold."""
    for saved, into in (pair(**options), pair(**options)[::-1]):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, saved)
        file.seek(0)
        loaded = eqx.tree_deserialise_leaves(file, into)
        np.testing.assert_allclose(loaded(X), saved(X), atol=1e-5)
        assert jnp.max(jnp.abs(into(X) - saved(X))) > 0.01


@pytest.mark.parametrize("shape", [(ROWS, ROWS), (HEADS, ROWS, ROWS)])
def test_masks_of_integers_are_read_as_equinox_reads_them(shape):
    theirs, ours = (block.attention for block in pair())
    ours = eqx.tree_at(
        lambda a: [a.query_proj, a.key_proj, a.value_proj, a.output_proj],
        ours,
        [theirs.query_proj, theirs.key_proj, theirs.value_proj, theirs.output_proj],
    )
    mask = np.random.default_rng(1).integers(0, 3, shape)
    mask[..., 0] = 1
    expected = theirs(X, X, X, mask=jnp.asarray(mask != 0))
    for given in (jnp.asarray(mask), mask != 0):
        np.testing.assert_allclose(ours(X, X, X, mask=given), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"mask must be Boolean.*float32"):
        ours(X, X, X, mask=jnp.ones(shape))


def test_deterministic_is_the_older_name_of_inference():
    ours = ak.MultiheadAttention(HEADS, SIZE, dropout_p=0.5, key=KEYS[0])
    with pytest.warns(UserWarning, match="deterministic"):
        found = ours(X, X, X, deterministic=True)
    np.testing.assert_array_equal(found, ours(X, X, X, inference=True))


def in_dtype(tree, dtype):
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf  # noqa: E731
    return jax.tree.map(cast, tree)


CALLS = {
    "dot product": lambda x: ak.attend(x, x, x, kernel=ak.DotProduct()),
    "gaussian": lambda x: ak.attend(x, x, x, kernel=ak.Gaussian(1.0)),
    "blocks": lambda x: ak.attend(
        x, x, x, kernel=ak.DotProduct(), method=ak.Blockwise(2, 2), prior=ak.Causal()
    ),
    "sorted": lambda x: ak.attend(
        x[:, :1], x[:, :1], x, kernel=ak.Laplace(1.0), method=ak.Sorted()
    ),
    "temperature": lambda x: ak.attend(
        x, x, x, kernel=ak.DotProduct(), rule=ak.Softmax(jnp.asarray(2.0))
    ),
    "entmax": lambda x: ak.attend(x, x, x, kernel=ak.DotProduct(), rule=ak.Entmax(1.5)),
    "bias": lambda x: ak.attend(x, x, x, kernel=ak.DotProduct(), prior=ak.Alibi(0.5)),
    "table": lambda x: ak.attend(
        x, x, x, kernel=ak.DotProduct(), prior=priors.RelativeBias(8, max_distance=16)
    ),
    "regression": lambda x: ak.KernelRegression(ak.Gaussian(1.0))(x, x, x[:, 0]),
    "local lines": lambda x: ak.KernelRegression(ak.Gaussian(1.0), order=1)(x, x, x[:, 0]),
    "module": lambda x: in_dtype(
        ak.MultiheadAttention(HEADS, SIZE, rotary=ak.Rotary(), key=KEYS[0]), x.dtype
    )(x, x, x),
}


DEFAULT = {"dot product", "blocks", "local lines", "module"}


@pytest.mark.parametrize("name", [n if n in DEFAULT else slow(n) for n in CALLS])
def test_half_precision_where_implicit_promotion_is_forbidden(name):
    """In float32 inside: the strict mode of JAX forbids users' mixtures, not ours."""
    expected = jax.jit(CALLS[name])(X)
    with jax.numpy_dtype_promotion("strict"):
        for dtype, atol in ((jnp.bfloat16, 0.1), (jnp.float16, 0.02)):
            found = jax.jit(CALLS[name])(X.astype(dtype))
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=atol)

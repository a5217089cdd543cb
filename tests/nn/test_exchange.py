"""Exchange with Equinox: checkpoints, masks and arguments of its module; strict promotion."""

import functools
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, rows_of
from marks import slow

import attnkernel as ak
from attnkernel import priors

HEADS, SIZE, ROWS = 3, 6, 5
X = jax.device_put(rows_of((ROWS, SIZE)).astype(np.float32))


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
    theirs, ours = (
        built(cls, HEADS, SIZE, **options)
        for cls in (eqx.nn.MultiheadAttention, ak.MultiheadAttention)
    )
    ours = jax.tree.map(lambda leaf: 2 * leaf if eqx.is_inexact_array(leaf) else leaf, ours)
    return built(Block, theirs), built(Block, ours)


@eqx.filter_jit
def call(module, *args, **options):
    return module(*args, **options)


@pytest.mark.parametrize(
    "options", [slow({}), {"use_query_bias": True, "use_output_bias": True, "dropout_p": 0.0}]
)
def test_checkpoints_go_both_ways(options):
    """Fixed numbers, such as a temperature of 1, are no leaves that a checkpoint would hold."""
    for saved, into in (pair(**options), pair(**options)[::-1]):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, saved)
        file.seek(0)
        loaded = eqx.tree_deserialise_leaves(file, into)
        out, expected, before = (np.asarray(call(block, X)) for block in (loaded, saved, into))
        np.testing.assert_allclose(out, expected, atol=1e-5)
        assert np.abs(before - expected).max() > 0.01


@pytest.mark.parametrize("shape", [slow((ROWS, ROWS)), (HEADS, ROWS, ROWS)])
def test_masks_of_integers_are_read_as_equinox_reads_them(shape):
    theirs, ours = (block.attention for block in pair())
    linears = lambda a: [a.query_proj, a.key_proj, a.value_proj, a.output_proj]  # noqa: E731
    ours = eqx.tree_at(linears, ours, linears(theirs))
    mask = np.random.default_rng(1).integers(0, 3, shape)
    mask[..., 0] = 1
    expected = call(theirs, X, X, X, mask=mask != 0)
    for given in (mask, mask != 0):
        np.testing.assert_allclose(call(ours, X, X, X, mask=given), expected, atol=1e-5)


def test_deterministic_is_the_older_name_of_inference():
    ours = built(ak.MultiheadAttention, HEADS, SIZE, dropout_p=0.5)
    with pytest.warns(UserWarning, match="deterministic"):
        found = call(ours, X, X, X, deterministic=True)
    np.testing.assert_allclose(found, call(ours, X, X, X, inference=True), rtol=1e-6)


def in_dtype(tree, dtype):
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf  # noqa: E731
    return jax.tree.map(cast, tree)


def attend(x, **options):
    return ak.attend(x, x, x, **{"kernel": ak.DotProduct()} | options)


def multihead(x):
    return in_dtype(built(ak.MultiheadAttention, HEADS, SIZE, rotary=ak.Rotary()), x.dtype)(x, x, x)


def regression(x, **options):
    return ak.KernelRegression(ak.Gaussian(1.0), **options)(x, x, x[:, 0])


SORTED = {"kernel": ak.Laplace(1.0), "method": ak.methods.Sorted()}
CALLS = {
    "dot product": attend,
    "gaussian": lambda x: attend(x, kernel=ak.Gaussian(1.0)),
    "blocks": lambda x: attend(x, method=ak.methods.Blockwise(2, 2), prior=ak.Causal()),
    "sorted": lambda x: ak.attend(x[:, :1], x[:, :1], x, **SORTED),
    "temperature": lambda x: attend(x, rule=ak.Softmax(jnp.asarray(2.0))),
    "entmax": lambda x: attend(x, rule=ak.Entmax(1.5)),
    "bias": lambda x: attend(x, prior=ak.Alibi(0.5)),
    "table": lambda x: attend(x, prior=priors.RelativeBias(8, max_distance=16)),
    "regression": regression,
    "local lines": lambda x: regression(x, order=1),
    "module": multihead,
}
DEFAULT = ("dot product", "blocks", "local lines", "module")
OTHERS = tuple(name for name in CALLS if name not in DEFAULT)


@functools.partial(jax.jit, static_argnums=(0, 1))
def results(names, dtype, x):
    """In float32 with the promotions of JAX, and in half precision without."""
    expected = {name: CALLS[name](x) for name in names}
    with jax.numpy_dtype_promotion("strict"):
        return expected, {name: CALLS[name](x.astype(dtype)) for name in names}


# not by default float16: XLA does not compile it for processors without its conversions
@pytest.mark.parametrize(
    ("names", "dtype", "atol"),
    [
        slow(DEFAULT, jnp.bfloat16, 0.1),
        slow(OTHERS, jnp.bfloat16, 0.1),
        slow(tuple(CALLS), jnp.float16, 0.02),
    ],
    ids=["representative, bfloat16", "others, bfloat16", "all, float16"],
)
def test_half_precision_where_implicit_promotion_is_forbidden(names, dtype, atol):
    """In float32 inside: the strict mode of JAX forbids users' mixtures, not ours."""
    expected, half = jax.device_get(results(names, dtype, X))
    for name in names:
        assert half[name].dtype == dtype
        found = half[name].astype(np.float32)
        np.testing.assert_allclose(found, expected[name], atol=atol, err_msg=name)

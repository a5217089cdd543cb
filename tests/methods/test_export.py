"""`jax.export` with symbolic sizes of batches and sequences: one program for all sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import attnkernel as ak
from attnkernel.kernels import Boxcar, RandomFeatures
from attnkernel.methods import Blockwise, Dense, Linear
from attnkernel.models import BiasReduced

# checked annotations compare the axes of batches as integers, which symbolic sizes are not
pytestmark = pytest.mark.usefixtures("as_users_run_it")
SIZES = (2, 5, 7), (1, 40, 1)  # batch, queries, keys
SMALL_BLOCKS = Blockwise(block_q=8, block_k=16)


def assert_exports(function, shapes, sizes, rtol, reference=None):
    """One exported program against `reference`, by default `function`, compiled for each size."""
    rng = np.random.default_rng(0)
    symbols = dict(zip("bnm", export.symbolic_shape("b, n, m"), strict=True))

    def shapes_of(known):
        return [tuple(known.get(size, size) for size in shape) for shape in shapes]

    symbolic = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes_of(symbols)]
    program = export.export(jax.jit(function))(*symbolic)
    for known in sizes:
        concrete = shapes_of(dict(zip("bnm", known, strict=True)))
        arrays = [rng.normal(size=shape).astype(np.float32) for shape in concrete]
        found, wanted = program.call(*arrays), (reference or jax.jit(function))(*arrays)
        assert found.keys() == wanted.keys()
        close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
        for name in wanted:
            check = functools.partial(close, err_msg=f"{name}, sizes {known}")
            jax.tree.map(check, found[name], wanted[name])


def gaussian_attention(q, k, v, is_causal=False):
    """Attention by NumPy with a Gaussian of lengthscale 0.8."""
    scores = -0.5 * np.sum((q[:, :, None] - k[:, None]) ** 2, axis=3) / 0.8**2
    if is_causal:
        scores = np.where(np.tri(*scores.shape[1:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return weights @ v / weights.sum(axis=2, keepdims=True)


GAUSS = ak.Gaussian(0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([("b", "n", 4), ("b", "m", 4), ("b", "m", 3)], SIZES),
        # chunks of the batch: many members, and single ones
        *(([("b", length, 2)] * 3, [(3, 0, 0)]) for length in (16, 1100)),
    ],
)
def test_attention_of_any_batch_and_length(shapes, sizes):
    def attended(q, k, v):
        causal = ak.attend(k, k, v, kernel=GAUSS, prior=ak.Causal(), method=SMALL_BLOCKS)
        blocks = ak.attend(q, k, v, kernel=GAUSS, method=Blockwise())
        return {"auto": ak.attend(q, k, v, kernel=GAUSS), "causal": causal, "blocks": blocks}

    def by_numpy(q, k, v):
        all_keys, causal = gaussian_attention(q, k, v), gaussian_attention(k, k, v, is_causal=True)
        return {"auto": all_keys, "causal": causal, "blocks": all_keys}

    assert_exports(attended, shapes, sizes, 1e-5, by_numpy)


@pytest.mark.slow
def test_other_attention_and_gradients_of_any_batch_and_length():
    dot, causal, entmax = ak.DotProduct(), {"prior": ak.Causal()}, {"rule": ak.Entmax(1.5)}

    def attended(q, k, v, *, blocks=Blockwise(), small_blocks=SMALL_BLOCKS):
        def loss(*arrays):
            return jnp.mean(ak.attend(*arrays, kernel=GAUSS, method=small_blocks) ** 2)

        to_itself = {"kernel": GAUSS, "method": blocks} | causal
        return {
            "dense": ak.attend(q, k, v, kernel=dot, method=Dense()),
            "small blocks": ak.attend(q, k, v, kernel=dot, method=small_blocks),
            "blocks, causal": ak.attend(k, k, v, **to_itself),
            "entmax": ak.attend(q, k, v, kernel=GAUSS, method=blocks, **entmax),
            "gradients": jax.grad(loss, (0, 1, 2))(q, k, v),
        }

    def dense(*arrays):
        return attended(*arrays, blocks=Dense(), small_blocks=Dense())

    shapes = [("b", "n", 4), ("b", "m", 4), ("b", "m", 3)]
    assert_exports(attended, shapes, SIZES, 1e-5, jax.jit(dense))


@pytest.mark.slow
def test_multihead_attention_of_any_batch_and_length():
    key = jax.random.key(0)
    grouped = {"num_kv_heads": 1, "qk_norm": True, "prior": ak.Causal(), "rotary": ak.Rotary()}
    modules = {
        "grouped": ak.MultiheadAttention(2, 4, **grouped, key=key),
        "dropout": ak.MultiheadAttention(2, 4, dropout_p=0.5, key=key),
        "linear": ak.MultiheadAttention(2, 4, kernel=ak.Gaussian(1.0), order=1, ridge=0.1, key=key),
    }

    def outputs(x):
        return {
            name: jax.vmap(lambda row, module=module: module(row, row, row, key=key))(x)
            for name, module in modules.items()
        }

    assert_exports(outputs, [("b", "n", 4)], [(3, 5, 0), (1, 33, 0)], 1e-4)


@pytest.mark.slow
def test_regression_and_linear_attention_of_any_length():
    features = RandomFeatures(16, 2, key=jax.random.key(0))

    def predictions(q, x, y):
        sines, orders = (jnp.sin(q), jnp.sin(x), y[:, 0]), {}
        for p in (1, 2):
            orders[f"order {p}"] = ak.KernelRegression(ak.Gaussian(1.0), order=p)(*sines)
        linear = Linear(features=features)
        causal = ak.attend(x, x, y, kernel=ak.Gaussian(1.0), prior=ak.Causal(), method=linear)
        others = {
            "bias reduced": BiasReduced(ak.KernelRegression(ak.Gaussian(1.0)), 2)(q, x, y[:, 0]),
            "nearest": ak.KernelRegression(Boxcar(0.2), on_empty="nearest")(q, x, y[:, 0]),
        }
        return orders | others | {"linear": causal}

    assert_exports(predictions, [("n", 2), ("m", 2), ("m", 1)], [(1, 5, 90)], 1e-3)


def test_auto_selects_blockwise_for_symbolic_sizes():
    n, m = export.symbolic_shape("n, m")
    q, k = (jax.ShapeDtypeStruct((rows, 1), jnp.float32) for rows in (n, m))
    selection = ak.attention.select_method(q, k, k, kernel=ak.Gaussian(0.3))
    assert isinstance(selection.method, Blockwise)
    assert "not Dense: the number of scores is symbolic" in str(selection)

"""`jax.export` with symbolic sizes of batches and sequences: one program for all sizes."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax import export
from marks import slow

import attnkernel as ak

METHODS = {
    "dense": ak.Dense(),
    "blockwise": ak.Blockwise(),
    "small blocks": ak.Blockwise(block_q=8, block_k=16),
    "auto": ak.Auto(),
}
SIZES = (2, 5, 7), (3, 1, 33), (1, 40, 1)  # batch, queries, keys


@pytest.fixture(autouse=True)
def _no_checks_of_shapes():
    """jaxtyping compares the axes of batches as integers, which symbolic sizes are not."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def require_equal(function, shapes, sizes, rtol, reference=None):
    """One exported program against `reference`, by default `function`, compiled for each size."""
    rng = np.random.default_rng(0)
    symbols = dict(zip("bnm", export.symbolic_shape("b, n, m"), strict=True))

    def shapes_of(known):
        return [tuple(known.get(size, size) for size in shape) for shape in shapes]

    dtype = jnp.result_type(float)
    symbolic = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes_of(symbols)]
    program = export.export(jax.jit(function))(*symbolic)
    for known in sizes:
        concrete = shapes_of(dict(zip("bnm", known, strict=True)))
        arrays = [jnp.asarray(rng.normal(size=shape), dtype) for shape in concrete]
        found, wanted = program.call(*arrays), jax.jit(reference or function)(*arrays)
        assert found.keys() == wanted.keys()
        for name in wanted:
            for one, other in zip(*map(jax.tree.leaves, (found[name], wanted[name])), strict=True):
                np.testing.assert_allclose(
                    one, other, rtol=rtol, atol=rtol, err_msg=f"{name}, sizes {known}"
                )


@pytest.mark.parametrize("kernel", [ak.Gaussian(0.8), slow(ak.DotProduct())], ids=["gauss", "dot"])
def test_attention_of_any_batch_and_length(kernel):
    def attended(q, k, v):
        sums = {n: ak.attend(q, k, v, kernel=kernel, method=m) for n, m in METHODS.items()}
        to_itself = {
            f"{name} causal": ak.attend(k, k, v, kernel=kernel, prior=ak.Causal(), method=method)
            for name, method in METHODS.items()
        }
        entmax = ak.attend(q, k, v, kernel=kernel, rule=ak.Entmax(1.5), method=ak.Blockwise())
        return sums | to_itself | {"entmax": entmax}

    def dense(q, k, v):
        parts = {"kernel": kernel, "method": ak.Dense()}
        sums = ak.attend(q, k, v, **parts)
        causal = ak.attend(k, k, v, prior=ak.Causal(), **parts)
        entmax = ak.attend(q, k, v, rule=ak.Entmax(1.5), **parts)
        to_itself = {f"{name} causal": causal for name in METHODS}
        return dict.fromkeys(METHODS, sums) | to_itself | {"entmax": entmax}

    require_equal(attended, [("b", "n", 4), ("b", "m", 4), ("b", "m", 3)], SIZES, 1e-5, dense)


@pytest.mark.parametrize("length", [16, 1100])  # chunks of the batch: many members, and single ones
def test_attention_of_any_batch_and_one_length(length):
    def attended(q, k, v):
        methods = {"dense": ak.Dense(), "blockwise": ak.Blockwise(), "auto": ak.Auto()}
        kernel = ak.Gaussian(0.8)
        return {n: ak.attend(q, k, v, kernel=kernel, method=m) for n, m in methods.items()}

    require_equal(attended, [("b", length, 2)] * 3, [(1, 0, 0), (3, 0, 0)], 1e-5)


def test_gradients_of_any_batch_and_length():
    def slopes(method, *arrays):
        def loss(arrays):
            return jnp.sum(ak.attend(*arrays, kernel=ak.Gaussian(0.8), method=method) ** 2)

        return dict(zip("qkv", jax.grad(loss)(arrays), strict=True))

    def gradients(*arrays):
        return {name: slopes(method, *arrays) for name, method in METHODS.items()}

    def dense(*arrays):
        return dict.fromkeys(METHODS, slopes(ak.Dense(), *arrays))

    shapes = [("b", "n", 2), ("b", "m", 2), ("b", "m", 3)]
    require_equal(gradients, shapes, SIZES[:2], 1e-4, dense)


def test_multihead_attention_of_any_batch_and_length():
    key = jax.random.key(0)
    modules = {
        "plain": ak.MultiheadAttention(2, 4, key=key),
        "causal": ak.MultiheadAttention(2, 4, prior=ak.Causal(), rotary=ak.Rotary(), key=key),
        "grouped": ak.MultiheadAttention(2, 4, num_kv_heads=1, qk_norm=True, key=key),
        "dropout": ak.MultiheadAttention(2, 4, dropout_p=0.5, key=key),
        "linear": ak.MultiheadAttention(2, 4, kernel=ak.Gaussian(1.0), order=1, ridge=0.1, key=key),
    }

    def outputs(x):
        return {
            name: jax.vmap(lambda row, module=module: module(row, row, row, key=key))(x)
            for name, module in modules.items()
        }

    require_equal(outputs, [("b", "n", 4)], SIZES, 1e-4)


def test_regression_and_linear_attention_of_any_length():
    features = ak.RandomFeatures(16, 2, key=jax.random.key(0))

    def predictions(q, x, y):
        orders = {
            f"order {p}": ak.KernelRegression(ak.Gaussian(1.0), order=p)(
                jnp.sin(q), jnp.sin(x), y[:, 0]
            )
            for p in (0, 1, 2)
        }
        linear = ak.Linear(features=features)
        causal = ak.attend(x, x, y, kernel=ak.Gaussian(1.0), prior=ak.Causal(), method=linear)
        others = {
            "bias reduced": ak.BiasReduced(ak.KernelRegression(ak.Gaussian(1.0)), 2)(q, x, y[:, 0]),
            "nearest": ak.KernelRegression(ak.Boxcar(0.2), on_empty="nearest")(q, x, y[:, 0]),
        }
        return orders | others | {"linear": causal}

    require_equal(predictions, [("n", 2), ("m", 2), ("m", 1)], [(1, 5, 90), (1, 70, 40)], 1e-3)


@pytest.mark.parametrize(
    ("method", "kernel"),
    [
        (ak.Sorted(), ak.Laplace(0.5)),
        (ak.Fourier(), ak.Gaussian(0.5)),
        (ak.Fused(), ak.DotProduct()),
        (ak.Sharded(), ak.Gaussian(0.5)),
    ],
)
def test_other_methods_refuse_symbolic_sizes(method, kernel):
    n, m = export.symbolic_shape("n, m")
    shapes = [jax.ShapeDtypeStruct((rows, 1), jnp.float32) for rows in (n, m, m)]

    def attended(q, k, v):
        return ak.attend(q, k, v, kernel=kernel, method=method)

    with pytest.raises(ValueError, match=r"symbolic sizes of jax\.export; use Dense"):
        export.export(jax.jit(attended))(*shapes)


def test_auto_selects_blockwise_for_symbolic_sizes():
    n, m = export.symbolic_shape("n, m")
    q, k = (jax.ShapeDtypeStruct((rows, 1), jnp.float32) for rows in (n, m))
    selection = ak.select_method(q, k, k, kernel=ak.Gaussian(0.3))
    assert isinstance(selection.method, ak.Blockwise)
    assert "not Dense: the number of scores is symbolic" in str(selection)

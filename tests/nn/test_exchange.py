"""Exchange with Equinox and PyTorch: checkpoints, masks, arguments; results of PyTorch's modules,
stored by `torch_modules.py`; strict promotion."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, drawn_by_numpy, rows_of
from marks import slow
from refusals import assert_raises
from torch_modules import CASES, HEADS, rows_of_case, state_of

import attnkernel as ak
from attnkernel import priors
from attnkernel.methods import Dense

SIZE, ROWS = 6, 5
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
    classes = (eqx.nn.MultiheadAttention, ak.MultiheadAttention)
    theirs, ours = (built(cls, HEADS, SIZE, **options) for cls in classes)
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


def multihead(x):
    module = built(ak.MultiheadAttention, 3, SIZE, rotary=ak.Rotary())
    cast = lambda leaf: leaf.astype(x.dtype) if eqx.is_inexact_array(leaf) else leaf  # noqa: E731
    return jax.tree.map(cast, module)(x, x, x)


GAUSSIAN, SORTED = ({"kernel": kernel} for kernel in (ak.Gaussian(1.0), ak.Laplace(1.0)))
TABLE = priors.RelativeBias(8, max_distance=16)
CALLS = {
    "temperature": lambda x: ak.attend(x, x, x, **GAUSSIAN, rule=ak.Softmax(jnp.asarray(2.0))),
    "blocks": lambda x: ak.attend(x, x, x, **GAUSSIAN, method=ak.methods.Blockwise(2, 2)),
    "sorted": lambda x: ak.attend(x[:, 1:2], x[:, :1], x, **SORTED, method=ak.methods.Sorted()),
    "entmax": lambda x: ak.attend(x, x, x, **GAUSSIAN, rule=ak.Entmax(1.5)),
    "table": lambda x: ak.attend(x, x, x, **GAUSSIAN, prior=TABLE),
    "local lines": lambda x: ak.KernelRegression(ak.Gaussian(1.0), order=1)(x, x, x[:, 0]),
    "module": multihead,
}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "atol"), [(jnp.bfloat16, 0.1), (jnp.float16, 0.02)])
def test_half_precision_where_implicit_promotion_is_forbidden(dtype, atol):
    """In float32 inside: the strict mode of JAX forbids users' mixtures, not ours."""

    @jax.jit
    def results(x):
        expected = {name: call(x) for name, call in CALLS.items()}
        with jax.numpy_dtype_promotion("strict"):
            return expected, {name: call(x.astype(dtype)) for name, call in CALLS.items()}

    expected, half = jax.device_get(results(X))
    for name, out in half.items():
        assert out.dtype == dtype
        found = out.astype(np.float32)
        np.testing.assert_allclose(found, expected[name], atol=atol, err_msg=name)


RESULTS = json.loads(Path(__file__).with_name("torch_modules.json").read_text())


class Tensor:
    """What a tensor of PyTorch answers."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def __array__(self, dtype=None, copy=None):
        return self.array


def in_float32(arrays):
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def module_like_torch(case):
    """What a module of PyTorch answers."""
    state = {name: Tensor(array) for name, array in state_of(case).items()}
    zeros = CASES[case].get("add_zero_attn", False)
    return SimpleNamespace(state_dict=lambda: state, num_heads=HEADS, add_zero_attn=zeros)


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_pytorch(x64, case):
    *rows, mask = rows_of_case(case)
    with drawn_by_numpy():
        attention = ak.nn.from_torch(module_like_torch(case))
    assert isinstance(attention, ak.nn.PersistentMemory) == ("add_bias_kv" in CASES[case])
    found = eqx.filter_jit(attention)(*rows, mask)
    np.testing.assert_allclose(found, RESULTS[case], rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_a_layer_of_a_larger_model_in_float32():
    case = "packed"
    *rows, mask = rows_of_case(case)
    arrays = in_float32(state_of(case))
    state = {f"layers.0.attn.{name}": array for name, array in arrays.items()}
    state["layers.0.norm.weight"] = np.ones(3, np.float32)
    with drawn_by_numpy():
        attention = ak.nn.from_torch(state, HEADS, prefix="layers.0.attn.", method=Dense())
    assert attention.query_proj.weight.dtype == jnp.float32
    found = eqx.filter_jit(attention)(*rows, mask)
    np.testing.assert_allclose(found, RESULTS[case], atol=1e-4)
    message = r"must have 'layers.0.out_proj.weight'; .*attn.in_proj"
    assert_raises(message, ak.nn.from_torch, state, HEADS, prefix="layers.0.")


def test_memory_is_seen_by_every_query_and_trained(x64):
    """A query that sees no key gets the mean of the memory, with finite gradients."""
    case = "row of bias, other sizes"
    module = ak.nn.from_torch(state_of(case), HEADS)
    rows = [jax.device_put(part) for part in rows_of_case(case)[:3]]

    @eqx.filter_jit
    def loss_and_slope(memory, prior):
        def loss(memory):
            out = memory(*rows, prior=prior)
            return jnp.sum(out**2), out

        return eqx.filter_value_and_grad(loss, has_aux=True)(memory)

    (_, out), slope = loss_and_slope(module, ak.priors.HeldOut(np.ones(7, bool)))
    last = module.attention.output_proj
    expected = np.asarray(last.weight) @ np.asarray(module.values).ravel() + np.asarray(last.bias)
    np.testing.assert_allclose(out, np.tile(expected, (5, 1)), rtol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    assert np.abs(np.asarray(slope.values)).min() > 0


TWO = {"num_heads": 2}


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {}, "give it, such as num_heads=8"),
        ({}, {"num_heads": 4}, "num_heads must divide the size of the weights, 6"),
        ({"out_proj.weight": None}, TWO, r"must have 'out_proj.weight'"),
        ({"in_proj_bias": np.ones(6)}, TWO, r"in_proj_bias must have shape \(18,\)"),
        ({"bias_k": np.ones((1, 1, 6))}, TWO, "must have 'bias_v'"),
        ({"norm.weight": np.ones(6)}, TWO, "has names that .* has not"),
        ({}, TWO | {"qk_size": 4}, "The weights decide qk_size"),
        ({}, TWO | {"add_zero_attn": True, "rule": ak.Softmax(2.0)}, "add_zero_attn sets rule"),
    ],
)
def test_what_does_not_fit_is_refused(changes, options, sentence):
    assert_raises(sentence, ak.nn.from_torch, in_float32(state_of("packed")) | changes, **options)


def test_a_memory_needs_weighted_means():
    one, memory = built(ak.MultiheadAttention, 2, 6, order=1), np.ones((2, 1, 2, 3))
    assert_raises("attention must have order 0", ak.nn.PersistentMemory, one, *memory)

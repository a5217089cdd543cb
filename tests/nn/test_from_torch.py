"""Weights of PyTorch: results of its modules, stored by `torch_modules.py`."""

import json
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_modules import built, drawn_by_numpy
from torch_modules import CASES, HEADS, rows_of_case, state_of

import attnkernel as ak
from attnkernel.methods import Dense

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
    state = {
        f"layers.0.attn.{name}": array.astype(np.float32) for name, array in state_of(case).items()
    }
    state["layers.0.norm.weight"] = np.ones(3, np.float32)
    with drawn_by_numpy():
        attention = ak.nn.from_torch(state, HEADS, prefix="layers.0.attn.", method=Dense())
    assert attention.query_proj.weight.dtype == jnp.float32
    found = eqx.filter_jit(attention)(*rows, mask)
    np.testing.assert_allclose(found, RESULTS[case], atol=1e-4)
    with pytest.raises(ValueError, match=r"must have 'layers.0.out_proj.weight'; .*attn.in_proj"):
        ak.nn.from_torch(state, HEADS, prefix="layers.0.")


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

    hidden = ak.priors.HeldOut(np.ones(7, bool))
    (_, out), slope = loss_and_slope(module, hidden)
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
    state = {name: array.astype(np.float32) for name, array in state_of("packed").items()}
    with pytest.raises(ValueError, match=sentence):
        ak.nn.from_torch(state | changes, **options)


def test_a_memory_needs_weighted_means():
    one = built(ak.MultiheadAttention, 2, 6, order=1)
    with pytest.raises(ValueError, match="attention must have order 0"):
        ak.nn.PersistentMemory(one, *np.ones((2, 1, 2, 3)))
